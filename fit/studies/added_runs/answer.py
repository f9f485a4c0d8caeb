"""The answer of `fit add`: each run against its prediction, and the plans before and after."""

from collections.abc import Iterator

from fit.aliases import Json
from fit.messages import lines
from fit.messages.lines import Line
from fit.messages.printable import printable
from fit.messages.units import say
from fit.studies.added_runs.added import MODEL, label_of
from fit.studies.added_runs.results import AddedRun, AddedRuns

PREDICTED = "predicted {predicted_loss:.4f}, measured {loss:.4f} ({off:+.2%}){interval}"
INTERVAL = ", {where} its {share:g}% interval, {low:.4f} to {high:.4f}"
NO_INTERVAL = "; the law has no interval"
REFITTED = "the law fitted again, with this run, says {refitted_loss:.4f}"
PLANS = "the best plan of {flops:flops} FLOPs had a loss of {before_loss:.4f} ({before_model})"
PLANS_AFTER = "  and has {after_loss:.4f} by the law fitted again ({after_model})"


def answer(result: AddedRuns) -> Iterator[Line]:
    """The lines that `fit add` prints."""
    for run in result.runs:
        yield _of_run(run, result.percentiles)
    for plan in result.plans:
        yield _of_plan(plan)
    yield from lines.warnings(result.findings)
    table = printable(result.table)
    yield from (Line(printable(run), f"in {table} already, left as it is") for run in result.known)
    yield Line(table, f"{len(result.runs)} added, {result.n_runs} runs")
    yield Line("", printable(result.next))


def _of_run(run: AddedRun, percentiles: list[float]) -> Line:
    """Whether a run ended as predicted. percentiles: the ends of its interval; [] for a law without draws."""
    interval = NO_INTERVAL
    if run.inside is not None:
        first, last = percentiles
        where = "inside" if run.inside else "OUTSIDE"
        interval = say(INTERVAL, **run, where=where, share=last - first)
    predicted = say(PREDICTED, **run, off=run.loss / run.predicted_loss - 1, interval=interval)
    more = []
    if run.outside_fitted_range:
        more.append(f"  outside the fitted range: {printable(run.outside_fitted_range)}")
    if run.refitted_loss is not None:
        more.append("  " + say(REFITTED, **run))
    return Line(printable(label_of(run)), predicted, tuple(more))


def _of_plan(row: Json) -> Line:
    """The best plan of a budget before and after the fit with the new runs."""
    models = {f"{name}_model": say(MODEL, **row[name]) for name in ("before", "after")}
    losses = {f"{name}_loss": row[name]["loss"] for name in ("before", "after")}
    after = say(PLANS_AFTER, **models, **losses)
    return Line("", say(PLANS, flops=row["flops"], **models, **losses), (after,))
