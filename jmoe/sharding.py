"""The mesh and every partition spec. Axes: `data` (batch, and parameters and optimizer state), `expert` (experts).

Tokens are spread over all devices. Parameters rest sharded along d_model over `data`, experts over `expert` as well,
and are gathered where they are used. Nothing a token sees depends on the mesh: groups belong to the config.
"""

import jax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jmoe.cli import UserError

TOKENS = P(("data", "expert"))  # the leading axis of batches, rows, activations and groups
EXPERTS = P("expert")  # the leading axis of an expert's weights in use
REPLICATED = P()

# Resting place of each parameter; those of the blocks have a leading axis of layers.
PARAMETERS = {
    "embed": P(None, "data"),
    "head": P("data", None),
    "final_norm": P("data"),
    "blocks": {
        "attention_norm": P(None, "data"),
        "qkv": P(None, "data", None),
        "out": P(None, None, "data"),
        "mlp_norm": P(None, "data"),
        "router": P(None, "data", None),
        "gate": P(None, "expert", "data", None),
        "up": P(None, "expert", "data", None),
        "down": P(None, "expert", None, "data"),
    },
}


def make_mesh(config, devices=None) -> jax.sharding.Mesh:
    """A (data, expert) mesh over all devices.

    Raises:
      UserError: devices, experts, d_model or a batch that do not divide, naming both numbers.
    """
    devices = jax.devices() if devices is None else devices
    n_devices, expert, model = len(devices), config.mesh.expert, config.model
    if expert < 1 or n_devices % expert:
        raise UserError(f"config.mesh.expert={expert} does not divide the {n_devices} devices")
    if model.n_experts % expert:
        raise UserError(f"config.model.n_experts={model.n_experts} does not divide over config.mesh.expert={expert}")
    data = n_devices // expert
    if model.d_model % data:
        raise UserError(
            f"config.model.d_model={model.d_model} does not divide over the {data} devices of the data axis"
        )
    for _, batch in config.batch_tokens:
        if batch // config.data.seq_len % n_devices:
            raise UserError(
                f"config.batch_tokens: {batch} tokens are {batch // config.data.seq_len} rows of "
                f"config.data.seq_len={config.data.seq_len}, which do not divide over {n_devices} devices"
            )
        if model.n_experts > 1 and batch // model.group_tokens % n_devices:
            raise UserError(
                f"config.batch_tokens: {batch} tokens are {batch // model.group_tokens} groups of "
                f"config.model.group_tokens={model.group_tokens}, which do not divide over "
                f"{n_devices} devices; smaller groups divide further but are another model"
            )
    return jax.make_mesh((data, expert), ("data", "expert"), axis_types=(AxisType.Explicit,) * 2, devices=devices)


def parameter_shardings(mesh, params):
    """NamedShardings for a tree of parameters with the names of PARAMETERS; dense blocks have no expert axis."""

    def one(path, leaf):
        spec = PARAMETERS
        for key in path:
            spec = spec[key.key]
        if len(spec) > leaf.ndim:  # E = 1: gate, up and down without the axis of experts
            spec = P(*(axis for axis in spec if axis != "expert"))
        return NamedSharding(mesh, spec)

    return jax.tree_util.tree_map_with_path(one, params)
