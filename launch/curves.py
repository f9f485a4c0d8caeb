"""The training curves of a sweep, read from the metrics of its jobs, and their pictures as SVG.

A job's trunk and each of its branches is one curve. Its hours are those of the trainer, without restarts: where a
segment was resumed, its clock continues from the last line before that.
"""

import dataclasses
import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from launch import job_files
from launch.backend import Sweep
from launch.jobs import Files, Job

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POINTS = 300  # of a curve: more could not be told apart
SMOOTHED_OVER = 0.02  # share of a curve's points that a point of the loss is the mean of
WIDTH = 5.2  # inches of a panel
HEIGHT = 3.4
LABELS = {0: "experts not known", 1: "dense"}  # by number of experts; 0 of a job that was rebuilt from its folder
METRICS = ("cross_entropy", "drop_rate", "max_load", "unchosen", "collapsed_layers")  # the fields that are drawn


@dataclasses.dataclass(frozen=True)
class Curve:
    """The metrics that a segment logged, one value for each line of metrics.jsonl.

    Attributes:
      n_tokens: Of the run, from its beginning.
      hours: Of the trainer, from the run's beginning.
      loss: Cross-entropy in nats per token.
      drop_rate: Share of choices that no expert had room for; NaN for a dense model.
      max_load: Tokens of the busiest expert over an even share; NaN for a dense model.
      unchosen: Experts of all layers that no token chose in a hundred steps; NaN without config.router_health.
      collapsed_layers: Layers whose router has collapsed; NaN likewise.
    """

    job: str
    segment: str
    n_experts: int
    n_tokens: np.ndarray
    hours: np.ndarray
    loss: np.ndarray
    drop_rate: np.ndarray
    max_load: np.ndarray
    unchosen: np.ndarray
    collapsed_layers: np.ndarray


@dataclasses.dataclass(frozen=True)
class Panel:
    """A picture to draw: `value` of each curve over `axis`, both names of Curve's fields."""

    axis: str
    value: str
    x_label: str
    y_label: str


PANELS = (
    Panel("n_tokens", "loss", "tokens", "loss (nats per token)"),
    Panel("hours", "loss", "hours of the trainer", "loss (nats per token)"),
    Panel("n_tokens", "drop_rate", "tokens", "dropped tokens (share of choices)"),
    Panel("n_tokens", "max_load", "tokens", "busiest expert over an even share"),
    Panel("n_tokens", "unchosen", "tokens", "experts that no token chose in 100 steps"),
)


def of_job(job: Job, files: Files, odd: list[str] | None = None) -> list[Curve]:
    """The curves of a job's segments that have begun, the trunk first.

    `odd` gets a sentence on each file in which something odd was found; the rest of the file is drawn.
    """
    odd = [] if odd is None else odd
    curves: list[Curve] = []
    for segment, (first_token, _) in job.segments.items():
        if not job.has(f"{segment}/metrics.jsonl", files):
            continue
        lines = job_files.lines(job.folder, f"{segment}/metrics.jsonl", ("step", "n_tokens"), METRICS, odd)
        if not lines:
            continue
        speeds = job_files.lines(job.folder, f"{segment}/speed.jsonl", ("step",), ("seconds",), odd)
        began = _hours_at(curves[0], first_token) if curves else 0.0
        hours_of_step = dict(zip((line["step"] for line in speeds), _hours(speeds), strict=True))
        curves.append(
            Curve(
                job=job.name,
                segment=segment,
                n_experts=job.n_experts,
                n_tokens=np.array([line["n_tokens"] for line in lines], float),
                hours=began + np.array([hours_of_step.get(line["step"], np.nan) for line in lines]),
                loss=_column(lines, "cross_entropy"),
                drop_rate=_column(lines, "drop_rate"),
                max_load=_column(lines, "max_load"),
                unchosen=_column(lines, "unchosen"),
                collapsed_layers=_column(lines, "collapsed_layers"),
            )
        )
    return curves


def of_sweep(sweep: Sweep, files: Files) -> tuple[list[Curve], dict[str, list[str]]]:
    """The curves of all jobs; and by the job's name, what is odd in the files that they were read from."""
    curves = []
    odd: dict[str, list[str]] = {}
    for job in sweep.jobs:
        curves += of_job(job, files, odd.setdefault(job.name, []))
    return curves, odd


def _column(lines: Sequence[dict], name: str) -> np.ndarray:
    """The values of one metric, NaN where a line lacks it."""
    return np.array([line.get(name, np.nan) for line in lines], float)


def _hours(speeds: Sequence[dict]) -> list[float]:
    """Hours since a segment's first start, at each line: the clock of a line restarts when the run is resumed."""
    hours = []
    before_resuming = 0.0
    last = 0.0
    for line in speeds:
        seconds = float(line.get("seconds", last))
        if seconds < last:
            before_resuming += last
        last = seconds
        hours.append((before_resuming + seconds) / 3600)
    return hours


def _hours_at(trunk: Curve, n_tokens: float) -> float:
    """Hours that the trunk took until a branch left it."""
    known = np.isfinite(trunk.hours)
    if not known.any():
        return 0.0
    return float(np.interp(n_tokens, trunk.n_tokens[known], trunk.hours[known]))


def draw(curves: Iterable[Curve], panel: Panel) -> str:
    """The picture of a panel as SVG, for a page; "" where no curve has the values."""
    from matplotlib import colormaps, colors, ticker
    from matplotlib.figure import Figure

    shown = [curve for curve in curves if np.isfinite(getattr(curve, panel.value)).any()]
    if not shown:
        return ""
    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    axes = figure.add_subplot()
    experts = sorted({curve.n_experts for curve in shown})
    scale = colors.LogNorm(1, max(2, *experts))
    named = set()
    for curve in shown:
        x, y = _thinned(getattr(curve, panel.axis), getattr(curve, panel.value))
        label = None
        if curve.n_experts not in named:
            named.add(curve.n_experts)
            label = LABELS.get(curve.n_experts, f"{curve.n_experts} experts")
        color = colormaps["viridis"](0.88 * float(scale(max(1, curve.n_experts))))
        axes.plot(x, y, color=color, linewidth=1.0 if curve.segment == "trunk" else 0.7, label=label)
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    axes.set_xlim(left=0)
    if panel.axis == "n_tokens":
        axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))
    if panel.value == "loss":
        axes.set_ylim(*_without_the_start(shown))
    axes.grid(alpha=0.25)
    axes.legend(fontsize="small", ncols=2)
    return svg(figure)


def _thinned(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """At most POINTS points of a curve, each a trailing mean over SMOOTHED_OVER of all its points."""
    known = np.isfinite(x) & np.isfinite(y)
    x = x[known]
    y = y[known]
    width = max(1, int(len(y) * SMOOTHED_OVER))
    sums = np.concatenate([[0.0], np.cumsum(y)])
    ends = np.arange(1, len(y) + 1)
    starts = np.maximum(ends - width, 0)
    means = (sums[ends] - sums[starts]) / (ends - starts)
    if len(x) <= POINTS:
        return x, means
    chosen = np.linspace(0, len(x) - 1, POINTS).round().astype(int)
    return x[chosen], means[chosen]


def _without_the_start(curves: Sequence[Curve]) -> tuple[float, float]:
    """Limits of the axis of losses that leave out the steep fall in the first tenth of each trunk."""
    parts = []
    for curve in curves:
        known = curve.loss[np.isfinite(curve.loss)]
        start = len(known) // 10 if curve.segment == "trunk" else 0
        parts.append(known[start:])
    losses = np.concatenate(parts)
    low = float(np.min(losses))
    high = float(np.quantile(losses, 0.995))
    margin = 0.05 * max(high - low, 1e-3)
    return low - margin, high + margin


def svg(figure: "Figure") -> str:
    """The figure as an <svg> element that fills its column."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    _, _, element = text.getvalue().partition("<svg ")
    return f'<svg role="img" {element}'
