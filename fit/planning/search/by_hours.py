"""Plans by hours: the best of all models that the chips train within them, by enumeration.

The training tokens of a candidate (candidates.py) follow from its own speed. So the best candidate is built as it is,
and nothing is rounded afterwards.

The operations are those of solver.py: the best models, the best architecture, the near-optimal sizes, the best models
in draws, and the least budget.

Axes: numbers of experts, hours and coefficients broadcast together, and results have their common shape.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from fit.aliases import Array, ByName, Numbers
from fit.model.architecture import Architecture, root
from fit.planning.inputs.grid import Grid
from fit.planning.inputs.problem import PLATEAU, Problem
from fit.planning.search.best_candidate import best_among, candidates_within, size_bound
from fit.planning.search.best_models import GAIN, MODEL_COLUMNS, BestInDraws, BestModels, gain_of_tokens
from fit.planning.space import within_hours
from fit.planning.space.candidates import BestCandidate, Candidates
from fit.planning.space.model_grid import ModelGrid, loss_of_shapes, models_of

SPAN = 2.0  # hours within this factor share one set of candidates
MOST_TOKENS = 1e18  # training tokens of a model that reaches a loss
SHARED_EFFECT = 0.005  # share of the loss that sharing experts saves at most: 0.13% by the law that reads it
COARSE = Grid(
    widths=Grid().widths[::4],
    most_depths=2,
    models=(1, 2, 4),
    remats=("full", "dots"),
    batches=tuple(2**i for i in range(15)),
)


def best_models(problem: Problem, n_experts: Numbers) -> BestModels:
    """The best models within hours.

    Args:
      problem: The problem. Its hours may be an array; what fixed the sizes is then left open.
      n_experts: As the law counts them.
    """
    assert problem.constraints.hours is not None
    budgets = np.asarray(problem.constraints.hours, float)
    arrays = np.broadcast_arrays(np.asarray(n_experts, float), budgets)
    shape = arrays[0].shape
    experts, hours = (array.ravel() for array in arrays)
    columns = {name: np.full(experts.shape, np.nan) for name in MODEL_COLUMNS}
    bound = np.full(experts.shape, "", dtype=object)
    best_candidates: list[BestCandidate | None] = [None] * len(experts)
    for e in np.unique(experts):
        rows = np.flatnonzero(experts == e)
        for span in _spans(hours[rows]):
            of_span = hours[rows[span]]
            by_recipe = candidates_within(problem, float(e), (float(of_span.min()), float(of_span.max())))
            for row in rows[span]:
                best = best_among(problem, by_recipe, float(hours[row]))
                if best is None:
                    continue
                best_candidates[row] = best
                for name, column in columns.items():
                    column[row] = getattr(best, name)
                if budgets.ndim == 0:
                    bound[row] = size_bound(best)
    return BestModels(
        n_experts=experts.reshape(shape),
        **{name: column.reshape(shape) for name, column in columns.items()},
        size_bound=bound.reshape(shape),
        feasible=np.isfinite(columns["loss"]).reshape(shape),
        candidates=best_candidates,
    )


def _spans(hours: Array) -> list[Array]:
    """The indices of hours in groups, each within the factor SPAN."""
    order = np.argsort(hours, kind="stable")
    groups: list[list[int]] = []
    for i in order.tolist():
        if groups and hours[i] <= SPAN * hours[groups[-1][0]]:
            groups[-1].append(i)
        else:
            groups.append([i])
    return [np.array(group) for group in groups]


def near_optimal(problem: Problem, solved: BestModels, target: float) -> tuple[Array, Array]:
    """(least, most) n_active of candidates whose loss is at most a target, for each of the optima; NaN for none."""
    hours = problem.budget_hours
    ends = np.full((2, len(solved.n_experts)), np.nan)
    for i, e in enumerate(solved.n_experts):
        for candidates in candidates_within(problem, float(e), (hours, hours)):
            tokens = candidates.tokens_within_hours(problem, hours)
            losses = loss_of_shapes(problem, candidates.models, candidates.row, tokens)
            sizes = candidates.models.n_active[candidates.row[losses <= target]]
            if len(sizes):
                ends[:, i] = np.fmin(ends[0, i], sizes.min()), np.fmax(ends[1, i], sizes.max())
    return ends[0], ends[1]


def in_draws(problem: Problem, e: float, speeds: Array, coefficients: ByName) -> BestInDraws:
    """The best model with one number of experts in each of several draws, among the candidates of the plan itself.

    A candidate of a draw is trained for as long as in the plan, at the drawn speed. Where the plan has no model, values
    are NaN.

    Args:
      problem: The problem, whose budget is one number of hours.
      e: The number of experts, as the law counts them.
      speeds: Over the modelled speed, [n_draws].
      coefficients: By name, in place of the law's, [n_draws] each; empty for the law's own.
    """
    hours = problem.budget_hours
    guess = math.log(problem.architecture.vocab_size)  # the loss of a model that is not trained
    drawn = {name: np.asarray(value)[:, None] for name, value in coefficients.items()}
    by_recipe = []
    for candidates in candidates_within(problem, e, (hours, hours)):
        fastest = _fastest_layouts(problem, candidates, hours)
        if not len(fastest.row):
            continue
        tokens = _tokens_at_speeds(problem, fastest, speeds)
        best = _best_of_shapes(problem, candidates.models, fastest.row, tokens, drawn)
        more = best["n_tokens"][:, None] * (1 + GAIN)
        row = best["shape"][:, None]
        loss = loss_of_shapes(problem, candidates.models, row, more, drawn)[:, 0]
        best["gain"] = gain_of_tokens(best["loss"], loss)
        is_untrained = best["n_tokens"] <= 1
        best["loss"] = np.where(is_untrained, np.minimum(best["loss"], guess), best["loss"])
        by_recipe.append(best)
    return _best_of_recipes(by_recipe, len(speeds))


def _fastest_layouts(problem: Problem, candidates: Candidates, hours: float) -> Candidates:
    """Of each shape the candidate that is trained on most tokens within the hours, of those that are trained at all."""
    tokens = candidates.tokens_within_hours(problem, hours)
    order = np.lexsort((-tokens, candidates.row))
    order = order[tokens[order] >= 1]
    _, first = np.unique(candidates.row[order], return_index=True)
    return candidates.part(order[first])


def _tokens_at_speeds(problem: Problem, candidates: Candidates, speeds: Array) -> Array:
    """Training tokens of candidates in the hours of a problem at drawn speeds, at least one: [n_draws, n].

    speeds: Over the modelled speed, [n_draws].
    """
    without_cap = problem.within(max_tokens=None, epochs=None)
    seconds_per_token = candidates.seconds_per_token / speeds[:, None]
    tokens = without_cap.tokens_within_hours(problem.budget_hours, seconds_per_token)
    tokens = np.minimum(tokens, candidates.most * speeds[:, None])
    return np.clip(tokens, 1.0, problem.cap)


def _best_of_shapes(
    problem: Problem, models: ModelGrid, shapes: Array, tokens: Array, coefficients: ByName
) -> dict[str, Array]:
    """The best shape of one recipe in each draw: its index `shape`, and its numbers; loss is infinite for none.

    On a plateau of the loss it is the smallest one, as the best candidate of a plan is.

    Args:
      problem: The problem.
      models: The shapes.
      shapes: Which of them, [n_shapes].
      tokens: Training tokens, [n_draws, n_shapes].
      coefficients: By name, [n_draws, 1] each; empty for the law's own.
    """
    losses = loss_of_shapes(problem, models, shapes, tokens, coefficients)
    losses = np.where(np.isnan(losses), np.inf, losses)
    best = np.argmin(losses, axis=1)
    rows = np.arange(len(losses))
    if problem.plateau_tolerance:
        sizes = models.n_active[shapes]
        is_as_good = losses <= losses[rows, best, None] * (1 + problem.plateau_tolerance)
        smallest = np.argmin(np.where(is_as_good, sizes, np.inf), axis=1)
        best = np.where(sizes[smallest] <= PLATEAU * sizes[best], smallest, best)
    return dict(
        shape=shapes[best],
        n_active=models.n_active[shapes][best],
        d_model=np.asarray(models.shape.d_model)[shapes][best],
        n_tokens=tokens[rows, best],
        loss=losses[rows, best],
    )


def _best_of_recipes(by_recipe: list[dict[str, Array]], n_rows: int) -> BestInDraws:
    """The best of all recipes in each draw; NaN where there is none."""
    columns = {name: np.full(n_rows, np.nan) for name in BestInDraws.names()}
    lowest = np.full(n_rows, np.inf)
    for best in by_recipe:
        is_better = best["loss"] < lowest
        for name, column in columns.items():
            column[is_better] = best[name][is_better]
        lowest = np.minimum(lowest, best["loss"])
    return BestInDraws(**columns)


def least_budget(problem: Problem, e: float, loss: float, times: float) -> float | None:
    """The least hours, from those of the problem up, in which one number of experts reaches a loss.

    None where even `times` the hours are not enough.
    """
    low = problem.budget_hours
    problem = dataclasses.replace(problem, loss_cutoff=loss)
    for doubling in range(math.ceil(math.log(times, SPAN))):
        if _could_reach(problem, e, low * SPAN, loss):
            parts = candidates_within(problem, e, (low, low * SPAN))
            hours = min((_hours_to_reach(problem, part, loss) for part in parts), default=math.inf)
            if hours <= low * SPAN:
                return max(hours, low) if doubling == 0 else hours
        low *= SPAN
    return None


def _hours_to_reach(problem: Problem, candidates: Candidates, loss: float) -> float:
    """The least hours in which one of the candidates reaches a loss; infinite where none does."""
    rows, of_row = np.unique(candidates.row, return_inverse=True)
    most = min(problem.cap, MOST_TOKENS)

    def excess(log_tokens: Numbers) -> Numbers:
        """The loss of each shape above the one to reach."""
        return loss_of_shapes(problem, candidates.models, rows, np.exp(log_tokens)) - loss

    needed = np.exp(root(excess, np.zeros(len(rows)), np.full(len(rows), math.log(most))))
    tokens = np.maximum(np.ceil(needed[of_row]), candidates.least)
    hours = problem.hours(tokens, candidates.seconds_per_token)
    return float(np.min(np.where(tokens <= candidates.most, hours, np.inf), initial=np.inf))


def _could_reach(problem: Problem, e: float, hours: float, loss: float) -> bool:
    """Whether a lower bound of the losses within the hours is as low as this loss."""
    return any(within_hours.least_loss(problem, models, hours) <= loss for models in models_of(problem, e))


def best_architecture(problems: Sequence[Problem], experts: Array) -> Problem:
    """The problem whose best model has the lowest loss on a coarse grid, of several that differ in their architecture.

    Speeds count shared experts as chosen ones, which makes little difference. So architectures that differ in these
    alone are timed once.

    Args:
      problems: The problems.
      experts: The numbers of experts to choose from, as the law counts them.
    """
    hours = problems[0].budget_hours
    lowest = math.inf
    chosen = problems[0]
    alike_in_speed: dict[Architecture, list[Problem]] = {}
    for problem in problems:
        timed = dataclasses.replace(problem.architecture, shared=0)
        alike_in_speed.setdefault(timed, []).append(problem)
    for timed, alike in alike_in_speed.items():
        for e in experts[timed.has_enough_experts(experts)][::-1]:
            loss_cutoff = lowest * (1 + SHARED_EFFECT)
            coarse = dataclasses.replace(alike[0], architecture=timed, grid=COARSE, loss_cutoff=loss_cutoff)
            for candidates in within_hours.could_be_best(coarse, models_of(coarse, float(e)), (hours, hours)):
                tokens = candidates.tokens_within_hours(coarse, hours)
                for problem in alike:
                    variant = dataclasses.replace(coarse, architecture=problem.architecture)
                    losses = loss_of_shapes(variant, candidates.models, candidates.row, tokens)
                    if losses.min() < lowest:
                        lowest = float(losses.min())
                        chosen = problem
    return chosen
