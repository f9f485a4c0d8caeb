"""The runs to train next for a fitted law: the set, its cost, and its expected gain for the goal.

Axes: g goals, stages (the fields of ByStage).
"""

import dataclasses

import numpy as np

from fit.aliases import Floats
from fit.errors import UserError
from fit.fitted_law.law import Law
from fit.fitted_law.parts import Scatter
from fit.model.architecture import Architecture, training_flops
from fit.studies.next_runs import candidates, design, next_answer
from fit.studies.next_runs.candidates import PossibleRuns
from fit.studies.next_runs.design import Design
from fit.studies.next_runs.goals import CoefficientsGoal, Goal, plan_goal
from fit.studies.next_runs.linearised import linearised
from fit.studies.next_runs.results import Grid, NextRuns, Trunk
from fit.table.runs import Runs, read_runs, split
from fit.table.table import Table


def choose_runs(
    law: Law,
    table: Table,
    architecture: Architecture,
    experts: Floats,
    flops: float,
    target_flops: float | None = None,
    names: tuple[str, ...] = (),
) -> NextRuns:
    """Choose the runs to train next within a budget.

    The goal is to know the loss and the best number of experts at target_flops or, without these, the coefficients
    `names`.

    Args:
      law: A fit to the runs of the table.
      table: Its runs.
      architecture: How models are built.
      experts: Numbers of experts to choose from, as the law counts them.
      flops: Training FLOPs of all runs together.
      target_flops: Training FLOPs of the plan that matters.
      names: Of coefficients.

    Raises:
      UserError: The law is no fit to these runs or cannot be planned with, or no run within the budget is worth it.
    """
    runs, seed = _fitted_runs(law, table)
    scatter = _noise_of(law)
    possible = candidates.candidates(law, architecture, experts, runs, flops)
    grid = candidates.plain_grid(law, architecture, experts, runs, flops)
    goal: Goal = CoefficientsGoal(law, names)
    if target_flops is not None:
        goal = plan_goal(law, architecture, experts, target_flops)
    linear = linearised(law, runs, scatter, [possible.columns, grid.columns, *goal.parts])
    of_possible, of_grid, *of_goal = linear.jacobians
    problem = design.of_candidates(linear, possible, of_possible, goal.gradients(linear, of_goal))
    before = problem.variances_with([])
    problem = dataclasses.replace(problem, weights=goal.weights(before, scatter))
    chosen = _choose(problem, flops)
    after = problem.variances_with(chosen)
    with_grid = problem.variances(of_grid, grid.model, grid.scatter)
    errors = scatter.total * np.sqrt(np.stack([before, after, with_grid], axis=1))
    return NextRuns(
        law=law.name,
        goal=goal.name,
        target_flops=target_flops,
        budget=flops,
        flops=possible.flops(chosen),
        flops_one_by_one=float(training_flops(possible.n_active[chosen], possible.n_tokens[chosen]).sum()),
        seed=seed,
        trunks=_trunks(possible, chosen, architecture),
        grid=Grid(flops=grid.flops(range(len(grid))), runs=len(grid), trunks=int(grid.model.max()) + 1),
        expected=goal.expected(errors),
        answer_of=next_answer.answer,
    )


def _choose(problem: Design, flops: float) -> list[int]:
    """Indices of the candidates to train. Raises UserError where none makes the goals surer."""
    chosen = design.choose(problem, flops)
    before = problem.weights @ problem.variances_with([])
    after = problem.weights @ problem.variances_with(chosen)
    if not chosen or after >= before:  # a fit may not make of the runs all that they hold
        raise UserError(f"--flops={flops:g}: no run within this budget makes the goal surer by {design.GAIN:.1%}")
    return chosen


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


def _trunks(possible: PossibleRuns, chosen: list[int], architecture: Architecture) -> list[Trunk]:
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
