"""How sure the best number of experts is at the most compute that a law was fitted to."""

import dataclasses

from fit.errors import UserError
from fit.fitted_law.law import Law
from fit.planning.chosen.optima import optima_of
from fit.planning.inputs.constraints import Constraints
from fit.planning.inputs.problem import Problem
from fit.planning.uncertainty import odds
from fit.planning.uncertainty.odds import Odds, Ranking

NO_FLOPS = "its runs have no n_active, so their training FLOPs are not known"


@dataclasses.dataclass(frozen=True)
class NoOdds:
    """Why the best number of experts is not known, in words."""

    why: str


def odds_at_most_compute(law: Law) -> Odds | NoOdds | None:
    """The odds of each number of experts at the largest training FLOPs of a law's runs, without the plan of a model.

    Returns:
      The odds, or why there are none; None for a law that does not compare numbers of experts.
    """
    if not law.reads_n_experts or len(law.experts) == 1:
        return None
    try:
        law.check_plannable()
        if "training_flops" not in law.ranges:
            raise UserError(NO_FLOPS)
        limits = Constraints(flops=law.ranges["training_flops"][1])
        problem = Problem(law, law.architecture, limits, law.experts)
        optima, _ = optima_of(problem)
    except UserError as error:
        return NoOdds(error.sentence)
    return odds.odds_of(Ranking(problem, optima))
