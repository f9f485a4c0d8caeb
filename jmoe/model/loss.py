"""The loss of the model over a mesh: the head's cross-entropy a piece at a time, and the mixtures' auxiliary losses.

Axes (jmoe/model/__init__.py): B rows, T positions (a batch holds T + 1 tokens a row: inputs and targets), D, N, V, Z.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jmoe.config.schema import setting
from jmoe.model import sharding
from jmoe.model.decoder import decode
from jmoe.model.routing import is_count

LOGITS_BYTES = 2**26  # float32 logits of one piece on one device; more where the head's gradient is large
SUMMED = ("load_balance", "router_z")  # over layers; the other metrics of a layer are averaged


def loss_fn(params, batch, config, mesh):
    """Cross-entropy plus weighted balance and z losses, summed over layers; batch [B, T + 1].

    Returns:
      loss, and metrics: cross_entropy (nats per token), routing.METRICS over all layers, `layers`: the same by layer.
      With config.model.balance="bias" also `chosen`, int32 [layers, E]: choices of each expert, and no balance loss.
    """

    def local(params, batch):
        x_BTD, head_DV, layers = decode(params, batch[:, :-1], config, training=True)
        target_N, x_ND = _shared_out(batch[:, 1:], x_BTD)
        nats = mean_cross_entropy(x_ND, sharding.vary(head_DV, "model"), target_N)
        over_rows = lambda m: (sharding.total if is_count(m) else sharding.mean)(m, sharding.ROWS)
        return sharding.mean(nats), jax.tree.map(over_rows, layers)

    specs = sharding.parameter_specs(config.model), sharding.TOKENS
    nats, layers = sharding.per_device(local, mesh, specs, sharding.REPLICATED)(params, batch)
    if not layers:
        return nats, {"cross_entropy": nats}
    chosen = {name: layers.pop(name) for name in [*layers] if is_count(layers[name])}
    means = {name: jnp.sum(m) if name in SUMMED else jnp.mean(m) for name, m in layers.items()}
    loss = nats
    if setting(config.model, "balance") == "loss":
        loss += config.loss.load_balance * means["load_balance"]
    loss += config.loss.router_z * means["router_z"]
    return loss, {"cross_entropy": nats} | means | {"layers": layers} | chosen


def position_parts(seq_len: int) -> list[tuple[int, int]]:
    """(first, last) position of each part of a row, from 1 on: 1-2, 3-4, 5-8, 9-16, ... up to seq_len."""
    ends = [0, *(2**i for i in range(1, max(seq_len - 1, 1).bit_length())), seq_len]
    return [(before + 1, end) for before, end in zip(ends, ends[1:])]


def sums_without_drops(params, batch, weight, config, mesh):
    """[summed nats, tokens, summed nats of each of `position_parts`] of a batch [B, T + 1] whose rows count `weight`
    [B] times, nothing dropped."""
    parts = position_parts(batch.shape[1] - 1)
    part_T = np.repeat(np.arange(len(parts), dtype=np.int32), [last - first + 1 for first, last in parts])

    def local(params, batch, weight_B):
        x_BTD, head_DV, _ = decode(params, batch[:, :-1], config, training=False)
        weight_BT = jnp.broadcast_to(weight_B[:, None], batch[:, 1:].shape)
        part_BT = jnp.broadcast_to(part_T, weight_BT.shape)
        target_N, weight_N, part_N, x_ND = _shared_out(batch[:, 1:], weight_BT, part_BT, x_BTD)
        nats_N = cross_entropy(x_ND, sharding.vary(head_DV, "model"), target_N) * weight_N
        nats_P = jnp.stack([jnp.sum(nats_N, where=part_N == p) for p in range(len(parts))])
        return sharding.total(jnp.concatenate([jnp.stack([jnp.sum(nats_N), jnp.sum(weight_N)]), nats_P]))

    specs = sharding.parameter_specs(config.model), sharding.TOKENS, sharding.TOKENS
    return sharding.per_device(local, mesh, specs, sharding.REPLICATED)(params, batch, weight)


def _shared_out(a_BT, *arrays):
    """The tokens of this device's head, flattened: each device of the model axis takes a part of a row's positions."""
    arrays, size = [a_BT, *arrays], jax.lax.axis_size("model")
    if size > 1:
        part = a_BT.shape[1] // size
        start = jax.lax.axis_index("model") * part
        arrays = [jax.lax.dynamic_slice_in_dim(sharding.vary(a, "model"), start, part, axis=1) for a in arrays]
    return [a.reshape(-1, *a.shape[2:]) for a in arrays]


def _pieces(x_ND, target_N, vocab_size):
    """x_ZND and target_ZN, in the fewest equal pieces whose logits fit LOGITS_BYTES or twice the head's gradient.

    Each piece reads and writes the whole gradient of the head: shorter pieces would do little else.
    """
    n, d_model = x_ND.shape
    most = max(LOGITS_BYTES // (4 * vocab_size), 2 * d_model)
    z = next(z for z in range(1, n + 1) if n % z == 0 and n // z <= most)
    return x_ND.reshape(z, n // z, -1), target_N.reshape(z, -1)


def _logits_and_nats(x_ND, head_DV, target_N):
    logits_NV = jnp.matmul(x_ND, head_DV, preferred_element_type=jnp.float32)
    lse_N = jax.nn.logsumexp(logits_NV, axis=-1)
    return logits_NV, lse_N, lse_N - jnp.take_along_axis(logits_NV, target_N[:, None], axis=-1)[:, 0]


def cross_entropy(x_ND, head_DV, target_N):
    """Nats of each token; logits exist a piece at a time."""
    pieces = _pieces(x_ND, target_N, head_DV.shape[1])
    return jax.lax.map(lambda args: _logits_and_nats(args[0], head_DV, args[1])[2], pieces).reshape(-1)


@jax.custom_vjp
def mean_cross_entropy(x_ND, head_DV, target_N):
    """Mean of `cross_entropy`; its gradient is computed along with the value, so that no logit is made twice."""
    return jnp.mean(cross_entropy(x_ND, head_DV, target_N))


def _mean_cross_entropy_forward(x_ND, head_DV, target_N):
    n_tokens, vocab_size = len(x_ND), head_DV.shape[1]

    def piece(carry, args):
        total, dhead_DV = carry
        x_ND, target_N = args
        logits_NV, lse_N, nats_N = _logits_and_nats(x_ND, head_DV, target_N)
        dlogits_NV = jnp.exp(logits_NV - lse_N[:, None]) - (jnp.arange(vocab_size) == target_N[:, None])
        dlogits_NV = (dlogits_NV / n_tokens).astype(x_ND.dtype)
        dhead_DV += jnp.matmul(x_ND.T, dlogits_NV, preferred_element_type=jnp.float32)
        return (total + jnp.sum(nats_N), dhead_DV), dlogits_NV @ head_DV.T

    zero = jnp.zeros((), jnp.float32) * jnp.sum(x_ND[:1, :1].astype(jnp.float32))
    start = zero, jnp.zeros(head_DV.shape, jnp.float32) + zero
    (total, dhead_DV), dx_ZND = jax.lax.scan(piece, start, _pieces(x_ND, target_N, vocab_size))
    return total / n_tokens, (dx_ZND.reshape(x_ND.shape), dhead_DV.astype(head_DV.dtype))


def _mean_cross_entropy_backward(residual, g):
    dx_ND, dhead_DV = residual
    return dx_ND * g.astype(dx_ND.dtype), dhead_DV * g.astype(dhead_DV.dtype), None


mean_cross_entropy.defvjp(_mean_cross_entropy_forward, _mean_cross_entropy_backward)
