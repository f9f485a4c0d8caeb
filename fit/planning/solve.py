"""The solution of a problem: its best models, and which of them is recommended. `fit plan` and `fit compare` share it.

`solve` solves one problem, `best_of_widths` those of several architectures.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

from fit.errors import UserError
from fit.fitted_law import expert_widths
from fit.messages import sentences
from fit.messages.finding import Finding, finding
from fit.messages.units import say
from fit.model.architecture import Architecture
from fit.planning.chosen.optima import optima_of
from fit.planning.chosen.optimum import BestOfWidth, Infeasible, Optimum
from fit.planning.inputs.problem import Problem
from fit.planning.search import solver, target
from fit.planning.search.target import Target
from fit.planning.uncertainty.odds import Ranking

MAX_WIDTH_ROUNDS = 4  # problems solved again, with experts as wide as the law's runs had them at the best size
WIDTH_TOLERANCE = 1e-3  # relative change of these widths that ends the rounds
OF_ARCHITECTURES = ("n_experts", "n_active", "n_total", "n_tokens", "loss")  # columns of Plan.architectures


@dataclasses.dataclass(frozen=True)
class Solution:
    """The best models of a problem, and which of them is recommended.

    Attributes:
      problem: The problem.
      requested: How models were to be built. In the problem experts are as wide as the law's runs had them at the size
        of the best model, unless options say how wide.
      optima: The best model with each number of experts.
      infeasible: The numbers of experts with which no model is feasible.
      ranking: The numbers of experts by their expected losses.
      reached: The least budget that reaches a loss, where the problem's budget is that.
      architectures: As in Plan, where this is the best of several architectures.
      left_out: Findings on those of them that are not feasible.
    """

    problem: Problem
    requested: Architecture
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


def best_of_widths(
    by_width: Sequence[Sequence[Architecture]],
    problem_of: Callable[[Architecture], Problem],
    *,
    fixes_expert_widths: bool,
    target_loss: float | None = None,
) -> Solution:
    """The solution of the least expected loss, of several widths of the experts that a token uses.

    Of the architectures of one width, which differ in how experts are split and shared, it is the one that is the best
    by the medians (solver.best_architecture). A law may tell a hundred of them apart, and a comparison of laws would
    take 4 to 20 times as long if each of them were solved with all draws.

    Args:
      by_width: The architectures of each width.
      problem_of: The problem of an architecture.
      fixes_expert_widths: Whether experts are as wide as the architecture says. Otherwise they are as wide as the law's
        runs had them.
      target_loss: As in solve.

    Raises:
      UserError: As solve, of the last width, where none has a solution.
    """
    solutions: list[Solution] = []
    refusals: list[tuple[Architecture, UserError]] = []
    for architectures in by_width:
        try:
            problem = solver.best_architecture([problem_of(architecture) for architecture in architectures])
            if fixes_expert_widths:
                solutions.append(solve(problem, target_loss))
            else:
                solutions.append(_solve_as_runs(problem, problem_of, target_loss))
        except UserError as error:  # another of the widths may be feasible
            refusals.append((architectures[0], error))
    if not solutions:
        raise refusals[-1][1]
    if len(by_width) == 1:
        return solutions[0]
    best = min(solutions, key=lambda solution: solution.cost_or_loss)
    rows = []
    for solution in solutions:
        of_best = {name: solution.best[name] for name in OF_ARCHITECTURES}
        rows.append(BestOfWidth(active_width=solution.problem.architecture.active_width, **of_best))
    return dataclasses.replace(
        best,
        architectures=sorted(rows, key=lambda row: row.active_width),
        left_out=tuple(finding("width_left_out", used=each.active_width, why=str(error)) for each, error in refusals),
    )


def _solve_as_runs(
    problem: Problem, problem_of: Callable[[Architecture], Problem], target_loss: float | None
) -> Solution:
    """The solution with experts as wide as the law's runs had them at the size of the best model.

    Where that width changes with the size, it follows from the best size, and the best size from the width: problems
    are solved in rounds.

    Args:
      problem: The problem with experts as wide as most of the runs had them.
      problem_of: The problem of an architecture.
      target_loss: As in solve.
    """
    solution = solve(problem, target_loss)
    shares = problem.law.models.shares
    if shares is None:
        return solution
    for _ in range(MAX_WIDTH_ROUNDS):
        architecture = solution.problem.architecture
        best = solution.best
        wider = expert_widths.at_size(architecture, shares, best.n_active, best.n_experts)
        if math.isclose(wider.granularity, architecture.granularity, rel_tol=WIDTH_TOLERANCE):
            break
        try:
            solution = solve(problem_of(wider), target_loss)
        except UserError:  # with experts this wide no model is within the limits: those of the round before are
            break
    return dataclasses.replace(solution, requested=problem.architecture)


def solve(problem: Problem, target_loss: float | None = None) -> Solution:
    """The best models of a problem or, with a loss to reach, under the least budget that reaches it.

    Raises:
      NoModel: No model is within the limits.
      UserError: The limits leave size or tokens without a bound, the law has no optimum, or nothing reaches the loss.
    """
    reached = None
    if target_loss is not None:
        _check_target(problem, target_loss)
        problem, reached = target.reach(problem, target_loss)
    optima, infeasible = optima_of(problem)
    ranking = Ranking(problem, optima, by_medians=reached is not None)
    return Solution(problem, problem.architecture, optima, infeasible, ranking, reached)


def _check_target(problem: Problem, loss: float) -> None:
    """Raises UserError where a target loss comes with a budget, or needs no training."""
    if problem.constraints.has_budget:
        raise UserError("--target_loss asks for the budget that --flops or --hours gives: give one of them")
    vocab_size = problem.architecture.vocab_size
    knows_nothing = math.log(vocab_size)
    if loss >= knows_nothing:
        sentence = sentences.TARGET_KNOWS_NOTHING
        raise UserError(say(sentence, loss=loss, size=vocab_size, nothing=knows_nothing))
