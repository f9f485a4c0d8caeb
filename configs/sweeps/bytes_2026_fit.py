"""The runs that the law of results/ is fitted to: 4 widths, E from 1 to 16, 32 at the narrowest; 80 runs, 21 trunks.

python -m launch.sweep --sweep=configs/sweeps/bytes_2026_fit.py --workdir=runs/bytes_2026/fit
"""

MILLION = 2**20
BUDGETS = {48: (2, 4, 8, 16, 32), 72: (2, 4, 8, 16), 96: (2, 4, 8), 120: (2, 4, 5)}  # d_model: millions of tokens


def get_sweep():
    """(config file, one dict of overrides for each job)."""
    models = [(d_model, n_experts) for d_model in BUDGETS for n_experts in (1, 2, 4, 8, 16)] + [(48, 32)]
    return "configs/bytes_2026.py", [
        {
            "model.d_model": d_model,
            "model.n_experts": n_experts,
            "n_tokens": tuple(millions * MILLION for millions in BUDGETS[d_model]),
        }
        for d_model, n_experts in models
    ]
