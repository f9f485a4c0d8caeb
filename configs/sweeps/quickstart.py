"""The demo's sweep: 3 widths x E in {1, 2, 4, 8} x 3 token budgets = 36 runs from 12 trunks, minutes on two cores.

python -m launch.sweep --sweep=configs/sweeps/quickstart.py --workdir=runs/demo --backend=local
"""


def get_sweep():
    """(config file, one dict of overrides for each job); a job is one trunk with its branches."""
    jobs = [
        {"model.d_model": d_model, "model.n_experts": n_experts, "n_tokens": (327_680, 655_360, 1_310_720)}
        for d_model in (16, 24, 32)
        for n_experts in (1, 2, 4, 8)
    ]
    return "configs/quickstart.py", jobs
