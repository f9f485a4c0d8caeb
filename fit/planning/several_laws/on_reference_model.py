"""A model to start from, and the plans that laws of mixtures make instead of it."""

from fit.aliases import Json
from fit.fitted_law.law import Law
from fit.fitted_law.law_files import load
from fit.planning.context import reference_model
from fit.planning.inputs.options import PlanOptions
from fit.planning.several_laws.comparison import LAWS, LawPlan, NoPlan
from fit.planning.several_laws.law_plan import plan_by_law
from fit.planning.several_laws.shared_problem import SharedProblem


def of_reference_model(law: Law, options: PlanOptions) -> Json | None:
    """The counts of the model to start from, beside what laws would build instead within the plan's own limits.

    Args:
      law: The planning law.
      options: Those of the plan.

    Returns:
      The counts. Where a number of FLOPs is the budget, also `laws`: the plan of `law` and of each other law of
      mixtures; and `infeasible`, the laws without a plan, where there are some. None without a model to start from.
    """
    reference = options.reference_model
    if reference is None:
        return None
    counts = reference_model.counts(reference)
    constraints = options.constraints()
    if not isinstance(constraints.flops, float):  # none, or FLOPs by number of experts
        return counts
    others = [other for other in map(load, LAWS) if other.name != law.name and other.reads_n_experts]
    laws = [law, *others]
    shared = SharedProblem.of_options(laws, options, constraints)
    plans = [plan_by_law(each, shared) for each in laws]
    counts["laws"] = [plan for plan in plans if isinstance(plan, LawPlan)]
    without_model = [plan for plan in plans if isinstance(plan, NoPlan)]
    if without_model:
        counts["infeasible"] = without_model
    return counts
