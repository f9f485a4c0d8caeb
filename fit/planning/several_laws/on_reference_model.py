"""A model to start from, and the plans that laws of mixtures make instead of it."""

from fit.aliases import Json
from fit.fitted_law.law import Law, load
from fit.model.reference_model import PublishedModel
from fit.planning.context import reference_model
from fit.planning.inputs.constraints import Constraints
from fit.planning.several_laws.comparison import LAWS, LawPlan
from fit.planning.several_laws.law_plan import SharedProblem, plan_by_law


def of_reference_model(reference: PublishedModel, law: Law, shape: Json, constraints: Constraints) -> Json:
    """The counts of a reference model and, where a number of FLOPs is given, `laws`: what `law` and each other law of
    mixtures would build instead."""
    counts = reference_model.counts(reference)
    if not isinstance(constraints.flops, float):  # none, or FLOPs by number of experts
        return counts
    others = [other for other in map(load, LAWS) if other.name != law.name and other.reads_n_experts]
    shared = SharedProblem(shape=shape, constraints=constraints, reference=reference)
    plans = [plan_by_law(each, shared) for each in (law, *others)]
    return counts | dict(laws=[plan for plan in plans if isinstance(plan, LawPlan)])
