"""AdamW and Muon, each at its best rate of rates_sweep.py, over budgets of a factor of 8 and two seeds.

    python -m launch.sweep --sweep=results/tuned/recipes_sweep.py --workdir=runs/tuned/recipes

For the seeds' noise, and for how many times the compute Muon saves. The second seed has no 4M tokens.
"""

from results.tuned.rates_sweep import MILLION, job

BEST = {  # (d_model, n_experts): peak rates of AdamW and Muon, without mup
    (144, 8): (0.0023, 0.0062),
    (144, 1): (0.0035, 0.0123),
    (96, 8): (0.0035, 0.0070),
    (96, 1): (0.0062, 0.0143),
    (48, 8): (0.0060, 0.0140),
    (48, 1): (0.0110, 0.0230),
}


def get_sweep():
    return "configs/bytes_2026.py", [
        job(
            d_model,
            n_experts,
            optimizer,
            "standard",
            rate,
            seed,
            tuple(MILLION * n // 2 for n in (1, 2, 4, 8)[: 4 - seed]),
        )
        for (d_model, n_experts), rates in BEST.items()
        for optimizer, rate in zip(("adamw", "muon"), rates, strict=True)
        for seed in (0, 1)
    ]
