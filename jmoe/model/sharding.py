"""The mesh, every partition spec, and the collectives between them.

Mesh axes: `data` (batch; parameters and optimizer state rest spread over it), `expert` (batch, and experts), `model`
(attention heads and d_ff; Megatron's tensor parallelism). Tokens are spread over data and expert and are the same on
every device of the model axis. The whole model runs per device, in one shard_map; weights are gathered where they are
used. Nothing a token sees depends on the mesh: groups belong to the config.
"""

import jax
from jax.experimental import mesh_utils
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jmoe.config.check import check_mesh

AXES = ("data", "expert", "model")
ROWS = ("data", "expert")  # the axes that tokens are spread over
TOKENS = P(ROWS)  # the leading axis of batches and activations
MICROBATCHES = P(None, ROWS)  # microbatches, rows, positions
REPLICATED = P()

# Resting place of each parameter; those of the blocks have a leading axis of layers.
PARAMETERS = {
    "embed": P(None, "data"),
    "head": P("data", None),
    "final_norm": P(),
    "blocks": {
        "attention_norm": P(),
        "attention_norm_bias": P(),
        "qkv": P(None, "data", None, "model", None),  # [layers, D, 3, H, K]
        "out": P(None, "model", None, "data"),  # [layers, H, K, D]
        "mlp_norm": P(),
        "mlp_norm_bias": P(),
        "router": P(),
        "gate": P(None, "expert", "data", "model"),  # [layers, E, D, F]
        "up": P(None, "expert", "data", "model"),
        "down": P(None, "expert", "model", "data"),
    },
}


def make_mesh(config, devices=None) -> jax.sharding.Mesh:
    """A (data, expert, model) mesh over all devices.

    Raises:
      UserError: what check.check_mesh refuses.
    """
    devices = jax.devices() if devices is None else devices
    sizes = check_mesh(config, len(devices))
    # an axis may be a part of one of a TPU torus's: 8 of 4 x 4 x 4 chips
    placed = mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True)
    return jax.sharding.Mesh(placed, AXES, axis_types=(AxisType.Explicit,) * 3)


def parameter_specs(params):
    """PartitionSpecs for a tree of parameters with the names of PARAMETERS; dense blocks have no axis of experts."""

    def one(path, leaf):
        spec = PARAMETERS
        for key in path:
            spec = spec[key.key]
        if len(spec) > leaf.ndim:  # E = 1: gate, up and down without the axis of experts
            spec = P(*(axis for axis in spec if axis != "expert"))
        return spec

    return jax.tree_util.tree_map_with_path(one, params)


def parameter_shardings(mesh, params):
    """parameter_specs as NamedShardings on `mesh`."""
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), parameter_specs(params))


def per_device(function, mesh, in_specs, out_specs):
    """`function` run on each device's shards; collectives inside name the mesh axes."""
    used = lambda specs: jax.tree.map(lambda spec: _used(mesh, spec), specs)
    mapped = jax.shard_map(function, mesh=mesh, in_specs=used(in_specs), out_specs=used(out_specs))

    def call(*args):
        out = mapped(*(jax.sharding.reshard(arg, specs) for arg, specs in zip(args, used(in_specs))))
        leaf = lambda spec: isinstance(spec, P)
        return jax.tree.map(lambda spec, part: jax.sharding.reshard(part, spec), out_specs, out, is_leaf=leaf)

    return call


def _used(mesh, spec):
    """`spec` without the axes that have one device, over which nothing is ever spread, gathered or summed."""
    wide = lambda axes: tuple(axis for axis in (axes if isinstance(axes, tuple) else (axes,)) if mesh.shape[axis] > 1)
    return P(*(axes and wide(axes) or None for axes in spec))


def _wide(axes):
    return tuple(axis for axis in axes if jax.lax.axis_size(axis) > 1)


def vary(x, axis):
    """`x`, the same on every device of `axis`, counted as different: its gradient is summed over them once, here."""
    return jax.lax.pcast(x, axis, to="varying") if _wide((axis,)) else x


def gather(weight, dim: int, axis: str = "data"):
    """A weight whole along `dim`, which rests spread over `axis`; its gradient is scattered back the same way."""
    return jax.lax.all_gather(weight, axis, axis=dim, tiled=True) if _wide((axis,)) else weight


def total(x, axes=AXES):
    """The sum of each device's `x` over mesh axes."""
    return jax.lax.psum(x, _wide(axes)) if _wide(axes) else x


def mean(x, axes=AXES):
    """The mean of each device's `x` over mesh axes."""
    return jax.lax.pmean(x, _wide(axes)) if _wide(axes) else x
