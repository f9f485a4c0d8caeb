"""Sparsity at laptop size, after Abnar et al. 2025: one expert a token and their number growing, three sizes, two
budgets of equal FLOPs; then the same weights in finer experts.

python -m launch.sweep --sweep=configs/sweeps/sparsity_small.py --workdir=runs/sparsity
python -m fit surface --runs=runs/sparsity/runs.csv --out=runs/sparsity/surface.svg
python -m fit law --runs=runs/sparsity/runs.csv --form=sparsity,joint,chinchilla

30 runs of 15 models, then 4 of two finer ones: 16 and 32 experts of which a token uses 2 and 4, of a half and a quarter
of the width.
"""

from configs import quickstart
from jmoe.config import counts

BUDGETS = (2e11, 5e11)  # FLOPs, 6 n_active n_tokens
WIDTHS, EXPERTS = (16, 24, 32), (1, 2, 4, 8, 16)
FINE = ((16, 2), (32, 4))  # (experts, of which a token uses), the weights of 8 experts


def get_sweep():
    """(config file, one dict of overrides for each model; its budgets share a trunk)."""
    jobs = [{"model.d_model": d_model, "model.n_experts": e} for d_model in WIDTHS for e in EXPERTS]
    jobs += [
        {"model.n_experts": e, "model.top_k": k, "model.d_expert": 3 * 24 // k, "model.d_model": 24} for e, k in FINE
    ]
    for job in jobs:
        config = quickstart.get_config()
        config.update_from_flattened_dict(job)
        per_token = counts.training_flops(counts.n_active(config.model), 1)
        job["n_tokens"] = tuple(round(flops / per_token) for flops in BUDGETS)
    return "configs/quickstart.py", jobs
