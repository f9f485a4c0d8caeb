"""The loss of the model over a mesh: the head's cross-entropy a piece at a time, and the mixtures' auxiliary losses.

Axes (jmoe/model/__init__.py): B rows, T positions (a batch holds T + 1 tokens a row: inputs and targets), D, N, V,
Y parts of a row, Z pieces of the tokens.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Num
from ml_collections import ConfigDict

from jmoe.model import sharding, transformer
from jmoe.model.parameters import parameter_specs
from jmoe.model.routing import is_count

LOGITS_BYTES = 2**26  # float32 logits of one piece on one device; more where the head's gradient is large
SUMMED = ("load_balance", "router_z")  # over layers; the other metrics of a layer are averaged
Batch = Int[Array, "B T+1"]


def loss_fn(
    params: dict,
    batch: Batch,
    config: ConfigDict,
    mesh: jax.sharding.Mesh,
    end_of_text: int | None = None,
) -> tuple[Float[Array, ""], dict[str, Array | dict[str, Array]]]:
    """Cross-entropy plus weighted balance and z losses, summed over layers.

    Args:
      params: init_params' tree, over the whole mesh.
      batch: rows of T + 1 tokens, over the whole mesh.
      config: of the run.
      mesh: of sharding.make_mesh.
      end_of_text: as of transformer.apply.

    Returns:
      loss, and metrics: cross_entropy (nats per token), routing.METRICS over all layers, `layers`: the same by layer.
      With config.loss.logit_z also `logit_z`, the loss of the logits before that weight. With
      config.model.balance="bias" or config.router_health also `chosen`, int32 [layers, E]: choices of each expert. With
      "bias" there is no balance loss.
    """
    logit_z = config.loss.logit_z

    def over_rows(metric: Array) -> Array:
        if is_count(metric):
            return sharding.total(metric, sharding.ALL_ROWS)
        return sharding.mean(metric, sharding.ALL_ROWS)

    def local(params: dict, batch: Batch) -> tuple[Float[Array, ""], dict[str, Array], dict[str, Array]]:
        x_BTD, head_DV, layers = transformer.apply(
            params, batch[:, :-1], config, training=True, end_of_text=end_of_text
        )
        target_N, x_ND = _tokens_of_this_device(batch[:, 1:], x_BTD)
        head_DV = sharding.vary(head_DV, ("model",))
        if logit_z:
            loss, nats, z = cross_entropy_and_z(x_ND, head_DV, target_N, logit_z)
            of_head = {"cross_entropy": sharding.mean(nats), "logit_z": sharding.mean(z)}
        else:
            loss = mean_cross_entropy(x_ND, head_DV, target_N)
            of_head = {}
        return sharding.mean(loss), of_head, jax.tree.map(over_rows, layers)

    specs = (parameter_specs(config.model, mesh.shape), sharding.tokens(mesh))
    loss, of_head, layers = sharding.per_device(local, mesh, specs, sharding.REPLICATED)(params, batch)
    of_head = {"cross_entropy": loss} | of_head
    if not layers:
        return loss, of_head
    chosen = {name: metric for name, metric in layers.items() if is_count(metric)}
    layers = {name: metric for name, metric in layers.items() if name not in chosen}
    means = {name: jnp.sum(m) if name in SUMMED else jnp.mean(m) for name, m in layers.items()}
    if config.model.balance == "loss":
        loss += config.loss.load_balance * means["load_balance"]
    loss += config.loss.router_z * means["router_z"]
    return loss, of_head | means | {"layers": layers} | chosen


def position_parts(seq_len: int) -> list[tuple[int, int]]:
    """(first, last) position of each part of a row, from 1 on: 1-2, 3-4, 5-8, 9-16, ... up to seq_len."""
    powers = [2**i for i in range(1, max(seq_len - 1, 1).bit_length())]
    return [(before + 1, end) for before, end in itertools.pairwise([0, *powers, seq_len])]


def sums_without_drops(  # noqa: PLR0913  most are bound once
    params: dict,
    batch: Batch,
    weight: Float[Array, " B"],
    config: ConfigDict,
    mesh: jax.sharding.Mesh,
    end_of_text: int | None = None,
) -> Float[Array, " 2+Y"]:
    """[summed nats, tokens, summed nats of each of `position_parts`] of a batch, with nothing dropped.

    weight: how often each row counts. Other arguments are as of loss_fn.
    """
    parts = position_parts(batch.shape[1] - 1)
    part_T = np.repeat(np.arange(len(parts), dtype=np.int32), [last - first + 1 for first, last in parts])

    def local(params: dict, batch: Batch, weight_B: Float[Array, " B"]) -> Float[Array, " 2+Y"]:
        x_BTD, head_DV, _ = transformer.apply(params, batch[:, :-1], config, training=False, end_of_text=end_of_text)
        weight_BT = jnp.broadcast_to(weight_B[:, None], batch[:, 1:].shape)
        part_BT = jnp.broadcast_to(part_T, weight_BT.shape)
        target_N, weight_N, part_N, x_ND = _tokens_of_this_device(batch[:, 1:], weight_BT, part_BT, x_BTD)
        nats_N = cross_entropy(x_ND, sharding.vary(head_DV, ("model",)), target_N) * weight_N
        nats_Y = jnp.stack([jnp.sum(nats_N, where=part_N == part) for part in range(len(parts))])
        return sharding.total(jnp.concatenate([jnp.stack([jnp.sum(nats_N), jnp.sum(weight_N)]), nats_Y]))

    specs = (parameter_specs(config.model, mesh.shape), sharding.tokens(mesh), sharding.tokens(mesh))
    return sharding.per_device(local, mesh, specs, sharding.REPLICATED)(params, batch, weight)


def _tokens_of_this_device(*arrays: Num[Array, "B T ..."]) -> list[Num[Array, "N ..."]]:
    """The tokens of this device's head, flattened: each device of the model axis takes a part of a row's positions."""
    size = jax.lax.axis_size("model")
    parts = list(arrays)
    if size > 1:
        length = arrays[0].shape[1] // size
        start = jax.lax.axis_index("model") * length
        parts = [jax.lax.dynamic_slice_in_dim(sharding.vary(a, ("model",)), start, length, axis=1) for a in arrays]
    return [part.reshape(-1, *part.shape[2:]) for part in parts]


def _pieces(
    x_ND: Float[Array, "N D"], target_N: Int[Array, " N"], vocab_size: int
) -> tuple[Float[Array, "Z N D"], Int[Array, "Z N"]]:
    """Tokens in the fewest equal pieces whose logits take at most LOGITS_BYTES, or twice what the head's gradient takes
    if that is more; on a GPU four times.

    Each piece reads and writes the whole gradient of the head: shorter pieces would do little else.
    """
    n, d_model = x_ND.shape
    times = 4 if sharding.platform() == "gpu" else 2
    most = max(LOGITS_BYTES // (4 * vocab_size), times * d_model)
    z = next(z for z in range(1, n + 1) if n % z == 0 and n // z <= most)
    return x_ND.reshape(z, n // z, -1), target_N.reshape(z, -1)


def logsumexp_in_one_pass(logits_NV: Float[Array, "N V"]) -> Float[Array, " N"]:
    """jax.nn.logsumexp of each row, which reads the logits once instead of twice, for the maximum and for the sum.

    A partial result is the largest logit so far, and the sum of exp(logit - largest) (Milakov and Gimelshein 2018,
    arXiv:1805.02867). It has no gradient. CPUs run such a reduction one number after another.
    """
    Partial = tuple[Float[Array, "..."], Float[Array, "..."]]

    def join(a: Partial, b: Partial) -> Partial:
        largest = jnp.maximum(a[0], b[0])
        return largest, a[1] * jnp.exp(a[0] - largest) + b[1] * jnp.exp(b[0] - largest)

    nothing = jnp.finfo(logits_NV.dtype).min, jnp.zeros((), logits_NV.dtype)  # -inf - -inf would be NaN
    largest_N, sum_N = jax.lax.reduce((logits_NV, jnp.ones_like(logits_NV)), nothing, join, (1,))
    return largest_N + jnp.log(sum_N)


def _logits_and_nats(
    x_ND: Float[Array, "N D"], head_DV: Float[Array, "D V"], target_N: Int[Array, " N"]
) -> tuple[Float[Array, "N V"], Float[Array, " N"], Float[Array, " N"]]:
    """Float32 logits, their logsumexp, and the nats of each token."""
    logits_NV = jnp.matmul(x_ND, head_DV, preferred_element_type=jnp.float32)
    lse_N = logsumexp_in_one_pass(logits_NV) if sharding.platform() == "gpu" else jax.nn.logsumexp(logits_NV, axis=-1)
    return logits_NV, lse_N, lse_N - jnp.take_along_axis(logits_NV, target_N[:, None], axis=-1)[:, 0]


def cross_entropy(
    x_ND: Float[Array, "N D"], head_DV: Float[Array, "D V"], target_N: Int[Array, " N"]
) -> Float[Array, " N"]:
    """Nats of each token; logits exist a piece at a time."""

    def nats_of_piece(piece: tuple[Float[Array, "N D"], Int[Array, " N"]]) -> Float[Array, " N"]:
        x_ND, target_N = piece
        _, _, nats_N = _logits_and_nats(x_ND, head_DV, target_N)
        return nats_N

    return jax.lax.map(nats_of_piece, _pieces(x_ND, target_N, head_DV.shape[1])).reshape(-1)


@jax.custom_vjp
def mean_cross_entropy(
    x_ND: Float[Array, "N D"], head_DV: Float[Array, "D V"], target_N: Int[Array, " N"]
) -> Float[Array, ""]:
    """Mean of `cross_entropy`.

    JAX's own gradient would keep all logits, or make them twice. This one is computed along with the value, a piece at
    a time, and sums the head's gradient in float32.
    """
    return jnp.mean(cross_entropy(x_ND, head_DV, target_N))


Gradients = tuple[Float[Array, "N D"], Float[Array, "D V"]]  # of x_ND and head_DV


def _means_and_gradients(
    x_ND: Float[Array, "N D"], head_DV: Float[Array, "D V"], target_N: Int[Array, " N"], logit_z: float
) -> tuple[list[Float[Array, ""]], Gradients]:
    """Means over the tokens, and the gradient of mean nats + logit_z times z.

    Returns:
      [the mean of the nats], with logit_z also z, the mean square of log sum exp; and the gradients.
    """
    n_tokens = len(x_ND)
    vocab_size = head_DV.shape[1]
    Carry = tuple[list[Float[Array, ""]], Float[Array, "D V"]]

    def add_piece(
        carry: Carry, piece: tuple[Float[Array, "N D"], Int[Array, " N"]]
    ) -> tuple[Carry, Float[Array, "N D"]]:
        totals, dhead_DV = carry
        x_ND, target_N = piece
        logits_NV, lse_N, nats_N = _logits_and_nats(x_ND, head_DV, target_N)
        probability_NV = jnp.exp(logits_NV - lse_N[:, None])
        values = [nats_N]
        if logit_z:
            probability_NV *= 1 + 2 * logit_z * lse_N[:, None]
            values.append(lse_N**2)
        dlogits_NV = probability_NV - (jnp.arange(vocab_size) == target_N[:, None])
        dlogits_NV = (dlogits_NV / n_tokens).astype(x_ND.dtype)
        dhead_DV += jnp.matmul(x_ND.T, dlogits_NV, preferred_element_type=jnp.float32)
        totals = [total + jnp.sum(value_N) for total, value_N in zip(totals, values, strict=True)]
        return (totals, dhead_DV), dlogits_NV @ head_DV.T

    # the carry of a scan keeps its type: zeros that differ over the mesh as x does
    zero = jnp.zeros((), jnp.float32) * jnp.sum(x_ND[:1, :1].astype(jnp.float32))
    start = ([zero] * (2 if logit_z else 1), jnp.zeros(head_DV.shape, jnp.float32) + zero)
    (totals, dhead_DV), dx_ZND = jax.lax.scan(add_piece, start, _pieces(x_ND, target_N, vocab_size))
    means = [total / n_tokens for total in totals]
    return means, (dx_ZND.reshape(x_ND.shape), dhead_DV.astype(head_DV.dtype))


def _mean_cross_entropy_fwd(
    x_ND: Float[Array, "N D"], head_DV: Float[Array, "D V"], target_N: Int[Array, " N"]
) -> tuple[Float[Array, ""], Gradients]:
    (nats,), gradients = _means_and_gradients(x_ND, head_DV, target_N, 0.0)
    return nats, gradients


def _mean_cross_entropy_bwd(
    gradients: Gradients, g: Float[Array, ""]
) -> tuple[Float[Array, "N D"], Float[Array, "D V"], None]:
    dx_ND, dhead_DV = gradients
    return dx_ND * g.astype(dx_ND.dtype), dhead_DV * g.astype(dhead_DV.dtype), None


mean_cross_entropy.defvjp(_mean_cross_entropy_fwd, _mean_cross_entropy_bwd)

LossAndParts = tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def cross_entropy_and_z(
    x_ND: Float[Array, "N D"], head_DV: Float[Array, "D V"], target_N: Int[Array, " N"], logit_z: float
) -> LossAndParts:
    """(loss, nats, z): mean nats + logit_z times z, and its parts, which have no gradient of their own.

    z is the mean square of the logits' log sum exp, which keeps the logits from drifting (Chowdhery et al. 2022,
    PaLM, Sec. 5). The gradient is computed along with the value, as that of mean_cross_entropy is.
    """
    return _cross_entropy_and_z_fwd(x_ND, head_DV, target_N, logit_z)[0]


def _cross_entropy_and_z_fwd(
    x_ND: Float[Array, "N D"], head_DV: Float[Array, "D V"], target_N: Int[Array, " N"], logit_z: float
) -> tuple[LossAndParts, Gradients]:
    (nats, z), gradients = _means_and_gradients(x_ND, head_DV, target_N, logit_z)
    return (nats + logit_z * z, nats, z), gradients


def _cross_entropy_and_z_bwd(
    logit_z: float, gradients: Gradients, g: LossAndParts
) -> tuple[Float[Array, "N D"], Float[Array, "D V"], None]:
    return _mean_cross_entropy_bwd(gradients, g[0])


cross_entropy_and_z.defvjp(_cross_entropy_and_z_fwd, _cross_entropy_and_z_bwd)
