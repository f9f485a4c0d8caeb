"""Narrow experts, a shared expert and the two balancing methods at laptop size: 6 models x 3 seeds.

python -m launch.sweep --sweep=configs/sweeps/mixtures_small.py --workdir=runs/mixtures

Every model has the active parameters of 1 expert of 8. The others use 8 of 64 experts an eighth as wide, or 7 of 64 and
a shared one. Each is balanced by the loss, or by a bias on sigmoid scores. All use the learning rate of 8 experts.
"""

EIGHT = {"model.n_experts": 8, "model.top_k": 1, "model.d_expert": 0, "optimizer.lr_law.constant": 3.75}
FINE = {"model.n_experts": 64, "model.top_k": 8}
SHARED = FINE | {"model.top_k": 7, "model.n_shared_experts": 1}
BIAS = {"model.balance": "bias", "model.scores": "sigmoid"}


def get_sweep() -> tuple[str, list[dict]]:
    """Returns the config file, and a dict of overrides for each job."""
    jobs = [
        model | balance | {"seed": seed, "n_tokens": (1_310_720, 2_621_440)}
        for model in (EIGHT, FINE, SHARED)
        for balance in ({}, BIAS)
        for seed in (0, 1, 2)
    ]
    return "configs/fine_grained.py", jobs
