"""A model to start from, and the plans that laws of mixtures make instead of it."""

import dataclasses

from fit.fitted_law.law import Law
from fit.fitted_law.law_files import load
from fit.planning.context import reference_model
from fit.planning.context.reference_model import ReferenceCounts
from fit.planning.inputs.options import PlanOptions
from fit.planning.several_laws.comparison import LAWS, LawPlan, NoPlan
from fit.planning.several_laws.law_plan import plan_by_law
from fit.planning.several_laws.shared_problem import SharedProblem
from fit.results import optional


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReferencePlans(ReferenceCounts):
    """A model to start from, beside what laws would build instead.

    Attributes:
      laws: The plan of the planning law and of each other law of mixtures; None unless a number of FLOPs is the budget.
      infeasible: The laws without a plan; None where each has one.
    """

    laws: list[LawPlan] | None = optional()
    infeasible: list[NoPlan] | None = optional()


def of_reference_model(law: Law, options: PlanOptions) -> ReferencePlans | None:
    """The model to start from, beside what laws would build instead within the plan's own limits; None without one.

    Args:
      law: The planning law.
      options: Those of the plan.
    """
    reference = options.reference_model
    if reference is None:
        return None
    counts = reference_model.counts_of(reference)
    constraints = options.constraints()
    if not isinstance(constraints.flops, float):  # none, or FLOPs by number of experts
        return ReferencePlans(**counts)
    others = [other for other in map(load, LAWS) if other.name != law.name and other.reads_n_experts]
    laws = [law, *others]
    shared = SharedProblem.of_options(laws, options, constraints)
    plans = [plan_by_law(each, shared) for each in laws]
    without_model = [plan for plan in plans if isinstance(plan, NoPlan)]
    return ReferencePlans(
        **counts,
        laws=[plan for plan in plans if isinstance(plan, LawPlan)],
        infeasible=without_model or None,
    )
