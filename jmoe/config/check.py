"""How the fields of a config must fit together, and what a mesh must divide. Plain Python.

The trainer, and the launcher of jobs, check all of this before they touch a device, a text or a workdir.
"""

import json
import math

from jmoe.config import counts
from jmoe.config.schema import NEUTRAL, PACKAGE, check_fields, setting
from jmoe.errors import UserError

MOST_PARAMETERS = 10**15
# what a mesh must divide: plans by fit keep to the same file, and neither package imports the other
DIVISIBILITY = json.loads((PACKAGE.parent / "fit" / "shape" / "divisibility.json").read_text(encoding="utf-8"))


def check_config(config) -> None:
    """Raises UserError for a field, or fields together, that no run can have: field, value and what is allowed."""
    check_fields(config)
    check_text(config.data)
    model = config.model
    _check_size(model)
    _check_heads(model)
    _check_mixture(model)
    if config.get("parametrization") == "mup" and setting(model, "tied_embeddings"):
        raise UserError(
            "config.parametrization='mup' needs config.model.tied_embeddings=False: an embedding and a head have "
            "different rates"
        )
    row, group, micro = config.data.seq_len, model.group_tokens, microbatch_tokens(config)
    for name, n_tokens in _batches(config):
        if n_tokens % row:
            raise UserError(f"config.{name}={n_tokens} is no multiple of config.data.seq_len={row}")
        if model.n_experts > 1 and n_tokens % group:
            raise UserError(f"config.{name}={n_tokens} is no multiple of config.model.group_tokens={group}")
        if micro and n_tokens % micro:
            raise UserError(
                f"config.microbatch_tokens={micro} must divide each batch of config.batch_tokens, and {n_tokens} "
                "tokens are no multiple of it"
            )


def check_text(data) -> None:
    """Raises UserError where config.data names its text twice."""
    if data.path and data.get("mixture"):
        raise UserError(
            f"config.data.path={data.path!r} and config.data.mixture={data.mixture!r} are two texts: leave one empty"
        )


def _batches(config) -> list[tuple[str, int]]:
    """(field, tokens) of every batch, and of the microbatch if there is one."""
    micro = microbatch_tokens(config)
    return [("microbatch_tokens", micro)] * bool(micro) + [("batch_tokens", batch) for _, batch in config.batch_tokens]


def _check_size(model) -> None:
    """UserError where the model has more parameters than any array can be indexed by, let alone stored."""
    if (n_parameters := counts.n_exact(model)) > MOST_PARAMETERS:
        sizes = ", ".join(
            f"{name}={model[name]}" for name in ("d_model", "n_blocks", "d_ff", "n_experts", "vocab_size")
        )
        raise UserError(
            f"config.model has about 10^{math.log10(n_parameters):.0f} parameters ({sizes}), and "
            f"10^{math.log10(MOST_PARAMETERS):.0f} are the most: lower the largest of these fields"
        )


def _check_heads(model) -> None:
    n_heads, n_kv_heads, head_dim = counts.heads(model)
    if setting(model, "head_dim") % 2:
        raise UserError(f"config.model.head_dim={head_dim} must be even")
    if not setting(model, "head_dim") and model.d_model % (2 * n_heads):
        raise UserError(f"config.model.d_model={model.d_model} must be an even multiple of n_heads={n_heads}")
    if n_heads % n_kv_heads:
        raise UserError(f"config.model.n_kv_heads={n_kv_heads} must divide config.model.n_heads={n_heads}")


def _check_mixture(model) -> None:
    top_k, n_dense = setting(model, "top_k"), setting(model, "n_dense_blocks")
    if top_k > model.n_experts:
        raise UserError(f"config.model.top_k={top_k} must be at most n_experts={model.n_experts}")
    if model.n_experts == 1:
        for name in ("d_expert", "n_shared_experts", "n_dense_blocks", "scores", "balance"):
            if (value := setting(model, name)) != NEUTRAL[f"model.{name}"]:
                raise UserError(f"config.model.{name}={value!r} needs a mixture, and n_experts=1 is a dense model")
        return
    if n_dense >= model.n_blocks:
        raise UserError(f"config.model.n_dense_blocks={n_dense} must be below n_blocks={model.n_blocks}")
    factor = model.capacity_factor
    if factor is not None and int(model.group_tokens * top_k * factor / model.n_experts) < 1:
        raise UserError(
            f"config.model.capacity_factor={factor} leaves no slot to each of "
            f"{model.n_experts} experts in groups of {model.group_tokens} tokens"
        )


def microbatch_tokens(config) -> int:
    """config.microbatch_tokens, or 0 if the config is older than the field."""
    return config.get("microbatch_tokens", 0)


def check_mesh(config, n_devices: int, n_slices: int = 1) -> tuple[int, int, int]:
    """The sizes of the mesh axes (data, expert, model) over `n_devices`, which are those of `n_slices` TPU slices.

    Raises UserError, naming both numbers, if devices, experts, sizes, a batch or a microbatch do not divide evenly, or
    if the devices of one copy of the experts would be in different slices.
    """
    model, expert, tensor = config.model, config.mesh.expert, config.mesh.model
    if expert < 1 or tensor < 1 or n_devices % (expert * tensor):
        raise UserError(
            f"config.mesh.expert={expert} times config.mesh.model={tensor} does not divide the {n_devices} devices"
        )
    _check_slices(expert, tensor, n_devices, n_slices)
    n_rows = n_devices // tensor
    data = n_rows // expert
    sizes = {"data": data, "expert": expert, "model": tensor}
    called = {
        "data": f"the {data} devices of the data axis",
        "expert": f"config.mesh.expert={expert}",
        "model": f"config.mesh.model={tensor}",
    }
    kinds = _kinds(model)
    for rule in DIVISIBILITY["fields"]:
        value = _value(config, rule["field"])
        (axis,) = rule["axes"]
        if rule["of"] in kinds and value % sizes[axis]:
            raise UserError(f"config.{rule['field']}={value} does not divide over {called[axis]}")
    for name, batch in _batches(config):
        for rule in DIVISIBILITY["batches"]:
            unit = _value(config, rule["unit"])
            if rule["of"] in kinds and batch // unit % n_rows:
                hint = "; smaller groups divide further but are another model" if rule["called"] == "groups" else ""
                raise UserError(
                    f"config.{name}: {batch} tokens are {batch // unit} {rule['called']} of config.{rule['unit']}="
                    f"{unit}, which do not divide over {n_rows} devices{hint}"
                )
    return data, expert, tensor


def _check_slices(expert: int, tensor: int, n_devices: int, n_slices: int) -> None:
    """UserError where expert x tensor devices do not fit a whole number of times into a slice."""
    of_slice = n_devices // n_slices
    if of_slice % (expert * tensor):
        raise UserError(
            f"config.mesh.expert={expert} times config.mesh.model={tensor} does not divide the {of_slice} devices of "
            f"each of the {n_slices} slices: both axes stay within a slice, and only the data axis crosses the network "
            f"between slices; choose sizes whose product divides {of_slice}"
        )


def _kinds(model) -> set[str]:
    """The kinds of models, as DIVISIBILITY calls them, that config.model is of."""
    kinds = {"all"}
    if model.n_experts > 1:
        kinds.add("mixtures")
    if not setting(model, "d_expert") or setting(model, "n_dense_blocks"):
        kinds.add("layers of d_ff")
    return kinds


def _value(config, field: str) -> int:
    """A field of DIVISIBILITY, with what its 0 stands for, except that of experts as wide as d_ff."""
    section, name = field.split(".")
    if name == "n_kv_heads":
        return counts.heads(config.model)[1]
    return setting(config.model, name) if name == "d_expert" else config[section][name]
