"""The meshes of chips, and what of a model they must divide.

The trainer starts what a plan chooses: both read what a mesh must divide from fit/model/divisibility.json.
"""

import functools
import json
import math
import pathlib
from collections.abc import Iterator, Mapping

import numpy as np

from fit.aliases import Array, Json, Numbers
from fit.model import architecture
from fit.model.shape import ModelShape

DIVISIBILITY: Json = json.loads(
    (pathlib.Path(architecture.__file__).parent / "divisibility.json").read_text(encoding="utf-8")
)
GROUP_TOKENS = 8192  # tokens that share the experts' capacity by the recipe of the paper's runs


def all_meshes(
    n_devices: int, models: tuple[int, ...], expert: int | None, model: int | None
) -> list[tuple[int, int, int]]:
    """All meshes (data, expert, model) of n_devices; `expert` and `model` fix the size of an axis."""
    divided = []
    for model_size in models if model is None else (model,):
        rest = n_devices // model_size
        if n_devices % model_size:
            continue
        for expert_size in divisors(rest) if expert is None else (expert,):
            if rest % expert_size == 0:
                divided.append((rest // expert_size, expert_size, model_size))
    return divided


@functools.cache
def divisors(n: int) -> list[int]:
    """All divisors of n, ascending."""
    small = [k for k in range(1, math.isqrt(n) + 1) if n % k == 0]
    return sorted({*small, *(n // k for k in small)})


def divides(
    shape: ModelShape, sequence: int, has_narrow_experts: bool, data: Numbers, expert: Numbers, model: Numbers
) -> Array:
    """Whether meshes divide the sizes of models that they must divide.

    Args:
      shape: the models, all dense or all mixtures.
      sequence: tokens in a row.
      has_narrow_experts: whether experts have a width of their own.
      data, expert, model: devices of the meshes' axes, which broadcast with the models.
    """
    axes = dict(data=data, expert=expert, model=model)
    fits = np.ones(np.broadcast(shape.d_model, data).shape, bool)
    for axis, _, values in _divided(shape, sequence, has_narrow_experts):
        fits &= values % axes[axis] == 0
    return fits


def undivided(
    shape: ModelShape, sequence: int, has_narrow_experts: bool, axes: Mapping[str, int]
) -> list[tuple[str, str, int]]:
    """The sizes of one model that a mesh must divide and does not: [(axis, field of the config, size)].

    Args:
      shape, sequence, has_narrow_experts: as `divides` takes them.
      axes: {data, expert, model: devices}.
    """
    sizes = _divided(shape, sequence, has_narrow_experts)
    return [(axis, field, int(size)) for axis, field, size in sizes if size % axes[axis]]


def _divided(shape: ModelShape, sequence: int, has_narrow_experts: bool) -> Iterator[tuple[str, str, Numbers]]:
    """(axis, field of the config, its values) of all that a mesh must divide. The arguments are those of `divides`."""
    is_mixture = bool(np.all(np.greater(shape.n_experts, 1)))
    has_dense_blocks = bool(np.any(np.greater(shape.n_dense_blocks, 0)))
    of_models = kinds(is_mixture, is_mixture and has_narrow_experts, has_dense_blocks)
    values = {
        "model.n_experts": shape.n_experts,
        "model.d_model": shape.d_model,
        "model.n_heads": shape.n_heads,
        "model.n_kv_heads": shape.n_kv_heads,
        "model.d_ff": shape.d_ff,
        "model.d_expert": shape.d_expert,
        "data.seq_len": sequence,
    }
    for rule in DIVISIBILITY["fields"]:
        (axis,) = rule["axes"]
        if rule["of"] in of_models:
            yield axis, rule["field"], values[rule["field"]]


def kinds(is_mixture: bool, has_narrow_experts: bool, has_dense_blocks: bool) -> set[str]:
    """The kinds of models, as DIVISIBILITY calls them, that a model is of.

    Args:
      is_mixture: whether it has experts.
      has_narrow_experts: whether these have a width of their own.
      has_dense_blocks: whether some blocks of a mixture have none.
    """
    of_model = {"all"}
    if is_mixture:
        of_model.add("mixtures")
    if not has_narrow_experts or has_dense_blocks:
        of_model.add("layers of d_ff")
    return of_model
