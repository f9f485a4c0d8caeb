"""How far the answers of several laws lie apart, and what they say together."""

import operator
from collections.abc import Iterator

from fit.messages import sentences
from fit.messages.finding import Finding, finding
from fit.messages.units import say
from fit.planning.several_laws.comparison import AGREE, Agreement, LawAnswer

FURTHEST = 1e3  # times a law's compute; beyond, its answer is shown and counts for nothing


def counted(answers: list[LawAnswer]) -> list[LawAnswer]:
    """The answers that count: those at most FURTHEST times beyond the compute that their law was fitted to."""

    def times_beyond(answer: LawAnswer) -> float:
        """How many times beyond the fitted compute an answer lies."""
        for outside in answer.extrapolation:
            if outside["column"] == "training_flops" and outside["value"] > outside["high"]:
                return outside["factor"]
        return 1.0

    return [answer for answer in answers if times_beyond(answer) <= FURTHEST]


def findings(answers: list[LawAnswer]) -> list[Finding]:
    """The sentences on all laws together. `answers`: of all laws."""
    return [*_not_counted(answers), *_preference(answers), *_apart_and_near(answers)]


def _not_counted(answers: list[LawAnswer]) -> Iterator[Finding]:
    """A finding for each answer that does not count."""
    counting = counted(answers)
    for response in answers:
        if response not in counting:
            yield finding("law_not_counted", law=response.law, furthest=f"{FURTHEST:,.0f}")


def _preference(answers: list[LawAnswer]) -> Iterator[Finding]:
    """A finding on how many laws of mixtures prefer a mixture, where a law of mixtures counts."""
    mixtures = [response for response in counted(answers) if response.mixtures and response.dense]
    if not mixtures:
        return
    saved = [response.dense.loss_saved_share for response in mixtures if response.dense]
    for_mixtures = sum(response.n_experts > 1 for response in mixtures)
    yield finding(
        "laws_prefer",
        count=len(mixtures),
        for_mixtures=for_mixtures,
        least=min(saved),
        most=max(saved),
    )


def _apart_and_near(answers: list[LawAnswer]) -> Iterator[Finding]:
    """Findings on what the laws disagree about and on what they agree about."""
    of_best = [row for row in agreement(counted(answers)) if row.of == "best" and row.limit is None]
    apart = [say(sentences.LAWS_SPAN, **row) for row in of_best if not row.agree]
    near = [say(sentences.LAWS_SPAN, **row) for row in of_best if row.agree]
    if apart:
        yield finding("laws_disagree", what="; ".join(apart))
    if near:
        yield finding("laws_agree", agree=AGREE, what="; ".join(near))


def agreement(answers: list[LawAnswer]) -> list[Agreement]:
    """How far the laws' answers lie apart, in each column that at least two laws answer.

    n_experts is compared of the laws that chose it.
    """
    mixtures = [answer for answer in answers if answer.mixtures]
    choosing = [answer for answer in mixtures if answer.chose_experts]
    rows = [_agreement_of_best(name, mixtures) for name in ("n_active", "n_total", "n_tokens")]
    rows.append(_agreement_of_best("n_experts", choosing))
    dense = [(answer.law, answer.dense) for answer in answers if answer.dense]
    for name in ("n_active", "n_tokens"):
        rows.append(_agreement("dense", name, [(law, model[name]) for law, model in dense]))
    return [row for row in rows if row is not None]


def _agreement_of_best(column: str, answers: list[LawAnswer]) -> Agreement | None:
    """How far the best models lie apart in a column, and what fixes it."""
    limit = None
    if column == "n_total" and all(answer.size_bound == "memory" for answer in answers):
        limit = "memory"
    if column == "n_experts" and all(answer.at_edge for answer in answers):
        limit = "experts"
    return _agreement("best", column, [(answer.law, answer[column]) for answer in answers], limit)


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
