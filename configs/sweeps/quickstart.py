"""The demo's sweep: 3 widths x E in {1, 2, 4, 8} x 3 token budgets = 36 runs from 12 trunks, minutes on two cores.

python -m launch.sweep --sweep=configs/sweeps/quickstart.py --workdir=runs/demo --backend=local

Narrow models see more tokens, so that each width gets about the same compute and the mixtures have the time that they need:
below half a million tokens a mixture of 8 experts is worse than the dense model, from a million on better.
"""

LARGEST = {16: 2_621_440, 24: 1_310_720, 32: 983_040}  # d_model: tokens of its largest budget


def get_sweep():
    """(config file, one dict of overrides for each job); a job is one trunk with its branches."""
    jobs = [
        {"model.d_model": d_model, "model.n_experts": n_experts, "n_tokens": (n_tokens // 4, n_tokens // 2, n_tokens)}
        for d_model, n_tokens in LARGEST.items()
        for n_experts in (1, 2, 4, 8)
    ]
    return "configs/quickstart.py", jobs
