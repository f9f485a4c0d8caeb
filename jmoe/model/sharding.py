"""The mesh, partition specs, and the collectives of the model.

Mesh axes: `data` (batch; parameters and optimizer state are stored spread over it), `expert` (batch, and experts),
`model` (attention heads and d_ff; Megatron's tensor parallelism). A mesh of several TPU slices has a fourth axis first,
`slice` (batch): each slice holds all parameters, so that only gradients cross the network between slices. Tokens are
spread over slice, data and expert and are the same on every device of the model axis. The whole model runs per device,
in one shard_map; weights are stored spread as their modules say (jmoe/model/param.py) and are gathered where they are
used. Weights of no expert are stored spread over data and expert, where d_model divides over both (counts.row_axes).
Nothing a token sees depends on the mesh: groups belong to the config.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.experimental import mesh_utils
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Num
from ml_collections import ConfigDict

from jmoe.config.check import check_mesh

AXES = ("data", "expert", "model")
SLICE = "slice"  # the first axis of a mesh of several TPU slices
ROWS = ("data", "expert")  # the axes that tokens of a slice are spread over
ALL_ROWS = (SLICE, *ROWS)  # the axes that all tokens are spread over
TOKENS = P(ROWS)  # the leading axis of batches and activations, on a mesh without slices
REPLICATED = P()
# The most devices that sum a weight's gradient in bfloat16: an error of 0.4%, hardly more than one rounding's.
FEW = 8

Groups = tuple[tuple[int, ...], ...]  # groups of devices, each by its number along the mesh axes that exchange data
AnyMesh = jax.sharding.Mesh | jax.sharding.AbstractMesh


def tokens(mesh: AnyMesh) -> P:
    """The spec of batches and activations, whose leading axis is spread over all devices but those of `model`."""
    return P(ALL_ROWS) if SLICE in mesh.axis_names else TOKENS


def microbatches(mesh: AnyMesh) -> P:
    """The spec of microbatches, rows, positions."""
    return P(None, *tokens(mesh))


def make_mesh(config: ConfigDict, devices: Sequence[jax.Device] | None = None) -> jax.sharding.Mesh:
    """A (data, expert, model) mesh over all devices, or these; UserError for what check_mesh refuses.

    Over several TPU slices it is (slice, data, expert, model): each slice holds all parameters.
    """
    if devices is None:
        devices = jax.devices()
    n_slices = count_slices(devices)
    data, expert, model = check_mesh(config, len(devices), n_slices)
    # on a TPU's torus of 4 x 4 x 4 chips an axis of 8 takes one axis of the torus and half of another
    if n_slices == 1:
        placed = mesh_utils.create_device_mesh((data, expert, model), devices, allow_split_physical_axes=True)
        return jax.sharding.Mesh(placed, AXES, axis_types=(AxisType.Explicit,) * 3)
    within_slice = (1, data // n_slices, expert, model)
    between_slices = (n_slices, 1, 1, 1)
    placed = mesh_utils.create_hybrid_device_mesh(within_slice, between_slices, devices, allow_split_physical_axes=True)
    return jax.sharding.Mesh(placed, (SLICE, *AXES), axis_types=(AxisType.Explicit,) * 4)


def count_slices(devices: Sequence[jax.Device]) -> int:
    """The number of TPU slices that the devices belong to; 1 for CPUs and GPUs.

    jax gives each machine with GPUs a slice_index of its own, but an expert group may well span such machines.
    """
    # libtpu gives the devices of a topology of one slice no slice_index
    slices = {getattr(device, "slice_index", 0) for device in devices if device.platform == "tpu"}
    return max(1, len(slices))


def platform() -> str:
    """The platform that the program is compiled for: cpu, gpu or tpu. Without a mesh, as in generation, JAX's own."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return device.platform if device else jax.default_backend()


def per_device(function: Callable, mesh: AnyMesh, in_specs: Any, out_specs: Any) -> Callable:
    """`function`, but run on each device's shards (jax.shard_map); its collectives name the mesh axes.

    Args:
      function: takes this device's parts of the arguments, and returns its part of the results.
      mesh: whose axes the specs name.
      in_specs: a tuple with the specs of each argument: a PartitionSpec for each of its arrays.
      out_specs: the specs of what the function returns.

    Returns:
      A function of the whole arrays, which it first places as in_specs says; its results lie as out_specs says.
    """

    def without_narrow_axes(spec: P) -> P:
        return _without_narrow_axes(mesh, spec)

    mapped_in = jax.tree.map(without_narrow_axes, in_specs)
    mapped_out = jax.tree.map(without_narrow_axes, out_specs)
    mapped = jax.shard_map(function, mesh=mesh, in_specs=mapped_in, out_specs=mapped_out)

    def call(*args: Any) -> Any:
        placed = [jax.sharding.reshard(arg, specs) for arg, specs in zip(args, mapped_in, strict=True)]
        out = mapped(*placed)
        return jax.tree.map(lambda spec, part: jax.sharding.reshard(part, spec), out_specs, out)

    return call


def _without_narrow_axes(mesh: AnyMesh, spec: P) -> P:
    """`spec` without the axes that have one device, over which nothing is ever spread, gathered or summed."""
    dimensions = []
    for axes in spec:
        names = axes if isinstance(axes, tuple) else (axes,)
        wide_axes = tuple(axis for axis in names if axis is not None and mesh.shape[axis] > 1)
        dimensions.append(wide_axes if wide_axes else None)
    return P(*dimensions)


def wide(axes: Sequence[str]) -> tuple[str, ...]:
    """Those of the axes that have several devices; none outside of per_device, since generation runs on one device."""
    inside = jax.sharding.get_abstract_mesh().manual_axes
    return tuple(axis for axis in axes if axis in inside and jax.lax.axis_size(axis) > 1)


def vary(x: Num[Array, "..."], axes: Sequence[str]) -> Num[Array, "..."]:
    """Marks `x`, equal on all devices of these mesh axes, as each device's own: jax.lax.pcast to "varying".

    The values stay. The gradient of `x` becomes the sum of the devices' gradients. JAX asks for the mark where arrays
    must be alike in this, such as the initial value and the result of a loop. Axes over which `x` is marked already,
    and those of one device, are left out.
    """
    new_axes = tuple(axis for axis in wide(axes) if axis not in varying_axes(x))
    return jax.lax.pcast(x, new_axes, to="varying") if new_axes else x


def varying_axes(*arrays: Num[Array, "..."]) -> tuple[str, ...]:
    """The mesh axes over whose devices one of these arrays is marked as each device's own."""
    axes = set().union(*(jax.typeof(array).manual_axis_type.varying for array in arrays))
    return tuple(sorted(axes))


def gathered(param: nnx.Param) -> Num[Array, "..."]:
    """This device's part of a parameter, gathered from the devices that have different tokens.

    Its gradient is summed over the devices that used it, and scattered back the same way.
    """
    return _gather(param[...], param.row_spread, None)


def gathered_from_neighbours(param: nnx.Param, n_neighbours: int) -> Num[Array, "..."]:
    """As `gathered`, but only from groups of `n_neighbours` neighbouring devices; of 1 device, its own part.

    Its gradient is summed over the group alone, and over the devices that share the part: the caller's own gradient
    covers the tokens of the other groups.
    """
    spread = param.row_spread
    groups = neighbours(spread.axes, n_neighbours)
    if n_neighbours == 1:
        spread = dataclasses.replace(spread, axes=())
    return _gather(param[...], spread, groups)


def neighbours(axes: tuple[str, ...], n_neighbours: int) -> Groups:
    """The devices of these axes in groups of `n_neighbours`: ((0, 1), (2, 3)) of 4 devices in groups of 2."""
    n_devices = jax.lax.axis_size(axes)
    firsts = range(0, n_devices, n_neighbours)
    return tuple(tuple(range(first, first + n_neighbours)) for first in firsts)


def one_of_each_group(axes: tuple[str, ...], n_neighbours: int) -> Groups:
    """Groups with one device of each group of `neighbours`: ((0, 2), (1, 3)) of 4 devices in groups of 2."""
    return tuple(zip(*neighbours(axes, n_neighbours), strict=True))


@dataclasses.dataclass(frozen=True)
class RowSpread:
    """How a parameter of one layer lies on the devices that have different tokens.

    For example axes=("data",), shared_by=("expert",): the devices along the data axis hold different parts, and those
    along the expert axis the same part. All mesh axes here have several devices.

    Attributes:
      dimension: the dimension of the parameter that is cut into parts.
      axes: the mesh axes over which its parts are spread; () if each device has all of it.
      shared_by: the mesh axes over which all devices of a slice have the same part.
      slices: ("slice",) where all slices of the mesh have the same; () if there is one slice.
    """

    dimension: int
    axes: tuple[str, ...]
    shared_by: tuple[str, ...]
    slices: tuple[str, ...]


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _gather(weight: Num[Array, "..."], spread: RowSpread, groups: Groups | None) -> Num[Array, "..."]:
    """The weight, gathered over the axes that it is spread over, and marked as each device's own over the others.

    With `groups` it is gathered within groups of the devices of these axes.

    JAX's own gradient sums over the devices in the weight's type. In bfloat16 every partial sum is rounded, which at
    some hundred devices is an error of several percent. This one sums over more than FEW devices in float32. Over
    slices, which are few and linked by a slow network, it sums last, in the weight's type.
    """
    weight = vary(weight, (*spread.slices, *spread.shared_by))
    if spread.axes:
        weight = jax.lax.all_gather(weight, spread.axes, axis=spread.dimension, tiled=True, axis_index_groups=groups)
    return weight


def _gather_fwd(weight: Num[Array, "..."], spread: RowSpread, groups: Groups | None) -> tuple[Num[Array, "..."], None]:
    return _gather(weight, spread, groups), None


def _gather_bwd(
    spread: RowSpread, groups: Groups | None, _: None, dweight: Num[Array, "..."]
) -> tuple[Num[Array, "..."]]:
    dtype = dweight.dtype
    n_sharing = math.prod(jax.lax.axis_size(axis) for axis in spread.shared_by)
    if groups is None:
        n_gathered = math.prod(jax.lax.axis_size(axis) for axis in spread.axes)
    else:
        n_gathered = len(groups[0])
    if n_sharing * n_gathered > FEW:
        dweight = dweight.astype(jnp.promote_types(dtype, jnp.float32))
    if spread.axes:
        dweight = jax.lax.psum_scatter(
            dweight, spread.axes, scatter_dimension=spread.dimension, tiled=True, axis_index_groups=groups
        )
    if spread.shared_by:
        dweight = jax.lax.psum(dweight, spread.shared_by)
    dweight = dweight.astype(dtype)
    if spread.slices:
        dweight = jax.lax.psum(dweight, spread.slices)
    return (dweight,)


_gather.defvjp(_gather_fwd, _gather_bwd)


def total(x: Num[Array, "..."], axes: Sequence[str] = (SLICE, *AXES)) -> Num[Array, "..."]:
    """The sum of each device's `x` over mesh axes."""
    return jax.lax.psum(x, wide(axes)) if wide(axes) else x


def mean(x: Num[Array, "..."], axes: Sequence[str] = (SLICE, *AXES)) -> Num[Array, "..."]:
    """The mean of each device's `x` over mesh axes."""
    return jax.lax.pmean(x, wide(axes)) if wide(axes) else x


def largest(x: Num[Array, "..."], axes: Sequence[str] = (SLICE, *AXES)) -> Num[Array, "..."]:
    """The largest of each device's `x` over mesh axes."""
    return jax.lax.pmax(x, wide(axes)) if wide(axes) else x
