"""Plans by FLOPs: the best size of models with one number of experts, in real numbers.

For an architecture at a given number of experts, one unknown remains, the size: more tokens never hurt, so a model gets
all tokens that the budget, the inference share and the cap leave. The loss falls before the best size (best_size.py)
and rises after it. So a constraint that excludes this size makes its own bound the best one.

The operations are those of solver.py: the best models, the lowest loss of an architecture, the near-optimal sizes, the
best models in draws, and the least budget.

Axes: n_experts, coefficients and constraints broadcast together; results have their common shape.
"""

import dataclasses

import numpy as np

from fit.aliases import Array, ByName, Numbers
from fit.errors import UserError
from fit.fitted_law import planned_models
from fit.messages import sentences
from fit.messages.units import say
from fit.model.architecture import root
from fit.planning.inputs.problem import Problem
from fit.planning.inputs.requests import PAPER_SHAPE
from fit.planning.search import best_size
from fit.planning.search.best_models import GAIN, BestInDraws, BestModels, gain_of_tokens
from fit.planning.search.size_limits import largest_size, size_limits

SEARCH_ERROR = 1e-6  # relative error of a searched size


def best_models(problem: Problem, n_experts: Numbers, coefficients: ByName) -> BestModels:
    """The best models within FLOPs, or within limits alone.

    Args:
      problem: The problem.
      n_experts: As the law counts them.
      coefficients: By name, the law's or a draw's.

    Raises:
      UserError: The constraints leave size or tokens without a bound, or the law has no optimum.
    """
    _check_bounded(problem)
    of_size = _size_problem(problem, n_experts, coefficients)
    size, bound = of_size.within_bounds(of_size.unbounded_size())
    return of_size.at_sizes(size, bound)


def lowest_loss(problem: Problem, n_experts: Array) -> float:
    """The loss of the best model among these numbers of experts; infinite where none is feasible.

    The sizes that chips hold are those of the paper's shapes here, which are known at once.
    """
    if problem.constraints.chips is not None:
        problem = problem.within(request=PAPER_SHAPE)
    losses = best_models(problem, n_experts, problem.law.coefficients).loss
    return float(np.min(np.where(np.isnan(losses), np.inf, losses)))


def near_optimal(problem: Problem, solved: BestModels, target: float) -> tuple[Array, Array]:
    """(least, most) n_active whose loss is at most a target, for each of the optima; NaN for none."""
    of_size = _size_problem(problem, solved.n_experts, problem.law.coefficients)
    has_band = solved.feasible & (solved.loss <= target)

    def excess(log_n: Numbers) -> Array:
        """The loss above the target, at this logarithm of the size."""
        return of_size.loss(np.exp(log_n)) - target

    best = np.log(np.where(has_band, solved.n_active, 1.0))
    ends = []
    for possible in (of_size.smallest, np.minimum(of_size.largest, of_size.of_one_token)):
        limit = np.log(np.where(has_band, possible, 1.0))
        edge = root(excess, best, limit)
        edge = np.where(np.isnan(edge), limit, edge)  # no root: the limit itself
        ends.append(np.where(has_band, np.exp(edge), np.nan))
    return ends[0], ends[1]


def in_draws(problem: Problem, e: float, n_draws: int, coefficients: ByName) -> BestInDraws:
    """The best model with one number of experts in each of several draws of the law.

    Args:
      problem: The problem.
      e: The number of experts, as the law counts them.
      n_draws: How many draws.
      coefficients: By name, in place of the law's, [n_draws] each; empty for the law's own.
    """
    law = problem.law
    coefficients = coefficients or law.coefficients
    solved = best_models(problem, np.full(n_draws, e), coefficients)
    more_tokens = solved.n_tokens * (1 + GAIN)
    loss = planned_models.loss_of_sizes(law, problem.architecture, e, solved.n_active, more_tokens, coefficients)
    return BestInDraws(
        loss=solved.loss,
        gain=gain_of_tokens(solved.loss, loss),
        n_active=solved.n_active,
        n_tokens=solved.n_tokens,
        d_model=solved.d_model,
    )


def least_budget(problem: Problem, e: float, loss: float, times: float) -> float | None:
    """The least FLOPs, from those of the problem up, with which one number of experts reaches a loss.

    None where even `times` the FLOPs are not enough.
    """
    least = problem.constraints.flops

    def excess(log_flops: Numbers) -> Array:
        """By how much the best loss within FLOPs lies above the loss to reach."""
        best = best_models(problem.within(flops=np.exp(log_flops)), e, problem.law.coefficients)
        return np.where(best.feasible, best.loss - loss, np.inf)

    low = np.log(least)
    high = low + np.log(times)
    if excess(low) <= 0:
        return least
    if excess(high) > 0:
        return None
    for _ in range(8):  # 64 parts each time: to 1e-13
        grid = np.linspace(low, high, 65)
        first = int(np.argmax(excess(grid) <= 0))
        low = grid[first - 1]
        high = grid[first]
    return float(np.exp(high))


def _check_bounded(problem: Problem) -> None:
    """Raises UserError where the constraints leave size or tokens without a bound."""
    constraints = problem.constraints
    if constraints.has_budget:
        return
    if constraints.max_tokens_read is None or not size_limits(problem):
        raise UserError(sentences.UNBOUNDED)
    if constraints.inference_tokens:
        raise UserError(sentences.NO_BUDGET_TO_SHARE)


@dataclasses.dataclass(frozen=True)
class _SizeProblem:
    """The problem of the best size. Arrays have the common shape of the problem, or broadcast with it.

    Attributes:
      problem: what is solved, within the constraints of n_experts.
      coefficients: by name, the law's or a draw's.
      n_experts: as the law counts them.
      smallest: n_active of the smallest model.
      largest, largest_by: n_active of the largest model that memory and chips hold, and what bounds it.
      feasible: whether the smallest model is within the constraints and has the experts that a token uses.
    """

    problem: Problem
    coefficients: ByName
    n_experts: Array
    smallest: Array
    largest: Numbers
    largest_by: str | Array
    feasible: Array

    @property
    def closed_form(self) -> bool:
        """Whether the best size has a closed form."""
        return planned_models.closed_form_holds_for(self.problem.law, self.problem.architecture)

    @property
    def of_one_token(self) -> Numbers:
        """n_active of the model to which FLOPs leave one training token."""
        return self.problem.constraints.size(1)

    def loss(self, n_active: Array) -> Array:
        """Loss of these sizes on the tokens that are left to them, at least one."""
        n_tokens = np.maximum(self.problem.constraints.tokens_within_flops(n_active), 1)
        return self._loss_on(n_active, n_tokens)

    def _loss_on(self, n_active: Array, n_tokens: Array) -> Array:
        """Loss of these sizes on these tokens."""
        law = self.problem.law
        return planned_models.loss_of_sizes(
            law, self.problem.architecture, self.n_experts, n_active, n_tokens, self.coefficients
        )

    def unbounded_size(self) -> Array:
        """The best n_active under the budget alone: infinite where it is above all that are possible, else 0 where it
        is below them. Raises UserError where the law has no optimum."""
        if not self.closed_form:
            return self._searched_size()
        reduced = self.problem.law.chinchilla_coefficients_at(self.n_experts, self.coefficients)
        entries = np.broadcast_arrays(*reduced, self.n_experts)[:4]
        return np.broadcast_to(
            best_size.closed_form(entries, self.n_experts, self.problem.constraints), self.n_experts.shape
        )

    def _searched_size(self) -> Array:
        """unbounded_size by a search between the smallest model and the largest one of memory, or of one token left."""
        of_one_token = self.of_one_token
        top = np.fmax(np.fmin(self.largest, of_one_token), self.smallest)
        top = np.where(self.feasible, top, self.smallest)
        size = best_size.searched(self.loss, self.smallest, top)
        is_at_top = size > top * (1 - SEARCH_ERROR)
        had_choice = top > self.smallest * (1 + 1e-5)
        rises = self.feasible & is_at_top & (top == of_one_token) & had_choice
        if np.any(rises):
            raise UserError(say(sentences.RISES, at=self.n_experts[rises][0]))
        is_smallest = size < self.smallest * (1 + SEARCH_ERROR)
        return np.where(is_at_top & (top == self.largest), np.inf, np.where(is_smallest, 0, size))

    def within_bounds(self, size: Array) -> tuple[Array, Array]:
        """(the best possible n_active, NaN where none is feasible; what fixed it, as in BestModels).

        size: the best n_active under the budget alone.
        """
        bound = np.full(self.n_experts.shape, "", dtype=object)
        constraints = self.problem.constraints
        cap = constraints.max_tokens_read
        if cap is not None and constraints.has_budget:
            of_all_tokens = constraints.size(cap)
            tolerance = 0 if self.closed_form else SEARCH_ERROR
            bound[of_all_tokens * (1 + tolerance) > size] = "tokens"
            size = np.maximum(size, of_all_tokens)
        bound = np.where(size > self.largest, self.largest_by, bound)
        size = np.minimum(size, self.largest)
        bound[size < self.smallest] = "smallest"
        size = np.where(self.feasible, np.maximum(size, self.smallest), np.nan)
        if not self.problem.plateau_tolerance:
            return size, bound
        edge = best_size.on_plateau(self.problem.plateau_tolerance, self.loss, size, self.smallest)
        return np.where(edge > 0, edge, size), np.where(edge > 0, "plateau", bound)

    def at_sizes(self, size: Array, bound: Array) -> BestModels:
        """The BestModels of these sizes."""
        architecture = self.problem.architecture
        constraints = self.problem.constraints
        n_tokens = constraints.tokens_within_flops(size)
        cap = constraints.max_tokens_read
        if cap is not None:  # exactly, where the tokens are a difference of large numbers
            n_tokens = np.where(size == constraints.size(cap), cap, n_tokens)
        n_tokens = np.where(self.feasible, n_tokens, np.nan)
        d_model = architecture.d_model(size, self.n_experts)
        with np.errstate(invalid="ignore"):
            loss = self._loss_on(size, n_tokens)
        return BestModels(
            n_experts=self.n_experts,
            n_active=size,
            n_total=np.asarray(architecture.n_total(d_model, self.n_experts)),
            n_tokens=n_tokens,
            loss=loss,
            d_model=d_model,
            size_bound=bound,
            feasible=self.feasible,
        )


def _size_problem(problem: Problem, n_experts: Numbers, coefficients: ByName) -> _SizeProblem:
    """The problem of `best_models`, with all numbers broadcast, its bounds, and whether it is feasible."""
    architecture = problem.architecture
    constraints = problem.constraints
    limits = [limit for limit in (constraints.budget, constraints.memory_bytes) if limit is not None]
    shape = np.broadcast(*coefficients.values(), n_experts, *limits).shape
    n_experts = np.broadcast_to(np.asarray(n_experts, float), shape)
    smallest = np.broadcast_to(architecture.n_active(architecture.smallest, n_experts), shape)
    largest, largest_by = largest_size(problem, n_experts)
    feasible = (constraints.tokens_within_flops(smallest) >= 1) & architecture.has_enough_experts(n_experts)
    for limit in size_limits(problem):
        feasible = feasible & (limit.required(architecture.smallest, n_experts) <= limit.available)
    return _SizeProblem(
        problem=problem,
        coefficients=coefficients,
        n_experts=n_experts,
        smallest=smallest,
        largest=largest,
        largest_by=largest_by,
        feasible=feasible,
    )
