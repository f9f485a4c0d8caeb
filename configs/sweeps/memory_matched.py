"""Fig. 1b: dense 1.1B against E = 2 and 4 of equal memory (total parameters), each budget at equal training FLOPs.

python -m launch.sweep --sweep=configs/sweeps/memory_matched.py --workdir=DIR --backend=slurm|gke

The models are those of App. H with d_model 1664, 1408 and 1152 (1.10B, 1.10B and 1.07B in total). The budgets of E = 2
and 4 have the FLOPs of the dense ones; App. H prints them rounded. memory_matched_small.py is the same at laptop size.
"""

from collections.abc import Sequence

from ml_collections import ConfigDict

from configs import joint_moe
from jmoe.config import counts

DENSE_TOKENS = (500_000_000, 1_000_000_000, *(2_000_000_000 * k for k in range(1, 9)))


def get_sweep() -> tuple[str, list[dict]]:
    """Returns the config file, and a dict of overrides for each model."""
    models = ((1664, 1), (1408, 2), (1152, 4))
    return "configs/joint_moe.py", matched(joint_moe.get_config(), models, DENSE_TOKENS)


def matched(
    config: ConfigDict, models: Sequence[tuple[int, int]], dense_tokens: Sequence[int]
) -> list[dict[str, object]]:
    """Returns overrides for models of equal training FLOPs.

    Args:
        config: the config that the models share.
        models: (d_model, n_experts) of each model, the dense one first.
        dense_tokens: the budgets of the dense model; the others get tokens with the same FLOPs.
    """
    jobs = []
    budgets: list[float] = []  # FLOPs
    for d_model, n_experts in models:
        config.model.d_model = d_model
        config.model.n_experts = n_experts
        n_active = counts.n_active(config.model)
        if not budgets:
            budgets = [counts.training_flops(n_active, n_tokens) for n_tokens in dense_tokens]
        flops_per_token = counts.training_flops(n_active, 1)
        n_tokens = tuple(round(flops / flops_per_token) for flops in budgets)
        jobs.append({"model.d_model": d_model, "model.n_experts": n_experts, "n_tokens": n_tokens})
    return jobs
