"""The fewest chips that hold the training of a model, in the smallest step of the recipe of the paper's runs.

Axes: [n_meshes] meshes that are tried.
"""

import itertools
import math

import numpy as np

from fit.aliases import Array, Numbers
from fit.model import step_counts
from fit.model.layout import Layout
from fit.model.shape import ModelShape
from fit.planning.inputs.grid import MODEL_AXES
from fit.planning.inputs.training_chips import Chips
from fit.planning.space.meshes import GROUP_TOKENS, divisors

ROW = 512  # tokens of a row of the paper's recipe
MOST_DATA = 2**40  # devices of a data axis that are tried


def smallest_step(data: Numbers, expert: Numbers, model: Numbers, remat: str) -> Layout:
    """The smallest step of the recipe of the paper's runs on a mesh: ROW tokens on each device, GROUP_TOKENS in all."""
    return Layout(
        batch_tokens=np.maximum(ROW * data * expert, GROUP_TOKENS),
        sequence=ROW,
        data=data,
        expert=expert,
        model=model,
        remat=remat,
        flash=False,
    )


def least_bytes(chips: Chips, shape: ModelShape) -> Numbers:
    """Bytes over all chips of the smallest step of models, on a mesh of data alone."""
    return chips.n_devices * step_counts.memory_of(shape, smallest_step(chips.n_devices, 1, 1, "full"))


def fewest_chips(chips: Chips, shape: ModelShape, on_any_mesh: bool) -> tuple[int, float] | None:
    """How many chips of a kind hold the smallest step of a model; None where no number does.

    Args:
      chips: of the kind, with the share of their memory that training may take.
      shape: one model.
      on_any_mesh: on the mesh that takes fewest, else on one of data alone.

    Returns:
      (number of chips, bytes that the step takes of all of them).
    """
    expert: Array = np.array([1])
    model: Array = np.array([1])
    if on_any_mesh:
        n_experts = max(1, round(float(shape.n_experts)))
        expert, model = np.array(list(itertools.product(divisors(n_experts), MODEL_AXES))).T
    step = _on_fewest_devices(shape, expert, model, "full", chips.memory_share * chips.device_memory)
    if step is None:
        return None
    return n_chips(chips, step), float(step.n_devices * step_counts.memory_of(shape, step))


def fewest_chips_on_mesh(chips: Chips, shape: ModelShape, step: Layout) -> int | None:
    """How many chips of a kind hold a model, on meshes whose expert and model axes are those of a step; None for none.

    The step may take all of their memory.
    """
    axes = np.array([step.expert]), np.array([step.model])
    fewest = _on_fewest_devices(shape, *axes, str(step.remat), chips.device_memory)
    return None if fewest is None else n_chips(chips, fewest)


def n_chips(chips: Chips, layout: Layout) -> int:
    """How many chips a layout uses."""
    return math.ceil(layout.n_devices / chips.chip.devices)


def _on_fewest_devices(shape: ModelShape, expert: Array, model: Array, remat: str, memory: float) -> Layout | None:
    """The smallest step of a model on the fewest devices that hold it; None where not even MOST_DATA rows of a mesh do.

    Args:
      shape: one model.
      expert, model: devices of these axes of the meshes to try, [n_meshes].
      remat: as config.remat.
      memory: bytes of a device.
    """
    allowed = memory * (1 + 1e-12)  # a model may be exactly as large

    def holds(data: Array) -> Array:
        """Whether data axes are long enough, for each mesh."""
        return np.less_equal(step_counts.memory_of(shape, smallest_step(data, expert, model, remat)), allowed)

    powers = 2 ** np.arange(round(math.log2(MOST_DATA)) + 1)
    fits = holds(powers[:, None])
    if not fits.any():
        return None
    expert = expert[fits.any(axis=0)]
    model = model[fits.any(axis=0)]
    most = powers[np.argmax(fits[:, fits.any(axis=0)], axis=0)]
    least = most // 2  # too short, or 0
    while np.any(most - least > 1):
        middle = np.maximum((least + most) // 2, 1)
        is_enough = holds(middle)
        most = np.where(is_enough, np.minimum(most, middle), most)
        least = np.where(is_enough, least, np.maximum(least, middle))
    best = int(np.argmin(most * expert * model))
    return smallest_step(int(most[best]), int(expert[best]), int(model[best]), remat)
