"""The answer of `fit speedup --baseline`: the factor in a sentence, the frontier, and a table of the variants."""

from collections.abc import Iterator

from fit.messages import lines
from fit.messages.lines import Line
from fit.messages.units import counted, flops
from fit.studies.speedup.results import BaselineSpeedup

TABLES = Line("Tables", "--verbose (every run, the compute or the hours that the baseline needs for its loss)")


def _sentence(result: BaselineSpeedup) -> str:
    """All of it in a sentence."""
    what = "hours" if result.by == "time" else "compute"
    baseline = ", ".join(f"{name}={value}" for name, value in result.baseline.items())
    low, high = result.interval
    best = max(result.runs, key=lambda row: row.factor)
    words = ", ".join(f"{name} {value}" for name, value in best.run.items())
    least, most = best.interval
    return (
        f"For the same losses the baseline ({baseline}) needs {result.factor:.2f} times the {what} of "
        f"{counted(len(result.runs), 'run')} ({low:.2f} to {high:.2f}); most for {words}: {best.factor:.2f} "
        f"({least:.2f} to {most:.2f})."
    )


def answer(result: BaselineSpeedup) -> list[Line]:
    """The sentence, and the frontier."""
    return [*_answer(result), TABLES]


def verbose(result: BaselineSpeedup) -> Iterator[Line]:
    """The sentence, the frontier, and a table of the variants."""
    rows = [[*result.runs[0].run, "loss", result.unit, "baseline's", "factor", "80% interval"]]
    for row in result.runs:
        costs = [_cost(cost, result.unit) for cost in (row.cost, row.baseline_cost)]
        low, high = row.interval
        labels = [str(value) for value in row.run.values()]
        rows.append([*labels, f"{row.loss:.4f}", *costs, f"{row.factor:.3f}", f"{low:.3f} to {high:.3f}"])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    table = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return lines.with_details(_answer(result), [lines.rows(table)])


def _answer(result: BaselineSpeedup) -> list[Line]:
    """The sentence and the frontier, a line each."""
    frontier = result.frontier
    fixed_note = f" ({', '.join(result.fixed)} as given)" if result.fixed else ""
    fitted = f"loss = {frontier.c:.4g} + A C^-{frontier.b:.4g} of {frontier.runs} runs{fixed_note}"
    return [
        Line("", _sentence(result)),
        Line("The baseline's frontier", f"{fitted}; intervals are 80%, with the scatter of its runs."),
    ]


def _cost(cost: float, unit: str) -> str:
    """A cost in its unit."""
    return f"{cost:.3g}" if unit == "hours" else flops(cost)
