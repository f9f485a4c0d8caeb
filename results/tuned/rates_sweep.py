"""The peak rate that is best at widths 48, 96 and 144, for AdamW and Muon, with and without mup, E = 1 and 8.

    python -m launch.sweep --sweep=results/tuned/rates_sweep.py --workdir=runs/tuned/rates

Two blocks of heads of 24 at every width, rows of 16 bytes, 1M tokens in 256 steps. mup is standard at width 48.
"""

import math

MILLION = 2**20
RATES = [0.00125 * 2**k for k in range(6)]  # 0.00125 to 0.04


def job(d_model, n_experts, optimizer, parametrization, rate, seed=0, n_tokens=(MILLION,)):
    """rate: the peak; of the weights of width 48, where mup is on."""
    return {
        "model.d_model": d_model,
        "model.n_blocks": 2,
        "model.n_experts": n_experts,
        "optimizer.name": optimizer,
        "parametrization": parametrization,
        "mup_base.d_model": 48,
        "mup_base.n_blocks": 2,
        "mup_base.head_dim": 24,
        "optimizer.lr_law.constant": round(math.log(rate), 6),
        "optimizer.lr_law.n_active": 0.0,
        "optimizer.lr_law.n_experts": 0.0,
        "data.seq_len": 16,
        "seed": seed,
        "n_tokens": n_tokens,
    }


def get_sweep():
    return "configs/bytes_2026.py", [
        job(d_model, n_experts, optimizer, parametrization, rate)
        for d_model in (48, 96, 144)
        for n_experts in (1, 8)
        for optimizer in ("adamw", "muon")
        for parametrization in (("standard",) if d_model == 48 else ("standard", "mup"))
        # a wider standard model's best rate is lower
        for rate in (RATES[1:] if parametrization == "mup" else RATES[:5] if d_model == 144 else RATES)
    ]
