"""The solution of a plan: the best models of its problem, or of the best of several, and which one is recommended."""

import dataclasses
import math

from fit.errors import UserError
from fit.fitted_law.law import Law
from fit.messages import sentences
from fit.messages.finding import Finding, finding
from fit.messages.units import say
from fit.model.architecture import Architecture
from fit.planning import make_problem
from fit.planning.chosen import widths_of_runs
from fit.planning.chosen.optima import optima_of
from fit.planning.chosen.optimum import BestOfWidth, Infeasible, Optimum
from fit.planning.inputs.options import PlanOptions
from fit.planning.inputs.problem import Problem
from fit.planning.search import target
from fit.planning.search.target import Target
from fit.planning.uncertainty import odds
from fit.planning.uncertainty.odds import Ranking

OF_ARCHITECTURES = ("n_experts", "n_active", "n_total", "n_tokens", "loss")  # columns of Plan.architectures


@dataclasses.dataclass(frozen=True)
class Solution:
    """The best models of a problem, and which of them is recommended.

    Attributes:
      problem: The problem.
      optima: The best model with each number of experts.
      infeasible: The numbers of experts with which no model is feasible.
      ranking: The numbers of experts by their expected losses.
      reached: The least budget that reaches a loss, where the problem's budget is that.
      architectures: As in Plan, where this is the best of several architectures.
      left_out: Findings on those of them that are not feasible.
    """

    problem: Problem
    optima: list[Optimum]
    infeasible: list[Infeasible]
    ranking: Ranking
    reached: Target | None
    architectures: list[BestOfWidth] | None = None
    left_out: tuple[Finding, ...] = ()

    @property
    def best(self) -> Optimum:
        """The recommended one."""
        return self.ranking.recommended

    @property
    def cost_or_loss(self) -> float:
        """The measure between architectures: FLOPs or hours that reach a target, else the expected loss."""
        return self.ranking.expected_loss if self.reached is None else self.reached.cost


def best_of_architectures(law: Law, options: PlanOptions) -> Solution:
    """The solution of the best architecture.

    Raises:
      UserError: No model is feasible.
    """
    solutions: list[Solution] = []
    refusals: list[tuple[Architecture, UserError]] = []
    for architecture in options.architectures(law):
        try:
            solutions.append(_of_architecture(law, options, architecture))
        except UserError as error:  # another of the architectures may be feasible
            refusals.append((architecture, error))
    if not solutions:
        raise refusals[-1][1]
    best = min(solutions, key=lambda solution: solution.cost_or_loss)
    if options.shape.used is None or len(options.shape.used) == 1:
        return best
    rows = []
    for solution in solutions:
        of_best = {name: solution.best[name] for name in OF_ARCHITECTURES}
        rows.append(BestOfWidth(active_width=solution.problem.architecture.active_width, **of_best))
    return dataclasses.replace(
        best,
        architectures=sorted(rows, key=lambda row: row.active_width),
        left_out=tuple(finding("width_left_out", used=each.active_width, why=str(error)) for each, error in refusals),
    )


def _of_architecture(law: Law, options: PlanOptions, architecture: Architecture) -> Solution:
    """The solution of one architecture, with experts as wide as the law's table has them at the size of the best."""
    solution = solve(make_problem.problem_of(law, options, architecture), options.target_loss)
    if options.like is not None or options.fixes_expert_widths:
        return solution

    def solve_again(wider: Architecture) -> Solution | None:
        """The solution of another architecture; None where no model is feasible."""
        try:
            return solve(make_problem.problem_of(law, options, wider), options.target_loss)
        except UserError:
            return None

    return widths_of_runs.with_widths_of_runs(solution, solve_again)


def solve(problem: Problem, target_loss: float | None) -> Solution:
    """The best models of a problem or, with a loss to reach, under the least budget that reaches it."""
    reached = None
    if target_loss is not None:
        _check_target(problem, target_loss)
        problem, reached = target.reach(problem, target_loss)
    optima, infeasible = optima_of(problem)
    ranking = odds.rank(problem, optima, by_medians=reached is not None)
    return Solution(problem, optima, infeasible, ranking, reached)


def _check_target(problem: Problem, loss: float) -> None:
    """Raises UserError where a target loss comes with a budget, or needs no training."""
    if problem.constraints.has_budget:
        raise UserError("--target_loss asks for the budget that --flops or --hours gives: give one of them")
    vocab_size = problem.architecture.vocab_size
    knows_nothing = math.log(vocab_size)
    if loss >= knows_nothing:
        sentence = sentences.TARGET_KNOWS_NOTHING
        raise UserError(say(sentence, loss=loss, size=vocab_size, nothing=knows_nothing))
