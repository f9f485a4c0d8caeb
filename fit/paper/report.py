"""One self-contained HTML page: a law, its fit, the paper's tables and figures for it, and the numbers behind them."""

import base64
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
    """(the page as text, what it says in short). Where the law cannot give a part, it says why."""
    title = f"{law.form.name.capitalize()} scaling law: {pathlib.Path(law.name).name}"
    opening, *rest = [_figure_section(law, architecture, which, measured) for which in (FIRST, *OTHERS)]
    answer, warnings, short = _decision(law, architecture, measured and measured[0])
    told = [f"<p><b>{_text(what.capitalize())}</b>: {_text(words)}.</p>" for what, words in short.items()]
    shown = [_table_section(law, architecture, which) for which in tables.TABLES]
    template = string.Template(pathlib.Path(__file__).with_name("report.html").read_text(encoding="utf-8"))
    page = template.substitute(
        title=_text(title),
        answer="\n".join([f'<p class="answer">{_text(answer)}</p>', *told]),
        picture=opening,
        parts="\n".join([*_fit(law, architecture, warnings), *shown, *rest]),
        record=_text(json.dumps(law.record, indent=1)),
    )
    return page, short


def _decision(law: Law, architecture: Architecture, runs: Runs | None) -> tuple[str, list[str], dict[str, str]]:
    """(what to train with the most compute that was fitted, the sentences to know before that, what was found in
    short)."""
    where = "the most that was fitted" if "training_flops" in law.ranges else "for which the law does not say its range"
    flops = float(law.ranges.get("training_flops", tables.TABLE_1_FLOPS)[-1])
    try:
        plan = planning.plan(law, architecture, optimum.Constraints(flops=flops), law.experts)
    except UserError as e:
        return f"Nothing that this law could decide: {e}", [], {}
    answer = f"With {units.flops(flops)} training FLOPs, {where}: {plan_text.answer(plan)}"
    return answer, plan["warnings"], findings.sentences(law, runs, plan)


def _fit(law: Law, architecture: Architecture, warnings: list[str]) -> list[str]:
    """Where the law comes from and how sure it is; warnings: those of the decision."""
    lines = [] if law.published else list(summary.summary(law.record))
    said = [line for line in lines if not line.startswith("warning: ")]
    warnings = warnings + [line.removeprefix("warning: ") for line in lines if line not in said]
    measured = [line for line in said if line.startswith("mean relative error")]
    parts = ["<h2>Where it comes from</h2>", f"<p>{_text(_origin(law))}</p>"]
    parts += [f"<p>By its runs: {_text('; '.join(measured))}.</p>"] if measured else []
    if warnings:
        parts.append(f'<p>Before trusting it:</p><ul class="warnings">{_items(warnings)}</ul>')
    if law.ranges:
        ends = [(name, _cell(name, low), _cell(name, high)) for name, (low, high) in law.ranges.items()]
        reach = [{"column": NAMES.get(name, name), "from": low, "to": high} for name, low, high in ends]
        parts += ["<h2>What it was fitted to</h2>", _table(reach), f"<p>{_text(_models(law, architecture))}</p>"]
    if quality := _quality(law.record):
        parts += ["<h2>Errors</h2>", _table(quality)]
        parts.append(f"<details><summary>what the fit said</summary><ul>{_items(said)}</ul></details>")
    return [*parts, "<h2>Coefficients</h2>", _table(_coefficients(law))]


def _text(text: object) -> str:
    return html.escape(str(text))


def _items(sentences: Iterable[str]) -> str:
    return "".join(f"<li>{_text(sentence)}</li>" for sentence in sentences)


def _origin(law: Law) -> str:
    """One sentence: where the law comes from."""
    if law.published:
        return f"Published: {law.record['source']}. {law.record['note']}."
    runs, fitted, held_out = (law.record.get(name) or {} for name in ("runs", "fitted", "held_out"))
    words = f"Fitted to {fitted.get('runs', 'the')} runs"
    words += f" of {runs['file']}" if "file" in runs else ", the law does not say which"
    words += f", {held_out['runs']} more held out" if held_out else ""
    return words + (f" (fingerprint of the runs {runs['fingerprint'][:12]})." if "fingerprint" in runs else ".")


def _models(law: Law, architecture: Architecture) -> str:
    """One sentence: the models and the text of the fitted runs."""
    words = [f"Models of width {architecture.width_per_block} a block with a vocabulary of {architecture.vocab_size:,}"]
    if built := law.models["architecture"]:
        words.append(f"built with {table_architecture.in_words(built)}")
    named = dict(base_config="config", corpus="corpus fingerprint", unique_tokens="training tokens in the text")
    for name, what in named.items():
        if value := law.models[name]:
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
    return None if share is None else f"{share:.2%}"


def _coefficients(law: Law) -> list[Json]:
    """Rows of coefficients, each with its interval by profile likelihood and by bootstrap where the fit made them."""
    intervals = {}
    if profile := law.record.get("profile"):
        ends = {name: (found["low"], found["high"]) for name, found in profile.items()}
        intervals[f"profile likelihood ({law_check.LEVEL:.0%})"] = ends
    if bootstrap := law.record.get("bootstrap"):
        low, high = law.percentiles
        how = f"{low:g}th to {high:g}th percentile of {len(bootstrap['draws'])} bootstrap fits"
        intervals[how] = bootstrap.get("intervals") or {}
    return [
        dict(coefficient=name, value=value)
        | {how: _interval(*ends[name]) if ends.get(name) else None for how, ends in intervals.items()}
        for name, value in law.coefficients.items()
    ]


def _interval(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return "unbounded" if low is high else f"{low:.4g} or more" if high is None else f"{high:.4g} or less"
    return f"{low:.4g} to {high:.4g}"


def _table_section(law: Law, architecture: Architecture, which: str) -> str:
    try:
        rows = list(tables.TABLES[which](law, architecture))
        body = f'{_table(rows)}\n<p class="soft">{_text(tables.note(which, law, rows))}</p>'
    except UserError as e:
        body = f"<p>{_text(e)}</p>"
    return f"<h2>{TITLES[which]}</h2>\n{body}"


def _figure_section(law: Law, architecture: Architecture, which: str, measured: figures.Measured) -> str:
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
    if not rows:
        return '<p class="soft">none</p>'
    long = {name for row in rows for name, value in row.items() if len(str(value)) > WORDS and isinstance(value, str)}
    tag = {name: ' class="words"' if name in long else "" for name in rows[0]}
    heads = {name: "memory" if name in BYTES else name for name in rows[0]}
    head = (f"<th{tag[name]}>{_text(words).replace('_', '_<wbr>')}</th>" for name, words in heads.items())
    body = "".join(
        "<tr>" + "".join(f"<td{tag[name]}>{_text(_cell(name, value))}</td>" for name, value in row.items()) + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><tr>{"".join(head)}</tr>{body}</table></div>'


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
