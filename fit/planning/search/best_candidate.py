"""The candidates within hours, and the best of them.

The best has the lowest loss by the law; ties go to fewer chips, then to the faster layout.
"""

import dataclasses
import functools
import math

import numpy as np

from fit.planning.inputs.problem import PLATEAU, Problem
from fit.planning.space import on_tokens, within_hours
from fit.planning.space.candidates import BestCandidate, Candidates
from fit.planning.space.model_grid import loss_of_shapes, models_of
from fit.planning.space.size_speeds import NEXT_SIZES


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


def best_among(problem: Problem, by_recipe: list[Candidates], hours: float) -> BestCandidate | None:
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
            best = BestCandidate.of(problem, candidates.part(first), tokens[first[0]], key[1])
    return best


def size_bound(best: BestCandidate) -> str:
    """The limit on the best candidate's size: "plateau", "tokens", "memory", "serving" or "chips"; "" for
    none."""
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
