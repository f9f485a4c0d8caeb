"""The answer of `fit compare`: all laws together, then each law's best model in a few words; tables on demand."""

from collections.abc import Iterator

from fit.aliases import Json
from fit.messages import lines
from fit.messages.lines import Line
from fit.messages.units import amount, say, table
from fit.planning.answer import reference_lines, speed_lines
from fit.planning.several_laws.comparison import AGREE, Comparison, LawPlan

OF_LAW = "{law} E = {n_experts}, {n_active:amount} active{notes}"
IN_SHORT = {  # findings on a law's plan by their codes
    "law_outside": "{factor:amount} times beyond its data",
    "law_mostly_embedding": "{share:.0%} of that embedding and head",
    "law_at_edge": "{which} experts were not compared",
    "not_bounded": "more experts are always better",
    "not_read": "no column for {asked}",
}
ORDER = ("laws_prefer", "laws_vote", "law_not_counted", "laws_disagree", "laws_agree")
BY_FLOPS = "by FLOPs E = {by_flops}"
BY_CLOCK = "by wall-clock time E = {by_time}"
NOT_FEASIBLE = "not feasible: {why}"
REFERENCE = "{count} of {laws} laws reach its loss with fewer FLOPs{saved}"
SAVED = ", {least:.0%} to {most:.0%} fewer"
TABLES = Line(
    "Tables", "--verbose (each law's best model against dense ones, how far the laws lie apart, notes on each law)"
)


LAWS = (
    "{law:{wide}} {n_experts:>9} {granularity::>5} {shared::>6} {n_active:amount:>9} {n_total:amount:>9} "
    "{n_tokens:amount:>9} {below:.1%:>11} {ratio::>11}  {size_bound::}"
)


def answer(result: Comparison) -> Iterator[Line]:
    """The answer in ten lines or so."""
    yield from _answer(result)
    yield TABLES


def verbose(result: Comparison) -> Iterator[Line]:
    """The same lines, then every table, sentence and note."""
    return lines.with_details(_answer(result), lines.joined(_details(result)))


def _answer(result: Comparison) -> Iterator[Line]:
    """The lines on what the laws agree and disagree about, and on each of them."""
    for finding in sorted(result.findings, key=lambda finding: ORDER.index(finding.code)):
        yield Line("", str(finding))
    is_by_hours = "hours" in result.constraints
    yield Line("By law", "; ".join(_of_law(plan, is_by_hours) for plan in result.laws))
    for without_model in result.infeasible:
        yield Line(without_model.law, say(NOT_FEASIBLE, **without_model))
    yield from _laws_on_reference_model(result)


def _of_law(plan: LawPlan, is_by_hours: bool) -> str:
    """A law's best model, and what to know before trusting it. is_by_hours: Whether hours are the budget."""
    notes = []
    if plan.clock and plan.clock.by_flops != plan.clock.by_time:
        notes.append(say(BY_FLOPS if is_by_hours else BY_CLOCK, **plan.clock))
    for finding in plan.findings:
        if finding.code == "law_outside" and finding.values["factor"] is None:
            notes.append("outside its data")
        elif finding.code in IN_SHORT:
            notes.append(say(IN_SHORT[finding.code], **finding.values))
    joined = f" ({', '.join(notes)})" if notes else ""
    return say(OF_LAW, **plan, notes=joined)


def _laws_on_reference_model(result: Comparison) -> Iterator[Line]:
    """A line on how many laws find a better use of the budget than the model to start from."""
    trained = [plan.like for plan in result.laws if plan.like]
    if result.like is None or not trained:
        return
    saved = [1 - row.flops_share for row in trained if row.flops_share is not None and row.flops_share < 1]
    words = say(SAVED, least=min(saved), most=max(saved)) if saved else ""
    yield Line(result.like.name, say(REFERENCE, count=len(saved), laws=len(trained), saved=words))


def _details(result: Comparison) -> Iterator[list[Line]]:
    """The parts of the details, some of them empty."""
    if result.like:
        yield [*reference_lines.reference_lines(result.like, result.laws)]
    wide = max(len(plan.law) for plan in result.laws)
    rows: list = [_law_row(plan, wide) for plan in result.laws]
    rows += [f"{law.law:{wide}} not feasible: {law.why}" for law in result.infeasible]
    ratio = "dense hours" if "hours" in result.constraints else "dense FLOPs"
    heads = dict(wide=str(wide), granularity="split", below="below dense", ratio=ratio, size_bound="size bound by")
    yield [lines.rows(table(LAWS, rows, **heads))]
    yield [*_speeds([plan for plan in result.laws if plan.speed])]
    yield [*_serving(result)]
    yield [Line("", result.about)]
    yield [Line(plan.law, str(finding)) for plan in result.laws for finding in plan.findings]
    yield [*_together(result)]


def _law_row(plan: LawPlan, wide: int) -> Json:
    """The columns of a law's line in a comparison. wide: width of the column of laws."""
    is_mixture = plan.n_experts > 1
    below = None
    ratio = ""
    if is_mixture and plan.dense:
        below = plan.dense.loss_saved_share
        if plan.dense.explicit:  # there is a budget
            ratio = f"x {plan.dense.ratio:.3g}" if plan.dense.ratio else "never"
    columns = dict(
        granularity=plan.granularity if is_mixture and plan.granularity > 1 else None,
        shared=plan.shared if is_mixture and plan.shared else None,
        below=below,
        ratio=ratio,
        wide=wide,
    )
    return {**plan, **columns}


def _speeds(plans: list[LawPlan]) -> Iterator[Line]:
    """The speed of each law's best model, and what FLOPs would choose instead. Yields nothing without plans."""
    head = ""
    rows = []
    for plan in plans:
        assert plan.speed is not None
        head = f"speed on these chips ({plan.speed_label}; in brackets 80% ranges), of each law's best model:"
        row = say("  {law}, E = {n_experts}, {n_active:amount} active: ", **plan)
        rows.append(row + speed_lines.words(plan.speed))
        if plan.clock:
            rows += [f"    {line}" for line in speed_lines.differing(plan.clock)]
    if rows:
        yield Line("", head, tuple(rows))


def _serving(result: Comparison) -> Iterator[Line]:
    """How fast the chips serve each law's best model. Yields nothing without chips."""
    head = ""
    rows = []
    for plan in result.laws:
        serving = plan.serving
        if serving is None:
            return
        head = (
            f"Serving each law's best on the fewest chips that hold it ({serving.label}), tokens/s: decoding, all "
            "sequences together, and prefill:"
        )
        speeds = ", ".join(say("{decode_tokens_per_second:amount} at batch {batch}", **row) for row in serving.decoding)
        prefill = amount(serving.prefill_tokens_per_second)
        on_chips = f"on {amount(serving.chips)}: decodes {speeds}; prefill {prefill}"
        rows.append(f"  {plan.law}, E = {plan.n_experts}, {on_chips}")
    yield Line("", head, tuple(rows))


def _together(result: Comparison) -> Iterator[Line]:
    """Lines on the FLOPs of a dense model of equal loss by the law of efficiency leverage, which has no loss, and on
    how far the plans lie apart."""
    leverages = [(plan.law, plan.leverage) for plan in result.laws if plan.leverage]
    if leverages:
        words = ", ".join(f"x {leverage['leverage']:.3g} ({law})" for law, leverage in leverages)
        outside = dict.fromkeys(name for _, leverage in leverages for name in leverage["outside"])
        note = f"; outside its data: {', '.join(outside)}" if outside else ""
        yield Line("dense FLOPs of these architectures by the efficiency leverage of Tian et al. 2025", words + note)
    for row in result.agreement:
        if row.limit == "memory":
            what = "set by the limit of memory"
        elif row.limit == "experts":
            what = "set by the numbers compared"
        else:
            what = f"they agree within a factor of {AGREE:g}" if row.agree else "not settled"
        model = "best dense model, " if row.of == "dense" else ""
        ends = f"{amount(row.low)} ({row.low_law}) to {amount(row.high)} ({row.high_law})"
        yield Line(f"{model}{row.column}", f"{ends}, a factor of {row.factor:.3g}: {what}")
