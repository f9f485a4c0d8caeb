"""The fit of the second study, in rows of 16 bytes: 3 widths, E = 1, 4, 16, four budgets over a factor of 8, two seeds.

    python -m launch.sweep --sweep=results/second/fit_sweep.py --workdir=runs/second/fit --mix=config

72 runs on 18 trunks, corners included; the largest has 2.7e13 FLOPs. Width 96 has 8 times the parameters of width 48
without the embedding and the head (6.2 times with them).
"""

MILLION = 2**20
ROWS = {"data.seq_len": 16}


def get_sweep():
    return "configs/bytes_2026_tuned.py", [
        {
            "model.d_model": d_model,
            "model.n_experts": n_experts,
            "seed": seed,
            "n_tokens": tuple(millions * MILLION for millions in (1, 2, 4, 8)),
            **ROWS,
        }
        for seed in (0, 1)
        for d_model in (96, 72, 48)  # the longest first
        for n_experts in (1, 4, 16)
    ]
