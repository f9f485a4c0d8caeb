"""What devices send each other for a mixture without a capacity, by config.mesh.expert: an estimate, to choose by.

Rows travel to the devices of their experts and back, twice forward, three times backward (with config.remat = "full").
A device's experts are stored spread over the data axis: they are gathered twice, and their gradients scattered once.
"""

import math

import jax.numpy as jnp

from jmoe.config import counts
from jmoe.config.check import microbatch_tokens
from jmoe.config.fields import setting
from jmoe.model.dispatch import ROOM


def sent_bytes(config, n_devices: int, expert: int) -> float:
    """Bytes that leave a device in a step."""
    model, n_tokens = config.model, max(batch for _, batch in config.batch_tokens)
    data = n_devices // (expert * config.mesh.model)
    mixtures = model.n_blocks - setting(model, "n_dense_blocks")
    rows = 5 * mixtures * n_tokens * setting(model, "top_k") / (data * expert) * ROOM * model.d_model
    experts = counts.n_exact(model, dict(data=1, expert=expert, model=config.mesh.model), ("expert",))
    experts *= 3 * n_tokens // (microbatch_tokens(config) or n_tokens)
    part = lambda n: (n - 1) / n  # of what is exchanged between n devices, leaves them
    return (rows * part(expert) + experts * part(data)) * jnp.dtype(model.dtype).itemsize


def choice(config, n_devices: int) -> dict | None:
    """By config.mesh.expert and by the value of it that sends least: "expert" and "sent_bytes"; None with a capacity,
    or without a mixture."""
    model = config.model
    if model.n_experts == 1 or model.capacity_factor is not None:
        return None
    most = math.gcd(model.n_experts, n_devices // config.mesh.model)
    of = lambda n: {"expert": n, "sent_bytes": sent_bytes(config, n_devices, n)}
    every = [of(n) for n in range(1, most + 1) if most % n == 0]
    return {"here": of(config.mesh.expert), "least": min(every, key=lambda one: one["sent_bytes"])}
