"""Runs that could be trained: the candidates within a budget, and a plain grid of the same cost.

A trunk is trained once, up to where its longest budget begins to decay. Each budget also costs its own decay.

Axes: k runs, m models (trunks).
"""

import ast
import dataclasses

import numpy as np

from fit.aliases import Array, ByName, Floats, Ints
from fit.errors import UserError
from fit.fitted_law import planned_models
from fit.fitted_law.law import Law
from fit.fitted_law.overrides import DECAY_FRACTION
from fit.model.architecture import Architecture, training_flops
from fit.table.runs import Runs

DECAY = 0.2  # the part of each budget that its branch trains alone, unless the runs' config says otherwise
WIDTHS = 12  # of the candidates, evenly spaced in the logarithm
RATIO_RANGE = 4.0  # candidates have this many times more or fewer tokens a parameter than the runs had, at most
GRID_WIDTHS = 4  # of the plain grid
GRID_BUDGETS = (0.25, 0.5, 1.0)  # of the plain grid, over its longest


@dataclasses.dataclass(frozen=True)
class PossibleRuns:
    """Runs that could be trained.

    Attributes:
      n_blocks, n_experts, n_tokens: int [k], of each run.
      model: int [k], equal for the runs of one model, which are branches of one trunk.
      n_active: float [k], active parameters.
      columns: what the law reads of the runs, by name; each broadcasts to [k].
      decay: the share of each budget that its branch trains alone.
      scatter: float [k], how many times as much as large runs each one scatters around the law.
    """

    n_blocks: np.ndarray
    n_experts: np.ndarray
    n_tokens: np.ndarray
    model: np.ndarray
    n_active: np.ndarray
    columns: ByName
    decay: float
    scatter: np.ndarray

    def __len__(self) -> int:
        return len(self.model)

    def _trunks(self, chosen: Ints) -> tuple[Array, Array]:
        """([k] training FLOPs of each run alone; [m] those of the longest of the runs `chosen` of each model)."""
        alone = training_flops(self.n_active, self.n_tokens)
        longest = np.zeros(self.model.max() + 1)
        np.maximum.at(longest, self.model[chosen], alone[chosen])
        return alone, longest

    def flops(self, chosen: Ints) -> float:
        """Training FLOPs of the runs `chosen` (indices), those of one model as branches of one trunk."""
        chosen = np.asarray(chosen, int)
        alone, longest = self._trunks(chosen)
        return float((1 - self.decay) * longest.sum() + self.decay * alone[chosen].sum())

    def flops_of_one_more(self, chosen: Ints) -> Array:
        """[k]: FLOPs that each run adds to the runs `chosen`."""
        alone, longest = self._trunks(chosen)
        return (1 - self.decay) * np.maximum(alone - longest[self.model], 0) + self.decay * alone


def decay_of(law: Law) -> float:
    """The share of each budget in which the learning rate decays, by the config of the law's runs."""
    return float(ast.literal_eval(law.models.overrides.get(DECAY_FRACTION, str(DECAY))))


def possible_runs(
    law: Law, architecture: Architecture, n_blocks: Array, n_experts: Array, n_tokens: Array
) -> PossibleRuns:
    """The runs of these numbers [k]. Raises UserError where the law reads a column that no architecture determines."""
    d_model = n_blocks * float(architecture.width_per_block)
    columns = planned_models.columns_of(law, architecture, d_model, n_experts, n_tokens)
    model = np.unique(np.stack([n_blocks, n_experts]), axis=1, return_inverse=True)[1].ravel()
    n_active = np.asarray(architecture.n_active(d_model, n_experts))
    scatter = np.ones(len(model))
    if law.noise is not None and "n_active" in columns:
        scatter = law.noise.ratio_at(training_flops(columns["n_active"], n_tokens))
    return PossibleRuns(n_blocks, n_experts, n_tokens, model, n_active, columns, decay_of(law), scatter)


def _blocks(architecture: Architecture, n_active: float) -> int:
    """The number of blocks of a model with about `n_active` active parameters; at least the smallest model's."""
    least = round(architecture.smallest / architecture.width_per_block)
    return max(least, round(float(architecture.d_model(n_active)) / architecture.width_per_block))


def _buildable(architecture: Architecture, experts: Floats) -> np.ndarray:
    """int: those numbers of experts of which a token can choose as many as the architecture says."""
    return np.asarray(experts, int)[architecture.has_enough_experts(experts)]


def candidates(law: Law, architecture: Architecture, experts: Floats, runs: Runs, flops: float) -> PossibleRuns:
    """The runs within a budget to choose from.

    Widths go from the narrowest of `runs` up. Tokens go from the fewest of `runs` up, doubled each time, at most as
    many as their text has. Tokens per parameter stay within RATIO_RANGE times those of `runs`.

    Args:
      law: whose runs they are.
      architecture: how models are built.
      experts: numbers of experts to choose from.
      runs: those that the law was fitted to.
      flops: the budget.

    Raises:
      UserError: where not even the cheapest is within the budget, or none has as many tokens per parameter as the runs.
    """
    width = float(architecture.width_per_block)
    fewest_tokens = runs.n_tokens.min()
    narrowest = _blocks(law.counting.with_vocabulary(architecture), runs.n_active.min())
    cheapest = training_flops(architecture.n_active(narrowest * width), fewest_tokens)
    if cheapest > flops:
        raise UserError(
            f"--flops={flops:g}: the cheapest run, as small and short as those there are, takes {cheapest:.3g}"
        )
    widest = float(architecture.d_model(flops / training_flops(1, fewest_tokens))) / width
    blocks = np.unique(np.geomspace(narrowest, max(narrowest, int(widest)), WIDTHS).round().astype(int))
    experts = _buildable(architecture, experts)
    most_tokens = min(flops / cheapest * fewest_tokens, law.models.unique_tokens or np.inf)
    n_doublings = int(np.log2(max(most_tokens / fewest_tokens, 1)))
    tokens = np.round(fewest_tokens * 2.0 ** np.arange(n_doublings + 1)).astype(int)
    grid = np.meshgrid(blocks, experts, tokens, indexing="ij")
    n_blocks, n_experts, n_tokens = (axis.ravel() for axis in grid)
    n_active = architecture.n_active(n_blocks * width, n_experts)
    ratio = n_tokens / n_active
    fitted_ratio = runs.n_tokens / runs.n_active
    allowed = (ratio >= fitted_ratio.min() / RATIO_RANGE) & (ratio <= fitted_ratio.max() * RATIO_RANGE)
    allowed &= training_flops(n_active, n_tokens) <= flops * (1 + 1e-9)
    if not allowed.any():
        raise UserError(
            f"--flops={flops:g}: no run within this budget has {fitted_ratio.min() / RATIO_RANGE:.3g} to "
            f"{fitted_ratio.max() * RATIO_RANGE:.3g} tokens per active parameter, as the law's runs have: give more"
        )
    return possible_runs(law, architecture, n_blocks[allowed], n_experts[allowed], n_tokens[allowed])


def plain_grid(law: Law, architecture: Architecture, experts: Floats, runs: Runs, flops: float) -> PossibleRuns:
    """The runs of a log-uniform grid that costs `flops`, or less where the text has too few tokens for that.

    It has GRID_WIDTHS widths from the narrowest of `runs` up, every number of experts that can be built, and budgets
    that are GRID_BUDGETS times the longest. Its widest model has about as many tokens a parameter as the median of
    `runs`. The arguments are those of `candidates`.
    """
    experts = _buildable(architecture, experts)
    decay = decay_of(law)
    ratio = np.median(runs.n_tokens / runs.n_active)
    width = float(architecture.width_per_block)
    narrowest = _blocks(law.counting.with_vocabulary(architecture), runs.n_active.min())
    grids = []  # (how far the ratio is off, blocks, longest budget)
    for widest in np.unique(np.geomspace(narrowest, 64 * narrowest, 64).round().astype(int)):
        blocks = np.unique(np.geomspace(narrowest, widest, GRID_WIDTHS).round().astype(int))
        n_active = architecture.n_active(blocks[:, None] * width, experts)
        n_active = np.broadcast_to(n_active, (len(blocks), len(experts))).mean(axis=1)
        flops_per_token = training_flops(n_active.sum() * len(experts), (1 - decay) + decay * sum(GRID_BUDGETS))
        longest = min(flops / flops_per_token, law.models.unique_tokens or np.inf)
        grids.append((abs(np.log(longest / n_active[-1] / ratio)), blocks, longest))
    _, blocks, longest = min(grids, key=lambda grid: grid[0])
    tokens = np.maximum(1, np.floor(longest * np.array(GRID_BUDGETS))).astype(int)
    axes = np.meshgrid(blocks, experts, np.unique(tokens), indexing="ij")
    return possible_runs(law, architecture, *(axis.ravel() for axis in axes))
