"""The compiled steps: gradient over microbatches, optimizer, evaluation; no files, no clocks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jmoe.config.check import microbatch_tokens
from jmoe.config.schema import NEUTRAL
from jmoe.errors import UserError
from jmoe.model import mup, sharding
from jmoe.model.decoder import init_params
from jmoe.model.loss import loss_fn, position_parts, sums_without_drops
from jmoe.model.routing import is_count, moved_bias
from jmoe.run import muon


def trained(params: dict) -> dict:
    """A tree of parameters, or of their gradients, without the routers' bias, which no gradient moves."""
    if "router_bias" not in params.get("blocks", ()):
        return params
    return params | {"blocks": {name: x for name, x in params["blocks"].items() if name != "router_bias"}}


def make_optimizer(config) -> optax.GradientTransformation:
    """AdamW, or Muon and AdamW, on all parameters of `trained`, after clipping by global norm; the caller applies the
    learning rate."""
    optimizer = config.optimizer
    scale = {
        "adamw": lambda: optax.scale_by_adam(optimizer.b1, optimizer.b2),
        "muon": lambda: muon.scale_by_muon_and_adam(config),
    }[optimizer.get("name", NEUTRAL["optimizer.name"])]
    factors = mup.factors(config)
    by_weight = lambda updates, _: jax.tree.map(jnp.multiply, updates, trained(factors[1]))
    chain = optax.chain(
        optax.clip_by_global_norm(optimizer.grad_clip),
        scale(),
        *[optax.stateless(by_weight)] * bool(factors),
        optax.add_decayed_weights(optimizer.weight_decay),
    )
    return optax.GradientTransformation(
        lambda params: chain.init(trained(params)),
        lambda grads, state, params: chain.update(trained(grads), state, trained(params)),
    )


def abstract_state(config, mesh):
    """(params, opt_state) as ShapeDtypeStructs placed on `mesh`."""
    params = jax.tree.map(
        lambda a, s: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s),
        jax.eval_shape(lambda: init_params(config)),
        sharding.parameter_shardings(mesh, config.model),
    )
    with jax.set_mesh(mesh):
        opt_state = jax.eval_shape(make_optimizer(config).init, params)
    place = lambda a: jax.NamedSharding(mesh, a.sharding.spec if a.sharding else sharding.REPLICATED)
    return params, jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=place(a)), opt_state)


def gradient(params, batch, config, mesh):
    """((loss, metrics), gradient) of loss_fn over a batch [B, T + 1], config.microbatch_tokens at a time.

    The loss is a mean over groups of tokens, and every microbatch holds equally many entire groups of each device. So
    the mean over microbatches is the mean over the batch's groups, however many microbatches there are.
    """
    one = lambda rows: jax.value_and_grad(loss_fn, has_aux=True)(params, rows, config, mesh)
    n_tokens, micro = batch.shape[0] * (batch.shape[1] - 1), microbatch_tokens(config)
    if micro in (0, n_tokens):
        return one(batch)
    n = n_tokens // micro
    split = lambda rows: rows.reshape(n, -1, rows.shape[1])  # splits each device's own rows, so that none moves
    microbatches = sharding.per_device(split, mesh, (sharding.TOKENS,), sharding.MICROBATCHES)(batch)

    def add(total, rows):
        values, grads = one(rows)
        return jax.tree.map(jnp.add, total, grads), values

    total, values = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), microbatches)
    over_microbatches = lambda x: (jnp.sum if is_count(x) else jnp.mean)(x, axis=0)
    return jax.tree.map(over_microbatches, values), jax.tree.map(lambda x: x / n, total)


def make_train_step(config, mesh):
    """The compiled step (params, opt_state, batch [B, T + 1], learning rate) -> (params, opt_state, metrics)."""
    optimizer = make_optimizer(config)
    rate = config.optimizer.get("bias_rate", NEUTRAL["optimizer.bias_rate"])

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def train_step(params, opt_state, batch, learning_rate):
        (loss, metrics), grads = gradient(params, batch, config, mesh)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        moved = jax.tree.map(lambda p, u: p - learning_rate * u, trained(params), updates)
        if "chosen" in metrics:
            bias_E = params["blocks"]["router_bias"]
            moved["blocks"]["router_bias"] = moved_bias(bias_E, metrics.pop("chosen"), rate)
        return moved, opt_state, {"loss": loss} | metrics | {"grad_norm": optax.tree.norm(trained(grads))}

    return train_step


def make_eval_step(config, mesh):
    """The compiled (params, batch [B, T + 1], weight [B]) -> loss.sums_without_drops."""
    return jax.jit(functools.partial(sums_without_drops, config=config, mesh=mesh))


def mean_losses(eval_step, params, batches) -> tuple[float, dict[str, float]]:
    """Nats per token over the (batch, weight) pairs of batches.validation_batches, and the same by the position in a
    row: {"loss_1_2": ..., "loss_3_4": ..., "loss_5_8": ...}. UserError where it is not finite."""
    of_all, _ = losses_of_sources(eval_step, params, {"": batches})
    return of_all


def losses_of_sources(eval_step, params, sources) -> tuple[tuple[float, dict[str, float]], dict[str, float]]:
    """mean_losses over all that batches.validation_sources returns, and nats per token on each source of several."""
    sums_of_sources = {}
    for name, batches in sources.items():
        sums = []
        for batch, weight in batches:
            sums.append(eval_step(params, batch, weight))
            jax.block_until_ready(sums[-2:-1])  # at most two steps in flight: many can lock up XLA's CPU backend
        sums_of_sources[name] = np.sum(jax.device_get(sums), axis=0, dtype=np.float64)
    n_positions = batch.shape[1] - 1  # alike in all batches
    of_all = _means(sum(sums_of_sources.values()), n_positions)
    if len(sums_of_sources) == 1:
        return of_all, {}
    return of_all, {name: _means(sums, n_positions)[0] for name, sums in sums_of_sources.items()}


def _means(sums: np.ndarray, n_positions: int) -> tuple[float, dict[str, float]]:
    """What mean_losses returns, of the sum over batches of what the eval step returns."""
    nats, n_tokens, *of_parts = sums.tolist()
    if not np.isfinite(nats):
        raise UserError("the validation loss is not finite")
    by_position = {
        f"loss_{first}_{last}": part / (n_tokens / n_positions) / (last - first + 1)
        for (first, last), part in zip(position_parts(n_positions), of_parts)
    }
    return nats / n_tokens, by_position
