"""Fig. 1b: dense 1.1B against E = 2 and 4 of equal memory (total parameters), each budget at equal training FLOPs.

python -m launch.sweep --sweep=configs/sweeps/memory_matched.py --workdir=DIR --backend=slurm|gke

The models are App. H's of d_model 1664, 1408 and 1152 (1.10B, 1.10B and 1.07B in total), and the budgets of E = 2 and 4
have the FLOPs of the dense ones; App. H prints them rounded. memory_matched_small.py is the same at laptop size.
"""

from configs import joint_moe
from jmoe.config import counts

DENSE_TOKENS = (500_000_000, 1_000_000_000, *(2_000_000_000 * k for k in range(1, 9)))


def get_sweep():
    """(config file, one dict of overrides for each model)."""
    return "configs/joint_moe.py", matched(joint_moe.get_config(), ((1664, 1), (1408, 2), (1152, 4)), DENSE_TOKENS)


def matched(config, models, dense_tokens):
    """Overrides for each (d_model, n_experts) in `models`, with the FLOPs of the first on each of `dense_tokens`."""
    jobs, flops = [], None
    for d_model, n_experts in models:
        config.model.d_model, config.model.n_experts = d_model, n_experts
        flops = flops or [counts.training_flops(counts.n_active(config.model), n_tokens) for n_tokens in dense_tokens]
        per_token = counts.training_flops(counts.n_active(config.model), 1)
        n_tokens = tuple(round(f / per_token) for f in flops)
        jobs.append({"model.d_model": d_model, "model.n_experts": n_experts, "n_tokens": n_tokens})
    return jobs
