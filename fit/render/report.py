"""One self-contained HTML page: a law, its fit, the paper's tables and figures for it, and the numbers behind them."""

import dataclasses
import json
import pathlib
import string

from fit.aliases import Json
from fit.fitted_law.law import Law
from fit.fitted_law.parts import LEVEL
from fit.messages import finding, units
from fit.messages.lines import Line
from fit.model.architecture import Architecture
from fit.planning.plan import Plan
from fit.render import budget_report, elements, figures, law_details, sections, tables
from fit.render.opening import FIRST, Opening, opening_of_law
from fit.render.report_options import ReportOptions
from fit.table.files import check_writable, write_text

OTHERS = [which for which in figures.FIGURES if which != FIRST]
NAMES = dict(n_active="active parameters", n_tokens="training tokens", n_experts="experts")  # of columns
NAMES |= dict(loss="loss (nats per token)", training_flops="training FLOPs")


@dataclasses.dataclass(frozen=True)
class Report:
    """A report that was written.

    Attributes:
      path: The file.
      page: Its HTML.
      summary: The findings in short; [] under limits.
      plan: The plan within the limits; None without limits.
    """

    path: str
    page: str
    summary: list[Line]
    plan: Plan | None = None


def write_report(
    law: Law, runs: object = None, out: str = "report.html", options: ReportOptions | None = None
) -> Report:
    """Writes one self-contained HTML page on a law and, with limits, on the decision within them.

    Args:
      law: The law.
      runs: Its runs, what `fit.read` takes; None leaves out the points, and predicted against measured.
      out: The file to write.
      options: The limits of a plan, the laws to compare, the shape of models. Default: none, on the law alone.

    Raises:
      UserError: A value cannot be used, no model is feasible, or the file cannot be written.
    """
    options = options or ReportOptions()
    measured = figures.measured(law, runs)
    check_writable(out)
    limits = options.limits
    if limits is not None:
        opening = budget_report.opening_of_budget(law, measured, options, limits)
        architecture = limits.architecture(law)
    else:
        opening = opening_of_law(law, measured)
        architecture = law.architecture
    text = _page(law, architecture, opening, measured)
    write_text(out, text)
    return Report(path=out, page=text, summary=opening.summary, plan=opening.plan)


def _page(law: Law, architecture: Architecture, opening: Opening, measured: figures.Measured) -> str:
    """The page: its opening, then the law with its fit, and every table and figure of the paper.

    Args:
      law: The law.
      architecture: How models are built.
      opening: Of the page.
      measured: The law's runs; None without runs.
    """
    other_figures = [sections.figure_section(law, architecture, which, measured) for which in OTHERS]
    all_tables = [sections.table_section(law, architecture, which) for which in tables.TABLES]
    template = string.Template(pathlib.Path(__file__).with_name("report.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=elements.text(opening.title),
        opening="\n".join(opening.parts),
        parts="\n".join([*_fit(law, architecture, opening.warnings), *all_tables, *other_figures]),
        record=elements.text(json.dumps(law.to_dict(), indent=1)),
    )


def _fit(law: Law, architecture: Architecture, warnings: list[str]) -> list[str]:
    """Sections on where the law comes from and how sure it is. warnings: those of the decision."""
    parts = ["<h2>Where it comes from</h2>", f"<p>{elements.text(_origin(law))}</p>"]
    if not law.published:
        of_law = finding.in_words(law_details.findings(law))
        warnings = [*dict.fromkeys([*warnings, *of_law])]  # a plan says some of the law's, too
        measured = law_details.mean_errors(law)
        if measured:
            parts.append(f"<p>By its runs: {elements.text('; '.join(map(str, measured)))}.</p>")
    if warnings:
        parts.append(f'<p>Before trusting it:</p><ul class="warnings">{elements.items(warnings)}</ul>')
    if law.ranges:
        rows = []
        for name, (low, high) in law.ranges.items():
            rows.append(
                {"column": NAMES.get(name, name), "from": elements.cell(name, low), "to": elements.cell(name, high)}
            )
        parts += [
            "<h2>What it was fitted to</h2>",
            elements.table(rows),
            f"<p>{elements.text(_models(law, architecture))}</p>",
        ]
    quality = _quality(law)
    if quality:
        parts += ["<h2>Errors</h2>", elements.table(quality)]
        details = [] if law.published else law_details.details(law)
        rows = elements.items(row for line in details for row in str(line).split("\n"))
        parts.append(f"<details><summary>what the fit said</summary><ul>{rows}</ul></details>")
    return [*parts, "<h2>Coefficients</h2>", elements.table(_coefficients(law))]


def _origin(law: Law) -> str:
    """One sentence: where the law comes from."""
    if law.published:
        return f"Published: {law.source}. {law.note}."
    words = f"Fitted to {law.fitted.runs if law.fitted else 'the'} runs"
    words += f" of {law.runs.file}" if law.runs.file is not None else ", the law does not say which"
    if law.held_out:
        words += f", {law.held_out.runs} more held out"
    if law.runs.fingerprint is not None:
        words += f" (fingerprint of the runs {law.runs.fingerprint[:12]})"
    return f"{words}."


def _models(law: Law, architecture: Architecture) -> str:
    """One sentence: the models and the text of the fitted runs."""
    words = [f"Models of width {architecture.width_per_block} a block with a vocabulary of {architecture.vocab_size:,}"]
    if law.models.architecture:
        words.append(f"built with {law.models.architecture.in_words()}")
    named = dict(base_config="config", corpus="corpus fingerprint", unique_tokens="training tokens in the text")
    for name, what in named.items():
        value = getattr(law.models, name)
        if value:
            words.append(f"{what} {units.amount(value) if name in elements.COUNTS else str(value)[:60]}")
    return "; ".join(words) + ". What lies outside these ranges is dashed in the pictures."


def _quality(law: Law) -> list[Json]:
    """Rows of how far the law is from its runs, and, where the fit made them, separate laws for each E."""
    words = dict(fitted="fitted runs", held_out="held-out runs")
    words |= {f"separate_{name}": f"a law for each E alone, {what}" for name, what in words.items()}
    rows = []
    for name, what in words.items():
        errors = getattr(law, name)
        if errors:
            row = {
                "": what,
                "runs": errors.runs,
                "mean relative error": _percent(errors.get("mean_relative_error")),
                "largest": _percent(errors.get("max_relative_error")),
                "RMSE (nats)": f"{errors.rmse_nats:.4f}",
            }
            rows.append(row)
    return rows


def _percent(share: float | None) -> str | None:
    """A share in percent."""
    return None if share is None else f"{share:.2%}"


def _coefficients(law: Law) -> list[Json]:
    """Rows of coefficients, each with its interval by profile likelihood and by bootstrap where the fit made them."""
    intervals: dict[str, Json] = {}
    if law.profile:
        by_profile = {name: (ends.low, ends.high) for name, ends in law.profile.items()}
        intervals[f"profile likelihood ({LEVEL:.0%})"] = by_profile
    if law.bootstrap and law.bootstrap.intervals:
        low, high = law.bootstrap.percentiles
        how = f"{low:g}th to {high:g}th percentile of {law.n_draws} bootstrap fits"
        intervals[how] = law.bootstrap.intervals
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
