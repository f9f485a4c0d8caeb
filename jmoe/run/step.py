"""The mathematics of one step: loss, gradient, optimizer and evaluation, compiled; no files, no clocks.

Axis legend: B rows, T positions (a batch holds T + 1 tokens a row: inputs and targets), N tokens, V vocabulary,
D d_model, C chunks of tokens. Functions ending in `_local` run inside sharding.per_device.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from jmoe.config.check import microbatch_tokens
from jmoe.errors import UserError
from jmoe.model import sharding
from jmoe.model.decoder import FLOAT32, Decoder

LOGITS_BYTES = 2**26  # float32 logits of one chunk on one device, unless the head's gradient is larger
SUMMED = ("load_balance", "router_z")  # over layers; the other metrics of a layer are averaged


def make_optimizer(config) -> optax.GradientTransformation:
    """AdamW on everything, after clipping by global norm; the learning rate is applied outside."""
    return optax.chain(
        optax.clip_by_global_norm(config.grad_clip),
        optax.scale_by_adam(config.b1, config.b2),
        optax.add_decayed_weights(config.weight_decay),
    )


def init_params(config, seed=None) -> dict:
    """Float32 parameters as a plain tree with the names of sharding.PARAMETERS; the same on any mesh.

    A `seed` given as a traced uint32 stands for config.seed, so that seeds share one compiled program.
    """
    seed = np.uint32(config.seed % 2**32) if seed is None else seed
    return nnx.to_pure_dict(nnx.state(Decoder(config.model, nnx.Rngs(params=jax.random.key(seed)))))


def abstract_state(config, mesh):
    """(params, opt_state) as ShapeDtypeStructs placed on `mesh`."""
    abstract = jax.eval_shape(lambda: init_params(config))
    params = jax.tree.map(
        lambda a, s: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s),
        abstract,
        sharding.parameter_shardings(mesh, abstract),
    )
    with jax.set_mesh(mesh):
        opt_state = jax.eval_shape(make_optimizer(config.optimizer).init, params)
    place = lambda a: jax.NamedSharding(mesh, a.sharding.spec if a.sharding else sharding.REPLICATED)
    return params, jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=place(a)), opt_state)


def decode_local(params, tokens_BT, config, capacity_factor):
    """Decoder.__call__ on a plain tree of parameters."""
    # here and not in each block: the scan would move float32 weights in both passes, and float32 gradients
    cast = lambda name, weight: weight if name in FLOAT32 else weight.astype(config.model.dtype)
    params = params | {"blocks": {name: cast(name, weight) for name, weight in params["blocks"].items()}}
    graphdef, state = nnx.split(nnx.eval_shape(lambda: Decoder(config.model, nnx.Rngs(params=0))))
    nnx.replace_by_pure_dict(state, params)
    return nnx.merge(graphdef, state)(tokens_BT, config.model, capacity_factor, config.remat, config.unroll)


def apply_model(params, tokens_BT, config, capacity_factor, mesh):
    """All float32 logits_BTV: for looking at small models, not for training."""

    def local(params, tokens_BT):
        x_BTD, head_DV, _ = decode_local(params, tokens_BT, config, capacity_factor)
        return (x_BTD @ head_DV).astype(jnp.float32)

    specs = sharding.parameter_specs(params), sharding.TOKENS
    return sharding.per_device(local, mesh, specs, sharding.TOKENS)(params, tokens_BT)


def _chunks(x_ND, target_N, vocab_size):
    """x_CND and target_CN, in the fewest equal chunks whose logits fit LOGITS_BYTES or twice the head's gradient.

    Each chunk reads and writes that gradient: shorter ones would do little else.
    """
    n, d_model = x_ND.shape
    most = max(LOGITS_BYTES // (4 * vocab_size), 2 * d_model)
    chunks = next(c for c in range(1, n + 1) if n % c == 0 and n // c <= most)
    return x_ND.reshape(chunks, n // chunks, -1), target_N.reshape(chunks, -1)


def _logits_and_nats(x_ND, head_DV, target_N):
    logits_NV = jnp.matmul(x_ND, head_DV, preferred_element_type=jnp.float32)
    lse_N = jax.nn.logsumexp(logits_NV, axis=-1)
    return logits_NV, lse_N, lse_N - jnp.take_along_axis(logits_NV, target_N[:, None], axis=-1)[:, 0]


def cross_entropy(x_ND, head_DV, target_N):
    """Nats of each token; logits exist a chunk at a time."""
    x_CND, target_CN = _chunks(x_ND, target_N, head_DV.shape[1])
    return jax.lax.map(lambda args: _logits_and_nats(args[0], head_DV, args[1])[2], (x_CND, target_CN)).reshape(-1)


@jax.custom_vjp
def mean_cross_entropy(x_ND, head_DV, target_N):
    """Mean of `cross_entropy`; its gradient is computed along with the value, so that no logit is made twice."""
    return jnp.mean(cross_entropy(x_ND, head_DV, target_N))


def _mean_cross_entropy_forward(x_ND, head_DV, target_N):
    n_tokens, vocab_size = len(x_ND), head_DV.shape[1]

    def chunk(carry, args):
        total, dhead_DV = carry
        x_ND, target_N = args
        logits_NV, lse_N, nats_N = _logits_and_nats(x_ND, head_DV, target_N)
        dlogits_NV = jnp.exp(logits_NV - lse_N[:, None]) - (jnp.arange(vocab_size) == target_N[:, None])
        dlogits_NV = (dlogits_NV / n_tokens).astype(x_ND.dtype)
        dhead_DV += jnp.matmul(x_ND.T, dlogits_NV, preferred_element_type=jnp.float32)
        return (total + jnp.sum(nats_N), dhead_DV), dlogits_NV @ head_DV.T

    zero = jnp.zeros((), jnp.float32) * jnp.sum(x_ND[:1, :1].astype(jnp.float32))
    start = zero, jnp.zeros(head_DV.shape, jnp.float32) + zero
    (total, dhead_DV), dx_CND = jax.lax.scan(chunk, start, _chunks(x_ND, target_N, vocab_size))
    return total / n_tokens, (dx_CND.reshape(x_ND.shape), dhead_DV.astype(head_DV.dtype))


def _mean_cross_entropy_backward(residual, g):
    dx_ND, dhead_DV = residual
    return dx_ND * g.astype(dx_ND.dtype), dhead_DV * g.astype(dhead_DV.dtype), None


mean_cross_entropy.defvjp(_mean_cross_entropy_forward, _mean_cross_entropy_backward)


def _shared_out(a_BT, *arrays):
    """Flat tokens of this device for the head: the devices of the model axis take a part of each row's positions."""
    arrays, size = [a_BT, *arrays], jax.lax.axis_size("model")
    if size > 1:
        part = a_BT.shape[1] // size
        start = jax.lax.axis_index("model") * part
        arrays = [jax.lax.dynamic_slice_in_dim(sharding.vary(a, "model"), start, part, axis=1) for a in arrays]
    return [a.reshape(-1, *a.shape[2:]) for a in arrays]


def loss_fn(params, batch, config, mesh):
    """Cross-entropy plus weighted balance and z losses, summed over layers; batch [B, T + 1].

    Returns:
      loss, and metrics: cross_entropy (nats per token), moe.METRICS over all layers, and `layers`: the same by layer.
    """

    def local(params, batch):
        x_BTD, head_DV, layers = decode_local(params, batch[:, :-1], config, config.model.capacity_factor)
        target_N, x_ND = _shared_out(batch[:, 1:], x_BTD)
        nats = mean_cross_entropy(x_ND, sharding.vary(head_DV, "model"), target_N)
        return sharding.mean(nats), jax.tree.map(lambda m: sharding.mean(m, sharding.ROWS), layers)

    specs = sharding.parameter_specs(params), sharding.TOKENS
    nats, layers = sharding.per_device(local, mesh, specs, sharding.REPLICATED)(params, batch)
    if not layers:
        return nats, {"cross_entropy": nats}
    means = {name: jnp.sum(m) if name in SUMMED else jnp.mean(m) for name, m in layers.items()}
    loss = nats + config.loss.load_balance * means["load_balance"] + config.loss.router_z * means["router_z"]
    return loss, {"cross_entropy": nats} | means | {"layers": layers}


def gradient(params, batch, config, mesh):
    """((loss, metrics), gradient) of loss_fn over a batch [B, T + 1], config.microbatch_tokens at a time.

    The loss is a mean over groups of tokens, and every microbatch holds equally many whole groups of each device: so the
    mean over microbatches is the batch's, of the same groups, whatever their number.
    """
    one = lambda rows: jax.value_and_grad(loss_fn, has_aux=True)(params, rows, config, mesh)
    n_tokens, micro = batch.shape[0] * (batch.shape[1] - 1), microbatch_tokens(config)
    if micro in (0, n_tokens):
        return one(batch)
    n = n_tokens // micro
    split = lambda rows: rows.reshape(n, -1, rows.shape[1])  # of each device's own rows, so that none moves
    microbatches = sharding.per_device(split, mesh, (sharding.TOKENS,), sharding.MICROBATCHES)(batch)

    def add(total, rows):
        values, grads = one(rows)
        return jax.tree.map(jnp.add, total, grads), values

    total, values = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), microbatches)
    return jax.tree.map(lambda x: jnp.mean(x, axis=0), values), jax.tree.map(lambda x: x / n, total)


def make_train_step(config, mesh):
    """The compiled step (params, opt_state, batch [B, T + 1], learning rate) -> (params, opt_state, metrics)."""
    optimizer = make_optimizer(config.optimizer)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def train_step(params, opt_state, batch, learning_rate):
        (loss, metrics), grads = gradient(params, batch, config, mesh)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        params = jax.tree.map(lambda p, u: p - learning_rate * u, params, updates)
        return params, opt_state, {"loss": loss} | metrics | {"grad_norm": optax.tree.norm(grads)}

    return train_step


def make_eval_step(config, mesh):
    """The compiled (params, batch [B, T + 1], weight [B]) -> (summed nats, tokens), nothing dropped."""

    def local(params, batch, weight_B):
        x_BTD, head_DV, _ = decode_local(params, batch[:, :-1], config, None)
        weight_BT = jnp.broadcast_to(weight_B[:, None], batch[:, 1:].shape)
        target_N, weight_N, x_ND = _shared_out(batch[:, 1:], weight_BT, x_BTD)
        nats_N = cross_entropy(x_ND, sharding.vary(head_DV, "model"), target_N)
        sums = jnp.stack([jnp.sum(nats_N * weight_N), jnp.sum(weight_N)])
        return sharding.total(sums)

    @jax.jit
    def eval_step(params, batch, weight):
        specs = sharding.parameter_specs(params), sharding.TOKENS, sharding.TOKENS
        return sharding.per_device(local, mesh, specs, sharding.REPLICATED)(params, batch, weight)

    return eval_step


def mean_loss(eval_step, params, batches) -> float:
    """Nats per token over the (batch, weight) pairs of data.validation_batches.

    Raises:
      UserError: it is not finite.
    """
    sums = []
    for batch in batches:
        sums.append(eval_step(params, *batch))
        jax.block_until_ready(sums[-2:-1])  # two steps on their way: many at once can lock up XLA's CPU backend
    nats, n_tokens = np.sum(jax.device_get(sums), axis=0, dtype=np.float64)
    if not np.isfinite(nats):
        raise UserError("the validation loss is not finite")
    return float(nats / n_tokens)
