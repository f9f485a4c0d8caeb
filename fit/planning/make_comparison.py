"""Makes a comparison of laws: the plan of each for one budget, against its own best dense model, and what all say.

Losses on different corpora cannot be compared, so no law's loss is set against another's. The architectures are
compared, all counted in one way (n_active and n_total with embedding and head, 6 n_active n_tokens training FLOPs); a
law that counts otherwise is given its own counts of the same model. Also compared is how far, by each law, its best
model lies below its best dense model under the same limits, and how many more FLOPs that dense model would need.
"""

from collections.abc import Sequence

from fit.errors import UserError
from fit.fitted_law.law import Law
from fit.planning.answer import compare_answer
from fit.planning.context import reference_model
from fit.planning.inputs.options import BudgetOptions
from fit.planning.several_laws import agreement, votes
from fit.planning.several_laws.comparison import ABOUT, Comparison, LawPlan, NoPlan
from fit.planning.several_laws.law_plan import plan_by_law
from fit.planning.several_laws.shared_problem import SharedProblem


def compare(laws: Sequence[Law], options: BudgetOptions) -> Comparison:
    """Compares the plans of several laws for a budget.

    Raises:
      UserError: No law has a feasible model, or a law cannot be planned with.
    """
    reference = options.reference_model
    shared = SharedProblem.of_options(laws, options, options.constraints_of_all_laws())
    plans: list[LawPlan] = []
    without_model: list[NoPlan] = []
    for law in laws:
        planned = plan_by_law(law, shared)
        if isinstance(planned, NoPlan):
            without_model.append(planned)
        else:
            plans.append(planned)
    if not plans:
        raise UserError(without_model[0].why)
    counted = agreement.counted(plans)
    votes_of_laws = votes.together(counted)
    findings = agreement.findings(plans)
    if votes_of_laws is not None:
        findings.append(votes.finding_of(votes_of_laws))
    return Comparison(
        **shared.shape,
        constraints=shared.constraints.to_json(),
        about=ABOUT,
        laws=plans,
        infeasible=without_model,
        agreement=agreement.agreement(counted),
        votes=votes_of_laws,
        findings=findings,
        like=reference_model.counts_of(reference) if reference else None,
        answer_of=compare_answer.verbose if options.verbose else compare_answer.answer,
    )
