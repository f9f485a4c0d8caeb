"""The parts of a law, as fit/fitting makes them and law.json holds them. A field that is None is left out there."""

import dataclasses
from typing import Annotated

import numpy as np

from fit.aliases import Array, Numbers
from fit.fitted_law.bounds import Coefficient, Draws, NotNegative, Percentiles, Positive, Range, Rule
from fit.messages.finding import Finding
from fit.results import Record, optional
from fit.table.runs import Errors

SHAPE = ("d_model", "n_blocks")  # columns whose ranges are known where the table of runs has them
LEVEL = 0.8  # of profile intervals, like the 10th to 90th percentile of the bootstrap
WAYS_OF_DRAWING = {  # of the bootstrap, which resamples runs or trunks
    "errors": "the law's own losses with new errors, drawn by {by}",
    "replacement": "{by} drawn with replacement",
    "paper": "80% of the {by} without replacement, the paper's form: intervals half as wide as they should be",
}
SIMULATED = "simulated"  # beside these, the draws of published laws
WayOfDrawing = Annotated[
    str, Rule((*WAYS_OF_DRAWING, SIMULATED).__contains__, f"one of {', '.join(WAYS_OF_DRAWING)}, {SIMULATED}")
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FittedRuns(Record):
    """The runs that a law was fitted to.

    Attributes:
      file: Their table.
      fingerprint: Of their numbers, as Runs.fingerprint gives it.
      corpora: Fingerprints of their text.
      ranges: {column: (low, high)}.
    """

    file: str | None = optional()
    fingerprint: str | None = optional()
    corpora: tuple[str, ...] = ()
    ranges: dict[str, Range] = dataclasses.field(default_factory=dict)

    @property
    def shape_ranges(self) -> dict[str, tuple[float, float]]:
        """{column: (low, high)} of d_model and n_blocks, where the table has them."""
        return {name: self.ranges[name] for name in SHAPE if name in self.ranges}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Starts(Record):
    """The starts of a fit: how many were tried, were followed to their end, and ended within 1% of the best
    objective; and the norm of the gradient there. Older versions did not count those that were followed."""

    tried: int
    followed: int | None = optional()
    within_1_percent: int
    gradient_norm: float | None = optional()


@dataclasses.dataclass(frozen=True, kw_only=True)
class HoldOut(Errors):
    """A rolling hold-out by compute (fit/fitting/rolling.py): a law of small runs predicts the larger ones.

    The errors are of the predicted runs, as ln(predicted / measured).

    Attributes:
      factor: The runs fitted have at most 1 / factor of the largest training FLOPs.
      fitted: How many runs were fitted.
      fitted_flops: The largest training FLOPs of these.
      training_flops: The range of those predicted.
      mean_error: The mean of the errors.
      scatter: What rmse_log would be if the form were right.
      coverage: The share within the interval of LEVEL of a new run.
      log_compute_range: Root mean square of ln(FLOPs / fitted_flops).
      drift_mean: The form's own error for each factor of e in compute.
      drift_rms: Its root mean square.
    """

    factor: int
    fitted: int
    fitted_flops: float
    training_flops: Range
    mean_error: float
    scatter: float
    coverage: float
    log_compute_range: float
    drift_mean: float
    drift_rms: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tried(Record):
    """A form that was tried, with its error and hold-outs."""

    form: str
    rmse_log: float
    rolling: tuple[HoldOut, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice(Record):
    """Why a law has its form.

    Attributes:
      tried: The forms that were tried.
      reason: A finding; `why` is this in words.
    """

    tried: tuple[Tried, ...] = ()
    reason: Finding

    @property
    def why(self) -> str:
        """The reason in words."""
        return str(self.reason)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeparateErrors(Record):
    """Errors of separate laws, of the count `runs`."""

    runs: int
    rmse_nats: float
    rmse_log: float | None = optional()


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeparateLaw(Record):
    """The law of the runs of one number of experts alone, and how many these are."""

    coefficients: dict[str, Coefficient]
    runs: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Growth(Record):
    """Below these FLOPs runs scatter by (training_flops / FLOPs)^power times as much."""

    training_flops: Positive
    power: Positive


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scatter(Record):
    """How runs scatter around a law, as standard deviations of log loss (fit/fitting/noise.py).

    Attributes:
      total: Of a new run on a trunk of its own.
      run: Of each run's own error.
      trunk: Of the error that a trunk's runs share.
      trunks: How many trunks there are; 0 where none is known.
      by: What shares an error, in words.
      degrees_of_freedom: Of run and trunk.
      growth: Of small runs; None where they scatter no more than others.
    """

    run: NotNegative | None = optional()
    trunk: NotNegative | None = optional()
    total: NotNegative
    trunks: int | None = optional()
    by: str = "runs"
    degrees_of_freedom: tuple[Positive, Positive] | None = optional()
    growth: Growth | None = optional()

    def ratio_at(self, flops: Numbers) -> Array:
        """The scatter of runs of these training FLOPs over that of large runs; at least 1."""
        if self.growth is None:
            return np.ones(np.shape(flops))
        return np.maximum(self.growth.training_flops / np.asarray(flops), 1) ** self.growth.power


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProfileInterval(Record):
    """A coefficient with its profile interval of LEVEL; an end is None where the interval is open."""

    value: float
    low: float | None
    high: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Beyond(Record):
    """The form's own error beyond the fitted runs, which rolling hold-outs measure (fit/fitting/rolling.py).

    Attributes:
      training_flops: The largest of these runs.
      drift: Of each draw, for each factor of e in compute beyond them.
    """

    training_flops: Positive
    drift: tuple[float, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bootstrap(Record):
    """Fits to resampled runs.

    Attributes:
      form: The way of drawing.
      by: What is drawn, in words.
      percentiles: The ends of intervals.
      draws: [draws][coefficients].
      intervals: {coefficient: (low, high)}.
      beyond: The form's own error beyond the runs; None where rolling hold-outs did not measure it.
      forms: {form: how many draws}, where these are of two; additive ones have k = 1.
      source: Where draws of a published law are from, in words; None for those of a fit.
      runs: The number of runs behind such draws.
    """

    form: WayOfDrawing
    by: str = "runs"
    percentiles: Percentiles
    draws: Draws
    intervals: dict[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    beyond: Beyond | None = optional()
    forms: dict[str, int] = dataclasses.field(default_factory=dict)
    source: str | None = optional()
    runs: int | None = optional()


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublishedTable(Record):
    """A paper's table of the best numbers of experts: a row for each budget, a column for each memory."""

    flops: tuple[float, ...]
    memory_gb: tuple[float, ...]
    kv_tokens: int
    n_experts: tuple[tuple[int, ...], ...]
