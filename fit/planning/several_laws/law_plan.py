"""The plan of one law for a budget that several laws share: its best architecture, against its own best dense model."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from fit.aliases import Array, Floats, Json
from fit.errors import UserError
from fit.fitted_law import law_counts, repeated
from fit.fitted_law.law import Law, load
from fit.fitted_law.repeated import Repeated
from fit.model.architecture import Architecture
from fit.model.reference_model import PublishedModel
from fit.planning.chosen import optimum
from fit.planning.chosen.optimum import Optimum
from fit.planning.context import other_budget, reasons_to_doubt, reference_model
from fit.planning.context.other_budget import OtherBudget
from fit.planning.inputs.constraints import Constraints
from fit.planning.inputs.problem import AS_GOOD, Problem
from fit.planning.inputs.requests import PAPER_SHAPE
from fit.planning.search import by_hours, infeasible, solver
from fit.planning.search.best_models import MODEL_COLUMNS, BestModels
from fit.planning.several_laws import architectures, leverage, votes
from fit.planning.several_laws.comparison import DensePlan, LawPlan, NoPlan, VotesOfLaw
from fit.planning.space import calibration, size_speeds


@dataclasses.dataclass(frozen=True)
class SharedProblem:
    """The problem that every law of a comparison solves.

    Attributes:
      shape: {field of Architecture: value}: vocab_size, width_per_block, and others where they are given.
      constraints: The budget and the limits.
      experts: Numbers of experts to choose from; None takes each law's own.
      used: Widths of experts that a token may use, for laws that read it; None takes each law's own.
      reference: A model to start from: models are built like it, and it is set beside each law's best.
      has_modelled_speeds: Whether each model has its own speed on the chips.
      speeds: Path of a table of the user's speeds, or None.
    """

    shape: Json
    constraints: Constraints
    experts: Floats | None = None
    used: Sequence[float] | None = None
    reference: PublishedModel | None = None
    has_modelled_speeds: bool = False
    speeds: str | None = None


def plan_by_law(law: Law, shared: SharedProblem) -> LawPlan | NoPlan:
    """The law's best architecture, its best dense one, and the reference model beside them.

    Where text is read several times, they are by the law's law of repeated text, as in a plan.
    """
    unique_tokens = shared.constraints.max_tokens
    if shared.constraints.epochs is not None and unique_tokens is not None:
        try:
            law = repeated.of_law(law, float(np.asarray(unique_tokens)))
        except UserError as error:  # the law does not say what repeated text is worth
            return NoPlan(law=law.name, why=error.sentence)
    experts = shared.experts
    if (
        experts is not None
        and law.holds_for_mixtures
        and law.only_n_experts is not None
        and law.only_n_experts not in experts
    ):
        return NoPlan(law=law.name, why=law.only_words)
    if experts is None or law.has_fixed_n_experts or not law.reads_n_experts:
        experts = law.experts
    numbers = np.array(experts, float)
    tried = architectures.to_try(law, shared.shape, shared.used, shared.reference)
    best = _best(_problem(law, shared, tried[0]), tried, numbers)
    problem = best.problem
    if best.solved is None:
        return NoPlan(law=law.name, why=infeasible.reason(problem, min(experts)))
    architecture = problem.architecture
    model = optimum.optimum_at(problem, best.solved, best.index, None)
    e = model.n_experts
    granularities = architectures.granularities(law)
    counted = law_counts.with_law_vocabulary(law, architecture)
    columns = counted.columns(architecture.d_model(model.n_active, e), e, law.counts_embedding)
    return LawPlan(
        **{name: model[name] for name in ("n_experts", *MODEL_COLUMNS)},
        law=law.name,
        form=law.form.name,
        source=law.source or None,
        note=law.note or None,
        mixtures=law.holds_for_mixtures,
        sparsity=float(columns["sparsity"]),
        granularity=architecture.granularity,
        shared=architecture.shared,
        active_width=architecture.active_width,
        size_bound=model.size_bound,
        memory_bytes=model.memory_bytes,
        chose_experts=law.reads_n_experts and not law.has_fixed_n_experts,
        at_edge=reasons_to_doubt.is_best_at_edge(law, experts, e),
        not_bounded=e == max(experts) and reasons_to_doubt.not_bounded(problem),
        finest=bool(len(granularities) > 1 and architecture.granularity == max(granularities)),
        extrapolation=model.extrapolation,
        embedding_share=reasons_to_doubt.embedding_share(architecture, model.d_model, model.n_active),
        not_read=_not_read(law, shared),
        leverage=_leverage(architecture, e, model.training_flops),
        dense=_dense(problem, shared, model.loss),
        votes=_votes(best, numbers),
        speed=model.speed,
        clock=_clock(problem, model, numbers),
        serving=model.cost.serving if model.cost else None,
        like=reference_model.trained_within(shared.reference, problem, e) if shared.reference else None,
        explicit=("like",) if shared.reference else (),
    )


def _leverage(architecture: Architecture, n_experts: float, flops: float) -> Json | None:
    """The efficiency leverage of a mixture; None for a dense model."""
    if n_experts == 1:
        return None
    return leverage.of_architecture(n_experts, architecture.granularity, flops, architecture.active_width)


def _votes(best: "_Best", experts: Array) -> VotesOfLaw | None:
    """How the law divides its vote among numbers of experts; None unless it chooses among several."""
    law = best.problem.law
    if not law.reads_n_experts or law.has_fixed_n_experts or len(experts) < 2:
        return None
    assert best.solved is not None
    return votes.of_law(best.problem, best.solved.n_experts[best.solved.feasible])


def _clock(problem: Problem, model: Optimum, experts: Array) -> OtherBudget | None:
    """The best of these numbers of experts by FLOPs in place of hours, or by hours in place of FLOPs."""
    allowed = experts[problem.architecture.has_enough_experts(experts)]
    if problem.is_by_hours:
        allowed = [e for e in allowed if size_speeds.trains_any(problem, float(e))]
    return other_budget.against_other_budget(problem, model, allowed)


def _not_read(law: Law, shared: SharedProblem) -> Json:
    """{option: value} that is given but that the law has no column for."""
    not_read = {}
    kv_share = shared.shape.get("kv_share")
    if kv_share not in (None, 1.0):
        not_read["kv_share"] = kv_share
    n_dense = shared.shape.get("n_dense")
    if n_dense not in (None, 0):
        not_read["dense_blocks"] = n_dense
    used = shared.used
    if used and list(used) != [1.0] and law.holds_for_mixtures and not law.reads_active_width:
        not_read["used"] = ",".join(f"{u:g}" for u in used)
    return not_read


@dataclasses.dataclass(frozen=True)
class _Best:
    """The model of a law's least loss: the problem of its architecture, and its index in what was solved for that.

    `solved` is None where nothing is feasible.
    """

    solved: BestModels | None
    problem: Problem
    index: int


def _problem(law: Law, shared: SharedProblem, architecture: Architecture) -> Problem:
    """The problem of one law."""
    plateau_tolerance = AS_GOOD if isinstance(law, Repeated) else 0.0
    problem = Problem(law, architecture, shared.constraints, plateau_tolerance=plateau_tolerance)
    if shared.has_modelled_speeds:
        return calibration.at_modelled_speeds(problem, shared.speeds)
    return problem


def _best(problem: Problem, tried: list[Architecture], experts: Array) -> _Best:
    """The model of the law's least loss among tried."""
    if problem.is_by_hours:
        architecture, reached = by_hours.best_architecture(problem, tried, experts)
        tried = [architecture]
        if architecture.shared == 0:  # then models of the coarse grid are models of the fine one
            problem = dataclasses.replace(problem, loss_cutoff=reached)
    elif len(tried) > 1 and problem.constraints.chips is not None and not problem.has_paper_shape:
        # the sizes that chips hold are those of the paper's shapes here, which are known at once
        tried = [_best(problem.within(request=PAPER_SHAPE), tried, experts).problem.architecture]
    best = None
    lowest = math.inf
    for architecture in tried:
        of_architecture = dataclasses.replace(problem, architecture=architecture)
        solved = solver.best_models(of_architecture, experts[architecture.has_enough_experts(experts)])
        if not solved.feasible.any():
            continue
        index = int(np.nanargmin(solved.loss))
        if best is None or solved.loss[index] < lowest:
            lowest = solved.loss[index]
            best = _Best(solved, of_architecture, index)
    return best or _Best(None, dataclasses.replace(problem, architecture=tried[0]), 0)


def _dense(problem: Problem, shared: SharedProblem, loss: float) -> DensePlan | None:
    """The best dense model by the law, or by the dense law of the same paper; None where none is feasible.

    problem: That of the law's best model. loss: its loss.
    """
    law = problem.law
    if not law.holds_for_dense:
        return None
    dense_law = load(law.dense) if law.published and law.dense else law
    tried = architectures.to_try(dense_law, shared.shape, None, shared.reference)
    best = _best(dataclasses.replace(problem, law=dense_law, loss_cutoff=math.inf), tried, np.array([1.0]))
    if best.solved is None:
        return None
    model = best.solved.row(best.index)
    ratio = {}
    constraints = best.problem.constraints
    if constraints.has_budget:
        needed = solver.least_budget(best.problem, 1.0, loss)
        name = "hours_ratio" if best.problem.is_by_hours else "flops_ratio"
        ratio = {name: None if needed is None else needed / constraints.budget}
    return DensePlan(
        **model,
        law=dense_law.name,
        loss_saved_share=1 - loss / model["loss"],
        **ratio,
        explicit=tuple(ratio),
    )
