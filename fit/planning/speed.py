"""How fast models train, calibrated on published speeds: tokens a second with a range.

measured.csv holds what others published, a row per run, each with its source and the place in it. `calibrate` finds
the efficiencies of step_time.py that explain it best. What stays unexplained is the range: the software of a source
is faster or slower than others' at everything (`between_sources`), and each run differs from the model on top of that
(`within_source`). A ratio of two models on the same chips and software has only the second.

What it cannot know: software that is not in the table, a network shared with others, input pipelines, checkpoints and
restarts, kernels for widths that nobody published, and how unbalanced a router will be.

Axes: runs; chips and sources, in alphabetical order; what is fitted, logarithms of efficiencies and then an offset for
each source.
"""

import csv
import dataclasses
import functools
import json
import math
import os
import pathlib
from collections.abc import Callable, Sequence

import numpy as np

from fit.aliases import Array, Json
from fit.errors import UserError
from fit.planning import step_time
from fit.planning.step_time import Efficiencies, Setup, Shape
from fit.shape.chips import CHIPS, GPUS

MEASURED = pathlib.Path(__file__).parent / "measured.csv"
CALIBRATED = pathlib.Path(__file__).parent / "efficiencies.json"
SHARED = tuple(field.name for field in dataclasses.fields(Efficiencies) if field.name != "products")
# What an efficiency is thought to be before any measurement, and the factor that it may well be away from that.
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
SOURCE_SPREAD = 0.2  # of ln speed between software of different sources, before any measurement
RUN_SPREAD = 0.08  # of ln speed between runs of one source
OWN_SPREAD = 0.02  # of ln speed between your own runs, which are of one software and network
OWN_COLUMNS = ("d_model", "n_experts", "tokens_per_second")
OWN_SETUP = ("n_chips", "batch_tokens", "seq_len", "microbatch_tokens", "expert", "model")  # that a row may give, whole
Z80 = 1.2816  # standard deviations that hold 80% of a normal distribution


@dataclasses.dataclass(frozen=True)
class Run:
    """A measured run.

    Attributes:
      source: who published it.
      chip: a key of CHIPS.
      shape, setup: the model and how it was trained.
      tokens_per_second: per chip.
      row: the row of the table.
    """

    source: str
    chip: str
    shape: Shape
    setup: Setup
    tokens_per_second: float
    row: dict[str, str]

    @property
    def is_mixture(self) -> bool:
        """Whether it has more than one expert."""
        return self.shape.n_experts > 1


@dataclasses.dataclass(frozen=True)
class Calibration:
    """What chips reach, and what that does not explain.

    Attributes:
      products: efficiency of large products by chip.
      shared: the other efficiencies, of all chips.
      between_sources, within_source: standard deviations of ln(tokens per second), as the module says.
      label: "modelled" from what others published, or "measured" where your own runs recalibrated it.
    """

    products: dict[str, float]
    shared: dict[str, float]
    between_sources: float
    within_source: float
    label: str = "modelled"

    def efficiencies(self, chip: str) -> Efficiencies:
        """The efficiencies of a chip; of one that nobody measured, the mean of the others."""
        products = self.products.get(chip)
        if products is None:
            products = math.exp(np.mean(np.log(list(self.products.values()))))
        return Efficiencies(products=products, **self.shared)

    def seconds(self, chip: str, shape: Shape, setup: Setup) -> float:
        """Seconds that a step takes on `setup.n_chips` chips of a kind."""
        return _seconds(self.efficiencies(chip), chip, shape, setup)

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

    def tokens_per_second(self, chip: str, shape: Shape, setup: Setup) -> tuple[float, float, float]:
        """(10th percentile, median, 90th percentile) of tokens per second and chip."""
        median = setup.tokens_per_chip / self.seconds(chip, shape, setup)
        low, _, high = self.factors()
        return low * median, median, high * median

    def ratio(self, chip: str, first: tuple[Shape, Setup], second: tuple[Shape, Setup]) -> tuple[float, float, float]:
        """(10th percentile, median, 90th percentile) of the speed of the first model over that of the second, with the
        same software."""
        median = self.tokens_per_second(chip, *first)[1] / self.tokens_per_second(chip, *second)[1]
        low, _, high = self.factors(of_ratio=True)
        return low * median, median, high * median


def _seconds(reached: Efficiencies, chip: str, shape: Shape, setup: Setup) -> float:
    """How long a step takes on `setup.n_chips` chips of a kind."""
    counted = _counts(chip, shape, setup)
    return step_time.seconds(counted, CHIPS[chip], reached, setup.imbalance)


def _counts(chip: str, shape: Shape, setup: Setup) -> step_time.Counts:
    """What such a chip does in a step."""
    return step_time.counts(shape, setup, setup.domain or CHIPS[chip].domain, chip in GPUS)


def read(path: str | os.PathLike = MEASURED) -> list[Run]:
    """Reads a table with the columns of measured.csv.

    Raises:
      UserError: where a row is no run; it names the row and the column.
    """
    with open(path, newline="", encoding="utf-8") as file:
        return [_run(row, f"{path}: row {n}") for n, row in enumerate(csv.DictReader(file), 2)]


def _run(row: dict[str, str], where: str) -> Run:
    """The run of a row of measured.csv. `where` is what errors call it."""
    _check_chip(row["chip"], where)

    def number(name: str, default: float = 0.0) -> float:
        """A field as a number."""
        try:
            return float(row.get(name) or default)
        except ValueError:
            raise UserError(f'{where}: {name} is "{row[name]}", expected a number') from None

    shape = Shape(
        d_model=int(number("d_model")),
        n_blocks=int(number("n_blocks")),
        attention_weights=number("attention_weights"),
        attention_width=int(number("attention_width")),
        d_ff=int(number("d_ff")),
        vocab_size=int(number("vocab_size")),
        d_expert=int(number("d_expert")),
        n_experts=int(number("n_experts", 1)),
        n_experts_per_token=int(number("n_experts_per_token", 1)),
        n_shared_experts=number("n_shared_experts"),
        n_dense_blocks=int(number("n_dense_blocks")),
        matrices=int(number("matrices", 3)),
    )
    n_chips = int(number("n_chips"))
    sequence = int(number("sequence"))
    tokens_at_once = number("microbatch_rows") * sequence or step_time.MICROBATCH_TOKENS
    is_imbalanced = shape.n_experts > 1 and row["balanced"] != "forced" and number("expert", 1) > 1
    setup = Setup(
        n_chips=n_chips,
        batch_tokens=number("batch_tokens") or tokens_at_once * n_chips,
        sequence=sequence,
        microbatch_tokens=tokens_at_once * (number("model", 1) if row["chip"] not in GPUS else 1),
        data=max(1, int(number("data", 1))),
        expert=int(number("expert", 1)),
        model=int(number("model", 1)),
        pipeline=int(number("pipeline", 1)),
        remat=row["remat"] or "dots",
        buffer=1.0 if row["routing"] == "dropless" else 0.0,
        imbalance=step_time.IMBALANCE if is_imbalanced else 1.0,
        domain=int(number("domain")),
    )
    speed = number("tokens_per_second_per_chip")
    if not speed and number("step_seconds"):
        speed = setup.batch_tokens / number("step_seconds") / n_chips
    if not speed:
        # MaxText and others publish the share of the peak alone, by FLOPs that the row says how to count.
        speed = number("mfu_percent") / 100 * CHIPS[row["chip"]].flops / number("source_flops_per_token")
    return Run(row["source"], row["chip"], shape, setup, speed, row)


def _check_chip(kind: str, where: str) -> None:
    """Raises UserError for an unknown kind of chip. `where` is the row that names it."""
    if kind not in CHIPS:
        raise UserError(f'{where}: chip is "{kind}"; kinds: {", ".join(CHIPS)}')


def calibrate(runs: Sequence[Run]) -> Calibration:
    """Finds the efficiencies that explain the runs best.

    They are the least squares of ln speed, with an offset for each source, around PRIOR. Each source weighs by its
    runs' square root at most, so that one long table does not decide.
    """
    from scipy import optimize

    chips = sorted({run.chip for run in runs})
    sources = sorted({run.source for run in runs})
    measured = np.log([run.tokens_per_second for run in runs])
    source_of_run = np.array([sources.index(run.source) for run in runs])
    weight = 1 / np.sqrt(np.maximum(1, np.bincount(source_of_run)[source_of_run] / 8))
    priors = [PRIOR["products"]] * len(chips) + [PRIOR[name] for name in SHARED]
    centres = np.log([centre for centre, _ in priors])
    widths = np.log([factor for _, factor in priors])
    speed_functions = [_speed_function(run) for run in runs]

    def predicted(logs: Array) -> Array:
        """ln tokens per second of each run."""
        values = np.exp(logs)
        shared = dict(zip(SHARED, values[len(chips) :], strict=True))
        reached = {chip: Efficiencies(products=values[i], **shared) for i, chip in enumerate(chips)}
        speeds = [speed(reached[run.chip]) for run, speed in zip(runs, speed_functions, strict=True)]
        return np.array([math.log(speed) for speed in speeds])

    def residuals(x: Array) -> Array:
        """What is not explained, in units of its expected spread."""
        logs, offsets = np.split(x, [len(centres)])
        errors = (measured - predicted(logs) - offsets[source_of_run]) / RUN_SPREAD * weight
        return np.concatenate([errors, offsets / SOURCE_SPREAD, (logs - centres) / widths])

    start = np.concatenate([centres, np.zeros(len(sources))])
    solution = optimize.least_squares(residuals, start, loss="linear", max_nfev=60).x
    logs, offsets = np.split(solution, [len(centres)])
    errors = measured - predicted(logs)
    unexplained = errors - offsets[source_of_run]
    degrees_of_freedom = max(1.0, len(runs) - len(sources) - len(SHARED))
    within_source = math.sqrt(float(np.sum(unexplained**2)) / degrees_of_freedom)
    means = [float(np.mean(errors[source_of_run == i])) for i in range(len(sources))]
    between_sources = math.sqrt(float(np.mean(np.square(means)))) if len(means) > 1 else SOURCE_SPREAD
    values = np.exp(logs).tolist()
    return Calibration(
        products=dict(zip(chips, values[: len(chips)], strict=True)),
        shared=dict(zip(SHARED, values[len(chips) :], strict=True)),
        between_sources=between_sources,
        within_source=within_source,
    )


def _speed_function(run: Run) -> Callable[[Efficiencies], float]:
    """A function of efficiencies: tokens per second and chip of a run, whose counts are made once."""
    counted = _counts(run.chip, run.shape, run.setup)

    def speed(reached: Efficiencies) -> float:
        """Tokens per second and chip."""
        step = step_time.seconds(counted, CHIPS[run.chip], reached, run.setup.imbalance)
        return run.setup.tokens_per_chip / step

    return speed


@functools.cache
def calibrated() -> Calibration:
    """The calibration on measured.csv, as `python -m benchmarks.speeds --write` stored it."""
    return Calibration(**json.loads(CALIBRATED.read_text(encoding="utf-8")))


def recalibrated(prior: Calibration, runs: Sequence[Run]) -> Calibration:
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
    chips = {run.chip for run in runs}
    speed_functions = [_speed_function(run) for run in runs]
    measured = np.log([run.tokens_per_second for run in runs])

    def scaled(x: Array) -> Calibration:
        """The prior with the efficiency of products, and that of mixtures, times exp(x)."""
        products = {
            chip: efficiency * math.exp(x[0]) if chip in chips else efficiency
            for chip, efficiency in prior.products.items()
        }
        for chip in chips - set(products):
            products[chip] = prior.efficiencies(chip).products * math.exp(x[0])
        shared = prior.shared | {
            "grouped": prior.shared["grouped"] * math.exp(x[1]),
            "mixture": prior.shared["mixture"] / math.exp(x[1]),
        }
        return dataclasses.replace(prior, products=products, shared=shared)

    def residuals(x: Array) -> Array:
        """What is not explained, in units of its expected spread."""
        reached = scaled(x)
        speeds = [speed(reached.efficiencies(run.chip)) for run, speed in zip(runs, speed_functions, strict=True)]
        errors = measured - np.array([math.log(speed) for speed in speeds])
        spread = max(prior.between_sources, SOURCE_SPREAD)
        return np.concatenate([errors / OWN_SPREAD, x / (2 * spread)])

    solution = optimize.least_squares(residuals, np.zeros(2)).x
    unexplained = residuals(solution)[:-2] * OWN_SPREAD
    # With few runs the spread that they leave says little: the published one counts as two runs.
    within = math.sqrt((2 * prior.within_source**2 + float(np.sum(unexplained**2))) / (2 + len(runs)))
    between = within / math.sqrt(len(runs))
    return dataclasses.replace(scaled(solution), between_sources=between, within_source=within, label="measured")


def read_own(
    path: str | os.PathLike, shape_of: Callable[[dict[str, str]], Shape], setup: Setup, chip: str
) -> list[Run]:
    """Reads your own measurements: a table with n_experts, d_model and tokens_per_second of all chips together.

    Args:
      path: the table; further columns are handed to shape_of.
      shape_of: the model of a row.
      setup: how they were trained, where the columns OWN_SETUP and remat of a row do not say. batch_tokens and
        microbatch_tokens are tokens of all chips; expert and model are sizes of the mesh's axes, the rest is data.
      chip: their chips' kind; a column chip comes first.

    Raises:
      UserError: where the file, a column or a number is missing.
    """
    runs = []
    for n, row in enumerate(_own_rows(path), 2):
        where = f"--speeds={path}: row {n}"
        speed = _positive(row, "tokens_per_second", where)
        for name in ("d_model", "n_experts"):
            _positive(row, name, where)
            whole(row, name, where)
        own_setup = _own_setup(row, setup, where)
        kind = row.get("chip") or chip
        _check_chip(kind, where)
        runs.append(Run(str(path), kind, shape_of(row), own_setup, speed / own_setup.n_chips, row))
    return runs


def _own_rows(path: str | os.PathLike) -> list[dict[str, str]]:
    """The rows of a table of your own speeds. Raises UserError where it has none, or lacks a column."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        raise UserError(f"--speeds={path}: {error.strerror or error}") from error
    missing = [name for name in OWN_COLUMNS if rows and name not in rows[0]]
    if not rows or missing:
        problem = f"has no column {missing[0]}" if missing else "has no rows"
        raise UserError(f"--speeds={path}: {problem}; expected the columns {', '.join(OWN_COLUMNS)}")
    return rows


def _own_setup(row: dict[str, str], default: Setup, where: str) -> Setup:
    """How the run of a row was trained. Raises UserError where its mesh does not divide its chips."""
    numbers = {name: whole(row, name, where) for name in OWN_SETUP if row.get(name)}
    n_chips = numbers.get("n_chips") or default.n_chips
    expert = numbers.get("expert") or 1
    model = numbers.get("model") or 1
    if n_chips % (expert * model):
        raise UserError(f"{where}: expert {expert} times model {model} does not divide its {n_chips} chips")
    remat = row.get("remat") or default.remat
    if remat not in step_time.PASSES:
        raise UserError(f'{where}: remat is "{remat}", expected one of {", ".join(step_time.PASSES)}')
    return dataclasses.replace(
        default,
        n_chips=n_chips,
        batch_tokens=numbers.get("batch_tokens") or default.tokens_per_chip * n_chips,
        sequence=numbers.get("seq_len") or default.sequence,
        microbatch_tokens=numbers.get("microbatch_tokens", 0) * model / n_chips,
        data=n_chips // (expert * model),
        expert=expert,
        model=model,
        remat=remat,
    )


def whole(row: dict[str, str], name: str, where: str) -> int:
    """A field of a row as a whole number from 0 up. Raises UserError where it is none."""
    try:
        value = float(row[name])
    except ValueError:
        value = math.nan
    if not (value >= 0 and value.is_integer()):
        raise UserError(f'{where}: {name} is "{row[name]}", expected a whole number')
    return int(value)


def _positive(row: dict[str, str], name: str, where: str) -> float:
    """A field of a row as a positive number. Raises UserError where it is none."""
    try:
        value = float(row[name])
    except (TypeError, ValueError):
        value = math.nan
    if not (value > 0 and math.isfinite(value)):
        raise UserError(f'{where}: {name} is "{row[name]}", expected a positive number')
    return value


@dataclasses.dataclass(frozen=True)
class Speed:
    """How fast a plan trains. Each attribute is (10th percentile, median, 90th percentile).

    Attributes:
      tokens_per_second: of all chips.
      mfu: model FLOPs utilisation.
      hours: of the whole training.
    """

    tokens_per_second: tuple[float, float, float]
    mfu: tuple[float, float, float]
    hours: tuple[float, float, float]


def speed_of(calibration: Calibration, chip: str, shape: Shape, setup: Setup, n_tokens: float) -> Speed:
    """The speed of a planned model.

    Args:
      calibration: what the chips reach.
      chip: their kind.
      shape, setup: the model and how it is trained.
      n_tokens: of the whole training.
    """
    low, median, high = calibration.tokens_per_second(chip, shape, setup)
    share = shape.flops_per_token(setup.sequence) / CHIPS[chip].flops
    n = setup.n_chips
    return Speed(
        tokens_per_second=(low * n, median * n, high * n),
        mfu=(low * share, median * share, high * share),
        hours=(n_tokens / (high * n) / 3600, n_tokens / (median * n) / 3600, n_tokens / (low * n) / 3600),
    )


def shape_of_model(fields: Json) -> Shape:
    """The Shape of the fields of config.model, as a plan emits them."""
    d_model = fields["d_model"]
    n_heads = fields["n_heads"]
    head_dim = fields.get("head_dim") or d_model // n_heads
    n_kv_heads = fields.get("n_kv_heads") or n_heads
    n_experts = fields["n_experts"]
    return Shape(
        d_model=d_model,
        n_blocks=fields["n_blocks"],
        attention_weights=2 * d_model * head_dim * (n_heads + n_kv_heads),
        attention_width=n_heads * head_dim,
        d_ff=fields["d_ff"],
        vocab_size=fields["vocab_size"],
        d_expert=(fields.get("d_expert") or fields["d_ff"]) if n_experts > 1 else 0,
        n_experts=n_experts,
        n_experts_per_token=fields.get("top_k", 1),
        n_shared_experts=fields.get("n_shared_experts", 0),
        n_dense_blocks=fields.get("n_dense_blocks", 0),
    )
