"""One self-contained HTML page: a law, its fit, the paper's tables and figures for it, and the numbers behind them."""

import base64
import dataclasses
import html
import io
import json
import pathlib
import string
from collections.abc import Iterable
from typing import Any

from fit.aliases import Json
from fit.data.runs import Runs
from fit.errors import UserError
from fit.fitted_law import law_check, summary, table_architecture
from fit.fitted_law.law import Law
from fit.messages import units
from fit.paper import figures, findings, tables
from fit.planning import optimum, plan_text, planning
from fit.shape.architecture import Architecture

TITLES = {
    "1": "Table 1: compute-optimal models",
    "2": "Table 2: best number of experts under memory",
    "4": "Table 4: the law at each number of experts",
    "5": "Table 5: bootstrap intervals of the optima",
}
FIRST = "2a"  # the picture of the decision: the loss over the size of the text, at equal FLOPs
OTHERS = [which for which in figures.FIGURES if which != FIRST]
WORDS = 40  # a cell of more letters is a sentence and is wrapped
MOST_ROWS = 5000  # of the numbers behind a picture: a million would make the page unusable
BYTES = {"memory_bytes": 1, "memory_gb": 1e9}  # column: bytes in its unit; its cells have units of their own
COUNTS = ("n_active", "n_total", "n_tokens", "dense_parameters", "unique_tokens")
NAMES = dict(n_active="active parameters", n_tokens="training tokens", n_experts="experts")  # of columns
NAMES |= dict(loss="loss (nats per token)", training_flops="training FLOPs")


def page(law: Law, architecture: Architecture, measured: figures.Measured) -> tuple[str, dict[str, str]]:
    """(the page as text, {heading: sentence} of its summary). Where the law cannot give a part, the page says why."""
    title = f"{law.form.name.capitalize()} scaling law: {pathlib.Path(law.name).name}"
    opening = _figure_section(law, architecture, FIRST, measured)
    other_figures = [_figure_section(law, architecture, which, measured) for which in OTHERS]
    all_tables = [_table_section(law, architecture, which) for which in tables.TABLES]
    decision = _decision(law, architecture, measured[0] if measured else None)
    answer = [f'<p class="answer">{_text(decision.answer)}</p>']
    for heading, sentence in decision.summary.items():
        answer.append(f"<p><b>{_text(heading.capitalize())}</b>: {_text(sentence)}.</p>")
    template = string.Template(pathlib.Path(__file__).with_name("report.html").read_text(encoding="utf-8"))
    page = template.substitute(
        title=_text(title),
        answer="\n".join(answer),
        picture=opening,
        parts="\n".join([*_fit(law, architecture, decision.warnings), *all_tables, *other_figures]),
        record=_text(json.dumps(law.record, indent=1)),
    )
    return page, decision.summary


@dataclasses.dataclass(frozen=True)
class _Decision:
    """What to train with the most compute that was fitted.

    Attributes:
      answer: A sentence.
      warnings: What to know before that.
      summary: {heading: sentence} of what was found, in short.
    """

    answer: str
    warnings: list[str]
    summary: dict[str, str]


def _decision(law: Law, architecture: Architecture, runs: Runs | None) -> _Decision:
    """What to train with the most compute that was fitted."""
    where = "the most that was fitted" if "training_flops" in law.ranges else "for which the law does not say its range"
    flops = float(law.ranges.get("training_flops", tables.TABLE_1_FLOPS)[-1])
    try:
        plan = planning.plan_within(law, architecture, optimum.Constraints(flops=flops), law.experts)
    except UserError as e:
        return _Decision(f"Nothing that this law could decide: {e}", [], {})
    answer = f"With {units.flops(flops)} training FLOPs, {where}: {plan_text.answer(plan)}"
    return _Decision(answer, plan.warnings, findings.sentences(law, runs, plan.to_dict()))


def _fit(law: Law, architecture: Architecture, warnings: list[str]) -> list[str]:
    """Sections on where the law comes from and how sure it is. warnings: those of the decision."""
    lines = [] if law.published else list(summary.summary(law.record))
    of_fit = [line for line in lines if not line.startswith("warning: ")]
    warnings = warnings + [line.removeprefix("warning: ") for line in lines if line not in of_fit]
    measured = [line for line in of_fit if line.startswith("mean relative error")]
    parts = ["<h2>Where it comes from</h2>", f"<p>{_text(_origin(law))}</p>"]
    if measured:
        parts.append(f"<p>By its runs: {_text('; '.join(measured))}.</p>")
    if warnings:
        parts.append(f'<p>Before trusting it:</p><ul class="warnings">{_items(warnings)}</ul>')
    if law.ranges:
        rows = []
        for name, (low, high) in law.ranges.items():
            rows.append({"column": NAMES.get(name, name), "from": _cell(name, low), "to": _cell(name, high)})
        parts += ["<h2>What it was fitted to</h2>", _table(rows), f"<p>{_text(_models(law, architecture))}</p>"]
    quality = _quality(law.record)
    if quality:
        parts += ["<h2>Errors</h2>", _table(quality)]
        parts.append(f"<details><summary>what the fit said</summary><ul>{_items(of_fit)}</ul></details>")
    return [*parts, "<h2>Coefficients</h2>", _table(_coefficients(law))]


def _text(text: object) -> str:
    """A text as HTML."""
    return html.escape(str(text))


def _items(sentences: Iterable[str]) -> str:
    """Sentences as items of a list."""
    return "".join(f"<li>{_text(sentence)}</li>" for sentence in sentences)


def _origin(law: Law) -> str:
    """One sentence: where the law comes from."""
    if law.published:
        return f"Published: {law.record['source']}. {law.record['note']}."
    runs = law.record.get("runs") or {}
    fitted = law.record.get("fitted") or {}
    held_out = law.record.get("held_out") or {}
    words = f"Fitted to {fitted.get('runs', 'the')} runs"
    words += f" of {runs['file']}" if "file" in runs else ", the law does not say which"
    if held_out:
        words += f", {held_out['runs']} more held out"
    if "fingerprint" in runs:
        words += f" (fingerprint of the runs {runs['fingerprint'][:12]})"
    return f"{words}."


def _models(law: Law, architecture: Architecture) -> str:
    """One sentence: the models and the text of the fitted runs."""
    words = [f"Models of width {architecture.width_per_block} a block with a vocabulary of {architecture.vocab_size:,}"]
    architecture_of_runs = law.models["architecture"]
    if architecture_of_runs:
        words.append(f"built with {table_architecture.in_words(architecture_of_runs)}")
    named = dict(base_config="config", corpus="corpus fingerprint", unique_tokens="training tokens in the text")
    for name, what in named.items():
        value = law.models[name]
        if value:
            words.append(f"{what} {units.amount(value) if name in COUNTS else str(value)[:60]}")
    return "; ".join(words) + ". What lies outside these ranges is dashed in the pictures."


def _quality(record: Json) -> list[Json]:
    """Rows of how far the law is from its runs, and, where the fit made them, separate laws for each E."""
    words = dict(fitted="fitted runs", held_out="held-out runs")
    words |= {f"separate_{name}": f"a law for each E alone, {what}" for name, what in words.items()}
    rows = []
    for name, what in words.items():
        errors = record.get(name)
        if errors:
            row = {
                "": what,
                "runs": errors["runs"],
                "mean relative error": _percent(errors.get("mean_relative_error")),
                "largest": _percent(errors.get("max_relative_error")),
                "RMSE (nats)": f"{errors['rmse_nats']:.4f}",
            }
            rows.append(row)
    return rows


def _percent(share: float | None) -> str | None:
    """A share in percent."""
    return None if share is None else f"{share:.2%}"


def _coefficients(law: Law) -> list[Json]:
    """Rows of coefficients, each with its interval by profile likelihood and by bootstrap where the fit made them."""
    intervals: dict[str, Json] = {}
    profile = law.record.get("profile")
    if profile:
        by_profile = {name: (ends["low"], ends["high"]) for name, ends in profile.items()}
        intervals[f"profile likelihood ({law_check.LEVEL:.0%})"] = by_profile
    bootstrap = law.record.get("bootstrap")
    if bootstrap:
        low, high = law.percentiles
        how = f"{low:g}th to {high:g}th percentile of {len(bootstrap['draws'])} bootstrap fits"
        intervals[how] = bootstrap.get("intervals") or {}
    rows = []
    for name, value in law.coefficients.items():
        row: Json = dict(coefficient=name, value=value)
        for how, ends in intervals.items():
            row[how] = _interval(*ends[name]) if ends.get(name) else None
        rows.append(row)
    return rows


def _interval(low: float | None, high: float | None) -> str:
    """An interval in words; None is an open end."""
    if low is None and high is None:
        return "unbounded"
    if high is None:
        return f"{low:.4g} or more"
    if low is None:
        return f"{high:.4g} or less"
    return f"{low:.4g} to {high:.4g}"


def _table_section(law: Law, architecture: Architecture, which: str) -> str:
    """The section of a table of the paper."""
    try:
        rows = list(tables.TABLES[which](law, architecture))
        body = f'{_table(rows)}\n<p class="soft">{_text(tables.note(which, law, rows))}</p>'
    except UserError as e:
        body = f"<p>{_text(e)}</p>"
    return f"<h2>{TITLES[which]}</h2>\n{body}"


def _figure_section(law: Law, architecture: Architecture, which: str, measured: figures.Measured) -> str:
    """The section of a figure of the paper, with the numbers behind it."""
    from fit.paper.figures import style

    caption = figures.FIGURES[which]
    try:
        figure, columns = figures.draw(which, law, architecture, law.experts, (), measured)
    except UserError as e:
        return f"<h2>{_text(caption)}</h2>\n<p>{_text(e)}</p>"
    picture = io.BytesIO()
    figures.save(figure, picture)
    data = base64.b64encode(picture.getvalue()).decode()
    wide = figure.get_figwidth() > style.COLUMN
    width, height = (round(96 * inches * 1.3) for inches in figure.get_size_inches())
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    counted = f"{len(rows)} rows" if len(rows) <= MOST_ROWS else f"the first {MOST_ROWS} of {len(rows)} rows"
    return (
        f'<h2>{_text(caption)}</h2>\n<figure class="{"scroll wide" if wide else "scroll"}">'
        f'<img alt="{_text(caption)}" width="{width}" height="{height}" src="data:image/png;base64,{data}"></figure>'
        f"<details><summary>numbers ({counted})</summary>{_table(rows[:MOST_ROWS])}</details>"
    )


def _table(rows: list[Json]) -> str:
    """Rows as a table. Columns with sentences are wrapped."""
    if not rows:
        return '<p class="soft">none</p>'
    wrapped = set()
    for row in rows:
        wrapped |= {name for name, value in row.items() if isinstance(value, str) and len(value) > WORDS}
    tag = {name: ' class="words"' if name in wrapped else "" for name in rows[0]}
    head = ""
    for name in rows[0]:
        words = "memory" if name in BYTES else name
        head += f"<th{tag[name]}>{_text(words).replace('_', '_<wbr>')}</th>"
    body = ""
    for row in rows:
        cells = [f"<td{tag[name]}>{_text(_cell(name, value))}</td>" for name, value in row.items()]
        body += f"<tr>{''.join(cells)}</tr>"
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def _cell(name: str, value: Any) -> str:
    """A value of a column as people read it."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or value != value:
        return "–" if value != value else tables.cell(value)
    if name.endswith("flops"):
        return units.flops(value)
    if name.removesuffix("_low").removesuffix("_high") in COUNTS:
        return units.amount(value)
    if name in BYTES:
        return units.memory(value * BYTES[name])
    return f"{value:.4f}" if name.endswith("loss") else tables.cell(value)
