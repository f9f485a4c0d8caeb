"""The plan of one law for a budget that several laws share: its best architecture, against its own best dense model."""

import dataclasses
import functools

from fit.aliases import Json
from fit.errors import UserError
from fit.fitted_law import law_counts
from fit.fitted_law.law import Law, load
from fit.model.architecture import Architecture
from fit.planning import make_problem
from fit.planning.chosen import widths_of_runs
from fit.planning.chosen.optima import optimum_at
from fit.planning.chosen.optimum import Optimum
from fit.planning.context import other_budget, reasons_to_doubt, reference_model
from fit.planning.context.other_budget import OtherBudget
from fit.planning.inputs.problem import Problem
from fit.planning.search import infeasible, solver
from fit.planning.search.best_models import MODEL_COLUMNS, BestModels
from fit.planning.several_laws import architectures, leverage, votes
from fit.planning.several_laws.comparison import DensePlan, LawPlan, NoPlan, VotesOfLaw
from fit.planning.several_laws.shared_problem import SharedProblem
from fit.planning.space import size_speeds


def plan_by_law(law: Law, shared: SharedProblem) -> LawPlan | NoPlan:
    """The law's best architecture, its best dense one, and the reference model beside them.

    Where text is read several times, they are by the law's law of repeated text, as in a plan.
    """
    try:
        make_problem.law_for_text(law, shared.constraints)
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
    tried = architectures.to_try(law, shared.shape, shared.used, shared.reference)
    problem = solver.best_architecture([shared.problem(law, architecture, experts) for architecture in tried])
    solution = _solve(problem)
    if solution is None:
        return NoPlan(law=law.name, why=infeasible.reason(problem, experts))
    if not shared.fixes_expert_widths:

        def solve_again(architecture: Architecture) -> _Solution | None:
            """The solution of another architecture; None where no model is feasible."""
            return _solve(shared.problem(law, architecture, experts))

        solution = widths_of_runs.with_widths_of_runs(solution, solve_again)
    return _plan_of(solution, _dense(law, solution.best.loss, shared), shared)


def _plan_of(solution: "_Solution", dense: DensePlan | None, shared: SharedProblem) -> LawPlan:
    """The plan of a solution. dense: the best dense model."""
    problem = solution.problem
    law = problem.law
    architecture = problem.architecture
    model = solution.best
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
        edge=reasons_to_doubt.edge_of_best(law, problem.experts, e),
        not_bounded=reasons_to_doubt.not_bounded(problem, e),
        finest=bool(len(granularities) > 1 and architecture.granularity == max(granularities)),
        extrapolation=model.extrapolation,
        embedding_share=reasons_to_doubt.embedding_share(architecture, model.d_model, model.n_active),
        not_read=_not_read(law, shared),
        leverage=_leverage(architecture, model),
        dense=dense,
        votes=_votes(solution),
        speed=model.speed,
        clock=_clock(problem, model),
        serving=model.cost.serving if model.cost else None,
        like=reference_model.trained_within(shared.reference, problem, e) if shared.reference else None,
        explicit=("like",) if shared.reference else (),
    )


def _leverage(architecture: Architecture, model: Optimum) -> Json | None:
    """The efficiency leverage of a mixture; None for a dense model."""
    if model.n_experts == 1:
        return None
    shape = architecture.shape(model.d_model, model.n_experts)
    if model.candidate is not None:
        shape = model.candidate.shape
    return leverage.of_shape(shape, model.n_tokens)


def _votes(solution: "_Solution") -> VotesOfLaw | None:
    """How the law divides its vote among numbers of experts; None unless it chooses among several."""
    problem = solution.problem
    law = problem.law
    if not law.reads_n_experts or law.has_fixed_n_experts or len(problem.experts) < 2:
        return None
    return votes.of_law(problem, solution.models.n_experts[solution.models.feasible])


def _clock(problem: Problem, model: Optimum) -> OtherBudget | None:
    """The best of the problem's experts by FLOPs in place of hours, or by hours in place of FLOPs."""
    experts = solver.allowed_experts(problem.law, problem.experts)
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
class _Solution:
    """A law's problem of one architecture, solved: its best models, and the index of the best of them."""

    problem: Problem
    models: BestModels
    index: int

    @functools.cached_property
    def best(self) -> Optimum:
        """The best model."""
        return optimum_at(self.problem, self.models, self.index, None)


def _solve(problem: Problem) -> _Solution | None:
    """The solution of a problem; None where no model is feasible."""
    models = solver.best_models(problem, solver.allowed_experts(problem.law, problem.experts))
    if not models.feasible.any():
        return None
    return _Solution(problem, models, models.best)


def _dense(law: Law, loss: float, shared: SharedProblem) -> DensePlan | None:
    """The best dense model by the law, or by the dense law of the same paper; None where none is feasible.

    loss: That of the law's best model.
    """
    if not law.holds_for_dense:
        return None
    dense_law = load(law.dense) if law.published and law.dense else law
    tried = architectures.to_try(dense_law, shared.shape, None, shared.reference)
    problem = solver.best_architecture([shared.problem(dense_law, architecture, (1,)) for architecture in tried])
    solution = _solve(problem)
    if solution is None:
        return None
    model = solution.models.row(solution.index)
    ratio = {}
    constraints = problem.constraints
    if constraints.has_budget:
        needed = solver.least_budget(problem, 1.0, loss)
        name = "hours_ratio" if problem.is_by_hours else "flops_ratio"
        ratio = {name: None if needed is None else needed / constraints.budget}
    return DensePlan(
        **model,
        law=dense_law.name,
        loss_saved_share=1 - loss / model["loss"],
        **ratio,
        explicit=tuple(ratio),
    )
