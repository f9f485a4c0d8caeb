"""Parameters of the modules: an array, its initial values, and what the rest of jmoe must know about it.

A module makes each of its parameters by `param`. The metadata stands beside the array:
sharding (jmoe/model/parameters.py), casting (transformer.cast), muP (mup.py) and Muon (jmoe/run/muon.py) read it from
there. A new layer needs no entry anywhere else, except its size in jmoe/config/counts.py.
"""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec as P

from jmoe.config import counts
from jmoe.model import sharding

INIT_CUT = 0.2  # initial weights lie in +-INIT_CUT whatever their standard deviation, as in the authors' code


@dataclasses.dataclass(frozen=True)
class Kind:
    """The role of a parameter.

    Attributes:
      role: "embedding", "head", "attention", "dense", "expert", "router", "bias" or "norm". By it mup.py chooses rates,
        Muon its matrices (counts.MATRICES) and counts.py what to count.
      float32: it computes in float32. All others are cast to config.model.dtype before use.
      adds_to_residual: it is the last weight of a residual branch, which muP divides by the depth.
      n_query_parts: how many of the parts along the axis before heads make queries, which muP scales; of a norm 1 if it
        scales queries.
      in_axes, out_axes: the axes into and out of its matrices, counted from the last.
    """

    role: str
    float32: bool = False
    adds_to_residual: bool = False
    n_query_parts: int = 0
    in_axes: tuple[int, ...] = (-2,)
    out_axes: tuple[int, ...] = (-1,)


EMBEDDING = Kind("embedding")
HEAD = Kind("head")
DENSE = Kind("dense")
DENSE_OUT = Kind("dense", adds_to_residual=True)
EXPERT = Kind("expert")
EXPERT_OUT = Kind("expert", adds_to_residual=True)
ROUTER = Kind("router", float32=True)
BIAS = Kind("bias", float32=True)  # of a router; no gradient moves it
NORM = Kind("norm", float32=True)


@dataclasses.dataclass(frozen=True)
class Description:
    """A parameter without its values.

    Attributes:
      shape: of a stack of blocks with the leading axis of layers.
      axes: the mesh axis that each axis is stored spread over, None for none. "data" may also mean data and expert
        together, as counts.row_axes says.
      kind: what it is for.
    """

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    kind: Kind

    def spec(self, mesh: Mapping[str, int]) -> P:
        """How the parameter is stored on a mesh.

        Args:
          mesh: number of devices by mesh axis.
        """
        if not any(self.axes):
            return P()
        return P(*[self.mesh_axes(axis, mesh) for axis in range(len(self.axes))])

    def mesh_axes(self, axis: int, mesh: Mapping[str, int]) -> tuple[str, ...]:
        """The mesh axes that axis number `axis` is stored spread over, on a mesh of these sizes by axis."""
        name = self.axes[axis]
        if name is None:
            return ()
        if name == "data":
            return counts.row_axes(self.axes, self.shape[axis], mesh)
        return (name,)

    def row_spread(self) -> sharding.RowSpread:
        """How the parameter, of one layer, lies on the mesh of sharding.per_device; outside of it, it is whole."""
        mesh = jax.sharding.get_abstract_mesh().shape
        dimension = 0
        spread_over = ()
        if "data" in self.axes:
            dimension = self.axes.index("data")
            spread_over = sharding.wide(self.mesh_axes(dimension, mesh))
        is_spread_over_experts = "expert" in self.axes or "expert" in spread_over
        shared_by = () if is_spread_over_experts else sharding.wide(("expert",))
        slices = sharding.wide((sharding.SLICE,))
        return sharding.RowSpread(dimension, spread_over, shared_by, slices)


def param(
    rngs: nnx.Rngs,
    shape: tuple[int, ...],
    axes: tuple[str | None, ...],
    kind: Kind,
    *,
    variance: float | None = None,
    constant: float = 0.0,
) -> nnx.Param:
    """A float32 parameter.

    Args:
      rngs: the stream `params` gives the random key.
      shape: of one layer. A stack of blocks adds a leading axis.
      axes: the mesh axis that each axis is stored spread over, None for none; "data" as counts.row_axes says.
      kind: what the parameter is for.
      variance: initial values are normal with this variance, cut at +-INIT_CUT (App. A).
      constant: without a variance, the initial value of all elements.

    Returns:
      The parameter, with `axes` as `out_sharding`, and with `kind` and its `row_spread` as metadata. A parameter that
      sharding.gathered takes must be made inside of sharding.per_device.
    """
    if variance is None:
        values = jnp.full(shape, constant, jnp.float32)
    else:
        std = variance**0.5
        values = std * jax.random.truncated_normal(rngs.params(), -INIT_CUT / std, INIT_CUT / std, shape)
    row_spread = Description(shape, axes, kind).row_spread()
    # the caller places it on the mesh
    return nnx.Param(values, out_sharding=axes, eager_sharding=False, kind=kind, row_spread=row_spread)


def description(parameter: nnx.Param) -> Description:
    """The description of a parameter that `param` made."""
    return Description(parameter.shape, parameter.out_sharding, parameter.kind)
