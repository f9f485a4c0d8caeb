"""Plans by FLOPs: the best size of models with one number of experts, in real numbers.

For an architecture at a given number of experts, one unknown remains, the size: more tokens never hurt, so a model gets
all tokens that the budget, the inference share and the cap leave.

A law that is a Chinchilla law at each number of experts, L = m N^mu + n D^nu + c with mu, nu < 0 (Eq. 5), has a best
size in closed form (App. C; the G of Eq. 9 has the wrong sign as printed). With inference tokens it is the root of a
monotone function. The loss falls before the optimum and rises after it. So a constraint that excludes the optimum makes
its own bound the best size.

Of any other law only losses are known. The best size is then searched for on a grid that is refined.

Axes: n_experts, coefficients and constraints broadcast together; results have their common shape. A search has an axis
of GRID sizes in front of these.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from fit.aliases import Array, ByName, Numbers
from fit.errors import UserError
from fit.fitted_law import law_counts
from fit.messages import sentences
from fit.messages.units import say
from fit.model.architecture import INFERENCE, TRAINING, root
from fit.planning.inputs.constraints import Constraints
from fit.planning.inputs.problem import PLATEAU, Problem
from fit.planning.search.best_models import BestModels
from fit.planning.search.size_limits import SizeLimit, size_limits

BELOW_SMALLEST = 1e-9  # a limit may hold the smallest model exactly, and rounding must not put it outside
GRID = 129  # sizes of a search
REFINED = 7  # how often the grid is laid again, between the neighbours of the best size
SEARCH_ERROR = 1e-6  # relative error of a searched size


def compute_optimal(m: Numbers, mu: Numbers, n: Numbers, nu: Numbers, flops: Numbers) -> tuple[Array, Array]:
    """The compute-optimal size and tokens of a Chinchilla law, in closed form (App. C).

    Args:
      m, mu, n, nu: of L = m N^mu + n D^nu + c.
      flops: 6 N D; all arguments broadcast together.

    Returns:
      (N, D) that minimise L at these FLOPs; NaN where there is no optimum.
    """
    with np.errstate(all="ignore"):
        size = (m * mu / (n * nu)) ** (-1 / (mu + nu)) * (flops / TRAINING) ** (nu / (mu + nu))
        size = np.where((np.asarray(mu) < 0) & (np.asarray(nu) < 0), size, np.nan)
    return size, flops / (TRAINING * size)


def _closed_form(reduced: Sequence[Numbers], n_experts: Array, constraints: Constraints) -> Numbers:
    """The best n_active of a Chinchilla law under FLOPs and inference tokens alone.

    Args:
      reduced: (m, mu, n, nu) of Eq. 5.
      n_experts: of the same shape, for the error.
      constraints: infinite sizes are the best without FLOPs.

    Raises:
      UserError: where the law has no optimum.
    """
    m, mu, n, nu = reduced
    if not (np.all(mu < 0) and np.all(nu < 0)):
        at = n_experts[(mu >= 0) | (nu >= 0)].ravel()[0]
        raise UserError(say(sentences.NO_OPTIMUM, at=at, mu=np.max(mu), nu=np.max(nu)))
    if constraints.flops is None:
        return np.inf
    if constraints.inference_tokens == 0:
        return compute_optimal(m, mu, n, nu, constraints.flops)[0]
    budget = constraints.flops / TRAINING
    inference = INFERENCE / TRAINING * constraints.inference_tokens
    largest = np.log(budget / inference)  # no token is left to train on

    def gain_over_cost(log_n: Numbers) -> Numbers:
        """Logarithm of what a larger model gains over what its lost tokens cost: falling, 0 at the optimum."""
        n_tokens = budget * np.exp(-log_n) - inference
        gain = np.log(m * -mu) + mu * log_n
        cost = np.log(n * -nu) + (nu - 1) * np.log(n_tokens) + np.log(budget) - log_n
        return gain - cost

    return np.exp(root(gain_over_cost, largest - 200, largest - 1e-13 * abs(largest)))


def _searched(loss: Callable[[Array], Array], low: Array, high: Array) -> Array:
    """The n_active of the least loss between low and high, by a grid that is refined.

    Args:
      loss: of n_active [n_sizes, ...], of the same shape.
      low, high: ends [...].
    """
    low, high = np.log(low), np.log(high)
    share = np.linspace(0, 1, GRID).reshape(-1, *[1] * np.ndim(low))
    sizes = low + share * (high - low)
    best = _lowest(loss, sizes)
    for _ in range(REFINED - 1):
        below = np.clip(best - 1, 0, len(sizes) - 1)
        above = np.clip(best + 1, 0, len(sizes) - 1)
        low = np.take_along_axis(sizes, below, axis=0)
        high = np.take_along_axis(sizes, above, axis=0)
        sizes = low + share * (high - low)
        best = _lowest(loss, sizes)
    return np.exp(np.take_along_axis(sizes, best, axis=0)[0])


def _lowest(loss: Callable[[Array], Array], log_sizes: Array) -> Array:
    """Indices [1, ...] of the sizes [n_sizes, ...] with the least loss."""
    with np.errstate(all="ignore"):
        losses = np.nan_to_num(loss(np.exp(log_sizes)), nan=np.inf)
    return np.argmin(losses, axis=0)[None]


def _largest(problem: Problem, n_experts: Array) -> tuple[Numbers, str | Array]:
    """(n_active of the largest model within memory, chips and speed of serving, infinite without these; which of them
    it is)."""
    architecture = problem.architecture
    largest: Numbers = np.inf
    bound: str | Array = "memory"
    for limit in size_limits(problem):

        def excess(log_d: Numbers, limit: SizeLimit = limit) -> Numbers:
            """Logarithm of what is needed over the limit, at this logarithm of the width."""
            return np.log(limit.required(np.exp(log_d), n_experts)) - np.log(limit.available)

        low = np.log(architecture.smallest) - BELOW_SMALLEST
        high = low + 1
        while np.any(excess(high) < 0):
            high += 1
        size = architecture.n_active(np.exp(root(excess, low, high)), n_experts)
        bound = np.where(size < largest, limit.name, bound)
        largest = np.fmin(size, largest)
    return largest, bound


def _on_plateau(tolerance: float, loss: Callable[[Array], Array], size: Array, smallest: Array) -> Array:
    """The least size whose loss is within a tolerance of that of `size`, where it is at most PLATEAU of it.

    Args:
      tolerance: share of the loss, of a law of repeated text.
      loss: of n_active, an array.
      size, smallest: arrays of one shape.

    Returns:
      The sizes; NaN where the loss is no plateau.
    """
    allowed_loss = loss(size) * (1 + tolerance)
    candidate = np.maximum(PLATEAU * size, smallest)

    def excess(log_n: Numbers) -> Numbers:
        """The loss above the allowed one, at this logarithm of the size."""
        return loss(np.exp(log_n)) - allowed_loss

    edge = np.exp(root(excess, np.log(smallest), np.log(candidate)))
    edge = np.where(loss(smallest) <= allowed_loss, smallest, edge)
    return np.where((candidate < size) & (loss(candidate) <= allowed_loss), edge, np.nan)


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
        return law_counts.closed_form_holds_for(self.problem.law, self.problem.architecture)

    def loss(self, n_active: Array) -> Array:
        """Loss of these sizes on the tokens that are left to them, at least one."""
        n_tokens = np.maximum(self.problem.constraints.tokens_within_flops(n_active), 1)
        return self._loss_on(n_active, n_tokens)

    def _loss_on(self, n_active: Array, n_tokens: Array) -> Array:
        """Loss of these sizes on these tokens."""
        law = self.problem.law
        return law_counts.loss_of_sizes(
            law, self.problem.architecture, self.n_experts, n_active, n_tokens, self.coefficients
        )

    def best_size(self) -> Array:
        """The best n_active under the budget alone: infinite where it is above all that are possible, else 0 where it
        is below them. Raises UserError where the law has no optimum."""
        if not self.closed_form:
            return self._searched_size()
        reduced = self.problem.law.chinchilla_coefficients_at(self.n_experts, self.coefficients)
        entries = np.broadcast_arrays(*reduced, self.n_experts)[:4]
        return np.broadcast_to(_closed_form(entries, self.n_experts, self.problem.constraints), self.n_experts.shape)

    def _searched_size(self) -> Array:
        """best_size by a search between the smallest model and the largest one of memory, or of one token left."""
        of_one_token = self.problem.constraints.size(1)
        top = np.fmax(np.fmin(self.largest, of_one_token), self.smallest)
        top = np.where(self.feasible, top, self.smallest)
        size = _searched(self.loss, self.smallest, top)
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
        edge = _on_plateau(self.problem.plateau_tolerance, self.loss, size, self.smallest)
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


def _check_bounded(problem: Problem) -> None:
    """Raises UserError where the constraints leave size or tokens without a bound."""
    constraints = problem.constraints
    if constraints.has_budget:
        return
    if constraints.max_tokens_read is None or not size_limits(problem):
        raise UserError(sentences.UNBOUNDED)
    if constraints.inference_tokens:
        raise UserError(sentences.NO_BUDGET_TO_SHARE)


def _size_problem(problem: Problem, n_experts: Numbers, coefficients: ByName) -> _SizeProblem:
    """The problem of `best_within_flops`, with all numbers broadcast, its bounds, and whether it is feasible."""
    architecture = problem.architecture
    constraints = problem.constraints
    limits = [limit for limit in (constraints.budget, constraints.memory_bytes) if limit is not None]
    shape = np.broadcast(*coefficients.values(), n_experts, *limits).shape
    n_experts = np.broadcast_to(np.asarray(n_experts, float), shape)
    smallest = np.broadcast_to(architecture.n_active(architecture.smallest, n_experts), shape)
    largest, largest_by = _largest(problem, n_experts)
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


def best_within_flops(problem: Problem, n_experts: Numbers, coefficients: ByName) -> BestModels:
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
    size, bound = of_size.within_bounds(of_size.best_size())
    return of_size.at_sizes(size, bound)


def near_optimal(problem: Problem, solved: BestModels, target: float) -> tuple[Array, Array]:
    """(least, most) n_active whose loss is at most a target, for each of the optima; NaN for none."""
    law = problem.law
    architecture = problem.architecture
    problem = problem.at(solved.n_experts)
    constraints = problem.constraints
    has_band = solved.feasible & (solved.loss <= target)
    smallest = architecture.n_active(architecture.smallest, solved.n_experts)
    largest = np.minimum(_largest(problem, solved.n_experts)[0], constraints.size(1))

    def excess(log_n: Numbers) -> Array:
        """The loss above the target, at this logarithm of the size."""
        n_active = np.exp(log_n)
        n_tokens = constraints.tokens_within_flops(n_active)
        return law_counts.loss_of_sizes(law, architecture, solved.n_experts, n_active, n_tokens) - target

    best = np.log(np.where(has_band, solved.n_active, 1.0))
    ends = []
    for possible in (smallest, largest):
        limit = np.log(np.where(has_band, possible, 1.0))
        edge = root(excess, best, limit)
        edge = np.where(np.isnan(edge), limit, edge)  # no root: the limit itself
        ends.append(np.where(has_band, np.exp(edge), np.nan))
    return ends[0], ends[1]
