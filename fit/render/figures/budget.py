"""Pictures of one budget: the best loss under budgets around it, in FLOPs or in hours on the same chips; how far the
law is from its runs at the number of experts that the plan chooses; budgets that runs have.

Axes: k budgets of a curve; n_runs runs.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fit.aliases import Array
from fit.errors import UserError
from fit.fitted_law.law import Law
from fit.messages import units
from fit.model.architecture import training_flops
from fit.planning.inputs.constraints import Constraints
from fit.planning.inputs.problem import Problem
from fit.planning.inputs.training_chips import SECONDS_PER_HOUR
from fit.planning.search import solver
from fit.render.figures import style
from fit.table.runs import Runs

AROUND = 30.0  # budgets of a frontier: up to this factor below and above that of the plan
MOST_PANELS = 3
ENOUGH = 3  # runs of a budget that make a panel, if any budget has that many
STAR: style.Look = dict(marker="*", color="black", markersize=9, markerfacecolor="gold", linestyle="none")


@style.in_style()
def frontier(problem: Problem, best: tuple[float, float] | None = None, runs: Runs | None = None) -> style.Drawn:
    """The least loss under budgets around one, a curve for each number of experts, under the same limits.

    The axis is in hours on chips: by the modelled speed of each model, or else by their MFU.
    Without chips it is in FLOPs.

    Args:
      problem: The problem, with its budget.
      best: (n_experts, loss) of the plan at the budget, to be marked.
      runs: Runs of the law, drawn as points where the axis is in FLOPs.
    """
    picture = style.Picture(problem.law, problem.architecture, problem.experts)
    constraints = problem.constraints
    figure, (axis,) = style.panels(height=3.0)
    shares = np.geomspace(1 / AROUND, AROUND, 81)
    lowest = np.full(len(shares), np.inf)
    for i, e in enumerate(picture.experts):
        of_experts = problem.at(float(e))
        budgets = shares * np.asarray(of_experts.constraints.budget, float)
        optima = solver.best_models(of_experts.with_budget(budgets), float(e))
        cost = shares * _cost(constraints, float(e))
        models = (optima.n_active, optima.n_tokens, optima.loss)
        numbers: dict[str, Any] = {"hours" if constraints.chips else "flops": cost}
        look = picture.looks[float(e)] | dict(every=(3 * i % 16, 16))
        picture.curve(axis, cost, models, float(e), look, shown=optima.feasible, **numbers)
        lowest = np.fmin(lowest, np.where(optima.feasible, optima.loss, np.inf))
    if not np.isfinite(lowest).any():
        raise UserError("no model is feasible under any budget near this one")
    notes = []
    if best is not None:
        n_experts, loss = best
        axis.plot(_cost(constraints, n_experts), loss, **STAR)
        notes.append(style.handle("this plan", **STAR))
    if runs is not None and constraints.chips is None:
        near = runs.flops >= shares[0] * _cost(constraints, 1.0)
        for e in set(runs.n_experts[near]) & picture.looks.keys():
            rows = near & (runs.n_experts == e)
            axis.plot(runs.flops[rows], runs.loss[rows], linestyle="none", markersize=3, **picture.looks[e])
        if near.any():
            notes.append(style.handle("runs", marker="o", markersize=3))
    words = units.amount if constraints.chips else units.flops_math
    style.log_axis(axis.xaxis, *style.extent([axis]), words)
    reached = lowest[np.isfinite(lowest)]
    axis.set_ylim(reached.min() - 0.03 * np.ptp(reached), reached.max() + 0.1 * np.ptp(reached))
    axis.set(xlabel=axis_of(problem), ylabel="least loss (nats per token)")
    return picture.done(figure, *notes)


def axis_of(problem: Problem) -> str:
    """The label of the budget's axis, with its unit."""
    constraints = problem.constraints
    chips = constraints.chips
    if chips is None:
        return "training FLOPs" if not constraints.inference_tokens else "FLOPs of training and inference"
    if problem.is_by_hours and problem.calibration is not None:
        speed = f"{problem.calibration.label} speeds"
    elif isinstance(chips.mfu, dict):
        speed = "an MFU for each E"
    else:
        speed = f"MFU {chips.mfu:g}"
    return f"hours on {chips.count} x {chips.kind} ({speed})"


def _cost(constraints: Constraints, n_experts: float) -> float:
    """The budget of models of `n_experts` experts: hours if there are chips, else FLOPs."""
    limit = constraints.at(n_experts)
    if limit.hours is not None:
        return float(np.asarray(limit.hours))
    if limit.chips is None:
        return float(limit.flops)
    return float(limit.flops) / limit.chips.rate(int(n_experts)) / SECONDS_PER_HOUR


def with_budget(problem: Problem, n_active: float, n_tokens: float) -> Problem:
    """The problem; where it has no budget, with the training FLOPs of a model as one."""
    if problem.constraints.has_budget:
        return problem
    return problem.within(flops=float(training_flops(n_active, n_tokens)))


def budgets_of_runs(runs: Runs) -> list[float]:
    """At most three budgets that runs have, in FLOPs: those of most runs, within the factor NEAR of one another."""
    order = np.argsort(runs.flops, kind="stable")
    groups: list[list[float]] = []
    for flops in runs.flops[order].tolist():
        if groups and flops < style.NEAR * groups[-1][0]:
            groups[-1].append(flops)
        else:
            groups.append([flops])
    large = [group for group in groups if len(group) >= ENOUGH] or groups
    most = sorted(large, key=lambda group: (-len(group), -group[0]))[:MOST_PANELS]
    return sorted(float(np.median(group)) for group in most)


@style.in_style()
def residuals(law: Law, runs: Runs, held_out: Array, n_experts: float) -> style.Drawn:
    """How far the law is from its runs of one number of experts, over their training FLOPs, in percent.

    Args:
      law: The law.
      runs: Its runs.
      held_out: Which of them the fit did not see, boolean [n_runs]; they are hollow.
      n_experts: Of the runs to draw; the others are grey.
    """
    figure, (axis,) = style.panels(height=2.3)
    predicted = law.loss(law.coefficients, runs.columns)
    percent = 100 * (predicted / runs.loss - 1)
    chosen = runs.n_experts == n_experts
    look = style.looks(law, sorted(set(runs.n_experts)))[n_experts]
    hollow: style.Look = dict(markerfacecolor="white", markeredgewidth=1)
    axis.plot(runs.flops[~chosen], percent[~chosen], "o", color="0.8", markersize=2.5, zorder=1)
    for is_held_out, marker in ((False, style.Look()), (True, hollow)):
        rows = chosen & (held_out == is_held_out)
        axis.plot(runs.flops[rows], percent[rows], linestyle="none", markersize=4, **look | marker)
    axis.axhline(0, color="0.5", linewidth=0.8, zorder=0)
    style.log_axis(axis.xaxis, *style.extent([axis], 1.2), units.flops_math)
    axis.set(xlabel="training FLOPs", ylabel="predicted - measured (%)")
    notes = [style.handle(f"E = {n_experts:g}", marker=look["marker"], color=look["color"])]
    if not chosen.all():
        notes.append(style.handle("other E", marker="o", color="0.8", markersize=2.5))
    if (chosen & held_out).any():
        notes.append(style.handle("held out", marker="o", markerfacecolor="white"))
    style.legends(figure, law, {}, notes)
    columns = dict(
        n_active=runs.n_active[chosen],
        n_tokens=runs.n_tokens[chosen],
        training_flops=runs.flops[chosen],
        loss=runs.loss[chosen],
        predicted_loss=predicted[chosen],
        percent=percent[chosen],
        held_out=held_out[chosen],
    )
    return figure, {name: values.tolist() for name, values in columns.items()}


def nearest_experts(runs: Runs, n_experts: float) -> float:
    """The number of experts among runs that is nearest to n_experts, by its logarithm."""
    numbers: Sequence[float] = np.unique(runs.n_experts).tolist()
    return min(numbers, key=lambda number: abs(np.log(number / n_experts)))


def isoflop_budgets(law: Law, runs: Runs) -> list[float]:
    """Budgets of isoFLOP panels. Raises UserError for a law without tokens, which has no such curves."""
    if "n_tokens" not in law.form.columns:
        raise UserError(f"--law={law.name}: the {law.form.name} law reads no tokens: it has no isoFLOP curves")
    return budgets_of_runs(runs)
