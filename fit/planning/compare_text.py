"""What several laws answer to one budget, in words."""

import textwrap
from collections.abc import Iterator

from fit.aliases import Json
from fit.fitted_law.law import in_words
from fit.messages import sentences
from fit.messages.units import amount, say, table
from fit.planning import by_time
from fit.planning.comparison import AGREE, Comparison, LawAnswer
from fit.planning.plan_warnings import MOSTLY

LAWS = (
    "{law:{wide}} {n_experts:>9} {split::>5} {shared::>6} {n_active:amount:>9} {n_total:amount:>9} "
    "{n_tokens:amount:>9} {below:.1%:>11} {ratio::>11}  {size_bound::}"
)


def comparison(result: Comparison) -> str:
    """What several laws answered, in words."""
    wide = max(len(answer.law) for answer in result.laws)
    rows: list = [_law_row(answer, wide) for answer in result.laws]
    rows += [f"{response.law:{wide}} not feasible: {response.why}" for response in result.infeasible]
    by_clock = [answer for answer in result.laws if answer.speed]
    ratio = "dense hours" if "hours" in result.constraints else "dense FLOPs"
    notes = [f"{answer.law}: {note}" for answer in result.laws for note in _notes(answer)]
    parts = [
        [*reference_model(result.like, result.laws)] if result.like else [],
        table(LAWS, rows, wide=str(wide), below="below dense", ratio=ratio, size_bound="size bound by"),
        [*_by_the_clock(by_clock)],
        [*_serving(result)],
        [textwrap.fill(result.about, 120)],
        notes,
        [*_together(result)],
    ]
    texts = ["\n".join(lines) for lines in parts]
    return "\n\n".join(text for text in texts if text)


def _law_row(answer: LawAnswer, wide: int) -> Json:
    """The columns of a law's line in a comparison. wide: width of the column of laws."""
    below = None
    ratio = ""
    if answer.n_experts > 1 and answer.dense:
        below = answer.dense.loss_saved_share
        if answer.dense.explicit:  # there is a budget
            ratio = f"x {answer.dense.ratio:.3g}" if answer.dense.ratio else "never"
    columns = dict(
        split=answer.split if answer.split > 1 else None,
        shared=answer.shared or None,
        below=below,
        ratio=ratio,
        wide=wide,
    )
    return {**answer, **columns}


def _by_the_clock(answers: list[LawAnswer]) -> Iterator[str]:
    """Lines on the speed of each law's best model, and on what FLOPs would choose instead."""
    for i, answer in enumerate(answers):
        assert answer.clock is not None and answer.speed is not None
        if i == 0:
            yield say(sentences.CLOCK_HEAD_LAWS, **answer.clock)
        yield say(sentences.CLOCK_ROW_LAW, **answer, words=by_time.words(answer.speed))
        for sentence in by_time.differing(answer.clock):
            yield f"    {sentence}"


def _serving(result: Comparison) -> Iterator[str]:
    """Lines on how fast the chips serve each law's best model; none without chips."""
    for i, answer in enumerate(result.laws):
        serving = answer.serving
        if serving is None:
            return
        if i == 0:
            yield say(sentences.SERVING_HEAD_LAWS, label=serving.label)
        speeds = ", ".join(say(sentences.SERVING_BATCH, **row) for row in serving.decoding)
        yield say(sentences.SERVING_ROW_LAW, **{**answer, **serving}, speeds=speeds)


def reference_model(reference: Json, answers: list[LawAnswer]) -> Iterator[str]:
    """What a published model counts; then what each law says of it and would build instead, a line each."""
    yield say(sentences.KNOWN, **reference, cache=2 * reference["cache_elements_per_token"])
    yield from reference["notes"]
    for answer in answers:
        like = answer.like
        if like is None:
            continue
        verdict = sentences.KNOWN_STANDS
        if like.flops_share is not None and like.flops_share < 1:
            verdict = say(sentences.KNOWN_SAVES, saved=1 - like.flops_share)
        outside = in_words(like.extrapolation)
        yield say(
            sentences.KNOWN_BY_LAW,
            **answer,
            its_tokens=like.n_tokens,
            verdict=verdict,
            far=say(sentences.KNOWN_FAR, outside=outside) if outside else "",
        )


def _notes(answer: LawAnswer) -> Iterator[str]:
    """What to know before trusting a law's answer, a line each."""
    if answer.extrapolation:
        yield f"outside its data: {in_words(answer.extrapolation)}"
    if answer.embedding_share > MOSTLY:
        yield f"{answer.embedding_share:.1%} of its active parameters are embedding and head"
    if answer.at_edge:
        yield f"{answer.n_experts} experts are at the edge of those compared: one beyond may be better"
    if answer.not_bounded:
        yield sentences.NOT_BOUNDED
    if answer.used != 1 and answer.n_experts > 1:
        yield f"a token uses {answer.used:g} experts' width, of {answer.n_experts}"
    if answer.not_read:
        flags = ", ".join(f"--shape={name}:{value}" for name, value in answer.not_read.items())
        subject = "it is"
        if "used" in answer.not_read:
            subject = f"asked of {answer.used:g} experts' width a token, and"
        yield (
            f"{flags}: the {answer.form} law has no column for that; {subject} taken to hold for models of equal counts"
        )
    if answer.finest:
        yield f"experts split in {answer.split} are the finest of its data: finer ones may be better"
    if answer.note:
        yield answer.note
    if answer.dense and answer.dense.law != answer.law:
        yield f"its dense models follow {answer.dense.law}"


def _together(result: Comparison) -> Iterator[str]:
    """Lines on what the laws together say, on the FLOPs of a dense model of equal loss by the law of
    efficiency leverage, which has no loss, and on how far the answers lie apart."""
    yield from result.conclusion
    leverages = [(answer.law, answer.leverage) for answer in result.laws if answer.leverage]
    if leverages:
        words = ", ".join(f"x {leverage['leverage']:.3g} ({law})" for law, leverage in leverages)
        outside = dict.fromkeys(name for _, leverage in leverages for name in leverage["outside"])
        note = f"; outside its data: {', '.join(outside)}" if outside else ""
        yield f"dense FLOPs of these architectures by the efficiency leverage of Tian et al. 2025: {words}{note}"
    for row in result.agreement:
        if row.limit == "memory":
            what = "set by the limit of memory"
        elif row.limit == "experts":
            what = "set by the numbers compared"
        else:
            what = f"they agree within a factor of {AGREE:g}" if row.agree else "not settled"
        of = "best dense model, " if row.of == "dense" else ""
        yield (
            f"{of}{row.column}: {amount(row.low)} ({row.low_law}) to {amount(row.high)} ({row.high_law}), "
            f"a factor of {row.factor:.3g}: {what}"
        )
