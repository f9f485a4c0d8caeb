"""The best (n_active, n_tokens, n_experts) for a law under constraints.

For an architecture at a given number of experts, one unknown remains, its size: more tokens never hurt, so a model gets
all tokens that the budget, the inference share and the cap leave. If a law is a Chinchilla law at each number of
experts, L = m N^mu + n D^nu + c with mu, nu < 0 (Eq. 5), its best size has a closed form (App. C; the G of Eq. 9 has
the wrong sign as printed), or with inference tokens is the root of a monotone function; the loss falls before the
optimum and rises after it, so a constraint that excludes the optimum makes its own bound the best size. Any other law,
and any law under hours by the clock, is only asked for losses: its best size is searched for on a grid that is refined.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import SupportsIndex

import numpy as np
from numpy.typing import ArrayLike

from fit.aliases import Array, ByName, Floats, Json, Numbers
from fit.errors import UserError
from fit.fitted_law.law import Law
from fit.messages import sentences
from fit.messages.units import say
from fit.planning.constraints import Constraints
from fit.shape.architecture import INFERENCE, TRAINING, Architecture, root, training_flops

BAND = 1e-3  # near-optimal: within this share of the best loss
NEAR = 1e-4  # as good as the best: within this share of its loss
PLATEAU = 0.75  # where a model of this share of the best size is as good, larger ones are worth nothing
BELOW_SMALLEST = 1e-9  # a limit may hold the smallest model exactly, and rounding must not put it outside
GRID, REFINED = 129, 7  # of the search: sizes, and how often the grid is laid between the neighbours of the best one


@dataclasses.dataclass
class Optima:
    """Arrays of one shape. n_active and d_model are real numbers; loss in nats per token; NaN where not feasible.

    size_bound says what fixed n_active: "" (free optimum), "memory", "chips" (which hold no larger model in training),
    "tokens" (all tokens used), "plateau" (larger ones are worth nothing more) or "smallest".
    """

    n_experts: np.ndarray
    n_active: np.ndarray
    n_total: np.ndarray
    n_tokens: np.ndarray
    loss: np.ndarray
    d_model: np.ndarray
    size_bound: np.ndarray
    feasible: np.ndarray

    def row(self, i: SupportsIndex | tuple[()] = (), names: Sequence[str] = ("n_active", "n_tokens", "loss")) -> Json:
        """The i-th optimum as a dictionary of plain numbers: n_experts and these."""
        return dict(n_experts=int(self.n_experts[i])) | {name: float(getattr(self, name)[i]) for name in names}


def compute_optimal(m: Numbers, mu: Numbers, n: Numbers, nu: Numbers, flops: Numbers) -> tuple[Array, Array]:
    """(N, D) that minimise m N^mu + n D^nu with 6 N D = flops (App. C), any shape; NaN where there is no optimum."""
    with np.errstate(all="ignore"):
        size = (m * mu / (n * nu)) ** (-1 / (mu + nu)) * (flops / TRAINING) ** (nu / (mu + nu))
        size = np.where((np.asarray(mu) < 0) & (np.asarray(nu) < 0), size, np.nan)
    return size, flops / (TRAINING * size)


def loss_of(
    law: Law,
    architecture: Architecture,
    n_experts: Numbers,
    n_active: Numbers,
    n_tokens: Numbers,
    coefficients: ByName | None = None,
) -> Array:
    """Loss of models of an architecture, whatever the law reads of them; the numbers broadcast together."""
    coefficients = coefficients or law.coefficients
    if law.closed_form:
        return law.chinchilla_coefficients_at(n_experts, coefficients).loss(n_active, n_tokens)
    d_model = architecture.d_model(n_active, n_experts)
    return law.loss(coefficients, columns_of(law, architecture, d_model, n_experts, n_tokens))


def columns_of(
    law: Law, architecture: Architecture, d_model: Numbers, n_experts: Numbers, n_tokens: Numbers
) -> dict[str, Numbers]:
    """What the law reads of such models, by column; UserError where it reads what no architecture determines."""
    known = architecture.columns(d_model, n_experts, law.counts_embedding) | dict(n_tokens=n_tokens)
    if unknown := [name for name in law.form.columns if name not in known]:
        raise UserError(
            f"--law={law.name}: the {law.form.name} law reads {', '.join(unknown)}, which a plan's models do not have"
        )
    return {name: known[name] for name in law.form.columns}


def _closed_form(reduced: Sequence[Numbers], n_experts: Array, constraints: Constraints) -> Numbers:
    """The best n_active of a Chinchilla law under flops and inference tokens alone. UserError if it has no optimum."""
    m, mu, n, nu = reduced[:4]
    if not (np.all(mu < 0) and np.all(nu < 0)):
        at = n_experts[(mu >= 0) | (nu >= 0)].ravel()[0]
        raise UserError(sentences.NO_OPTIMUM.format(at=at, mu=np.max(mu), nu=np.max(nu)))
    if constraints.flops is None:
        return np.inf
    if constraints.inference_tokens == 0:
        return compute_optimal(m, mu, n, nu, constraints.flops)[0]
    budget, inference = constraints.flops / TRAINING, INFERENCE / TRAINING * constraints.inference_tokens
    top = np.log(budget / inference)  # no token is left to train on

    def gain_over_cost(log_n: Numbers) -> Numbers:
        """Logarithm of what a larger model gains over what its lost tokens cost: falling, 0 at the optimum."""
        d = budget * np.exp(-log_n) - inference
        return (np.log(m * -mu) + mu * log_n) - (np.log(n * -nu) + (nu - 1) * np.log(d) + np.log(budget) - log_n)

    return np.exp(root(gain_over_cost, top - 200, top - 1e-13 * abs(top)))


def _searched(loss: Callable[[Array], Array], low: Array, high: Array) -> Array:
    """The n_active in [low, high] (arrays) of the least loss(n_active [GRID, ...]), by a grid that is refined."""
    low, high = np.log(low), np.log(high)
    share = np.linspace(0, 1, GRID).reshape(-1, *[1] * np.ndim(low))
    for _ in range(REFINED):
        with np.errstate(all="ignore"):
            sizes = low + share * (high - low)
            best = np.argmin(np.nan_to_num(loss(np.exp(sizes)), nan=np.inf), axis=0)[None]
        low, high = (np.take_along_axis(sizes, np.clip(best + side, 0, GRID - 1), axis=0)[0] for side in (-1, 1))
    return np.exp(np.take_along_axis(sizes, best, axis=0)[0])


def _largest(architecture: Architecture, constraints: Constraints, n_experts: Array) -> tuple[Numbers, str | Array]:
    """(n_active of the largest model that memory and chips hold, infinite without these; which of the two it is)."""
    largest, bound = np.inf, "memory"
    for name, used, limit in constraints.sizes(architecture):
        excess = lambda log_d: np.log(used(np.exp(log_d), n_experts)) - np.log(limit)
        low = np.log(architecture.smallest) - BELOW_SMALLEST
        high = low + 1
        while np.any(excess(high) < 0):
            high += 1
        size = architecture.n_active(np.exp(root(excess, low, high)), n_experts)
        largest, bound = np.fmin(size, largest), np.where(size < largest, name, bound)
    if constraints.clock is not None:
        trained = constraints.clock.largest()
        largest, bound = np.fmin(trained, largest), np.where(trained < largest, "chips", bound)
    return largest, bound


def _on_plateau(slack: float, loss: Callable[[Array], Array], size: Array, smallest: Array) -> Array:
    """The least size whose loss is higher than that of `size` by no more than the share `slack`, where it is at most
    PLATEAU of it; elsewhere NaN. loss: of n_active, an array."""
    most, less = loss(size) * (1 + slack), np.maximum(PLATEAU * size, smallest)
    edge = np.exp(root(lambda log_n: loss(np.exp(log_n)) - most, np.log(smallest), np.log(less)))
    edge = np.where(loss(smallest) <= most, smallest, edge)
    return np.where((less < size) & (loss(less) <= most), edge, np.nan)


def solve(
    law: Law,
    n_experts: Numbers,
    architecture: Architecture,
    constraints: Constraints,
    coefficients: ByName | None = None,
) -> Optima:
    """Optima at each n_experts; everything broadcasts together, coefficients too (by name; the law's unless given).

    Raises UserError if the constraints leave size or tokens without a bound, or the law has no optimum.
    """
    law.check_plannable()
    coefficients = coefficients or law.coefficients
    cap, sizes, budgeted = constraints.cap, constraints.sizes(architecture), constraints.has_budget
    if not budgeted and (not sizes or cap is None):
        raise UserError(sentences.UNBOUNDED)
    if not budgeted and constraints.inference_tokens:
        raise UserError(sentences.NO_BUDGET_TO_SHARE)
    given = [v for v in (constraints.amount, constraints.memory_bytes) if v is not None]
    shape = np.broadcast(*coefficients.values(), n_experts, *given).shape
    n_experts = np.broadcast_to(np.asarray(n_experts, float), shape)
    constraints = constraints if constraints.clock is None else constraints.at(n_experts)
    smallest_d = architecture.smallest
    smallest = np.broadcast_to(architecture.n_active(smallest_d, n_experts), shape)
    largest, largest_by = _largest(architecture, constraints, n_experts)
    feasible = (constraints.tokens(smallest) >= 1) & architecture.enough(n_experts)
    if constraints.clock is not None:
        feasible = feasible & (smallest <= largest)
    for _, used, limit in sizes:
        feasible = feasible & (used(smallest_d, n_experts) <= limit)
    bound = np.full(shape, "", dtype=object)
    loss = lambda n: loss_of(law, architecture, n_experts, n, np.maximum(constraints.tokens(n), 1), coefficients)
    closed_form = law.closed_form and constraints.clock is None
    if closed_form:
        reduced = np.broadcast_arrays(*law.chinchilla_coefficients_at(n_experts, coefficients), n_experts)[:4]
        size = np.broadcast_to(_closed_form(reduced, n_experts, constraints), shape)
    else:
        last = constraints.size(1)
        top = np.broadcast_to(np.fmax(np.fmin(largest, last), smallest), shape)  # of memory, or of one token left
        size = _searched(loss, smallest, top)
        at_top = size > top * (1 - 1e-6)
        rises = feasible & at_top & (top == last) & (top > smallest * (1 + 1e-5))  # there were sizes to choose from
        if np.any(rises):
            raise UserError(sentences.RISES.format(at=n_experts[rises][0]))
        size = np.where(at_top & (top == largest), np.inf, np.where(size < smallest * (1 + 1e-6), 0, size))
    if cap is not None and budgeted:
        all_tokens = constraints.size(cap)
        bound[all_tokens * (1 + (0 if closed_form else 1e-6)) > size] = "tokens"
        size = np.maximum(size, all_tokens)
    bound = np.where(size > largest, largest_by, bound)
    size = np.minimum(size, largest)
    bound[size < smallest] = "smallest"
    size = np.where(feasible, np.maximum(size, smallest), np.nan)
    if slack := getattr(law, "slack", 0):  # of a law of repeated text
        enough = _on_plateau(slack, loss, size, smallest)
        size, bound = np.where(enough > 0, enough, size), np.where(enough > 0, "plateau", bound)
    trained = constraints.tokens(size)
    if cap is not None:  # exactly, where `tokens` is a difference of large numbers
        trained = np.where(size == constraints.size(cap), cap, trained)
    trained = np.where(feasible, trained, np.nan)
    d_model = architecture.d_model(size, n_experts)
    with np.errstate(invalid="ignore"):
        reached = loss_of(law, architecture, n_experts, size, trained, coefficients)
    n_total = np.asarray(architecture.n_total(d_model, n_experts))
    return Optima(n_experts, size, n_total, trained, reached, d_model, bound, feasible)


def unconstrained(
    law: Law, n_experts: Numbers, architecture: Architecture, flops: Numbers, coefficients: ByName | None = None
) -> tuple[Array, Array, Array]:
    """(n_active, n_tokens, loss) of the compute-optimal models, however small; NaN where there is no optimum."""
    if law.closed_form:
        reduced = law.chinchilla_coefficients_at(n_experts, coefficients)
        size, tokens = compute_optimal(*reduced[:4], flops)
        return size, tokens, reduced.loss(size, tokens)
    best = solve(law, n_experts, architecture, Constraints(flops=flops), coefficients)
    return best.n_active, best.n_tokens, best.loss


def usable_draws(law: Law, experts: Floats) -> Array:
    """bool [n_draws]: which of the bootstrap's draws have an optimum at every one of `experts`."""
    count = len(law.record["bootstrap"]["draws"])
    if not law.closed_form:
        return np.ones(count, bool)
    reduced = [law.chinchilla_coefficients_at(e, law.draws) for e in experts]
    return np.all([np.broadcast_to((at.mu < 0) & (at.nu < 0), count) for at in reduced], axis=0)


def allowed_experts(law: Law, experts: Floats) -> Array:
    """The numbers of experts a plan compares: the asked ones, or those of the law's own models where its formula does
    not read the number, such as 1 alone for a law of dense models."""
    return np.array(sorted(experts if law.knows_experts else law.experts), float)


def why_infeasible(architecture: Architecture, constraints: Constraints, n_experts: ArrayLike) -> str:
    """One sentence: which constraint cannot be met at the least demanding n_experts, and by how much."""
    if not (enough := architecture.enough(n_experts := np.atleast_1d(n_experts))).any():
        return sentences.TOO_FEW_EXPERTS.format(e=np.max(n_experts), used=architecture.top_k)
    d, least = architecture.smallest, float(np.min(n_experts[enough]))
    blocks = round(d / architecture.width_per_block)
    smallest = (sentences.SMALLEST if blocks == 1 else sentences.SMALLEST_OF).format(d=d, e=least, blocks=blocks)
    for name, used, limit in constraints.sizes(architecture):
        if (need := float(used(d, least))) > limit:
            sentence = dict(memory=sentences.MEMORY_TOO_SMALL, chips=sentences.CHIPS_TOO_FEW)[name]
            gb = dict(need=need / 1e9, limit=limit / 1e9, times=need / limit)
            return sentence.format(smallest=smallest, **gb, **(vars(constraints.chips) if constraints.chips else {}))
    if constraints.clock is not None and least in constraints.clock.untrainable:
        return sentences.NOTHING_TRAINED.format(e=least, **vars(constraints.chips))
    if constraints.clock is not None:
        return say(sentences.HOURS_TOO_FEW, budget=constraints.budget, smallest=smallest)
    size, limit = float(architecture.n_active(d, least)), constraints.flops
    inference = INFERENCE * size * constraints.inference_tokens
    need = inference + training_flops(size, 1)
    share = sentences.INFERENCE_SHARE.format(inference=inference) if inference else ""
    of = dict(need=need, limit=limit, times=need / limit, share=share)
    return sentences.FLOPS_TOO_FEW.format(budget=constraints.budget, smallest=smallest, **of)


def optima(law: Law, architecture: Architecture, constraints: Constraints, experts: Floats) -> Optima:
    """Optima at each allowed number of experts; UserError if none is feasible, naming the constraint that binds."""
    experts = allowed_experts(law, experts)
    best = solve(law, experts, architecture, constraints.at(experts))
    if not best.feasible.any():
        raise UserError(why_infeasible(architecture, constraints.at(np.min(experts)), experts))
    return best


def near_optimal(law: Law, architecture: Architecture, constraints: Constraints, solved: Optima) -> list[Array]:
    """For each of the Optima `solved` the (smallest, largest) n_active whose loss is within BAND of the
    best; NaN where none is."""
    constraints = constraints.at(solved.n_experts)
    target = np.nanmin(solved.loss) * (1 + BAND)
    inside = solved.feasible & (solved.loss <= target)
    largest = np.minimum(_largest(architecture, constraints, solved.n_experts)[0], constraints.size(1))

    def excess(log_n: Numbers) -> Array:
        n_active = np.exp(log_n)
        return loss_of(law, architecture, solved.n_experts, n_active, constraints.tokens(n_active)) - target

    at = np.log(np.where(inside, solved.n_active, 1.0))
    ends = []
    for end in (architecture.n_active(architecture.smallest, solved.n_experts), largest):
        end = np.log(np.where(inside, end, 1.0))
        edge = root(excess, at, end)
        ends.append(np.where(inside, np.exp(np.where(np.isnan(edge), end, edge)), np.nan))  # no root: the bound itself
    return ends
