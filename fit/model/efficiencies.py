"""How fast models train, calibrated on published speeds: tokens a second with a range.

`calibrate` fits the efficiencies of step_cost.py to the runs of measured.csv. The efficiency of large products belongs
to the silicon: H100 and H200 are both Hopper, and differ by their memory alone. Software is faster or slower than other
software at everything (`software`). The residuals give the range: a source's runs are faster or slower than others'
(`between_sources`), and each run differs from the model on top of that (`within_source`). A ratio of two models on the
same chips and software has only the second.

Plans for our trainer take its own efficiencies where they are measured (`of_our_trainer`).

Not modelled: software that is not in the table, a network shared with others, input pipelines, checkpoints and
restarts, kernels for widths that nobody published, and how unbalanced a router will be.

Axes: runs; silicon, software and sources, in alphabetical order; parameters of the fit: logarithms of efficiencies,
then an offset for each source and each software.
"""

import dataclasses
import functools
import json
import math
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from fit.aliases import Array
from fit.errors import UserError
from fit.model import measured, step_cost
from fit.model.chips import CHIPS, Chip
from fit.model.layout import Layout
from fit.model.measured import MeasuredRun
from fit.model.shape import ModelShape
from fit.model.step_cost import Efficiencies, StepCost

OURS = "jmoe on GPUs"  # our trainer, as measured.csv calls its software
OWN_LABEL = "modelled after our runs"
CALIBRATED = pathlib.Path(__file__).parent / "efficiencies.json"
SHARED = tuple(field.name for field in dataclasses.fields(Efficiencies) if field.name != "products")
# Prior median of each efficiency, and the factor that is one standard deviation of it.
PRIOR = {
    "products": (0.65, 1.25),
    "grouped": (0.7, 1.5),
    "attention": (0.6, 1.4),
    "half_width": (256.0, 2.0),
    "memory": (1.5, 1.6),
    "inside": (0.6, 1.5),
    "between": (0.6, 1.6),
    "layer": (50e-6, 3.0),
    "mixture": (300e-6, 3.0),
}
SOFTWARE_SPREAD = 0.2  # of ln speed between software, before any measurement
SOURCE_SPREAD = 0.1  # of ln speed between sources of one software
RUN_SPREAD = 0.08  # of ln speed between runs of one source
OWN_SPREAD = 0.02  # of ln speed between your own runs, which are of one software and network
Z80 = 1.2816  # standard deviations that hold 80% of a normal distribution


@dataclasses.dataclass(frozen=True, eq=False)
class Calibration:
    """Efficiencies of chips, and the spread of speeds around them.

    Attributes:
      products: efficiency of large products by silicon.
      shared: the other efficiencies, of all chips.
      software: ln of the speed of each software over what is modelled.
      between_sources, within_source: standard deviations of ln(tokens per second), as above.
      within_software: the same between sources of one software, whose speed is known from another source.
      label: "modelled" from what others published; "measured" where your own runs recalibrated it.
    """

    products: dict[str, float]
    shared: dict[str, float]
    software: dict[str, float]
    between_sources: float
    within_software: float
    within_source: float
    label: str = "modelled"

    def products_of(self, kind: str) -> float:
        """The efficiency of large products on chips of a kind; on silicon that nobody measured, the mean of others."""
        products = self.products.get(CHIPS[kind].silicon)
        return math.exp(np.mean(np.log(list(self.products.values())))) if products is None else products

    def efficiencies(self, kind: str) -> Efficiencies:
        """The efficiencies of chips of a kind."""
        return Efficiencies(products=self.products_of(kind), **self.shared)

    def faster(self, log_speed: float) -> "Calibration":
        """The calibration of software that computes exp(log_speed) times as fast, with the same network."""
        factor = math.exp(log_speed)
        shared = self.shared | dict(
            memory=self.shared["memory"] * factor,
            layer=self.shared["layer"] / factor,
            mixture=self.shared["mixture"] / factor,
        )
        products = {silicon: efficiency * factor for silicon, efficiency in self.products.items()}
        return dataclasses.replace(self, products=products, shared=shared)

    def step_cost(self, kind: str, shape: ModelShape, layout: Layout) -> StepCost:
        """The cost of a step on chips of a kind."""
        return step_cost.step_cost(shape, layout, CHIPS[kind], self.efficiencies(kind))

    def factors(self, of_ratio: bool = False) -> tuple[float, float, float]:
        """(10th percentile, 1, 90th percentile) of a speed over what is modelled.

        Args:
          of_ratio: for the ratio of the speeds of two models on the same chips and software.
        """
        if of_ratio:
            spread = math.sqrt(2) * self.within_source
        else:
            spread = math.hypot(self.between_sources, self.within_source)
        factor = math.exp(Z80 * spread)
        return 1 / factor, 1.0, factor


class _Runs:
    """Measured runs with the counts of their steps, as arrays [n_runs]."""

    def __init__(self, runs: Sequence[MeasuredRun]) -> None:
        """Count the steps of the runs."""
        self.chip = _stacked(Chip, [run.chip for run in runs])
        shape = _stacked(ModelShape, [run.shape for run in runs])
        layout = _stacked(Layout, [run.layout for run in runs])
        self.counts = step_cost.counts_on(shape, layout, self.chip)
        self.log_seconds = np.log([run.seconds for run in runs])

    def errors(self, reached: Efficiencies) -> Array:
        """ln of the measured over the modelled speed of each run. reached: `products` of each run."""
        return np.log(step_cost.timed(self.counts, self.chip, reached).seconds) - self.log_seconds


def _stacked(cls: Any, items: Sequence[Any]) -> Any:
    """One object of a dataclass, whose fields are the arrays of the items' fields."""
    names = [field.name for field in dataclasses.fields(cls)]
    return cls(**{name: np.array([getattr(item, name) for item in items]) for name in names})


def calibrate(runs: Sequence[MeasuredRun]) -> Calibration:
    """Fits the efficiencies to the runs.

    The fit is least squares of ln speed, with an offset for each software and each source, and PRIOR. The weight of a
    source stays the same from 8 runs on, so that one long table does not decide.
    """
    from scipy import optimize

    silicon, silicon_of_run = np.unique([run.chip.silicon for run in runs], return_inverse=True)
    sources, source_of_run = np.unique([run.source for run in runs], return_inverse=True)
    software, software_of_run = np.unique([run.software for run in runs], return_inverse=True)
    counted = _Runs(runs)
    weight = 1 / np.sqrt(np.maximum(1, np.bincount(source_of_run)[source_of_run] / 8))
    priors = [PRIOR["products"]] * len(silicon) + [PRIOR[name] for name in SHARED]
    centres = np.log([centre for centre, _ in priors])
    widths = np.log([factor for _, factor in priors])

    def errors_with(logs: Array) -> Array:
        """ln of the measured over the modelled speed of each run, with these logarithms of efficiencies."""
        values = np.exp(logs)
        products = values[: len(silicon)][silicon_of_run]
        return counted.errors(Efficiencies(products, **dict(zip(SHARED, values[len(silicon) :], strict=True))))

    def residuals(x: Array) -> Array:
        """Residuals of the runs and then of the prior, each over its standard deviation."""
        logs, of_source, of_software = np.split(x, [len(centres), len(centres) + len(sources)])
        unexplained = errors_with(logs) - of_source[source_of_run] - of_software[software_of_run]
        offsets = [of_source / SOURCE_SPREAD, of_software / SOFTWARE_SPREAD, (logs - centres) / widths]
        return np.concatenate([unexplained / RUN_SPREAD * weight, *offsets])

    start = np.concatenate([centres, np.zeros(len(sources) + len(software))])
    solution = optimize.least_squares(residuals, start, max_nfev=200).x
    logs, of_source, of_software = np.split(solution, [len(centres), len(centres) + len(sources)])
    errors = errors_with(logs)
    unexplained = errors - of_source[source_of_run] - of_software[software_of_run]
    degrees_of_freedom = max(1.0, len(runs) - len(sources) - len(SHARED))
    means = np.bincount(source_of_run, errors) / np.bincount(source_of_run)
    software_of_source = np.array([software_of_run[source_of_run == i][0] for i in range(len(sources))])
    values = np.exp(logs).tolist()
    return Calibration(
        products=dict(zip(silicon.tolist(), values[: len(silicon)], strict=True)),
        shared=dict(zip(SHARED, values[len(silicon) :], strict=True)),
        software=dict(zip(software.tolist(), of_software.tolist(), strict=True)),
        between_sources=math.sqrt(float(np.mean(np.square(means)))) if len(sources) > 1 else SOFTWARE_SPREAD,
        within_software=_spread_within(software_of_source, means),
        within_source=math.sqrt(float(np.sum(unexplained**2)) / degrees_of_freedom),
    )


def _spread_within(software: Array, means: Array) -> float:
    """Standard deviation of a source's ln speed around its prediction from other sources of its software.

    SOURCE_SPREAD where no software has two sources.

    Args:
      software: index of the software of each source [n_sources].
      means: ln of the measured over the modelled speed of each source [n_sources].
    """
    deviations = []
    for i in range(len(means)):
        others = means[(software == software[i]) & (np.arange(len(means)) != i)]
        if len(others):
            shrunk = SOFTWARE_SPREAD**2 / (SOFTWARE_SPREAD**2 + SOURCE_SPREAD**2 / len(others))
            deviations.append(means[i] - shrunk * float(np.mean(others)))
    return math.sqrt(float(np.mean(np.square(deviations)))) if deviations else SOURCE_SPREAD


@functools.cache
def calibrated() -> Calibration:
    """The calibration on measured.csv, as `python -m benchmarks.speeds --write` stored it."""
    return Calibration(**json.loads(CALIBRATED.read_text(encoding="utf-8")))


def of_our_trainer(kind: str, n_chips: int) -> Calibration:
    """The calibration of plans: published, but with our trainer's own speed on silicon where it is measured.

    Ours is measured on one card. So the range of one card is that of a source's runs. With more, the network is not
    measured, and the range is that between sources. On silicon that nobody measured, the range also has the spread
    between silicon.

    Args:
      kind: of the chips.
      n_chips: that train together.
    """
    published = calibrated()
    if CHIPS[kind].silicon not in published.products:
        between_silicon = float(np.std(np.log(list(published.products.values())), ddof=1))
        return dataclasses.replace(published, between_sources=math.hypot(published.between_sources, between_silicon))
    log_speed = _our_log_speed().get(CHIPS[kind].silicon)
    if log_speed is None:
        return published
    ours = dataclasses.replace(published.faster(log_speed), label=OWN_LABEL)
    return dataclasses.replace(ours, between_sources=0.0) if n_chips == 1 else ours


@functools.cache
def _our_log_speed() -> dict[str, float]:
    """ln of our trainer's speed over what is modelled: the mean over its runs, by silicon."""
    log_speeds: dict[str, list[float]] = {}
    for run in measured.read():
        if run.software == OURS:
            modelled = calibrated().step_cost(run.kind, run.shape, run.layout).seconds
            log_speeds.setdefault(run.chip.silicon, []).append(math.log(modelled / run.seconds))
    return {silicon: float(np.mean(values)) for silicon, values in log_speeds.items()}


def recalibrated(prior: Calibration, runs: Sequence[MeasuredRun]) -> Calibration:
    """A calibration for your own chips and software.

    It scales the efficiency of products, and what a mixture costs beyond it (`grouped` and `mixture`), to fit your
    runs. The published efficiencies are the prior, as wide as sources differ.

    Args:
      prior: the published calibration.
      runs: your own, two at least.

    Raises:
      UserError: where there are fewer than two runs.
    """
    from scipy import optimize

    if len(runs) < 2:
        raise UserError(f"--speeds: found {len(runs)} measured runs, expected at least 2 to recalibrate from")
    counted = _Runs(runs)

    def scaled(x: Array) -> Calibration:
        """The prior with the efficiency of products, and that of mixtures, times exp(x)."""
        scaled_products = {run.chip.silicon: prior.products_of(run.kind) * math.exp(x[0]) for run in runs}
        products = prior.products | scaled_products
        shared = prior.shared | {
            "grouped": prior.shared["grouped"] * math.exp(x[1]),
            "mixture": prior.shared["mixture"] / math.exp(x[1]),
        }
        return dataclasses.replace(prior, products=products, shared=shared)

    def residuals(x: Array) -> Array:
        """Residuals of the runs and then of the prior, each over its standard deviation."""
        calibration = scaled(x)
        products = np.array([calibration.products_of(run.kind) for run in runs])
        errors = counted.errors(Efficiencies(products, **calibration.shared))
        spread = max(prior.between_sources, SOFTWARE_SPREAD)
        return np.concatenate([errors / OWN_SPREAD, x / (2 * spread)])

    solution = optimize.least_squares(residuals, np.zeros(2)).x
    unexplained = residuals(solution)[:-2] * OWN_SPREAD
    # With few runs the spread that they leave says little: the published one counts as two runs.
    within = math.sqrt((2 * prior.within_source**2 + float(np.sum(unexplained**2))) / (2 + len(runs)))
    between = within / math.sqrt(len(runs))
    return dataclasses.replace(scaled(solution), between_sources=between, within_source=within, label="measured")
