"""The test runs of results/: models at three times the largest compute of bytes_2026_fit.py, held out from the fit.

python -m launch.sweep --sweep=configs/sweeps/bytes_2026_tests.py --workdir=runs/bytes_2026/tests
"""

MILLION = 2**20
BUDGETS = {96: 27, 120: 14}  # d_model: millions of tokens; 1.5e13 active parameters times tokens


def get_sweep() -> tuple[str, list[dict]]:
    """Returns the config file, and a dict of overrides for each job."""
    return "configs/bytes_2026_tuned.py", [
        {"model.d_model": d_model, "model.n_experts": n_experts, "n_tokens": (millions * MILLION,)}
        for d_model, millions in BUDGETS.items()
        for n_experts in (1, 4, 16)
    ]
