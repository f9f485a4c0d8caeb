"""One page on a sweep, while it runs and after: curves, states, failures, costs, its law, the runs to train next.

python -m launch.report --workdir=DIR [--out=sweep.html] [--watch=SECONDS]

The page is one HTML file without scripts; it can be mailed, or lie in a bucket. With --watch it is rewritten until
nothing runs or is queued, and a browser that shows it reloads it. The law is fitted to the finished runs whenever
their number has changed, by `python -m fit`; the page itself keeps what the laws of fewer runs said. Nothing is written
into the sweep's folder but the page, whose default place is DIR/sweep.html.
"""

if __name__ == "__main__":
    from jmoe import startup

    startup.begin()

import html
import json
import math
import os
import pathlib
import re
import string
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

from absl import flags
from etils import epath

from jmoe import cli
from jmoe.errors import Unavailable, UserError
from jmoe.printable import printable
from jmoe.storage import durable
from jmoe.storage import files as storage
from launch import collect, curves, output, status, sweep_law, sweepfile
from launch.backend import Sweep
from launch.jobs import files_of
from launch.sweep_law import Answer, SweepLaw

HISTORY = re.compile(r'<script type="application/json" id="answers">(.*?)</script>', re.DOTALL)
COLUMNS = ("job", "state", "runs", "trained", "loss", "dropped", "max load", "hours", "hours left", "note")


def main(_: object) -> None:
    workdir = storage.absolute(flags.FLAGS.workdir)
    out = workdir / "sweep.html" if flags.FLAGS.out is None else storage.absolute(flags.FLAGS.out)
    watch = flags.FLAGS.watch
    law: SweepLaw | None = None
    fitted_runs = 0
    while True:
        try:
            seen = status.see(workdir, flags.FLAGS.dollars_per_hour)
            if "jobs" not in seen:
                raise UserError(seen["trouble"])
            sweep = sweepfile.read(workdir)
            make_way(out)
            rows = finished_rows(sweep)
            if rows and len(rows) != fitted_runs:
                print(f"{output.now()} fitting the law to {len(rows)} runs", file=sys.stderr, flush=True)
                law = sweep_law.fit(sweep, sweep_law.by_finish_time(sweep, rows), answers_on(out))
                fitted_runs = len(rows)
            at_work = seen["owner"] or seen["trouble"] or any(job["active"] for job in seen["jobs"])
            is_last = watch is None or not at_work
            storage.write_whole(out, page(sweep, seen, law, None if is_last else watch))
        except Unavailable as error:
            if watch is None:
                raise
            print(f"{output.now()} {error}; looking again in {watch:g} s", file=sys.stderr, flush=True)
            time.sleep(watch)
            continue
        print(f"{os.fspath(out)}: {seen['runs_done']} of {seen['runs']} runs done", flush=True)
        if is_last:
            return
        time.sleep(watch)


def make_way(out: epath.Path) -> None:
    """Makes the folder of the page, before any work.

    Raises:
      UserError: No page can be written there.
    """
    if storage.is_remote(out):
        return
    if out.is_dir():
        raise UserError(f"--out={os.fspath(out)} is a folder: expected a file, such as {os.fspath(out)}/sweep.html")
    durable.refuse_link(out)
    storage.make_folder(out.parent)
    if not os.access(out.parent, os.W_OK):
        raise UserError(f"--out={os.fspath(out)}: {os.fspath(out.parent)} cannot be written to: permission denied")


def finished_rows(sweep: Sweep) -> list[dict]:
    """The rows of runs.csv as they would be now; none where they would mix versions, which launch.collect explains."""
    try:
        return collect.rows_of(sweep)[0]
    except UserError as error:
        print(f"no law: {printable(str(error))}", file=sys.stderr, flush=True)
        return []


def answers_on(out: epath.Path) -> list[Answer]:
    """The answers of laws of fewer runs, from the page that is there now; none where there is no such page."""
    try:
        match = HISTORY.search(out.read_text())
        if match is None:
            return []
        return [Answer.of(fields) for fields in json.loads(match[1])]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return []


def page(sweep: Sweep, seen: dict[str, Any], law: SweepLaw | None, reload_seconds: float | None) -> str:
    """The page as HTML.

    Args:
      seen: What status.see says of the sweep.
      law: That of its finished runs, if there is one.
      reload_seconds: After these a browser loads the page again; None for a page that stays as it is.
    """
    all_curves, odd = curves.of_sweep(sweep, files_of(sweep.workdir))
    pictures = [curves.draw(all_curves, panel) for panel in curves.PANELS]
    last_of_job = {curve.job: curve for curve in all_curves}
    template = string.Template(pathlib.Path(__file__).with_name("report.html").read_text(encoding="utf-8"))
    reload = f'<meta http-equiv="refresh" content="{reload_seconds:g}">' if reload_seconds else ""
    answers = law.answers if law else ()
    return template.substitute(
        reload=reload,
        title=_text(f"Sweep {seen['workdir']}"),
        opening="\n".join(f"<p>{_text(line)}</p>" for line in opening(seen)),
        pictures="\n".join(f"<figure>{picture}</figure>" for picture in pictures if picture),
        failures=_failures(seen["jobs"]),
        jobs=_table(COLUMNS, [_cells(job, last_of_job.get(job["name"]), odd[job["name"]]) for job in seen["jobs"]]),
        law=_law(law),
        answers=json.dumps([vars(answer) for answer in answers]).replace("<", "\\u003c"),
        written=_text(output.now()),
    )


def opening(seen: dict[str, Any]) -> list[str]:
    """The first lines: how far the sweep has come, what it cost and what is left."""
    lines = status.summary_lines(seen)
    if seen["dollars"] and seen["hours_left"] is not None and seen["n_chips"]:
        left = seen["hours_left"] * _running(seen["jobs"]) * seen["n_chips"] * seen["dollars_per_hour"]
        lines.append(f"${left:,.2f} left, if as many jobs train until the end as now")
    if seen["trouble"]:
        lines.append(f"The backend does not report the state of the jobs: {seen['trouble']}")
    return lines


def _running(jobs: Iterable[dict]) -> int:
    """How many jobs train now."""
    return sum(job["hours_left"] is not None for job in jobs)


def _cells(job: dict[str, Any], curve: curves.Curve | None, odd: Sequence[str]) -> list[str]:
    """A row of the table of jobs.

    Args:
      job: What status.look says of the job.
      curve: Of the segment that the job trains now, or trained last.
      odd: What is odd in the files of its curves.
    """
    share = job["tokens"] / job["training_tokens"] if job["training_tokens"] else 0.0
    dropped = curve.drop_rate[-1] if curve else float("nan")
    load = curve.max_load[-1] if curve else float("nan")
    note = (job["failure"] or {}).get("cause") or job["more"]
    if curve is not None and curve.collapsed_layers[-1] > 0:
        collapsed = f"routers of {curve.collapsed_layers[-1]:.0f} layers have collapsed"
        note = f"{note}; {collapsed}" if note else collapsed
    for sentence in [*job["odd"], *odd]:
        if sentence not in note:
            note = f"{note}; {sentence}" if note else sentence
    return [
        job["name"],
        job["state"],
        f"{job['runs_done']} of {job['runs']}",
        f"{share:.0%}",
        "" if job["loss"] is None else f"{job['loss']:.4f}",
        "" if math.isnan(dropped) else f"{dropped:.1%}",
        "" if math.isnan(load) else f"{load:.2f}",
        "" if job["hours"] is None else f"{job['hours']:.2f}",
        "" if job["hours_left"] is None else f"{job['hours_left']:.2f}",
        note,
    ]


def _failures(jobs: Sequence[dict]) -> str:
    """The jobs that failed, each with its sentence; nothing where none did."""
    items = []
    for job in jobs:
        if job["state"] == "failed":
            cause = (job["failure"] or {}).get("cause") or job["more"]
            items.append(f"<li><b>{_text(job['name'])}</b>: {_text(cause)}</li>")
    if not items:
        return ""
    return f'<h2>Failures</h2><ul class="failures">{"".join(items)}</ul>'


def _law(law: SweepLaw | None) -> str:
    """The part on the law."""
    if law is None:
        return "<p>No run is finished yet.</p>"
    parts = []
    if law.answers:
        last = law.answers[-1]
        low, high = last.loss
        experts = "is dense" if last.n_experts == 1 else f"has {last.n_experts} experts"
        parts.append(
            f"<p>By the law of {last.n_runs} finished runs, the best model of {last.flops:.2g} training FLOPs "
            f"{experts}, with {_sizes(last)} active parameters. Its loss is {low:.4f} to {high:.4f} nats per token "
            f"(10th to 90th percentile). That is {sweep_law.BEYOND:g} times the compute of the largest run.</p>"
        )
    if len(law.answers) > 1:
        parts.append(f"<figure>{_draw_answers(law.answers)}</figure>")
    parts.append(f"<details><summary>what the fit says</summary><pre>{_text(law.summary)}</pre></details>")
    if law.next_runs:
        parts.append(f"<h2>Runs to train next</h2><pre>{_text(law.next_runs)}</pre>")
    return "\n".join(parts)


def _sizes(answer: Answer) -> str:
    """The interval of active parameters in words, as one number where its ends look the same."""
    from matplotlib.ticker import EngFormatter

    ends = [EngFormatter(places=1, sep="")(size) for size in answer.n_active]
    return " to ".join(dict.fromkeys(ends))


def _draw_answers(answers: Sequence[Answer]) -> str:
    """How the interval of the loss narrows as runs finish, as SVG."""
    from matplotlib import ticker
    from matplotlib.figure import Figure

    figure = Figure(figsize=(curves.WIDTH, curves.HEIGHT * 0.75), layout="constrained")
    axes = figure.add_subplot()
    n_runs = [answer.n_runs for answer in answers]
    low = [answer.loss[0] for answer in answers]
    high = [answer.loss[1] for answer in answers]
    axes.fill_between(n_runs, low, high, alpha=0.25)
    axes.vlines(n_runs, low, high)
    for answer in answers:
        axes.annotate(f"E = {answer.n_experts}", (answer.n_runs, answer.loss[1]), fontsize="small", ha="center")
    axes.set_xlabel("finished runs")
    axes.set_ylabel("predicted loss (nats per token)")
    axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    axes.margins(x=0.1, y=0.15)
    axes.grid(alpha=0.25)
    return curves.svg(figure)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table that scrolls sideways on a narrow screen."""
    head = "".join(f"<th>{_text(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _text(text: object) -> str:
    return html.escape(str(text))


if __name__ == "__main__":
    sweepfile.define_flags()
    flags.DEFINE_string("out", None, "Page to write, a path or gs://... Default: sweep.html in the sweep's folder.")
    flags.DEFINE_float("dollars_per_hour", None, "Hourly price of one chip. Default: what launch.sweep was given.", 0)
    flags.DEFINE_float("watch", None, "Seconds between updates, which end when nothing runs or is queued.", 1, 1e6)
    cli.run(main)
