"""The answer of `fit add`: each run against its prediction, and the plans before and after."""

from collections.abc import Iterator

from fit.messages import lines
from fit.messages.lines import Line
from fit.messages.printable import printable
from fit.messages.units import say
from fit.studies.added_runs.new_rows import MODEL, label_of
from fit.studies.added_runs.results import AddedRun, AddedRuns, PlanChange

PREDICTED = "predicted {predicted_loss:.4f}, measured {loss:.4f} ({off:+.2%}){interval}"
INTERVAL = ", {where} its {share:g}% interval, {low:.4f} to {high:.4f}"
NO_INTERVAL = "; the law has no interval"
REFITTED = "the law fitted again, with this run, says {refitted_loss:.4f}"
PLAN_BEFORE = "the best plan of {flops:flops} FLOPs had a loss of {loss:.4f} ({model})"
PLAN_AFTER = "  and has {loss:.4f} by the law fitted again ({model})"


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


def _of_plan(change: PlanChange) -> Line:
    """The best plan of a budget before and after the fit with the new runs."""
    before = say(PLAN_BEFORE, flops=change.flops, loss=change.before.loss, model=say(MODEL, **change.before))
    after = say(PLAN_AFTER, loss=change.after.loss, model=say(MODEL, **change.after))
    return Line("", before, (after,))
