"""The demo's sweep: 3 widths x E in {1, 2, 4, 8} x 3 token budgets = 36 runs from 12 trunks, minutes on two cores.

python -m launch.sweep --sweep=configs/sweeps/quickstart.py --workdir=runs/demo --backend=local

One width continues to 2.6M tokens, where a mixture pays. There the loss of 8 experts is 3.2 to 3.8% below that of the
dense model of equal FLOPs, in each of three seeds, on the source of the standard library and of packages. Below half a
million tokens it is above it.
"""

LARGEST = {16: 1_310_720, 24: 2_621_440, 32: 655_360}  # d_model: tokens of its largest budget


def get_sweep() -> tuple[str, list[dict]]:
    """Returns the config file, and a dict of overrides for each job, which is one trunk with its branches."""
    jobs = [
        {"model.d_model": d_model, "model.n_experts": n_experts, "n_tokens": (n_tokens // 4, n_tokens // 2, n_tokens)}
        for d_model, n_tokens in LARGEST.items()
        for n_experts in (1, 2, 4, 8)
    ]
    return "configs/quickstart.py", jobs
