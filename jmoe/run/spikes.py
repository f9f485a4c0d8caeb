"""Steps that are skipped because their gradient is far above the usual one (config.optimizer.skip_above).

The norms of the last gradients lie in the optimizer's state. So they are in every checkpoint, and a run that resumes
skips the same steps.

Axes: W the window.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

WINDOW = 128  # steps whose gradient norms the median is of
FEWEST = 32  # steps before the first that may be skipped: early norms fall fast


class SpikeState(NamedTuple):
    """State of `skip_spikes`.

    Attributes:
      inner: The optimizer's own state.
      norm_W: Norms of the last gradients, that of step i at i modulo W; 0 where there was none yet.
      n_steps: Steps so far.
      n_skipped: How many of them were skipped.
      skipped: 1 if the last one was skipped, else 0.
      median: The median that the last step was compared with; 0 before step FEWEST.
    """

    inner: optax.OptState
    norm_W: Float[Array, " W"]
    n_steps: Int[Array, ""]
    n_skipped: Int[Array, ""]
    skipped: Int[Array, ""]
    median: Float[Array, ""]


def skip_spikes(optimizer: optax.GradientTransformation, skip_above: float) -> optax.GradientTransformation:
    """`optimizer`, with updates of zero for a gradient of more than `skip_above` times the last WINDOW's median norm.

    Such a step leaves the optimizer's state as it is, too. Its norm enters the window like any other: where gradients
    stay large, half a window later they are the usual ones.
    """

    def init(params: Any) -> SpikeState:
        count = jnp.zeros((), jnp.int32)
        return SpikeState(
            inner=optimizer.init(params),
            norm_W=jnp.zeros(WINDOW, jnp.float32),
            n_steps=count,
            n_skipped=count,
            skipped=count,
            median=jnp.zeros((), jnp.float32),
        )

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, SpikeState]:
        assert isinstance(state, SpikeState)
        norm = optax.tree.norm(updates)
        median = jnp.where(state.n_steps >= FEWEST, _median(state.norm_W, state.n_steps), 0.0)
        skips = (state.n_steps >= FEWEST) & (norm > skip_above * median)
        new_updates, new_inner = optimizer.update(updates, state.inner, params)
        kept_updates = jax.tree.map(lambda new: jnp.where(skips, jnp.zeros_like(new), new), new_updates)
        kept_inner = jax.tree.map(lambda old, new: jnp.where(skips, old, new), state.inner, new_inner)
        skipped = skips.astype(jnp.int32)
        return kept_updates, SpikeState(
            inner=kept_inner,
            norm_W=jnp.where(jnp.arange(WINDOW) == state.n_steps % WINDOW, norm, state.norm_W),
            n_steps=state.n_steps + 1,
            n_skipped=state.n_skipped + skipped,
            skipped=skipped,
            median=median,
        )

    return optax.GradientTransformation(init, update)


def _median(norm_W: Float[Array, " W"], n_steps: Int[Array, ""]) -> Float[Array, ""]:
    """The median of the norms that there are; of an even number the lower one of the middle two."""
    n_norms = jnp.minimum(n_steps, WINDOW)
    sorted_W = jnp.sort(jnp.where(jnp.arange(WINDOW) < n_norms, norm_W, jnp.inf))
    return jax.lax.dynamic_index_in_dim(sorted_W, (n_norms - 1) // 2, keepdims=False)


def metrics(state: optax.OptState) -> dict[str, Array]:
    """The metrics of a step's skipping: `skipped` (0 or 1), `skipped_steps` so far, `grad_norm_median`.

    state: of `skip_spikes`, after the step.
    """
    assert isinstance(state, SpikeState)
    return {"skipped": state.skipped, "skipped_steps": state.n_skipped, "grad_norm_median": state.median}
