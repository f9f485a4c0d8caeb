"""The mathematics of one step: loss, gradient, optimizer and evaluation, compiled; no files, no clocks.

Axis legend: B rows, T positions (a batch holds T + 1 tokens a row: inputs and targets), V vocabulary.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from jmoe import sharding
from jmoe.cli import UserError
from jmoe.model import Decoder


def make_optimizer(config) -> optax.GradientTransformation:
    """AdamW on everything, after clipping by global norm; the learning rate is applied outside."""
    return optax.chain(
        optax.clip_by_global_norm(config.grad_clip),
        optax.scale_by_adam(config.b1, config.b2),
        optax.add_decayed_weights(config.weight_decay),
    )


def init_params(config) -> dict:
    """Float32 parameters as a plain tree with the names of sharding.PARAMETERS; the same on any mesh."""
    return nnx.to_pure_dict(nnx.state(Decoder(config.model, nnx.Rngs(params=config.seed))))


def abstract_state(config, mesh):
    """(params, opt_state) as ShapeDtypeStructs placed on `mesh`: what a step takes, a checkpoint holds, a compiler needs."""
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


def apply_model(params, tokens_BT, config, capacity_factor, mesh):
    """Decoder.__call__ on a plain tree of parameters."""
    graphdef, state = nnx.split(nnx.eval_shape(lambda: Decoder(config.model, nnx.Rngs(params=0))))
    nnx.replace_by_pure_dict(state, params)
    return nnx.merge(graphdef, state)(tokens_BT, config.model, capacity_factor, mesh)


def loss_fn(params, batch, config, mesh):
    """Cross-entropy plus weighted balance and z losses, summed over layers; batch [B, T + 1].

    Returns:
      loss, and metrics: cross_entropy (nats per token), moe.METRICS, losses summed and the rest averaged over layers.
    """
    logits_BTV, layers = apply_model(params, batch[:, :-1], config, config.model.capacity_factor, mesh)
    cross_entropy = jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits_BTV, batch[:, 1:]))
    metrics = {"cross_entropy": cross_entropy}
    loss = cross_entropy
    if layers:
        summed = {"load_balance", "router_z"}
        metrics |= {name: jnp.sum(x) if name in summed else jnp.mean(x) for name, x in layers.items()}
        loss += config.loss.load_balance * metrics["load_balance"] + config.loss.router_z * metrics["router_z"]
    return loss, metrics


def make_train_step(config, mesh):
    """The compiled step (params, opt_state, batch [B, T + 1], learning rate) -> (params, opt_state, metrics)."""
    optimizer = make_optimizer(config.optimizer)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def train_step(params, opt_state, batch, learning_rate):
        (loss, metrics), grads = jax.value_and_grad(loss_fn, has_aux=True)(params, batch, config, mesh)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        params = jax.tree.map(lambda p, u: p - learning_rate * u, params, updates)
        return params, opt_state, metrics | {"loss": loss, "grad_norm": optax.tree.norm(grads)}

    return train_step


def make_eval_step(config, mesh):
    """The compiled (params, batch [B, T + 1], weight [B]) -> (summed nats, tokens), nothing dropped."""

    @jax.jit
    def eval_step(params, batch, weight):
        logits_BTV, _ = apply_model(params, batch[:, :-1], config, None, mesh)
        nats_BT = optax.softmax_cross_entropy_with_integer_labels(logits_BTV, batch[:, 1:])
        return jnp.sum(nats_BT * weight[:, None]), jnp.sum(weight) * nats_BT.shape[1]

    return eval_step


def mean_loss(eval_step, params, batches) -> float:
    """Nats per token over the (batch, weight) pairs of data.validation_batches.

    Raises:
      UserError: it is not finite.
    """
    sums = [eval_step(params, *batch) for batch in batches]
    nats, n_tokens = np.sum(jax.device_get(sums), axis=0, dtype=np.float64)
    if not np.isfinite(nats):
        raise UserError("the validation loss is not finite")
    return float(nats / n_tokens)
