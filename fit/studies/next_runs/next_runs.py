"""The runs to train next for a fitted law: the set, its cost, and its expected gain for the goal.

Axes: k runs, g goals, stages (STAGES).
"""

import ast
import dataclasses
import statistics
from collections.abc import Sequence

import numpy as np

from fit.aliases import Array, Floats, Json
from fit.errors import UserError
from fit.fitted_law import planned_models
from fit.fitted_law.law import Law
from fit.fitted_law.overrides import DECAY_FRACTION
from fit.fitted_law.parts import LEVEL, Scatter
from fit.model.architecture import Architecture, training_flops
from fit.planning.inputs.constraints import Constraints
from fit.planning.inputs.problem import Problem
from fit.planning.search import solver
from fit.planning.search.best_models import BestModels
from fit.studies.next_runs import design, next_answer
from fit.studies.next_runs.design import Possible
from fit.studies.next_runs.results import Grid, NextRuns, Trunk
from fit.table.runs import Runs, read_runs, split
from fit.table.table import Table

DECAY = 0.2  # the part of each budget that its branch trains alone, unless the runs' config says otherwise
WIDTHS = 12  # of the candidates, evenly spaced in the logarithm
RATIO_RANGE = 4.0  # candidates have this many times more or fewer tokens a parameter than the runs had, at most
GRID_WIDTHS = 4  # of the plain grid
GRID_BUDGETS = (0.25, 0.5, 1.0)  # of the plain grid, over its longest
STAGES = ("before", "after", "grid")  # with the fitted runs alone, with the chosen ones as well, with a plain grid's


def next_runs(
    law: Law,
    table: Table,
    architecture: Architecture,
    experts: Floats,
    flops: float,
    target_flops: float | None = None,
    names: Sequence[str] = (),
) -> NextRuns:
    """Choose the runs to train next within a budget.

    The goal is to know the loss and the best number of experts at target_flops or, without these, the coefficients
    `names`.

    Args:
      law: a fit to the runs of the table.
      table: its runs.
      architecture: how models are built.
      experts: numbers of experts to choose from, as the law counts them.
      flops: training FLOPs of all runs together.
      target_flops: training FLOPs of the plan that matters.
      names: of coefficients.

    Raises:
      UserError: where the law is no fit to these runs or cannot be planned with, or no run within the budget is worth
        it.
    """
    runs, seed = _fitted_runs(law, table)
    scatter = _noise_of(law)
    possible = candidates(law, architecture, experts, runs, flops)
    grid = plain_grid(law, architecture, experts, runs, flops)
    solved = solver.best_of_each_number(
        Problem(law, architecture, Constraints(flops=target_flops or runs.flops.max()), experts)
    )
    of_optima = planned_models.columns_of(law, architecture, solved.d_model, solved.n_experts, solved.n_tokens)
    linear = design.linearised(law, runs, scatter, (possible.columns, grid.columns, of_optima))
    candidate_gradients, grid_gradients, optima_gradients = linear.jacobians
    best = solved.best
    others = [i for i in np.flatnonzero(solved.feasible).tolist() if i != best]
    if target_flops:
        gaps = [optima_gradients[i] - optima_gradients[best] for i in others]
        goals = np.stack([optima_gradients[best], *gaps])
    else:
        goals = linear.of_coefficients[[law.form.names.index(name) for name in names]]
    problem = _design(linear, possible, candidate_gradients, goals)
    before = problem.variances(problem.jacobian[:0], possible.model[:0], possible.scatter[:0])
    weights = 1 / np.maximum(before, 1e-300)  # by the share of a coefficient's variance that is left
    if target_flops:
        weights = _weights_of_plan(solved, best, others, scatter, before)
    problem = dataclasses.replace(problem, weights=weights)
    chosen = design.choose(problem, flops)
    after = problem.variances(problem.jacobian[chosen], possible.model[chosen], possible.scatter[chosen])
    if not chosen or weights @ after >= weights @ before:  # a fit may not make of the runs all that they hold
        raise UserError(f"--flops={flops:g}: no run within this budget makes the goal surer by {design.GAIN:.1%}")
    with_grid = problem.variances(grid_gradients, grid.model, grid.scatter)
    errors = scatter.total * np.sqrt(np.stack([before, after, with_grid], axis=1))
    return NextRuns(
        law=law.name,
        goal="plan" if target_flops else "coefficients",
        target_flops=target_flops,
        budget=flops,
        flops=possible.flops(chosen),
        flops_one_by_one=float(training_flops(possible.n_active[chosen], possible.n_tokens[chosen]).sum()),
        seed=seed,
        trunks=_trunks(possible, chosen, architecture),
        grid=Grid(flops=grid.flops(range(len(grid))), runs=len(grid), trunks=int(grid.model.max()) + 1),
        expected=_plan(solved, best, others, errors) if target_flops else _coefficients(law, names, errors),
        answer_of=next_answer.answer,
    )


def _design(linear: design.Linearised, possible: Possible, gradients: Array, goals: Array) -> design.Design:
    """The Design of candidates with gradients [c, n] and goals [g, n], all of weight 1."""
    return design.Design(
        possible=possible,
        jacobian=gradients,
        goals=goals,
        weights=np.ones(len(goals)),
        information=np.eye(len(linear.normal)),
        normal=linear.normal,
        spread=linear.spread,
        shared=linear.shared,
    )


def _weights_of_plan(solved: BestModels, best: int, others: list[int], scatter: Scatter, before: Array) -> Array:
    """[g]: weights of the goals of a plan, the loss of the best and the gaps of the others to it.

    The loss has weight 1, a gap of z standard errors exp(-z^2 / 2): gaps that are not settled count most.

    Args:
      solved: the optimum at each number of experts.
      best, others: their indices.
      scatter: the noise of the fitted runs.
      before: [g], the goals' variances over the noise's.
    """
    gaps = np.log(solved.loss[others] / solved.loss[best])
    errors = np.maximum(scatter.total, design.LEAST_NOISE) * np.sqrt(before[1:])
    return np.append(1.0, np.exp(-0.5 * (gaps / np.maximum(errors, 1e-300)) ** 2))


def _coefficients(law: Law, names: Sequence[str], errors: Array) -> Json:
    """The expected precision of each coefficient, from their standard errors [g, stages]."""
    return dict(
        coefficients=[
            dict(name=name, value=law.coefficients[name], standard_error=_by_stage(error))
            for name, error in zip(names, errors, strict=True)
        ]
    )


def _fitted_runs(law: Law, table: Table) -> tuple[Runs, int]:
    """(the Runs that the law was fitted to, a seed that none of them had). Raises UserError for other runs."""
    if law.published or law.runs.fingerprint is None:
        raise UserError(f"--law={law.name}: expected a law.json that fit law wrote: its runs are part of the question")
    runs = read_runs(table, law.form.columns, mix_corpora=True)
    if not runs.has(law.runs.fingerprint):
        raise UserError(f"--runs={runs.path}: --law={law.name} was fitted to other runs ({law.runs.file})")
    law.check_plannable()
    settings = law.settings
    fitted, _ = split(runs, settings.holdout, settings.weights, settings.bootstrap_by)
    seeds = runs.table.numbers("seed", (0, 2**31)) if "seed" in runs.table else np.zeros(1)
    return fitted, int(seeds.max()) + 1


def _noise_of(law: Law) -> Scatter:
    """The noise that fit law estimated from the residuals. Raises UserError where law.json lacks it."""
    noise = law.noise
    if noise is None or noise.run is None or noise.trunk is None or noise.degrees_of_freedom is None:
        raise UserError(f"--law={law.name}: does not say how its runs scatter (noise): fit it again")
    return noise


def _by_stage(errors: Array) -> Json:
    """{stage: entry} of an array whose first axis is STAGES."""
    return dict(zip(STAGES, errors.tolist(), strict=True))


def _plan(solved: BestModels, best: int, others: list[int], errors: Array) -> Json:
    """The expected precision of a plan.

    Args:
      solved: the optimum at each number of experts.
      best, others: their indices.
      errors: [g, stages], standard errors of the best's log loss and of the others' above it.
    """
    z = statistics.NormalDist().inv_cdf((1 + LEVEL) / 2)
    loss = float(solved.loss[best])
    rows = []
    for i, error in zip(others, errors[1:], strict=True):
        above = float(np.log(solved.loss[i] / loss))
        rows.append(dict(n_experts=int(solved.n_experts[i]), log_loss_above=above, log_error=_by_stage(error)))
    return dict(
        best=solved.row(best),
        level=LEVEL,
        loss=_by_stage(loss * np.exp(z * np.outer(errors[0], (-1, 1)))),
        log_error=_by_stage(errors[0]),
        others=rows,
    )


def _trunks(possible: Possible, chosen: list[int], architecture: Architecture) -> list[Trunk]:
    """The models to train, by experts and size."""
    runs_of_model: dict[tuple[int, int], list[int]] = {}
    for i in chosen:
        model = int(possible.n_experts[i]), int(possible.n_blocks[i])
        runs_of_model.setdefault(model, []).append(i)
    return [
        Trunk(
            n_experts=n_experts,
            d_model=n_blocks * architecture.width_per_block,
            n_blocks=n_blocks,
            n_active=float(possible.n_active[runs[0]]),
            n_tokens=sorted(int(possible.n_tokens[i]) for i in runs),
            flops=possible.flops(runs),
        )
        for (n_experts, n_blocks), runs in sorted(runs_of_model.items())
    ]


def decay_of(law: Law) -> float:
    """The share of each budget in which the learning rate decays, by the config of the law's runs."""
    return float(ast.literal_eval(law.models.overrides.get(DECAY_FRACTION, str(DECAY))))


def possible_runs(law: Law, architecture: Architecture, n_blocks: Array, n_experts: Array, n_tokens: Array) -> Possible:
    """The Possible runs of these numbers [k]. Raises UserError where the law reads a column that no architecture
    determines."""
    d_model = n_blocks * float(architecture.width_per_block)
    columns = planned_models.columns_of(law, architecture, d_model, n_experts, n_tokens)
    model = np.unique(np.stack([n_blocks, n_experts]), axis=1, return_inverse=True)[1].ravel()
    n_active = np.asarray(architecture.n_active(d_model, n_experts))
    scatter = np.ones(len(model))
    if law.noise is not None and "n_active" in columns:
        scatter = law.noise.ratio_at(training_flops(columns["n_active"], n_tokens))
    return Possible(n_blocks, n_experts, n_tokens, model, n_active, columns, decay_of(law), scatter)


def _blocks(architecture: Architecture, n_active: float) -> int:
    """The number of blocks of a model with about `n_active` active parameters; at least the smallest model's."""
    least = round(architecture.smallest / architecture.width_per_block)
    return max(least, round(float(architecture.d_model(n_active)) / architecture.width_per_block))


def _buildable(architecture: Architecture, experts: Floats) -> np.ndarray:
    """int: those numbers of experts of which a token can choose as many as the architecture says."""
    return np.asarray(experts, int)[architecture.has_enough_experts(experts)]


def candidates(law: Law, architecture: Architecture, experts: Floats, runs: Runs, flops: float) -> Possible:
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


def plain_grid(law: Law, architecture: Architecture, experts: Floats, runs: Runs, flops: float) -> Possible:
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
