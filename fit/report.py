"""One self-contained HTML page: a law, its fit, every table and figure of the paper for it, and the numbers behind them."""

import base64
import html
import io
import json

from fit import UserError, planning, tables
from fit.commands import plot

STYLE = """body { font: 15px/1.5 sans-serif; max-width: 72em; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; font-size: 13px } td, th { border: 1px solid #ccc; padding: .15em .6em; text-align: right }
img { max-width: 100% } pre { background: #f5f5f5; padding: .8em; overflow-x: auto } details { margin: .5em 0 1.5em }
h2 { margin-top: 2em; border-bottom: 1px solid #ccc }"""
TITLES = {
    "1": "Table 1: compute-optimal models",
    "2": "Table 2: best number of experts under memory",
    "4": "Table 4: the law at each number of experts",
    "5": "Table 5: bootstrap intervals of the optima",
}
CAPTIONS = {
    "1a": "Figure 1a: loss under a memory limit",
    "2a": "Figure 2a: isoFLOP profiles",
    "2b": "Figure 2b: savings against dense models",
    "3": "Figure 3: models of equal memory",
    "4": "Figure 4: best number of experts for three sizes",
    "5": "Figure 5: predicted against measured",
    "memory": "Best number of experts against memory",
}


def page(fitted, architecture, runs_path, summary):
    """The page as text. Tables and figures that the law cannot give are left out, saying why. summary: lines of text."""
    parts = [
        f"<h1>{html.escape(fitted.name)}</h1>",
        f"<pre>{html.escape(chr(10).join(summary))}</pre>",
        "<h2>Coefficients</h2>",
        _table([dict(coefficient=k, value=v) for k, v in fitted.coefficients.items()]),
    ]
    for which, make in tables.TABLES.items():
        parts.append(f"<h2>{TITLES[which]}</h2>")
        try:
            budgets = {} if which == "4" or "settings" not in fitted.record else dict(budgets=_budgets(fitted))
            parts.append(_table(make(fitted, architecture, **budgets)))
            if which == "5":
                parts.append(f"<p>{html.escape(tables.interval_note(fitted))}</p>")
        except UserError as e:
            parts.append(f"<p>{html.escape(str(e))}</p>")
    for which in plot.FIGURES:
        parts.append(f"<h2>{CAPTIONS[which]}</h2>")
        try:
            figure, columns = plot.draw(which, fitted, architecture, (1, 2, 4, 8, 16, 32), [], runs_path)
        except UserError as e:
            parts.append(f"<p>{html.escape(str(e))}</p>")
            continue
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=110)
        parts.append(
            f'<img alt="{CAPTIONS[which]}" src="data:image/png;base64,{base64.b64encode(picture.getvalue()).decode()}">'
        )
        rows = [dict(zip(columns, values)) for values in zip(*columns.values())]
        parts.append(f"<details><summary>numbers ({len(rows)} rows)</summary>{_table(rows)}</details>")
    parts.append(
        "<h2>The law as JSON</h2><details><summary>everything that the fit recorded</summary><pre>"
        + html.escape(json.dumps(fitted.record, indent=1))
        + "</pre></details>"
    )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(fitted.name)}</title>'
        f"<style>{STYLE}</style></head><body>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def _budgets(fitted):
    """Three budgets for a fitted law: over and ten times beyond its runs."""
    low, high = fitted.record["runs"]["ranges"]["training_flops"]
    return tuple(planning.rounded(v) for v in ((low * high) ** 0.5, high, 10 * high))


def _table(rows):
    head = "".join(f"<th>{html.escape(name)}</th>" for name in rows[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(tables.cell(v))}</td>" for v in row.values()) + "</tr>" for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"
