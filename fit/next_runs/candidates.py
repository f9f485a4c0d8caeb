"""Runs that could be trained next: buildable models and token budgets, what sets of them cost, and the plain grid that
a designed set is compared with.

A trunk is trained once, up to where its longest budget begins to decay; each budget also costs its own decay, which is
its last DECAY.

Axes: k runs. Numbers of blocks, experts and tokens are whole.
"""

import ast
import dataclasses

import numpy as np

from fit.aliases import Array, Floats, Ints
from fit.data.runs import Runs
from fit.errors import UserError
from fit.lawbook.lawfile import Law
from fit.shape.architecture import Architecture, training_flops

DECAY = 0.2  # the part of each budget that its branch trains alone, unless the runs' config says otherwise
WIDTHS = 12  # of the candidates, evenly spaced in the logarithm
REACH = 4.0  # candidates have this many times more or fewer tokens a parameter than the runs had, at most
GRID_WIDTHS, GRID_BUDGETS = 4, (0.25, 0.5, 1.0)  # of the plain grid


@dataclasses.dataclass
class Possible:
    """Runs that could be trained. n_blocks, n_experts, n_tokens: int [k]; model: int [k], equal for the runs of one
    model, which are branches of one trunk; n_active: float [k]; columns: what the law reads of them, [k] by name."""

    n_blocks: np.ndarray
    n_experts: np.ndarray
    n_tokens: np.ndarray
    model: np.ndarray
    n_active: np.ndarray
    columns: dict[str, Array]
    decay: float

    def __len__(self) -> int:
        return len(self.model)

    def flops(self, chosen: Ints) -> float:
        """Training FLOPs of the runs `chosen` (indices), those of one model as branches of one trunk."""
        chosen, total = np.asarray(chosen, int), 0.0
        for m in np.unique(self.model[chosen]):
            rows = [i for i in chosen if self.model[i] == m]
            tokens = self.n_tokens[rows]
            total += training_flops(self.n_active[rows[0]], (1 - self.decay) * tokens.max() + self.decay * tokens.sum())
        return float(total)


def decay_of(law: Law) -> float:
    """The share of each budget in which the learning rate decays, by the config of the law's runs."""
    return float(ast.literal_eval((law.models["overrides"] or {}).get("optimizer.decay_fraction", str(DECAY))))


def possible(law: Law, architecture: Architecture, n_blocks: Array, n_experts: Array, n_tokens: Array) -> Possible:
    """The Possible runs of these numbers; UserError where the law reads a column that no architecture determines."""
    d_model = n_blocks * float(architecture.width_per_block)
    columns = columns_of(law, architecture, d_model, n_experts, n_tokens)
    model = np.unique(np.stack([n_blocks, n_experts]), axis=1, return_inverse=True)[1].ravel()
    n_active = np.asarray(architecture.n_active(d_model, n_experts))
    return Possible(n_blocks, n_experts, n_tokens, model, n_active, columns, decay_of(law))


def columns_of(
    law: Law, architecture: Architecture, d_model: Array, n_experts: Array, n_tokens: Array
) -> dict[str, Array]:
    """{name: float [k]} of the columns that the law reads; UserError where no architecture determines one of them."""
    known = architecture.columns(d_model, n_experts, law.counts_embedding) | dict(n_tokens=n_tokens)
    if unknown := [name for name in law.form.columns if name not in known]:
        raise UserError(
            f"--law={law.name}: the {law.form.name} law reads {', '.join(unknown)}, which the models that could be "
            "trained next do not differ in"
        )
    return {name: np.broadcast_to(known[name], n_tokens.shape).astype(float) for name in law.form.columns}


def _blocks(architecture: Architecture, n_active: float) -> int:
    """Whole blocks of about so many active parameters, at least the smallest model's."""
    least = round(architecture.smallest / architecture.width_per_block)
    return max(least, round(float(architecture.d_model(n_active)) / architecture.width_per_block))


def candidates(law: Law, architecture: Architecture, experts: Floats, runs: Runs, flops: float) -> Possible:
    """The Possible runs within a budget: widths from the narrowest of `runs` up; tokens from the fewest of `runs` up,
    doubled each time, at most as many as their text has. UserError where not even the cheapest is within the budget."""
    sizes, fewest = runs.columns["n_active"], runs.columns["n_tokens"].min()
    narrowest = _blocks(architecture, sizes.min())
    cheapest = training_flops(architecture.n_active(float(narrowest * architecture.width_per_block)), fewest)
    if cheapest > flops:
        raise UserError(
            f"--flops={flops:g}: the cheapest run, as small and short as those there are, takes {cheapest:.3g}"
        )
    widest = float(architecture.d_model(flops / training_flops(1, fewest))) / architecture.width_per_block
    blocks = np.unique(np.geomspace(narrowest, max(narrowest, int(widest)), WIDTHS).round().astype(int))
    experts = np.asarray(experts, int)[architecture.enough(experts)]
    most = min(flops / cheapest * fewest, law.models["unique_tokens"] or np.inf)
    tokens = np.round(fewest * 2.0 ** np.arange(int(np.log2(max(most / fewest, 1))) + 1)).astype(int)
    grid = [a.ravel() for a in np.meshgrid(blocks, experts, tokens, indexing="ij")]
    n_active = architecture.n_active(grid[0] * float(architecture.width_per_block), grid[1])
    ratio, had = grid[2] / n_active, runs.columns["n_tokens"] / sizes
    fine = (ratio >= had.min() / REACH) & (ratio <= had.max() * REACH)
    fine &= training_flops(n_active, grid[2]) <= flops * (1 + 1e-9)
    return possible(law, architecture, *(a[fine] for a in grid))


def plain_grid(law: Law, architecture: Architecture, experts: Floats, runs: Runs, flops: float) -> Possible:
    """The Possible runs of a log-uniform grid that costs `flops`: GRID_WIDTHS widths from the narrowest of `runs` up,
    every number of experts, and budgets that are GRID_BUDGETS times the longest. The widest has about as many tokens a
    parameter as the median of `runs`."""
    sizes, decay = runs.columns["n_active"], decay_of(law)
    wanted = np.median(runs.columns["n_tokens"] / sizes)
    narrowest = _blocks(architecture, sizes.min())
    tried = []
    for widest in np.unique(np.geomspace(narrowest, 64 * narrowest, 64).round().astype(int)):
        blocks = np.unique(np.geomspace(narrowest, widest, GRID_WIDTHS).round().astype(int))
        n_active = architecture.n_active(blocks[:, None] * float(architecture.width_per_block), np.array(experts))
        n_active = np.broadcast_to(n_active, (len(blocks), len(experts))).mean(axis=1)
        each = training_flops(n_active.sum() * len(experts), (1 - decay) + decay * sum(GRID_BUDGETS))
        longest = min(flops / each, law.models["unique_tokens"] or np.inf)
        tried.append((abs(np.log(longest / n_active[-1] / wanted)), blocks, longest))
    _, blocks, longest = min(tried, key=lambda one: one[0])
    tokens = np.maximum(1, np.floor(longest * np.array(GRID_BUDGETS))).astype(int)
    grid = np.meshgrid(blocks, np.asarray(experts, int), np.unique(tokens), indexing="ij")
    return possible(law, architecture, *(a.ravel() for a in grid))
