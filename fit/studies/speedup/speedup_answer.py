"""The answer of `fit speedup`: the factor in a sentence, how far the runs lie apart, and a table of them."""

from collections.abc import Iterator

from fit.messages import lines
from fit.messages.lines import Line
from fit.messages.units import counted, say, table
from fit.studies.speedup.results import RunSpeedup, Speedup

COLUMNS = (
    "{n_active:amount:>9} {n_tokens:amount:>9} {n_experts:g:>9} {loss:.4f:>8} {flops:flops:>10} {law_flops:flops:>10} "
    "{factor:.2f:>7}{ends}"
)
APART = "{low} to {high}"
RUN = "{factor:.2f}{ends} for {n_active:amount} active on {n_tokens:amount} tokens with E = {n_experts:g}"
NOT_REACHED = "{missed} of {count} runs do not count: the law reaches no such loss"
TABLES = Line("Tables", "--verbose (every run, the compute that the law needs for its loss)")


def _sentence(result: Speedup) -> str:
    """All of it in a sentence."""
    what = "hours" if result.by == "time" else "compute"
    runs = counted(sum(row.factor is not None for row in result.runs), "run")
    factor = f"{result.factor:.2f} times the {what} of {runs}{_span(result.interval)}"
    return f"For the same losses {result.law} needs {factor}{_change(result)}."


def _change(result: Speedup) -> str:
    """How the factor changes with compute; "" for runs of one compute."""
    if result.per_tenfold is None:
        return ""
    ends = result.per_tenfold_interval
    tenfold = f"x {result.per_tenfold:.2f}{_span(ends)} for ten times as much"
    if ends is not None and ends[0] <= 1 <= ends[1]:
        return f"; whether that grows or falls with compute is open ({tenfold})"
    return f"; it {'grows' if result.per_tenfold > 1 else 'falls'} with compute, {tenfold}"


def _span(ends: list[float] | None) -> str:
    """An interval in words; "" without one."""
    return say(" ({ends:.2f})", ends=ends) if ends else ""


def answer(result: Speedup) -> Iterator[Line]:
    """The sentence, and what it hides of the runs."""
    yield from _answer(result)
    yield TABLES


def _answer(result: Speedup) -> Iterator[Line]:
    """The sentence; how far the runs lie apart, and those whose losses the law does not reach."""
    yield Line("", _sentence(result))
    reached = sorted((row for row in result.runs if row.factor is not None), key=lambda row: row.factor or 0.0)
    if len(reached) > 1:
        yield Line("The runs lie apart", say(APART, low=_run(reached[0]), high=_run(reached[-1])))
    missed = len(result.runs) - len(reached)
    if missed:
        yield Line("", say(NOT_REACHED, missed=missed, count=len(result.runs)))


def _run(row: RunSpeedup) -> str:
    """A run and its factor."""
    ends = _span(row.interval)
    return say(RUN, **row, ends=ends)


def verbose(result: Speedup) -> Iterator[Line]:
    """The sentence, then a table of the runs."""
    rows = []
    for row in result.runs:
        ends = say(" {interval:.2f}", **row) if row.interval else ""
        rows.append({**row, "ends": ends})
    runs = table(COLUMNS, rows, flops="FLOPs", law_flops="by the law", ends="")
    return lines.with_details(_answer(result), [lines.rows(runs)])
