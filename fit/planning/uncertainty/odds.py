"""How sure a plan is: in how many of its joint draws each number of experts is the best, and what a wrong one costs.

In each draw (joint_draws.py) every number of experts has its best model: by hours of the candidates of the plan. The
recommendation is the number of experts of the least expected loss. As the draws are the same for all questions, more
chips or hours are not worse.

Axes: n_experts numbers of experts, n_draws draws.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator

import numpy as np

from fit.aliases import Array, ByName, Floats, Json
from fit.fitted_law.law import Law
from fit.model.architecture import training_flops
from fit.planning.chosen.buildable import Buildable
from fit.planning.chosen.chips_used import ChipsUsed
from fit.planning.chosen.optimum import Optimum
from fit.planning.inputs.problem import Problem
from fit.planning.search.best_models import BestInDraws
from fit.planning.uncertainty import joint_draws, measurement
from fit.planning.uncertainty.joint_draws import Draws
from fit.planning.uncertainty.measurement import Measurement
from fit.results import Record, optional

CLOSE = 1e-3  # share of the loss within which it hardly matters which of two numbers of experts is chosen
CLOSE_BUDGET = 0.03  # the same, of the budget
DECIDED = 0.8  # share of the draws in which the recommended number must be the best to be settled
MOST_LOG_SHARE = 5.0  # of more budget that reaches a loss: beyond, it is out of reach
COLUMNS = dict(memory_bytes="memory", n_tokens="tokens", inference_flops_per_token="FLOPs of serving a token")
APART = 1.1  # two models differ in memory, tokens or serving from this ratio on


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExpertOdds(Record):
    """How one number of experts fares in the draws, each of them with the best model that it allows.

    Attributes:
      n_experts: As the law counts them.
      best_in_draws: In how many draws it is the best.
      expected_loss: Mean over the draws, in nats per token.
      regret: [mean, 90th percentile] of how far it lies above the best of a draw, in nats per token.
      regret_share: The same as a share of the budget: how much more of it reaches such a difference, to first order, by
        how the loss of the recommended number falls with tokens in the mean of the draws.
      regret_hours: The same in hours; None where the hours of the plan are not known.
      behind: [low, high] of how far it lies above the recommended number in the same draw, in nats per token.
      n_active, n_tokens, loss: [low, high] each.
      forms: {additive, coupled: {draws, and the median of each column}} where the draws are of both forms.
    """

    n_experts: int
    best_in_draws: int
    expected_loss: float
    regret: list[float]
    regret_share: list[float]
    regret_hours: list[float] | None = optional()
    behind: list[float]
    n_active: list[float]
    n_tokens: list[float]
    loss: list[float]
    forms: Json | None = optional()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Odds(Record):
    """How sure a plan is, by one set of joint draws of what it does not know. Fields on draws are None without them.

    Attributes:
      drawn: What is drawn: "law", "speed" or both; empty where the plan follows medians alone.
      draws: How many draws.
      draws_without_optimum: Draws of the law that have no optimum, and are left out.
      form, by: How the law's draws were made, and which runs were drawn together.
      source: Where draws of a published law are from, in words; None for those of a fit.
      no_draws: Why a published law has no draws, in words.
      percentiles: Ends of all intervals.
      experts: One row for each number of experts.
      recommended: The number of experts of the least expected loss.
      by_median: The best one by the medians of law and speeds.
      kind: "dense", "mixture" or "undecided"; None where one number of experts is compared.
      mixture_in_draws: In how many draws a mixture is the best.
      settled: Whether the recommended is the best in at least odds.DECIDED of the draws, and no close call.
      second: The number of experts that is recommended next.
      close_call: The first two, where it hardly matters which is chosen: within odds.CLOSE of the loss or CLOSE_BUDGET
        of the budget; else empty.
      differ: {column: [least, most]} of what sets these two apart.
      speed_share: Share of the variance of the difference between the first two that is due to speeds; the rest is
        due to the law.
      bound: What limits the size of one of the first two: "memory", "chips" or "serving"; "" for nothing.
      loss: [low, high] of the loss of the model to build.
      budget_hours: Hours of the budget; None where they are not known.
      hours, dollars: [low, high] of what its training takes at the planned tokens.
      measurement: What to measure; None where nothing is open.
    """

    drawn: list[str]
    draws: int
    draws_without_optimum: int
    form: str | None = optional()
    by: str | None = optional()
    source: str | None = optional()
    no_draws: str | None = optional()
    percentiles: list[float] | None = optional()
    experts: list[ExpertOdds]
    recommended: int
    by_median: int
    kind: str | None
    mixture_in_draws: int | None = optional()
    settled: bool | None
    second: int | None
    close_call: list[int]
    differ: dict[str, list[float]]
    speed_share: float | None = optional()
    bound: str
    loss: list[float] | None = optional()
    budget_hours: float | None = optional()
    hours: list[float] | None = optional()
    dollars: list[float] | None = optional()
    measurement: Measurement | None = optional()

    def row(self, n_experts: float) -> ExpertOdds | None:
        """The row of a number of experts; None where there is none."""
        for row in self.experts:
            if row.n_experts == n_experts:
                return row
        return None

    def most_often_best(self) -> list[ExpertOdds]:
        """The rows that are the best in some draw, those first that are it in most."""
        winners = [row for row in self.experts if row.best_in_draws]
        return sorted(winners, key=lambda row: -row.best_in_draws)


@dataclasses.dataclass(frozen=True)
class Ranking:
    """The numbers of experts of a plan by their expected losses in its joint draws.

    Attributes:
      problem: The problem.
      optima: The best model with each number of experts by the medians.
      by_medians: Whether the ranking is by losses by the medians of law and speeds instead, as where a loss is to be
        reached.
    """

    problem: Problem
    optima: list[Optimum]
    by_medians: bool = False

    @functools.cached_property
    def draws(self) -> Draws:
        """The draws."""
        return joint_draws.of_problem(self.problem, self._experts)

    @functools.cached_property
    def solved(self) -> BestInDraws:
        """The best models in the draws."""
        return joint_draws.solve_draws(self.problem, self._experts, self.draws)

    @property
    def _experts(self) -> Array:
        """The numbers of experts."""
        return np.array([row.n_experts for row in self.optima], float)

    @functools.cached_property
    def order(self) -> list[int]:
        """Indices of the optima, the best first."""
        if len(self.optima) == 1:  # which needs no draws
            return [0]
        losses = [row.loss for row in self.optima] if self.by_medians else self.solved.loss.mean(axis=1)
        return np.argsort(losses, kind="stable").tolist()

    @property
    def recommended(self) -> Optimum:
        """The first one."""
        return self.optima[self.order[0]]

    @property
    def expected_loss(self) -> float:
        """The mean over the draws of the loss of the recommended number of experts."""
        return float(self.solved.loss[self.order[0]].mean())

    @property
    def best_by_median(self) -> Optimum:
        """The one of the least loss by the medians of law and speeds."""
        return min(self.optima, key=lambda row: row.loss)


def odds_of(
    ranking: Ranking,
    hours: float | None = None,
    built: Buildable | None = None,
    chips: ChipsUsed | None = None,
) -> Odds:
    """How sure the number of experts of a plan is.

    Args:
      ranking: The numbers of experts.
      hours: Hours of the budget; None where they are not known.
      built: The model to build.
      chips: The chips that train it.
    """
    problem = ranking.problem
    law = problem.law
    draws = ranking.draws
    drawn = []
    if draws.coefficients:
        drawn.append("law")
    if problem.is_by_hours:
        drawn.append("speed")
    n_draws = draws.n if drawn else 0
    rows = [*_rows(ranking, hours)]
    first = ranking.recommended
    bootstrap = law.bootstrap
    return Odds(
        drawn=drawn,
        draws=n_draws,
        draws_without_optimum=_n_unusable(law, [row.n_experts for row in ranking.optima]),
        form=bootstrap.form if bootstrap else None,
        by=bootstrap.by if bootstrap else None,
        source=law.source_of_draws or None,
        no_draws=law.no_draws or None,
        percentiles=law.percentiles or ([10, 90] if drawn else None),
        experts=rows,
        recommended=first.n_experts,
        by_median=ranking.best_by_median.n_experts,
        kind=_kind(rows, first.n_experts, n_draws),
        mixture_in_draws=_mixtures(rows) if drawn else None,
        **_first_two(ranking, rows, n_draws),
        budget_hours=hours,
        **_of_built(built, chips),
    )


def _first_two(ranking: Ranking, rows: list[ExpertOdds], n_draws: int) -> Json:
    """The fields of Odds on the first two numbers of experts. n_draws: 0 where nothing is drawn."""
    if len(rows) == 1:
        return dict(settled=None, second=None, close_call=[], differ={}, bound="")
    both = ranking.order[:2]
    first, second = (rows[i] for i in both)
    pair = [ranking.optima[i] for i in both]
    experts = [row.n_experts for row in pair]
    is_close = _close_call(first, second)
    bounds = [row.size_bound for row in pair if row.size_bound in ("memory", "chips", "serving")]
    fields = dict(
        settled=None,
        second=second.n_experts,
        close_call=experts if is_close else [],
        differ=_differ(pair) if is_close else {},
        bound=bounds[0] if bounds else "",
    )
    if not n_draws:
        return fields
    is_settled = not is_close and first.best_in_draws >= DECIDED * n_draws
    draws = dataclasses.replace(ranking.draws, log_speeds=ranking.draws.log_speeds[both])
    behind = ranking.solved.loss[both[1]] - ranking.solved.loss[both[0]]
    causes = measurement.causes(ranking.problem, np.array(experts, float), draws, behind)
    speed_share = causes.speed_share
    to_measure = None
    if speed_share is not None and not is_settled and not is_close:
        to_measure = measurement.measurement_of(ranking.problem, causes)
    return fields | dict(settled=is_settled, speed_share=speed_share, measurement=to_measure)


def _of_built(built: Buildable | None, chips: ChipsUsed | None) -> Json:
    """The fields of Odds on the model to build: intervals of its loss, hours and dollars."""
    if built is None:
        return {}
    if built.speed is None or chips is None:
        return dict(loss=built.loss_interval)
    ends = [built.speed.hours[0], built.speed.hours[-1]]
    dollars = None
    if chips.dollars_per_hour is not None:
        dollars = [end * chips.n_used * chips.dollars_per_hour for end in ends]
    return dict(loss=built.loss_interval, hours=ends, dollars=dollars)


def _n_unusable(law: Law, experts: Floats) -> int:
    """How many of the law's draws have no optimum at some number of experts."""
    return int(np.sum(~joint_draws.usable_draws(law, experts))) if law.draws else 0


def _rows(ranking: Ranking, hours: float | None) -> Iterator[ExpertOdds]:
    """The row of each number of experts. hours: those of the budget, if known."""
    law = ranking.problem.law
    architecture = ranking.problem.as_counted
    draws = ranking.draws
    solved = ranking.solved
    first = ranking.order[0]
    percentiles = law.percentiles or [10, 90]
    best = np.argmin(solved.loss, axis=0)
    lowest = solved.loss.min(axis=0)
    worth = solved.gain[first].mean() * solved.loss[first].mean()  # nats for each factor of e in the budget
    for i, row in enumerate(ranking.optima):
        regret = _mean_and_high(solved.loss[i] - lowest)
        regret_share = [math.expm1(min(nats / worth, MOST_LOG_SHARE)) for nats in regret]
        # the form's own error is the same for all numbers of experts: it widens the losses, and changes no best one
        loss = solved.loss[i]
        if draws.rows is not None:
            n_active = law.counting.counted(architecture, solved.n_active[i], solved.d_model[i])
            loss = loss * np.exp(law.log_change(training_flops(n_active, solved.n_tokens[i]), draws.rows))
        columns = dict(n_active=solved.n_active[i], n_tokens=solved.n_tokens[i], loss=loss)
        values = [solved.loss[i] - solved.loss[first], *columns.values()]
        behind, *ends = np.percentile(values, percentiles, axis=1, method="weibull").T.tolist()
        yield ExpertOdds(
            n_experts=row.n_experts,
            best_in_draws=int(np.sum(best == i)) if draws.is_drawn else 0,
            expected_loss=float(solved.loss[i].mean()),
            regret=regret,
            regret_share=regret_share,
            regret_hours=None if hours is None else [hours * share for share in regret_share],
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
    """Whether it hardly matters which of two numbers of experts is chosen. By medians the first may be the worse."""
    better, worse = sorted((first, second), key=lambda row: row.expected_loss)
    loss = worse.expected_loss - better.expected_loss
    return loss <= CLOSE * better.expected_loss or share_beyond(better, worse) <= CLOSE_BUDGET


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
