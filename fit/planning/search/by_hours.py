"""Plans by hours: the best of all models that the chips train within them, by enumeration.

The training tokens of a candidate (candidates.py) follow from its own speed. So the best candidate is built as it is,
and nothing is rounded afterwards. The best has the lowest loss by the law; ties go to fewer chips, then to the faster
layout.

Axes: numbers of experts, hours and coefficients broadcast together, and results have their common shape.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np

from fit.aliases import Array, ByName, Floats, Numbers
from fit.model.architecture import Architecture, root
from fit.planning.inputs.grid import Grid
from fit.planning.inputs.problem import PLATEAU, Problem
from fit.planning.search.best_models import MODEL_COLUMNS, BestModels
from fit.planning.space import on_tokens, within_hours
from fit.planning.space.candidates import BestCandidate, Candidates
from fit.planning.space.model_grid import ModelGrid, loss_of_shapes, models_of
from fit.planning.space.size_speeds import NEXT_SIZES

SPAN = 2.0  # hours within this factor share one set of candidates
MOST_TOKENS = 1e18  # training tokens of a model that reaches a loss
MOST_DOUBLINGS = 40  # of the hours, in search of those that reach a loss
GAIN = 0.01  # share of tokens more that says what tokens are worth
EMPTY = np.empty(0)
SHARED_EFFECT = 0.005  # share of the loss that sharing experts saves at most: 0.13% by the law that reads it
COARSE = Grid(
    widths=Grid().widths[::4],
    most_depths=2,
    models=(1, 2, 4),
    remats=("full", "dots"),
    batches=tuple(2**i for i in range(15)),
)


def best_within_hours(problem: Problem, n_experts: Numbers) -> BestModels:
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
                best = _best_among(problem, by_recipe, float(hours[row]))
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


def in_draws(problem: Problem, e: float, speeds: Array, coefficients: ByName) -> dict[str, Array]:
    """The best model with one number of experts in each of several draws, among the candidates of the plan itself.

    A candidate of a draw is trained for as long as in the plan, at the drawn speed. `gain` is what it would gain in ln
    loss with GAIN more tokens, over ln(1 + GAIN).

    Args:
      problem: The problem, whose budget is one number of hours.
      e: The number of experts, as the law counts them.
      speeds: Over the modelled speed, [n_draws].
      coefficients: By name, in place of the law's, [n_draws] each; empty for the law's own.

    Returns:
      {name of MODEL_COLUMNS, or gain: values [n_draws]}; NaN where the plan has no model.
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
        best["gain"] = np.log(best["loss"] / loss) / math.log1p(GAIN)
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
    """The best shape of one recipe in each draw: its index `shape`, and MODEL_COLUMNS; loss is infinite for none.

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
    return dict(
        shape=shapes[best],
        n_active=models.n_active[shapes][best],
        n_total=models.n_total[shapes][best],
        d_model=np.asarray(models.shape.d_model)[shapes][best],
        n_tokens=tokens[rows, best],
        loss=losses[rows, best],
    )


def _best_of_recipes(by_recipe: list[dict[str, Array]], n_rows: int) -> dict[str, Array]:
    """The best of all recipes in each draw, by name; NaN where there is none."""
    columns = {name: np.full(n_rows, np.nan) for name in (*MODEL_COLUMNS, "gain")}
    lowest = np.full(n_rows, np.inf)
    for best in by_recipe:
        is_better = best["loss"] < lowest
        for name, column in columns.items():
            column[is_better] = best[name][is_better]
        lowest = np.minimum(lowest, best["loss"])
    return columns


def candidates_within(problem: Problem, e: float, hours: tuple[float, float]) -> list[Candidates]:
    """The candidates with one number of experts that could be the best between two numbers of hours, by recipe.

    They come in the order of their shapes.
    """
    return _candidates_within(problem.candidates_key, float(e), hours)


@functools.lru_cache(maxsize=32)
def _candidates_within(problem: Problem, e: float, hours: tuple[float, float]) -> list[Candidates]:
    """As candidates_within."""
    by_recipe = within_hours.could_be_best(problem, models_of(problem, e), hours)
    return [part.part(np.argsort(part.row, kind="stable")) for part in by_recipe]


def _best_among(problem: Problem, by_recipe: list[Candidates], hours: float) -> BestCandidate | None:
    """The best of these candidates within the hours; None where none can be trained in them.

    On a plateau of the loss it is the smallest of those within the problem's tolerance, if it is smaller by PLATEAU.
    """
    best = _lowest(problem, by_recipe, hours, math.inf)
    if best is None or not problem.plateau_tolerance:
        return best
    smallest = _lowest(problem, by_recipe, hours, best.loss * (1 + problem.plateau_tolerance))
    if smallest is not None and smallest.n_active <= PLATEAU * best.n_active:
        return dataclasses.replace(smallest, on_plateau=True)
    return best


def _lowest(problem: Problem, by_recipe: list[Candidates], hours: float, most_loss: float) -> BestCandidate | None:
    """The candidate of the lowest loss or, with a finite most_loss, the smallest of those that lose no more.

    Ties go to the lowest loss, then to fewer chips, then to the faster layout.
    """
    best = None
    least = (math.inf, math.inf)
    for candidates in by_recipe:
        tokens = candidates.tokens_within_hours(problem, hours)
        losses = loss_of_shapes(problem, candidates.models, candidates.row, tokens)
        losses = np.where(np.isnan(losses), np.inf, losses)
        sizes = candidates.models.n_active[candidates.row]
        first_key = losses
        if math.isfinite(most_loss):
            first_key = np.where(losses <= most_loss, sizes, np.inf)
        equal = np.flatnonzero(first_key == first_key.min())
        order = np.lexsort((candidates.seconds_per_token[equal], candidates.n_chips[equal], losses[equal]))
        first = equal[order[:1]]
        key = (float(first_key[first[0]]), float(losses[first[0]]))
        if math.isfinite(key[0]) and key < least:
            least = key
            best = BestCandidate(problem, candidates.part(first), int(tokens[first[0]]), key[1])
    return best


def size_bound(best: BestCandidate) -> str:
    """The limit on the best candidate's size: "plateau", "tokens", "memory", "serving" or "chips"; ""
    for none."""
    problem = best.problem
    if best.on_plateau:
        return "plateau"
    if best.n_tokens >= np.floor(problem.cap):
        return "tokens"
    models = best.models
    sizes = models.n_active
    order = np.argsort(sizes, kind="stable")
    larger = order[sizes[order] > sizes[best.row]]
    if not len(larger):
        return ""
    allowed = larger[models.limited_by[larger] == ""]
    if not len(allowed):
        return str(models.limited_by[larger[0]])
    tokens = np.full(sizes.shape, float(best.n_tokens))
    # a larger model has fewer tokens, so perhaps another batch: memory hardly depends on it
    trained = on_tokens.trained(problem, models, allowed[:NEXT_SIZES], tokens)
    return "" if len(trained) else "chips"


def near_optimal(problem: Problem, n_experts: Array, target: float) -> tuple[Array, Array]:
    """(least, most) n_active of candidates whose loss is at most a target, for each number of experts; NaN for none."""
    hours = problem.budget_hours
    ends = np.full((2, len(n_experts)), np.nan)
    for i, e in enumerate(n_experts):
        sizes = []
        for candidates in candidates_within(problem, float(e), (hours, hours)):
            tokens = candidates.tokens_within_hours(problem, hours)
            losses = loss_of_shapes(problem, candidates.models, candidates.row, tokens)
            sizes.append(candidates.models.n_active[candidates.row[losses <= target]])
        sizes_within = np.concatenate(sizes) if sizes else EMPTY
        if len(sizes_within):
            ends[:, i] = sizes_within.min(), sizes_within.max()
    return ends[0], ends[1]


def best_architecture(
    problem: Problem, architectures: Sequence[Architecture], experts: Floats
) -> tuple[Architecture, float]:
    """(the architecture whose best model has the lowest loss on a coarse grid, that loss).

    Speeds count shared experts as chosen ones, which makes little difference. So architectures that differ in these
    alone are timed once.
    """
    hours = problem.budget_hours
    lowest = math.inf
    chosen = architectures[0]
    alike_in_speed: dict[Architecture, list[Architecture]] = {}
    for architecture in architectures:
        alike_in_speed.setdefault(dataclasses.replace(architecture, shared=0), []).append(architecture)
    for timed, alike in alike_in_speed.items():
        for e in np.asarray(experts)[timed.has_enough_experts(experts)][::-1]:
            loss_cutoff = lowest * (1 + SHARED_EFFECT)
            coarse = dataclasses.replace(problem, architecture=timed, grid=COARSE, loss_cutoff=loss_cutoff)
            for candidates in within_hours.could_be_best(coarse, models_of(coarse, float(e)), (hours, hours)):
                tokens = candidates.tokens_within_hours(coarse, hours)
                for architecture in alike:
                    variant = dataclasses.replace(coarse, architecture=architecture)
                    losses = loss_of_shapes(variant, candidates.models, candidates.row, tokens)
                    if losses.min() < lowest:
                        lowest = float(losses.min())
                        chosen = architecture
    return chosen, lowest


def least_hours(problem: Problem, e: float, loss: float) -> float | None:
    """The least hours, from those of the problem up, in which one number of experts reaches a loss.

    None where even MOST_DOUBLINGS of the hours are not enough.
    """
    low = problem.budget_hours
    problem = dataclasses.replace(problem, loss_cutoff=loss)
    for doubling in range(MOST_DOUBLINGS):
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
