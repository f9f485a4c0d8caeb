"""The learning rate of results/: two widths, dense and E = 16, rates sqrt(2) apart; one width also at 16M tokens.

python -m launch.sweep --sweep=configs/sweeps/bytes_2026_lr.py --workdir=runs/bytes_2026/lr
python -m fit lr --runs=runs/bytes_2026/lr/runs.csv --with_tokens
"""

MILLION = 2**20
RATES = {  # (d_model, n_experts, millions of tokens): config.optimizer.lr_law.constant, around each model's best rate
    (48, 1, 4): (3.75, 4.1, 4.45, 4.8, 5.15),
    (48, 16, 4): (3.75, 4.1, 4.45, 4.8, 5.15, 5.5),
    (96, 1, 4): (4.1, 4.45, 4.8, 5.15, 5.5, 5.85),
    (96, 16, 4): (4.1, 4.45, 4.8, 5.15, 5.5),
    (48, 1, 16): (3.75, 4.1, 4.45, 4.8),
    (48, 16, 16): (3.75, 4.1, 4.45, 4.8, 5.15, 5.5),
}


def get_sweep() -> tuple[str, list[dict]]:
    """Returns the config file, and a dict of overrides for each job."""
    return "configs/bytes_2026.py", [
        {
            "model.d_model": d_model,
            "model.n_experts": n_experts,
            "optimizer.lr_law.constant": rate,
            "n_tokens": (millions * MILLION,),
        }
        for (d_model, n_experts, millions), rates in RATES.items()
        for rate in rates
    ]
