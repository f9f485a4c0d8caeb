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

from jmoe.cli import UserError

AXES = ("data", "expert", "model")
ROWS = ("data", "expert")  # the axes that tokens are spread over
TOKENS = P(ROWS)  # the leading axis of batches and activations
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
      UserError: devices, experts, sizes or a batch that do not divide, naming both numbers.
    """
    devices = jax.devices() if devices is None else devices
    n_devices, model, expert, tensor = len(devices), config.model, config.mesh.expert, config.mesh.model
    if expert < 1 or tensor < 1 or n_devices % (expert * tensor):
        raise UserError(
            f"config.mesh.expert={expert} times config.mesh.model={tensor} does not divide the {n_devices} devices"
        )
    n_rows = n_devices // tensor
    data = n_rows // expert

    for name, value, axis, size in (
        ("model.n_experts", model.n_experts, f"config.mesh.expert={expert}", expert if model.n_experts > 1 else 1),
        ("model.d_model", model.d_model, f"the {data} devices of the data axis", data),
        ("model.n_heads", model.n_heads, f"config.mesh.model={tensor}", tensor),
        ("model.d_ff", model.d_ff, f"config.mesh.model={tensor}", tensor),
        ("data.seq_len", config.data.seq_len, f"config.mesh.model={tensor}", tensor),
    ):
        if value % size:
            raise UserError(f"config.{name}={value} does not divide over {axis}")
    for _, batch in config.batch_tokens:
        if batch // config.data.seq_len % n_rows:
            raise UserError(
                f"config.batch_tokens: {batch} tokens are {batch // config.data.seq_len} rows of "
                f"config.data.seq_len={config.data.seq_len}, which do not divide over {n_rows} devices"
            )
        if model.n_experts > 1 and batch // model.group_tokens % n_rows:
            raise UserError(
                f"config.batch_tokens: {batch} tokens are {batch // model.group_tokens} groups of "
                f"config.model.group_tokens={model.group_tokens}, which do not divide over "
                f"{n_rows} devices; smaller groups divide further but are another model"
            )
    # an axis may be a part of one of a TPU torus's: 8 of 4 x 4 x 4 chips
    placed = mesh_utils.create_device_mesh((data, expert, tensor), devices, allow_split_physical_axes=True)
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
