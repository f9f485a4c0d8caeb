"""Checks of the fields of a config against each other, and against a mesh. Plain Python.

The trainer and the launcher check all of this before they touch a device, a text or a workdir.
"""

import json
import math
from typing import Any

from ml_collections import ConfigDict

from jmoe.config import counts
from jmoe.config.schema import NEUTRAL, PACKAGE, check_fields
from jmoe.errors import UserError

MOST_PARAMETERS = 10**15
MIXTURE_FIELDS = ("d_expert", "n_shared_experts", "n_dense_blocks", "scores", "balance")  # no use in a dense model
# What a mesh must divide. `fit` plans by the same file, and neither package imports the other.
DIVISIBILITY = json.loads((PACKAGE.parent / "fit" / "model" / "divisibility.json").read_text(encoding="utf-8"))


def check_config(config: ConfigDict) -> None:
    """Checks each field of a config, and the fields against each other.

    Raises:
      UserError: No run can have this config; the error names field, value and what is allowed.
    """
    check_fields(config)
    check_text(config.data)
    model = config.model
    _check_size(model)
    _check_heads(model)
    _check_mixture(model)
    if config.parametrization == "mup" and model.tied_embeddings:
        raise UserError(
            "config.parametrization='mup' needs config.model.tied_embeddings=False: an embedding and a head have "
            "different rates"
        )
    _check_batches(config)


def check_text(data: ConfigDict) -> None:
    """Raises UserError where config.data names its text twice."""
    if data.path and data.mixture:
        raise UserError(
            f"config.data.path={data.path!r} and config.data.mixture={data.mixture!r} are two texts: leave one empty"
        )


def check_mesh(config: ConfigDict, n_devices: int, n_slices: int = 1) -> tuple[int, int, int]:
    """Checks that devices, experts, sizes, batches and microbatches divide evenly over the mesh.

    Args:
      config: A config that passes check_config.
      n_devices: Devices of all slices together.
      n_slices: TPU slices; the devices of one copy of the experts must share a slice.

    Returns:
      Sizes of the mesh axes (data, expert, model).

    Raises:
      UserError: Something does not divide; the error names both numbers.
    """
    n_expert = config.mesh.expert
    n_model = config.mesh.model
    if n_expert < 1 or n_model < 1 or n_devices % (n_expert * n_model):
        raise UserError(
            f"config.mesh.expert={n_expert} times config.mesh.model={n_model} does not divide the {n_devices} devices"
        )
    _check_slices(n_expert, n_model, n_devices, n_slices)
    n_data = n_devices // n_model // n_expert
    _check_sizes_on_mesh(config, {"data": n_data, "expert": n_expert, "model": n_model})
    _check_batches_on_mesh(config, n_devices // n_model)
    return n_data, n_expert, n_model


def _batches(config: ConfigDict) -> list[tuple[str, int]]:
    """(field, tokens) of the microbatch, if there is one, and of every batch."""
    batches = [("batch_tokens", n_tokens) for _, n_tokens in config.batch_tokens]
    microbatch = config.microbatch_tokens
    return [("microbatch_tokens", microbatch), *batches] if microbatch else batches


def _check_batches(config: ConfigDict) -> None:
    """UserError where a batch is no whole number of rows, groups or microbatches."""
    seq_len = config.data.seq_len
    group_tokens = config.model.group_tokens
    microbatch = config.microbatch_tokens
    for name, n_tokens in _batches(config):
        if n_tokens % seq_len:
            raise UserError(f"config.{name}={n_tokens} is no multiple of config.data.seq_len={seq_len}")
        if config.model.n_experts > 1 and n_tokens % group_tokens:
            raise UserError(f"config.{name}={n_tokens} is no multiple of config.model.group_tokens={group_tokens}")
        if microbatch and n_tokens % microbatch:
            raise UserError(
                f"config.microbatch_tokens={microbatch} must divide each batch of config.batch_tokens, and {n_tokens} "
                "tokens are no multiple of it"
            )


def _check_size(model: ConfigDict) -> None:
    """UserError where the model has more parameters than any array can be indexed by, let alone stored."""
    n_parameters = counts.n_exact(model)
    if n_parameters <= MOST_PARAMETERS:
        return
    sizes = ", ".join(f"{name}={model[name]}" for name in ("d_model", "n_blocks", "d_ff", "n_experts", "vocab_size"))
    raise UserError(
        f"config.model has about 10^{math.log10(n_parameters):.0f} parameters ({sizes}), and "
        f"10^{math.log10(MOST_PARAMETERS):.0f} are the most: lower the largest of these fields"
    )


def _check_heads(model: ConfigDict) -> None:
    """UserError where the heads do not divide d_model, or RoPE cannot halve them."""
    n_heads, n_kv_heads, head_dim = counts.heads(model)
    if model.head_dim % 2:
        raise UserError(f"config.model.head_dim={head_dim} must be even")
    if not model.head_dim and model.d_model % (2 * n_heads):
        raise UserError(f"config.model.d_model={model.d_model} must be an even multiple of n_heads={n_heads}")
    if n_heads % n_kv_heads:
        raise UserError(f"config.model.n_kv_heads={n_kv_heads} must divide config.model.n_heads={n_heads}")


def _check_mixture(model: ConfigDict) -> None:
    """UserError where the fields of a mixture of experts do not fit together, or a dense model has one."""
    top_k = model.top_k
    n_dense_blocks = model.n_dense_blocks
    if top_k > model.n_experts:
        raise UserError(f"config.model.top_k={top_k} must be at most n_experts={model.n_experts}")
    if model.n_experts == 1:
        for name in MIXTURE_FIELDS:
            value = model[name]
            if value != NEUTRAL[f"model.{name}"]:
                raise UserError(f"config.model.{name}={value!r} needs a mixture, and n_experts=1 is a dense model")
        return
    if n_dense_blocks >= model.n_blocks:
        raise UserError(f"config.model.n_dense_blocks={n_dense_blocks} must be below n_blocks={model.n_blocks}")
    factor = model.capacity_factor
    if factor is not None and int(model.group_tokens * top_k * factor / model.n_experts) < 1:
        raise UserError(
            f"config.model.capacity_factor={factor} leaves no slot to each of "
            f"{model.n_experts} experts in groups of {model.group_tokens} tokens"
        )


def _check_slices(n_expert: int, n_model: int, n_devices: int, n_slices: int) -> None:
    """UserError where n_expert x n_model devices do not fit a whole number of times into a slice."""
    slice_devices = n_devices // n_slices
    if slice_devices % (n_expert * n_model):
        raise UserError(
            f"config.mesh.expert={n_expert} times config.mesh.model={n_model} does not divide the {slice_devices} "
            f"devices of each of the {n_slices} slices: both axes stay within a slice, and only gradients cross "
            f"the network between slices; choose sizes whose product divides {slice_devices}"
        )


def _check_sizes_on_mesh(config: ConfigDict, axis_sizes: dict[str, int]) -> None:
    """UserError where an axis of the mesh does not divide a size of the model."""
    descriptions = {
        "data": f"the {axis_sizes['data']} devices of the data axis",
        "expert": f"config.mesh.expert={axis_sizes['expert']}",
        "model": f"config.mesh.model={axis_sizes['model']}",
    }
    kinds = _kinds(config.model)
    for rule in DIVISIBILITY["fields"]:
        value = _value(config, rule["field"])
        (axis,) = rule["axes"]
        if rule["of"] in kinds and value % axis_sizes[axis]:
            raise UserError(f"config.{rule['field']}={value} does not divide over {descriptions[axis]}")


def _check_batches_on_mesh(config: ConfigDict, n_row_devices: int) -> None:
    """UserError where rows or groups of a batch do not divide over the devices that share them out."""
    kinds = _kinds(config.model)
    for name, n_tokens in _batches(config):
        for rule in DIVISIBILITY["batches"]:
            unit = _value(config, rule["unit"])
            n_units = n_tokens // unit
            if rule["of"] not in kinds or n_units % n_row_devices == 0:
                continue
            hint = "; smaller groups divide further but are another model" if rule["called"] == "groups" else ""
            raise UserError(
                f"config.{name}: {n_tokens} tokens are {n_units} {rule['called']} of config.{rule['unit']}="
                f"{unit}, which do not divide over {n_row_devices} devices{hint}"
            )


def _kinds(model: ConfigDict) -> set[str]:
    """The kinds of models, as DIVISIBILITY calls them, that config.model belongs to."""
    kinds = {"all"}
    if model.n_experts > 1:
        kinds.add("mixtures")
    if not model.d_expert or model.n_dense_blocks:
        kinds.add("layers of d_ff")
    return kinds


def _value(config: ConfigDict, field: str) -> Any:
    """A field that DIVISIBILITY names, with the meaning of its 0; d_expert stays 0 for experts as wide as d_ff."""
    section, name = field.split(".")
    if name == "n_kv_heads":
        return counts.heads(config.model)[1]
    return config[section][name]
