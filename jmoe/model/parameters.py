"""The parameters of a config as a plain tree: how they are stored on a mesh, and their initial values.

The tree has the names of the modules' attributes (transformer.describe).
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Int
from ml_collections import ConfigDict

from jmoe.model import mup
from jmoe.model.param import Description
from jmoe.model.transformer import Transformer, describe


def parameter_specs(model: ConfigDict, axis_sizes: Mapping[str, int]) -> dict:
    """PartitionSpecs of the parameters by name; those of the blocks have a leading axis of layers.

    axis_sizes: of the mesh, by axis.
    """

    def spec(description: Description) -> P:
        return description.spec(axis_sizes)

    return jax.tree.map(spec, describe(model))


def parameter_shardings(mesh: jax.sharding.Mesh, model: ConfigDict) -> dict:
    """parameter_specs as NamedShardings on `mesh`."""

    def on_mesh(spec: P) -> NamedSharding:
        return NamedSharding(mesh, spec)

    return jax.tree.map(on_mesh, parameter_specs(model, mesh.shape))


def init_params(config: ConfigDict, seed: Int[Array, ""] | np.uint32 | None = None) -> dict:
    """Float32 parameters as a plain tree; the same on any mesh.

    A `seed`, given as a traced uint32, replaces config.seed, so that all seeds share one compiled program.
    """
    if seed is None:
        seed = np.uint32(config.seed % 2**32)
    transformer = Transformer(config.model, nnx.Rngs(params=jax.random.key(seed)))
    params = nnx.to_pure_dict(nnx.state(transformer, nnx.Param))
    factors = mup.factors(config)
    if factors is None:
        return params
    return jax.tree.map(jnp.multiply, params, factors.initial)
