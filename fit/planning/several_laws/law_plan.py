"""The plan of one law for a budget that several laws share: its best architecture, against its own best dense model."""

from collections.abc import Sequence

from fit.aliases import Floats, Json
from fit.errors import UserError
from fit.fitted_law.law import Law
from fit.fitted_law.law_files import load
from fit.model.architecture import Architecture
from fit.planning import make_problem, solve
from fit.planning.chosen.optimum import Optimum
from fit.planning.context import not_read, other_budget, reasons_to_doubt, reference_model
from fit.planning.inputs.problem import Problem
from fit.planning.search import solver
from fit.planning.search.best_models import MODEL_COLUMNS
from fit.planning.search.infeasible import NoModel
from fit.planning.several_laws import architectures, leverage, votes
from fit.planning.several_laws.comparison import DensePlan, LawPlan, NoPlan, VotesOfLaw
from fit.planning.several_laws.shared_problem import SharedProblem
from fit.planning.solve import Solution


def plan_by_law(law: Law, shared: SharedProblem) -> LawPlan | NoPlan:
    """The law's best architecture, its best dense one, and the reference model beside them.

    Where text is read several times, they are by the law's law of repeated text, as in a plan.
    """
    try:
        make_problem.law_for_text(law, shared.constraints)
    except UserError as error:  # the law does not say what repeated text is worth
        return NoPlan(law=law.name, why=error.sentence)
    experts = shared.experts
    if experts is None:
        experts = law.experts
    elif not law.chooses_experts:
        has_one_number = law.has_fixed_n_experts or law.only_n_experts is not None
        if law.holds_for_mixtures and has_one_number and law.experts[0] not in experts:
            return NoPlan(law=law.name, why=law.only_words)
        experts = law.experts
    try:
        solution = _solution_of(law, shared, experts, shared.used)
    except NoModel as error:
        return NoPlan(law=law.name, why=error.sentence)
    return _plan_of(solution, _dense(law, solution.best.loss, shared), shared)


def _solution_of(law: Law, shared: SharedProblem, experts: Floats, used: Sequence[float] | None = None) -> Solution:
    """The solution of the best of the architectures that a law can tell apart.

    Args:
      law: The law.
      shared: The problem of all laws.
      experts: Numbers of experts to choose from.
      used: As in SharedProblem.

    Raises:
      NoModel: No model is within the limits.
    """

    def problem_of(architecture: Architecture) -> Problem:
        """The law's problem of an architecture."""
        return shared.problem(law, architecture, experts)

    by_width = architectures.to_try(law, shared.shape, used, shared.reference)
    return solve.best_of_widths(by_width, problem_of, fixes_expert_widths=shared.fixes_expert_widths)


def _plan_of(solution: Solution, dense: DensePlan | None, shared: SharedProblem) -> LawPlan:
    """The plan of a solution. dense: the best dense model."""
    problem = solution.problem
    law = problem.law
    architecture = problem.architecture
    model = solution.best
    e = model.n_experts
    granularities = architectures.granularities(law)
    counted = law.counting.with_vocabulary(architecture)
    columns = counted.columns(architecture.d_model(model.n_active, e), e, law.counts_embedding)
    unread = not_read.fields_of(law, solution.requested, shared.used)
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
        chose_experts=law.chooses_experts,
        edge=reasons_to_doubt.edge_of_best(law, problem.experts, e),
        not_bounded=reasons_to_doubt.not_bounded(problem, e),
        finest=bool(len(granularities) > 1 and architecture.granularity == max(granularities)),
        extrapolation=model.extrapolation,
        embedding_share=reasons_to_doubt.embedding_share(problem.as_counted, model.d_model, model.n_active),
        not_read={name: values[0] if len(values) == 1 else values for name, values in unread.items()},
        unread=not_read.finding_of(law, solution.requested, unread),
        left_out=solution.left_out,
        leverage=_leverage(model),
        dense=dense,
        votes=_votes(solution),
        speed=model.speed,
        speed_label=problem.calibration.label if problem.calibration else None,
        clock=other_budget.against_other_budget(solution.ranking),
        serving=model.cost.serving if model.cost else None,
        like=reference_model.trained_within(shared.reference, problem, e) if shared.reference else None,
        explicit=("like",) if shared.reference else (),
    )


def _leverage(model: Optimum) -> Json | None:
    """The efficiency leverage of a mixture; None for a dense model."""
    if model.n_experts == 1:
        return None
    return leverage.of_shape(model.shape, model.n_tokens)


def _votes(solution: Solution) -> VotesOfLaw | None:
    """How the law divides its vote among numbers of experts; None unless it chooses among several."""
    problem = solution.problem
    law = problem.law
    if not law.chooses_experts or len(problem.experts) < 2:
        return None
    return votes.of_law(solution.ranking)


def _dense(law: Law, loss: float, shared: SharedProblem) -> DensePlan | None:
    """The best dense model by the law, or by the dense law of the same paper; None where none is feasible.

    loss: That of the law's best model.
    """
    if not law.holds_for_dense:
        return None
    dense_law = load(law.dense) if law.published and law.dense else law
    try:
        solution = _solution_of(dense_law, shared, (1,))
    except NoModel:
        return None
    problem = solution.problem
    model = solution.best
    ratio = {}
    constraints = problem.constraints
    if constraints.has_budget:
        needed = solver.least_budget(problem, 1.0, loss)
        name = "hours_ratio" if problem.is_by_hours else "flops_ratio"
        ratio = {name: None if needed is None else needed / constraints.budget}
    return DensePlan(
        **{name: model[name] for name in ("n_experts", "n_active", "n_tokens", "loss")},
        law=dense_law.name,
        loss_saved_share=1 - loss / model.loss,
        **ratio,
        explicit=tuple(ratio),
    )
