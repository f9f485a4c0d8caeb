"""1,000 plans of joint-moe-2025 under drawn constraints, as commit 79624f6 answered them.

python tests/data/before/make_plans.py

writes plans.npy beside this file: [1000, 4], the best number of experts, its n_active, n_tokens and loss; NaN where
nothing is feasible.
"""

import dataclasses
import os
import pathlib
import random
import sys

import numpy as np

EXPERTS = (1, 2, 4, 8, 16, 32, 64)
PATH = pathlib.Path(__file__).with_name("plans.npy")


def constraints(count=1000, seed=5):
    """Fields of Constraints and of Architecture, drawn."""
    rng = random.Random(seed)
    power = lambda low, high: 10 ** rng.uniform(low, high)
    for _ in range(count):
        flops = power(17, 26) if rng.random() < 0.85 else None
        limits = dict(flops=flops, bytes_per_parameter=rng.choice([1.0, 2.0, 4.0]))
        if flops is None or rng.random() < 0.6:
            limits["memory_bytes"] = power(8, 13)
        if flops is None or rng.random() < 0.4:
            limits["max_tokens"] = power(9, 13.5)
        if flops is not None and rng.random() < 0.5:
            limits["inference_tokens"] = power(8, 14)
        limits["kv_tokens"] = rng.choice([0.0, power(3, 7)])
        yield limits, dict(vocab_size=rng.choice([257, 32_000, 50_257]), width_per_block=rng.choice([64, 128]))


def answers():
    """float64 [1000, 4]."""
    from fit.lawbook.lawfile import load
    from fit.planning.optimum import Constraints, solve
    from fit.shape.architecture import Architecture

    law, rows = load("joint-moe-2025"), []
    names = {field.name for field in dataclasses.fields(Constraints)}
    for limits, shape in constraints():
        assert limits.keys() <= names
        best = solve(law, np.array(EXPERTS, float), Architecture(**shape), Constraints(**limits))
        i = int(np.nanargmin(best.loss)) if best.feasible.any() else 0
        rows.append([getattr(best, name)[i] for name in ("n_experts", "n_active", "n_tokens", "loss")])
    return np.array(rows)


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())
    np.save(PATH, answers())
