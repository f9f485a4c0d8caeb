"""How far the plans of several laws lie apart, and what they say together."""

import operator
from collections.abc import Iterator

from fit.messages import sentences
from fit.messages.finding import Finding, finding
from fit.messages.units import say
from fit.planning.several_laws.comparison import AGREE, Agreement, LawPlan

FURTHEST = 1e3  # times a law's compute; beyond, its plan is shown and counts for nothing


def counted(plans: list[LawPlan]) -> list[LawPlan]:
    """The plans that count: those at most FURTHEST times beyond the compute that their law was fitted to."""

    def times_beyond(plan: LawPlan) -> float:
        """How many times beyond the fitted compute a plan lies."""
        for outside in plan.extrapolation:
            if outside.column == "training_flops" and outside.is_above and outside.factor is not None:
                return outside.factor
        return 1.0

    return [plan for plan in plans if times_beyond(plan) <= FURTHEST]


def findings(plans: list[LawPlan]) -> list[Finding]:
    """The sentences on all laws together. `plans`: of all laws."""
    return [*_not_counted(plans), *_preference(plans), *_apart_and_near(plans)]


def _not_counted(plans: list[LawPlan]) -> Iterator[Finding]:
    """A finding for each plan that does not count."""
    counting = counted(plans)
    for plan in plans:
        if plan not in counting:
            yield finding("law_not_counted", law=plan.law, furthest=f"{FURTHEST:,.0f}")


def _preference(plans: list[LawPlan]) -> Iterator[Finding]:
    """A finding on how many laws of mixtures prefer a mixture, where a law of mixtures counts."""
    mixtures = [plan for plan in counted(plans) if plan.mixtures and plan.dense]
    if not mixtures:
        return
    saved = [plan.dense.loss_saved_share for plan in mixtures if plan.dense]
    for_mixtures = sum(plan.n_experts > 1 for plan in mixtures)
    yield finding(
        "laws_prefer",
        count=len(mixtures),
        for_mixtures=for_mixtures,
        least=min(saved),
        most=max(saved),
    )


def _apart_and_near(plans: list[LawPlan]) -> Iterator[Finding]:
    """Findings on what the laws disagree about and on what they agree about."""
    of_best = [row for row in agreement(counted(plans)) if row.of == "best" and row.limit is None]
    apart = [say(sentences.LAWS_SPAN, **row) for row in of_best if not row.agree]
    near = [say(sentences.LAWS_SPAN, **row) for row in of_best if row.agree]
    if apart:
        yield finding("laws_disagree", what="; ".join(apart))
    if near:
        yield finding("laws_agree", agree=AGREE, what="; ".join(near))


def agreement(plans: list[LawPlan]) -> list[Agreement]:
    """How far the laws' plans lie apart, in each column that at least two laws have.

    n_experts is compared of the laws that chose it.
    """
    mixtures = [plan for plan in plans if plan.mixtures]
    choosing = [plan for plan in mixtures if plan.chose_experts]
    rows = [_agreement_of_best(name, mixtures) for name in ("n_active", "n_total", "n_tokens")]
    rows.append(_agreement_of_best("n_experts", choosing))
    dense = [(plan.law, plan.dense) for plan in plans if plan.dense]
    for name in ("n_active", "n_tokens"):
        rows.append(_agreement("dense", name, [(law, model[name]) for law, model in dense]))
    return [row for row in rows if row is not None]


def _agreement_of_best(column: str, plans: list[LawPlan]) -> Agreement | None:
    """How far the best models lie apart in a column, and what fixes it."""
    limit = None
    if column == "n_total" and all(plan.size_bound == "memory" for plan in plans):
        limit = "memory"
    if column == "n_experts" and all(plan.at_edge for plan in plans):
        limit = "experts"
    return _agreement("best", column, [(plan.law, plan[column]) for plan in plans], limit)


def _agreement(of: str, column: str, values: list[tuple[str, float]], limit: str | None = None) -> Agreement | None:
    """How far the values of several laws lie apart; None for fewer than two. values: [(law, value)]."""
    if len(values) < 2:
        return None
    ordered = sorted(values, key=operator.itemgetter(1))
    low_law, low = ordered[0]
    high_law, high = ordered[-1]
    return Agreement(
        of=of,
        column=column,
        low=low,
        high=high,
        low_law=low_law,
        high_law=high_law,
        factor=high / low,
        agree=bool(high <= AGREE * low),
        limit=limit,
    )
