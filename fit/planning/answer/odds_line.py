"""The line on how sure the best number of experts is, of a plan, of a law and in a report."""

from collections.abc import Iterable, Iterator

from fit.messages import sentences
from fit.messages.lines import Line
from fit.messages.units import dollars, duration, say
from fit.planning.uncertainty.odds import COLUMNS, Odds, share_beyond


def line(odds: Odds, more: Iterable[str] = ()) -> Line:
    """How sure the number of experts is, and what to measure.

    Args:
      odds: The odds; without draws of a law or of speeds, why there are none.
      more: Further clauses.
    """
    clauses = "; ".join([*_clauses(odds), *more])
    measurement = _to_measure(odds)
    return Line("How sure", f"{clauses}. {measurement}" if measurement else clauses)


def _clauses(odds: Odds) -> Iterator[str]:
    """How sure the number of experts is, in clauses of a sentence."""
    if odds.drawn and odds.second is not None:
        yield from _counts(odds)
    if "law" not in odds.drawn:
        yield _without_law_draws(odds)
    if odds.second is None:
        yield sentences.ODDS_ONE_NUMBER
        return
    yield _cost_of_second(odds)
    if odds.by_median != odds.recommended:
        yield say(sentences.ODDS_BY_MEDIAN, best=_named(odds.by_median))


def _without_law_draws(odds: Odds) -> str:
    """That the law is at its median, and why."""
    why = odds.no_draws or sentences.ODDS_NO_DRAWS
    if odds.drawn:
        return f"only speeds are drawn, as {why}"
    return say(sentences.ODDS_MEDIAN_ALONE, why=why)


def _counts(odds: Odds) -> Iterator[str]:
    """In how many draws a mixture, and each number of experts, is the best."""
    of_all = say(sentences.ODDS_OF_DRAWS, draws=odds.draws)
    if any(row.n_experts == 1 for row in odds.experts):
        mixtures = odds.mixture_in_draws or 0
        if odds.recommended == 1 or 2 * mixtures < odds.draws:
            yield say(sentences.ODDS_DENSE, count=odds.draws - mixtures, draws=odds.draws)
        else:
            yield say(sentences.ODDS_MIXTURE, count=mixtures, draws=odds.draws)
        of_all = ""
    counts = []
    for i, row in enumerate(row for row in odds.most_often_best() if row.n_experts > 1):
        template = sentences.WIN if i else sentences.ODDS_FIRST
        counts.append(say(template, **row) + of_all)
        of_all = ""
    if counts:
        yield ", ".join(counts)


def _cost_of_second(odds: Odds) -> str:
    """The mean cost of the second number of experts beyond the first."""
    first = odds.row(odds.recommended)
    second = odds.row(odds.second or 0)
    assert first is not None and second is not None
    loss = second.expected_loss - first.expected_loss
    if loss < 0:  # the first is by medians, as where a loss is to be reached
        costs = say(sentences.ODDS_SAVES, second=_named(second.n_experts), loss=-loss)
    else:
        share = share_beyond(first, second)
        budget = say(sentences.ODDS_SHARE, share=share)
        if odds.budget_hours is not None:
            budget = duration(share * odds.budget_hours)
        costs = say(sentences.ODDS_COSTS, second=_named(second.n_experts), loss=loss, budget=budget)
    if not odds.close_call:
        return costs
    *most, last = [COLUMNS[name] for name in odds.differ] or [""]
    apart = f"{', '.join(most)} and {last}" if most else last
    return say(sentences.ODDS_CLOSE, costs=costs, apart=say(sentences.ODDS_DIFFER, apart=apart) if apart else "")


def _named(n_experts: int) -> str:
    """A number of experts within a sentence."""
    return sentences.DENSE if n_experts == 1 else str(n_experts)


def _to_measure(odds: Odds) -> str:
    """The sentence on what to measure and what that would tell; "" for nothing."""
    measurement = odds.measurement
    if measurement is None:
        return ""
    if measurement.of == "speeds":
        price = "" if measurement.dollars is None else f" ({dollars(measurement.dollars)})"
        what = f"An hour of both on these chips{price}"
    else:
        what = f"{measurement.runs} more runs for the law"
    if measurement.settles:
        return f"{what} would settle it"
    return f"{what} would tell the better of the two in {measurement.sure:.0%} of cases"
