"""Findings to know before trusting a plan: on its best model, its draws, its law and its chips."""

import math
from collections.abc import Iterator

import numpy as np

from fit.fitted_law.extrapolation import warning_of
from fit.fitted_law.law import Law
from fit.messages import sentences
from fit.messages.finding import Finding, finding
from fit.model.architecture import PAPER, WHOLE_EXPERTS, Architecture
from fit.planning.chosen.buildable import Buildable
from fit.planning.chosen.cost import MeshCost
from fit.planning.chosen.optimum import Optimum
from fit.planning.context import not_read, reasons_to_doubt
from fit.planning.inputs.problem import Problem
from fit.planning.search import solver
from fit.planning.search.best_models import MODEL_COLUMNS
from fit.planning.space import fewest_chips, meshes
from fit.planning.uncertainty.odds import Odds
from fit.table.runs import unlikely

FORMS_APART = 1.25  # factor between both forms' median sizes from which they disagree
LOSSES_APART = 0.01  # difference of their median ln losses from which they disagree

DIVIDED = {  # over axes of a mesh, in words
    "model.n_experts": "experts",
    "model.n_heads": "heads",
    "model.n_kv_heads": "heads of keys",
    "model.d_ff": "hidden units",
    "model.d_expert": "hidden units of an expert",
    "data.seq_len": "tokens of a row",
}


def of_best(problem: Problem, best: Optimum) -> Iterator[Finding]:
    """Findings on the best model: whether it is worse than a guess, what it extrapolates, whether it is unlikely or
    mostly embedding, and whether its number of experts is at the edge of those compared."""
    law = problem.law
    architecture = problem.architecture
    guess = math.log(architecture.vocab_size)  # loss of a uniform guess
    if best.loss > guess:
        yield finding("worse_than_guess", loss=best.loss, guess=guess, vocab_size=architecture.vocab_size)
    if best.extrapolation:
        yield finding("best_outside", outside=warning_of(best.extrapolation))
        if law.beyond_runs:
            yield law.beyond_runs
    odd = unlikely(best)
    if odd:
        yield odd
    share = reasons_to_doubt.embedding_share(problem.as_counted, best.d_model, best.n_active)
    if share > reasons_to_doubt.MOSTLY:
        yield finding("mostly_embedding", share=share, vocab_size=architecture.vocab_size)
    e = best.n_experts
    edge = reasons_to_doubt.edge_of_best(law, problem.experts, e)
    if edge is not None:
        yield finding("at_edge", n_experts=e, which=edge)
    if reasons_to_doubt.not_bounded(problem, e):
        yield finding("not_bounded")


def of_draws(odds: Odds, n_experts: int) -> Iterator[Finding]:
    """Findings on what the draws leave open: the best number of experts, and the form of the law."""
    if odds.settled is False and not odds.close_call:
        wins = ", ".join(sentences.WIN.format(**row) for row in odds.most_often_best())
        yield finding("undecided", draws=odds.draws, wins=wins)
    disagreement = forms_disagree(odds, n_experts)
    if disagreement:
        yield disagreement


def of_law(law: Law, architecture: Architecture) -> Iterator[Finding]:
    """Findings on what the law does not know of the planned models."""
    yield from _assumed(law, architecture)
    if not law.ranges:
        yield finding("no_range")
    unknown = [name for name in ("vocab_size", "width_per_block") if getattr(law.models, name) is None]
    if unknown and architecture == PAPER:
        values = " and ".join(f"{getattr(architecture, name):,}" for name in unknown)
        yield finding("shape_unknown", names=" and ".join(unknown), values=values)


def of_chips(problem: Problem, best: Optimum, built: Buildable | None) -> Iterator[Finding]:
    """Findings on where the chips bound the best, and on what the model to build asks of them. None without chips.

    Args:
      problem: The problem.
      best: The plan's best.
      built: The model to build, with its cost; None where none can be built.
    """
    constraints = problem.constraints
    chips = constraints.chips
    if chips is None:
        return
    names = dict(kind=chips.kind, count=chips.count)
    if best.size_bound == "chips" and (constraints.has_budget or constraints.memory_bytes is not None):
        yield _chips_bind(problem, best)
    if built is None or built.cost is None:
        return
    cost = built.cost
    mesh = cost.mesh
    if built.layout is not None:
        if mesh and mesh.sending_share is not None and mesh.sending_share > 1 and built.speed is None:
            yield finding("sends_longer", share=mesh.sending_share, **names)
        return
    if mesh is not None:
        yield from _uneven(problem, built, mesh)
    if cost.microbatch_tokens and cost.step_bytes is not None:
        gb = dict(need=cost.step_bytes / 1e9, limit=chips.memory / 1e9)
        step = dict(step_tokens=cost.step_tokens, microbatch_tokens=cost.microbatch_tokens)
        yield finding("step_too_large", **gb, **step, **names)


def _chips_bind(problem: Problem, best: Optimum) -> Finding:
    """The best model if the chips held larger ones."""
    chips = problem.chips
    if problem.is_by_hours:  # nobody knows the speed of a model that the chips cannot train
        return finding("chips_bind_by_time", n_experts=best.n_experts, kind=chips.kind, count=chips.count)
    unbound = solver.best_of_each_number(problem.within(chips=None))
    row = unbound.row(unbound.best, MODEL_COLUMNS)
    shape = problem.architecture.shape(row["d_model"], row["n_experts"])
    fewest = fewest_chips.fewest_chips(chips, shape, on_any_mesh=not problem.has_paper_shape)
    needed = ""
    if fewest is not None:
        count, _ = fewest
        if count > chips.count:  # the estimate of the smallest step may lie a little below what the search needs
            needed = f" on {count} chips"
    return finding(
        "chips_bind",
        needed=needed,
        n_experts=row["n_experts"],
        loss=best.loss - row["loss"],
        kind=chips.kind,
        count=chips.count,
    )


def _uneven(problem: Problem, built: Buildable, mesh: MeshCost) -> Iterator[Finding]:
    """Findings on what of the model the trainer does not divide over the mesh that the user fixes."""
    axes = dict(data=mesh.data, expert=mesh.expert, model=mesh.model)
    has_narrow_experts = problem.architecture.granularity != 1
    for axis, field, size in meshes.undivided(built.shape, built.sequence, has_narrow_experts, axes):
        if axis == "data":
            yield finding("data_axis_uneven", size=mesh.data, d_model=size)
        else:
            yield finding("mesh_uneven", axis=axis, size=axes[axis], what=DIVIDED[field], count=size)


def forms_disagree(odds: Odds, n_experts: float) -> Finding | None:
    """A finding where the medians of the additive and of the coupled draws disagree on the best model with this number
    of experts: by FORMS_APART in size, or by LOSSES_APART in ln loss."""
    row = odds.row(n_experts)
    if row is None or row.forms is None:
        return None
    additive = row.forms["additive"]
    coupled = row.forms["coupled"]
    sizes = abs(np.log(additive["n_active"] / coupled["n_active"]))
    losses = abs(np.log(additive["loss"] / coupled["loss"]))
    if sizes < np.log(FORMS_APART) and losses < LOSSES_APART:
        return None
    values = {f"additive_{name}": value for name, value in additive.items()}
    values |= {f"coupled_{name}": value for name, value in coupled.items()}
    return finding("forms_disagree", draws=odds.draws, **values)


def _assumed(law: Law, architecture: Architecture) -> Iterator[Finding]:
    """Findings on properties of the planned models that differ from the law's own models and are not in its columns,
    and on properties in which its own runs differ."""
    unread = not_read.finding_of(law, architecture, not_read.fields_of(law, architecture))
    if unread is not None:
        yield unread
    whole = [name for name in WHOLE_EXPERTS if name in law.form.columns]
    if whole and not law.models.architecture and max(law.experts) > 1:
        values = ", ".join(f"{name} {architecture.structure(2)[name]:g}" for name in whole)
        yield finding("whole_experts", form=law.form.name, columns=" and ".join(whole), values=values)
    yield from law.models.architecture_findings()
