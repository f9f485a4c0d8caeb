"""Several small models in one compiled step: equal shapes; seeds, learning rates and budgets of their own.

The step is mapped over a leading axis M of models, so that they share every kernel; each is the model that it would be
alone, within float tolerance.
"""

import jax
import jax.numpy as jnp

from jmoe import step


def stack(trees):
    """Trees of equal structure and shapes as one, with a leading axis M."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def unstack(tree) -> list:
    """The inverse of `stack`."""
    leaves, structure = jax.tree.flatten(tree)
    return [structure.unflatten(model) for model in zip(*leaves)]


def make_train_step(config, mesh):
    """step.make_train_step over stacked models: batch [M, B, T + 1], learning rate [M], metrics with a leading M.

    `config` gives the shapes and the optimizer's constants, which all models share.
    """
    return jax.jit(jax.vmap(step.make_train_step(config, mesh)), donate_argnums=(0, 1))
