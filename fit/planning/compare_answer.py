"""What `fit compare` says first: what the laws together say, then each law's best model in a few words.

compare_text.py has the tables.
"""

from collections.abc import Iterator

from fit.messages import lines
from fit.messages.units import say
from fit.planning import agreement, compare_text
from fit.planning.comparison import Comparison, LawAnswer
from fit.planning.plan_warnings import MOSTLY

BY_LAW = "By law: {laws}"
OF_LAW = "{law} E = {n_experts}, {n_active:amount} active{notes}"
BEYOND = "{factor:amount} times beyond its data"
EMBEDDING = "{share:.0%} of that embedding and head"
AT_EDGE = "{which} experts were not compared"
NOT_BOUNDED = "more experts are always better"
NOT_READ = "no column for {flags}"
BY_FLOPS = "by FLOPs E = {by_flops}"
BY_CLOCK = "by the clock E = {by_time}"
NOT_FEASIBLE = "{law}: not feasible: {why}"
LIKE = "{name}: {count} of {laws} laws reach its loss with fewer FLOPs{saved}"
SAVED = ", {least:.0%} to {most:.0%} fewer"
TABLES = "Tables: --verbose (each law's best model against dense ones, how far the laws lie apart, notes on each law)"


def text(result: Comparison) -> str:
    """The answer in ten lines or so."""
    return lines.text([*_answer(result), TABLES])


def verbose(result: Comparison) -> str:
    """The same lines, then every table, sentence and note."""
    return lines.with_details(_answer(result), compare_text.comparison(result).split("\n"))


def _answer(result: Comparison) -> Iterator[str]:
    """What the laws together say, what they disagree about, and what each of them says."""
    yield from agreement.preference(result.laws)
    yield from agreement.voted(result.laws)
    yield from agreement.not_counted(result.laws)
    yield from agreement.apart_and_near(result.laws)
    yield say(BY_LAW, laws="; ".join(_of_law(answer) for answer in result.laws))
    for response in result.infeasible:
        yield say(NOT_FEASIBLE, **response)
    yield from _reference_model(result)


def _of_law(answer: LawAnswer) -> str:
    """A law's best model, and what to know before trusting it."""
    notes = []
    if answer.clock and answer.clock.by_flops != answer.n_experts:
        notes.append(say(BY_FLOPS, **answer.clock))
    elif answer.clock and answer.clock.by_time != answer.n_experts:
        notes.append(say(BY_CLOCK, **answer.clock))
    if answer.extrapolation:
        farthest = max(answer.extrapolation, key=lambda outside: outside["factor"])
        notes.append(say(BEYOND, **farthest))
    if answer.embedding_share > MOSTLY:
        notes.append(say(EMBEDDING, share=answer.embedding_share))
    if answer.at_edge:
        notes.append(say(AT_EDGE, which="more" if answer.n_experts > 1 else "fewer"))
    if answer.not_bounded:
        notes.append(NOT_BOUNDED)
    if answer.not_read:
        notes.append(
            say(NOT_READ, flags=", ".join(f"--shape={name}:{value}" for name, value in answer.not_read.items()))
        )
    joined = f" ({', '.join(notes)})" if notes else ""
    return say(OF_LAW, **answer, notes=joined)


def _reference_model(result: Comparison) -> Iterator[str]:
    """A line on how many laws find a better use of the budget than the model to start from."""
    likes = [answer.like for answer in result.laws if answer.like]
    if result.like is None or not likes:
        return
    saved = [1 - like.flops_share for like in likes if like.flops_share is not None and like.flops_share < 1]
    words = say(SAVED, least=min(saved), most=max(saved)) if saved else ""
    yield say(LIKE, name=result.like["name"], count=len(saved), laws=len(likes), saved=words)
