"""The compiled steps: gradient over microbatches, optimizer, evaluation; no files, no clocks.

Axes (jmoe/model/__init__.py): B, E, T; L layers.
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int
from ml_collections import ConfigDict

from jmoe.errors import UserError
from jmoe.model import mup, sharding
from jmoe.model.loss import Batch, loss_fn, position_parts, sums_without_drops
from jmoe.model.parameters import init_params, parameter_shardings
from jmoe.model.routing import is_count, updated_bias
from jmoe.model.transformer import describe
from jmoe.run import muon, spikes

Tree = Any  # a nested dict of arrays; optax's own type of trees is wider than dict
Metrics = dict[str, Any]  # arrays by name; `layers` holds those of each layer


def trained(params: dict, model: ConfigDict) -> dict:
    """A tree of parameters, or of their gradients, without the routers' bias, which no gradient moves."""
    return _without_biases(params, describe(model))


def _without_biases(params: dict, descriptions: dict) -> dict:
    branch = {}
    for name, value in params.items():
        described = descriptions[name]
        if isinstance(described, dict):
            branch[name] = _without_biases(value, described)
        elif described.kind.role != "bias":
            branch[name] = value
    return branch


def make_optimizer(config: ConfigDict) -> optax.GradientTransformation:
    """AdamW, or Muon and AdamW, on all parameters of `trained`, after clipping by global norm.

    With config.optimizer.skip_above it skips spikes (spikes.skip_spikes). The caller applies the learning rate.
    """
    chain = [optax.clip_by_global_norm(config.optimizer.grad_clip), scale_by_optimizer(config)]
    factors = mup.factors(config)
    if factors is not None:
        chain.append(_scale_by_tree(trained(factors.rate, config.model)))
    chain.append(optax.add_decayed_weights(config.optimizer.weight_decay))
    optimizer = optax.chain(*chain)
    skip_above = config.optimizer.skip_above
    if skip_above:
        optimizer = spikes.skip_spikes(optimizer, skip_above)

    def init(params: Tree) -> optax.OptState:
        return optimizer.init(trained(params, config.model))

    def update(updates: Tree, state: optax.OptState, params: Tree = None) -> tuple[optax.Updates, optax.OptState]:
        return optimizer.update(trained(updates, config.model), state, trained(params, config.model))

    return optax.GradientTransformation(init, update)


def scale_by_optimizer(config: ConfigDict) -> optax.GradientTransformation:
    """The optimizer that config.optimizer.name names, of rate 1 and without weight decay."""
    optimizer = config.optimizer
    make = {
        "adamw": functools.partial(optax.scale_by_adam, optimizer.b1, optimizer.b2),
        "muon": functools.partial(muon.scale_by_muon_and_adam, config),
    }[optimizer.name]
    return make()


def _scale_by_tree(factors: dict) -> optax.GradientTransformation:
    """Multiplies each update by its factor."""

    def scale(updates: optax.Updates, _: optax.Params | None) -> optax.Updates:
        return jax.tree.map(jnp.multiply, updates, factors)

    return optax.stateless(scale)


def abstract_state(config: ConfigDict, mesh: jax.sharding.Mesh) -> tuple[dict, optax.OptState]:
    """(params, opt_state) as ShapeDtypeStructs placed on `mesh`."""

    def placed(array: jax.ShapeDtypeStruct, place: jax.NamedSharding) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=place)

    def placed_on_mesh(array: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        """An array of the optimizer: spread as eval_shape derived it from the parameters, else whole on each device."""
        spec = array.sharding.spec if array.sharding else sharding.REPLICATED
        return placed(array, jax.NamedSharding(mesh, spec))

    def initial() -> dict:
        return init_params(config)

    params = jax.tree.map(placed, jax.eval_shape(initial), parameter_shardings(mesh, config.model))
    with jax.set_mesh(mesh):
        opt_state = jax.eval_shape(make_optimizer(config).init, params)
    return params, jax.tree.map(placed_on_mesh, opt_state)


def gradient(
    params: dict, batch: Batch, config: ConfigDict, mesh: jax.sharding.Mesh, end_of_text: int | None = None
) -> tuple[tuple[Float[Array, ""], Metrics], dict]:
    """((loss, metrics), gradient) of loss_fn over a batch, config.microbatch_tokens at a time.

    Arguments are as of loss_fn.

    The loss is a mean over groups of tokens, and every microbatch holds equally many entire groups of each device. So
    the mean over microbatches is the mean over the batch's groups, however many microbatches there are.
    """

    def gradient_of_rows(rows: Batch) -> tuple[tuple[Float[Array, ""], Metrics], dict]:
        return jax.value_and_grad(loss_fn, has_aux=True)(params, rows, config, mesh, end_of_text)

    n_rows, row_tokens = batch.shape
    n_tokens = n_rows * (row_tokens - 1)
    micro = config.microbatch_tokens
    if micro in (0, n_tokens):
        return gradient_of_rows(batch)
    n_microbatches = n_tokens // micro

    def split(rows: Batch) -> Int[Array, "n_microbatches B T+1"]:
        """Splits each device's own rows, so that none moves."""
        return rows.reshape(n_microbatches, -1, rows.shape[1])

    def add(total: dict, rows: Batch) -> tuple[dict, tuple[Float[Array, ""], Metrics]]:
        loss_and_metrics, grads = gradient_of_rows(rows)
        return jax.tree.map(jnp.add, total, grads), loss_and_metrics

    def over_microbatches(x: Array) -> Array:
        """The value for the batch from those of the microbatches, which lie along the first axis."""
        return jnp.sum(x, axis=0) if is_count(x) else jnp.mean(x, axis=0)

    microbatches = sharding.per_device(split, mesh, (sharding.tokens(mesh),), sharding.microbatches(mesh))(batch)
    total, loss_and_metrics = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), microbatches)
    mean_gradient = jax.tree.map(lambda x: x / n_microbatches, total)
    return jax.tree.map(over_microbatches, loss_and_metrics), mean_gradient


def make_train_step(config: ConfigDict, mesh: jax.sharding.Mesh, end_of_text: int | None = None) -> jax.stages.Wrapped:
    """The compiled step (params, opt_state, batch [B, T + 1], learning rate) -> (params, opt_state, metrics).

    end_of_text: the token that ends a document, where a token sees only its own (corpus.mask_token); else None.
    """
    optimizer = make_optimizer(config)
    bias_rate = config.optimizer.bias_rate
    has_bias = config.model.balance == "bias" and config.model.n_experts > 1
    reports_choices = config.router_health
    skips_spikes = config.optimizer.skip_above > 0

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def train_step(
        params: dict, opt_state: optax.OptState, batch: Batch, learning_rate: Float[Array, ""]
    ) -> tuple[dict, optax.OptState, Metrics]:
        (loss, metrics), grads = gradient(params, batch, config, mesh, end_of_text)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        # minus: the optimizer's updates point along the gradient, since it has no learning rate (optax: -lr)
        updated = jax.tree.map(lambda p, u: p - learning_rate * u, trained(params, config.model), updates)
        skipping = spikes.metrics(opt_state) if skips_spikes else {}
        if has_bias:  # load balancing moves the routers' bias, which the optimizer does not have
            bias_LE = params["blocks"]["mlp"]["router_bias"]
            chosen_LE = metrics["chosen"] if reports_choices else metrics.pop("chosen")
            new_bias_LE = updated_bias(bias_LE, chosen_LE, bias_rate)
            if skipping:
                new_bias_LE = jnp.where(skipping["skipped"], bias_LE, new_bias_LE)
            updated["blocks"]["mlp"]["router_bias"] = new_bias_LE
        grad_norm = optax.tree.norm(trained(grads, config.model))
        return updated, opt_state, {"loss": loss} | metrics | skipping | {"grad_norm": grad_norm}

    return train_step


def make_eval_step(config: ConfigDict, mesh: jax.sharding.Mesh, end_of_text: int | None = None) -> jax.stages.Wrapped:
    """The compiled (params, batch [B, T + 1], weight [B]) -> loss.sums_without_drops; end_of_text: as of the step."""
    return jax.jit(functools.partial(sums_without_drops, config=config, mesh=mesh, end_of_text=end_of_text))


Batches = Iterable[tuple[Batch, Float[Array, " B"]]]  # and how often each row counts


def mean_losses(eval_step: Callable[..., Array], params: dict, batches: Batches) -> tuple[float, dict[str, float]]:
    """Nats per token over the (batch, weight) pairs of batches.validation_batches, and the same by the position in a
    row: {"loss_1_2": ..., "loss_3_4": ..., "loss_5_8": ...}. UserError where it is not finite."""
    of_all, _ = losses_of_sources(eval_step, params, {"": batches})
    return of_all


def losses_of_sources(
    eval_step: Callable[..., Array], params: dict, sources: Mapping[str, Batches]
) -> tuple[tuple[float, dict[str, float]], dict[str, float]]:
    """mean_losses over all that batches.validation_sources returns, and nats per token on each source of several."""
    sums_of_sources = {}
    for name, batches in sources.items():
        sums = []
        for batch, weight in batches:
            sums.append(eval_step(params, batch, weight))
            jax.block_until_ready(sums[-2:-1])  # at most two steps in flight: many can lock up XLA's CPU backend
        sums_of_sources[name] = np.sum(jax.device_get(sums), axis=0, dtype=np.float64)
    n_positions = batch.shape[1] - 1  # of the last batch; all batches have rows of one length
    first, *others = sums_of_sources.values()
    of_all = _means(sum(others, start=first), n_positions)
    if len(sums_of_sources) == 1:
        return of_all, {}
    return of_all, {name: _means(sums, n_positions)[0] for name, sums in sums_of_sources.items()}


def _means(sums: np.ndarray, n_positions: int) -> tuple[float, dict[str, float]]:
    """(mean loss, loss by position), as of mean_losses, from the sums of an eval step over all batches."""
    nats, n_tokens, *of_parts = sums.tolist()
    if not np.isfinite(nats):
        raise UserError("the validation loss is not finite")
    by_position = {
        f"loss_{first}_{last}": part / (n_tokens / n_positions) / (last - first + 1)
        for (first, last), part in zip(position_parts(n_positions), of_parts, strict=True)
    }
    return nats / n_tokens, by_position
