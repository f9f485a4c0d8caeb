"""The second pilot of the second study, in rows of 16 bytes: learning rates, the seeds' noise, drops at E = 16.

python -m launch.sweep --sweep=results/second/rates_sweep.py --workdir=runs/second/rates --mix=config
"""

import math

from results.second.pilot_sweep import TUNED

SHAPES = [(d_model, n_experts) for d_model in (48, 96) for n_experts in (1, 16)]


def job(d_model, n_experts, rate=1.0, seed=0, **more):
    """rate: times the tuned rate of the first study."""
    return {
        "model.d_model": d_model,
        "model.n_experts": n_experts,
        "data.seq_len": 16,
        "optimizer.lr_law.constant": TUNED + math.log(rate),
        "seed": seed,
        "n_tokens": (2_097_152,),
        **more,
    }


def get_sweep():
    jobs = [job(*shape, rate) for rate in (1.0, 0.5, 2.0) for shape in SHAPES]
    jobs += [job(48, n_experts, seed=seed) for n_experts in (1, 16) for seed in (1, 2)]
    jobs += [job(96, 16, seed=1), job(48, 16, **{"loss.load_balance": 0.1})]
    return "configs/bytes_2026_tuned.py", jobs
