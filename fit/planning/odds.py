"""How sure a plan is: in how many of its joint draws each number of experts is the best, and what a wrong one costs.

In each draw (joint_draws.py) every number of experts has its best model among the candidates of the plan. The
recommendation is the number of experts of the least expected loss. As the draws are the same for all questions, more
chips or hours are never worse.

Axes: n_experts numbers of experts, n_draws draws.
"""

import dataclasses
import math
from collections.abc import Iterator

import numpy as np

from fit.aliases import Array, ByName, Floats, Json
from fit.fitted_law import law_counts
from fit.fitted_law.law import Law
from fit.model.architecture import Architecture, training_flops
from fit.planning import joint_draws, measurement, optimum
from fit.planning.constraints import Constraints
from fit.planning.joint_draws import Draws, Solved
from fit.planning.results import Buildable, ExpertOdds, Odds, Optimum, TrainingChips

CLOSE = 1e-3  # share of the loss within which it hardly matters which of two numbers of experts is chosen
CLOSE_BUDGET = 0.03  # the same, of the budget
DECIDED = 0.8  # share of the draws in which the recommended number must be the best to be settled
MOST_LOG_SHARE = 5.0  # of more budget that reaches a loss: beyond, it is out of reach
COLUMNS = dict(memory_bytes="memory", n_tokens="tokens", inference_flops_per_token="FLOPs of serving a token")
APART = 1.1  # two models differ in memory, tokens or serving from this ratio on


def of_plan(law: Law, architecture: Architecture, constraints: Constraints, optima: list[Optimum]) -> Odds:
    """How sure the number of experts of a plan is.

    Args:
      law: The law that plans.
      architecture: How models are built.
      constraints: The budget and the limits.
      optima: The best model with each number of experts by the medians.
    """
    experts = np.array([row.n_experts for row in optima], float)
    calibration = constraints.time_budget.calibration if constraints.time_budget is not None else None
    draws = joint_draws.of_plan(law, experts, calibration)
    solved = joint_draws.solve_draws(law, architecture, constraints, experts, draws)
    expected = solved.loss.mean(axis=1)
    order = np.argsort(expected, kind="stable")
    drawn = []
    if draws.coefficients:
        drawn.append("law")
    if calibration is not None:
        drawn.append("speed")
    n_draws = draws.n if drawn else 0
    rows = [*_rows(law, architecture, experts, draws, solved, int(order[0]))]
    first = optima[order[0]]
    second = optima[order[1]] if len(optima) > 1 else None
    bootstrap = law.bootstrap
    odds = Odds(
        drawn=drawn,
        draws=n_draws,
        draws_without_optimum=_n_unusable(law, experts),
        form=bootstrap.form if bootstrap else None,
        by=bootstrap.by if bootstrap else None,
        source=law.source_of_draws or None,
        no_draws=law.no_draws or None,
        percentiles=law.percentiles or ([10, 90] if drawn else None),
        experts=rows,
        recommended=first.n_experts,
        by_median=min(optima, key=lambda row: row.loss).n_experts,
        kind=_kind(rows, first.n_experts, n_draws),
        mixture_in_draws=_mixtures(rows) if drawn else None,
        settled=None,
        second=second.n_experts if second else None,
        close_call=[],
        differ={},
        bound="",
    )
    if second is None:
        return odds
    close = _close_call(rows[order[0]], rows[order[1]])
    bounds = [row.size_bound for row in (first, second) if row.size_bound in ("memory", "chips", "serving")]
    odds = dataclasses.replace(
        odds,
        settled=not close and rows[order[0]].best_in_draws >= DECIDED * n_draws if drawn else None,
        close_call=[first.n_experts, second.n_experts] if close else [],
        differ=_differ([first, second]) if close else {},
        bound=bounds[0] if bounds else "",
    )
    if not drawn:
        return odds
    behind = solved.loss[order[1]] - solved.loss[order[0]]
    return measurement.with_causes(odds, law, architecture, constraints, draws, behind)


def _n_unusable(law: Law, experts: Floats) -> int:
    """How many of the law's draws have no optimum at some number of experts."""
    return int(np.sum(~optimum.usable_draws(law, experts))) if law.draws else 0


def _rows(
    law: Law, architecture: Architecture, experts: Floats, draws: Draws, solved: Solved, first: int
) -> Iterator[ExpertOdds]:
    """The row of each number of experts. first: index of the recommended one."""
    percentiles = law.percentiles or [10, 90]
    best = np.argmin(solved.loss, axis=0)
    lowest = solved.loss.min(axis=0)
    worth = solved.gain[first].mean() * solved.loss[first].mean()  # nats for each factor of e in the budget
    for i, e in enumerate(experts):
        regret = solved.loss[i] - lowest
        # the form's own error is the same for all numbers of experts: it widens the losses, and changes no best one
        loss = solved.loss[i]
        if draws.rows is not None:
            n_active = law_counts.counted_n_active(law, architecture, solved.n_active[i], solved.d_model[i])
            loss = loss * np.exp(law.log_change(training_flops(n_active, solved.n_tokens[i]), draws.rows))
        columns = dict(n_active=solved.n_active[i], n_tokens=solved.n_tokens[i], loss=loss)
        values = [solved.loss[i] - solved.loss[first], *columns.values()]
        behind, *ends = np.percentile(values, percentiles, axis=1, method="weibull").T.tolist()
        yield ExpertOdds(
            n_experts=int(e),
            best_in_draws=int(np.sum(best == i)) if draws.is_drawn else 0,
            expected_loss=float(solved.loss[i].mean()),
            regret=_mean_and_high(regret),
            regret_share=[math.expm1(min(nats / worth, MOST_LOG_SHARE)) for nats in _mean_and_high(regret)],
            behind=behind,
            **dict(zip(columns, ends, strict=True)),
            forms=_medians_by_form(draws.coefficients, columns),
        )


def _mean_and_high(values: Array) -> list[float]:
    """[mean, 90th percentile]."""
    return [float(np.mean(values)), float(np.percentile(values, 90, method="weibull"))]


def _medians_by_form(coefficients: ByName, columns: ByName) -> Json | None:
    """{additive, coupled: {draws, and the median of each column}} of draws of both forms, those with k = 1 and others.

    None where all are of one form. columns: {name: [n_draws]}.
    """
    if "k" not in coefficients:
        return None
    is_additive = np.asarray(coefficients["k"]) == 1
    if is_additive.all() or not is_additive.any():
        return None
    by_form = {}
    for name, of_form in (("additive", is_additive), ("coupled", ~is_additive)):
        medians = {column: float(np.median(np.asarray(values)[of_form])) for column, values in columns.items()}
        by_form[name] = dict(draws=int(of_form.sum())) | medians
    return by_form


def _mixtures(rows: list[ExpertOdds]) -> int:
    """In how many draws a mixture is the best."""
    return sum(row.best_in_draws for row in rows if row.n_experts > 1)


def _kind(rows: list[ExpertOdds], recommended: int, n_draws: int) -> str | None:
    """ "dense", "mixture" or "undecided"; None where one number of experts is compared."""
    if len(rows) == 1:
        return None
    share = _mixtures(rows) / n_draws if n_draws else float(recommended > 1)
    if share >= DECIDED:
        return "mixture"
    return "dense" if share <= 1 - DECIDED else "undecided"


def _close_call(first: ExpertOdds, second: ExpertOdds) -> bool:
    """Whether it hardly matters which of two numbers of experts is chosen."""
    loss = second.expected_loss - first.expected_loss
    return loss <= CLOSE * first.expected_loss or share_beyond(first, second) <= CLOSE_BUDGET


def share_beyond(first: ExpertOdds, second: ExpertOdds) -> float:
    """How much more of the budget the second number of experts needs for the loss of the first, in the mean."""
    return max((1 + second.regret_share[0]) / (1 + first.regret_share[0]) - 1, 0.0)


def _differ(pair: list[Optimum]) -> dict[str, list[float]]:
    """{column: [least, most]} of the columns in which two models differ by APART or more."""
    differ = {}
    for name in COLUMNS:
        values = [row[name] for row in pair]
        if max(values) >= APART * min(values):
            differ[name] = [min(values), max(values)]
    return differ


def priced(odds: Odds, built: Buildable | None, chips: TrainingChips | None, hours: float | None) -> Odds:
    """The odds with what is known once the model to build is: intervals of its loss, hours and dollars.

    Args:
      odds: Those of the plan.
      built: The model to build.
      chips: The chips that train it.
      hours: Hours of the budget; None where they are not known.
    """
    if hours is not None:
        rows = [_in_hours(row, hours) for row in odds.experts]
        odds = dataclasses.replace(odds, experts=rows, budget_hours=hours)
    if built is None:
        return odds
    odds = dataclasses.replace(odds, loss=built.loss_interval)
    if built.speed is None or chips is None:
        return odds
    ends = [built.speed.hours[0], built.speed.hours[-1]]
    dollars = None
    if chips.dollars_per_hour is not None:
        dollars = [end * chips.in_use * chips.dollars_per_hour for end in ends]
    return dataclasses.replace(odds, hours=ends, dollars=dollars)


def _in_hours(row: ExpertOdds, hours: float) -> ExpertOdds:
    """The row with its regret in hours, of which the budget has so many."""
    return dataclasses.replace(row, regret_hours=[hours * share for share in row.regret_share])
