"""Models of whole blocks near a triad, and why there are none.

Axes: shapes broadcast together; `widths` has an axis of its own, first.
"""

import dataclasses
import math
import statistics

import numpy as np

from fit.aliases import Array
from fit.model.shape import ModelShape
from fit.studies.architecture_search import triads
from fit.studies.architecture_search.triads import Triad

OFF = 0.05  # how far M, N_a and N of a model may be from the triad asked for
ACTIVE_WIDTHS = (1, 8)  # range of (top_k + n_shared) d_expert / d_model of a buildable model


@dataclasses.dataclass(frozen=True)
class SearchGrid:
    """Which models of a search are built. The defaults are the paper's.

    Attributes:
      seq_len: tokens of context.
      width_multiple, expert_width_multiple: d_model and d_expert are multiples of these.
      least_expert: the least d_expert.
    """

    seq_len: int = 8192
    width_multiple: int = 64
    expert_width_multiple: int = 16
    least_expert: int = 64

    def allows(self, shape: ModelShape) -> Array:
        """Whether experts of this width may be built."""
        d_expert = np.asarray(shape.d_expert)
        active_width = (shape.top_k + shape.n_shared_experts) * d_expert / shape.d_model
        least, most = ACTIVE_WIDTHS
        return (d_expert >= self.least_expert) & (active_width >= least) & (active_width <= most)


PAPER_GRID = SearchGrid()


@dataclasses.dataclass(frozen=True)
class NearModel:
    """A model of whole numbers near a triad.

    Attributes:
      shape: of the model.
      off: how far its triad is from the one asked for, as a share: the largest of the three.
    """

    shape: ModelShape
    off: float


@dataclasses.dataclass(frozen=True)
class NearModels:
    """The models near a triad.

    Attributes:
      by_width: {d_model: the nearest model}, of each width that has one within OFF; ascending.
      nearest: the nearest of all widths, within OFF or not; None if no model can be built.
    """

    by_width: dict[int, NearModel]
    nearest: NearModel | None

    @property
    def middle(self) -> NearModel:
        """The model of the median feasible width; of two, the narrower. There is one if by_width is not empty."""
        return self.by_width[statistics.median_low(self.by_width)]


def models_near(triad: Triad, fixed: ModelShape, grid: SearchGrid = PAPER_GRID) -> NearModels:
    """Finds models of whole blocks near a triad.

    The paper prints no rule. Ours is: n_dense and n_moe >= 1, d_model a multiple of 64, d_expert a multiple of 16 and
    at least 64 (as the grid says), and (top_k + n_shared) d_expert / d_model within ACTIVE_WIDTHS. At each width it
    tries the two whole numbers below and above the depths of `invert`, and the two expert widths around the one that N
    leaves.

    Args:
      triad: (M, N_a, N), N above N_a.
      fixed: the family of the models.
      grid: which of them are built.
    """
    _, n_active, n_total = triad
    n_used = fixed.top_k + fixed.n_shared_experts
    # d_model d_expert n_moe; with n_moe >= 1 and d_expert >= d_model / n_used it bounds the width
    expert_area = (n_total - n_active) / (3 * (fixed.n_experts - fixed.top_k))
    largest = 1.5 * math.sqrt(n_used * expert_area / ACTIVE_WIDTHS[0])
    multiple = grid.width_multiple
    # axes: [widths, n_dense, n_blocks, d_expert]
    widths = np.arange(multiple, largest + multiple, multiple).reshape(-1, 1, 1, 1)
    near = np.arange(-1, 3)
    n_blocks, n_dense, _, _ = triads.invert(triad, widths, fixed, grid.seq_len)
    n_dense = np.maximum(1, np.floor(n_dense) + near.reshape(-1, 1, 1))
    n_moe = np.floor(n_blocks) + near.reshape(-1, 1) - n_dense
    has_mixture = n_moe >= 1
    n_moe = np.where(has_mixture, n_moe, 1)
    expert_multiple = grid.expert_width_multiple
    d_expert = expert_multiple * (np.floor(expert_area / widths / n_moe / expert_multiple) + np.arange(2))
    shapes = triads.sized(fixed, widths, n_dense, n_moe, d_expert)
    off = _off(triads.of_shape(shapes, grid.seq_len), triad)
    off = np.where(has_mixture & grid.allows(shapes), off, np.inf)
    candidates = np.stack(np.broadcast_arrays(widths, n_dense, n_moe, d_expert, off)).reshape(5, len(widths), -1)
    nearest = np.argmin(candidates[4], axis=1)[None, :, None]
    best = np.take_along_axis(candidates, nearest, axis=2)[:, :, 0].T
    models = []
    for *sizes, off_of_width in best:
        if np.isfinite(off_of_width):
            models.append(NearModel(triads.sized(fixed, *map(int, sizes)), float(off_of_width)))
    return NearModels(
        by_width={int(model.shape.d_model): model for model in models if model.off <= OFF},
        nearest=min(models, key=lambda model: model.off, default=None),
    )


def _off(triad: Triad, wanted: Triad) -> Array:
    """How far a triad is from the wanted one: the largest share of the three."""
    shares = (np.abs(a / b - 1) for a, b in zip(triad, wanted, strict=True))
    return np.max(np.broadcast_arrays(*shares), axis=0)


def why_none(triad: Triad, fixed: ModelShape, nearest: NearModel | None, grid: SearchGrid = PAPER_GRID) -> str:
    """Says why no buildable model is within OFF of a triad, in one sentence.

    Args:
      triad, fixed, grid: as for `models_near`.
      nearest: of its result.
    """
    widths = np.arange(8.0, 20_000, 8)
    _, n_dense, n_moe, d_expert = triads.invert(triad, widths, fixed, grid.seq_len)
    is_allowed = grid.allows(triads.sized(fixed, widths, n_dense, n_moe, d_expert))
    most = np.max(n_dense, where=is_allowed, initial=-math.inf)
    if not math.isfinite(most):
        reason = "no width has experts of a width allowed"
    elif most < 1:
        reason = f"at every width whose experts are allowed there is room for {max(most, 0):.2f} dense blocks at most"
    else:
        reason = "whole numbers of blocks miss it"
    if nearest is None:
        return reason
    shape = nearest.shape
    blocks = f"{shape.n_dense_blocks} + {shape.n_mixtures} blocks"
    model = f"d_model {shape.d_model}, {blocks}, d_expert {shape.d_expert}"
    return f"{reason}; the nearest model ({model}) is {nearest.off:.1%} off"
