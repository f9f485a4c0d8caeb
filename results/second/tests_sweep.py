"""The tests of the second study: two shapes at three times the largest compute of fit_sweep.py, one of them wider.

    python -m launch.sweep --sweep=results/second/tests_sweep.py --workdir=runs/second/tests --mix=config

Not to be started before predictions.csv is committed.
"""

from results.second.fit_sweep import MILLION, ROWS

BUDGETS = {96: 25, 120: 13}  # d_model: millions of tokens; 8e13 FLOPs


def get_sweep():
    return "configs/bytes_2026_tuned.py", [
        {"model.d_model": d_model, "model.n_experts": n_experts, "n_tokens": (millions * MILLION,), **ROWS}
        for d_model, millions in BUDGETS.items()
        for n_experts in (1, 4, 16)
    ]
