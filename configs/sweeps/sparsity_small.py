"""Sparsity at laptop size, after Abnar et al. 2025: one expert per token out of more and more, at equal FLOPs.

python -m launch.sweep --sweep=configs/sweeps/sparsity_small.py --workdir=runs/sparsity
python -m fit surface --runs=runs/sparsity/runs.csv --out=runs/sparsity/surface.svg
python -m fit law --runs=runs/sparsity/runs.csv --form=sparsity,joint,chinchilla

30 runs are of 15 models: three widths, five numbers of experts, two budgets. 4 more are of two models with the same
weights in finer experts: a token uses 2 of 16 experts of half the width, and 4 of 32 of a quarter.
"""

from configs import quickstart
from jmoe.config import counts

BUDGETS = (2e11, 5e11)  # FLOPs, 6 n_active n_tokens
WIDTHS = (16, 24, 32)
EXPERTS = (1, 2, 4, 8, 16)
FINE = ((16, 2), (32, 4))  # (experts, experts per token): the weights of 8 experts


def get_sweep() -> tuple[str, list[dict]]:
    """Returns the config file, and a dict of overrides for each model; its budgets share a trunk."""
    jobs = [{"model.d_model": d_model, "model.n_experts": n} for d_model in WIDTHS for n in EXPERTS]
    jobs += [
        {"model.n_experts": n, "model.top_k": k, "model.d_expert": 3 * 24 // k, "model.d_model": 24} for n, k in FINE
    ]
    for job in jobs:
        config = quickstart.get_config()
        config.update_from_flattened_dict(job)
        per_token = counts.training_flops(counts.n_active(config.model), 1)
        job["n_tokens"] = tuple(round(flops / per_token) for flops in BUDGETS)
    return "configs/quickstart.py", jobs
