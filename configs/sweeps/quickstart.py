"""The demo's sweep: 3 widths x E in {1, 2, 4, 8} x 3 token budgets = 36 runs from 12 trunks, minutes on two cores.

python -m launch.sweep --sweep=configs/sweeps/quickstart.py --workdir=runs/demo --backend=local

One width goes on to 2.6M tokens, where a mixture pays: 8 experts are 3.2 to 3.8% below the dense model of equal FLOPs
there, in each of three seeds, on the source of the standard library and of packages. Below half a million tokens they
are above it.
"""

LARGEST = {16: 1_310_720, 24: 2_621_440, 32: 655_360}  # d_model: tokens of its largest budget


def get_sweep():
    """(config file, one dict of overrides for each job); a job is one trunk with its branches."""
    jobs = [
        {"model.d_model": d_model, "model.n_experts": n_experts, "n_tokens": (n_tokens // 4, n_tokens // 2, n_tokens)}
        for d_model, n_tokens in LARGEST.items()
        for n_experts in (1, 2, 4, 8)
    ]
    return "configs/quickstart.py", jobs
