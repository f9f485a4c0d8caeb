"""How fast models train, calibrated on published speeds: tokens a second with a range.

measured.csv holds what others published, a row per run, each with its source and the place in it. `calibrate` finds
the efficiencies of step_time.py that explain it best. What stays unexplained is the range: the software of a source
is faster or slower than others' at everything (`between_sources`), and each run differs from the model on top of that
(`within_source`). A ratio of two models on the same chips and software has only the second.

What it cannot know: software that is not in the table, a network shared with others, input pipelines, checkpoints and
restarts, kernels for widths that nobody published, and how unbalanced a router will be.
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
from fit.planning.step_time import CHIPS, Efficiencies, Setup, Shape

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
    """A measured run: its source, chip, model, setup and tokens per second and chip."""

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

    products: efficiency of large products by chip. shared: the other efficiencies, of all chips. between_sources,
    within_source: standard deviations of ln(tokens per second). label: where its speeds are from: "modelled" from what
    others published, or "measured" where your own runs recalibrated it.
    """

    products: dict[str, float]
    shared: dict[str, float]
    between_sources: float
    within_source: float
    label: str = "modelled"

    def efficiencies(self, chip: str) -> Efficiencies:
        """The efficiencies of a chip; of one that nobody measured, the mean of the others."""
        known = self.products.get(chip)
        if known is None:
            known = math.exp(np.mean(np.log(list(self.products.values()))))
        return Efficiencies(products=known, **self.shared)

    def seconds(self, chip: str, shape: Shape, setup: Setup) -> float:
        """How long a step takes."""
        return _seconds(self.efficiencies(chip), chip, shape, setup)

    def factors(self, of_ratio: bool = False) -> tuple[float, float, float]:
        """(10th percentile, 1, 90th percentile) of a speed over what is modelled. of_ratio: of the ratio of two models
        on the same chips and software."""
        spread = math.sqrt(2) * self.within_source if of_ratio else math.hypot(self.between_sources, self.within_source)
        factor = math.exp(Z80 * spread)
        return 1 / factor, 1.0, factor

    def tokens_per_second(self, chip: str, shape: Shape, setup: Setup) -> tuple[float, float, float]:
        """(10th percentile, median, 90th percentile) of tokens per second and chip."""
        median = setup.tokens_per_chip / self.seconds(chip, shape, setup)
        low, _, high = self.factors()
        return low * median, median, high * median

    def ratio(self, chip: str, one: tuple[Shape, Setup], other: tuple[Shape, Setup]) -> tuple[float, float, float]:
        """(10th percentile, median, 90th percentile) of the speed of one model over that of another, same software."""
        median = self.tokens_per_second(chip, *one)[1] / self.tokens_per_second(chip, *other)[1]
        low, _, high = self.factors(of_ratio=True)
        return low * median, median, high * median


def _seconds(reached: Efficiencies, chip: str, shape: Shape, setup: Setup) -> float:
    """How long a step takes on `setup.n_chips` chips of a kind."""
    kind = CHIPS[chip]
    counted = step_time.counts(shape, setup, setup.domain or kind.domain, chip in step_time.GPUS)
    return step_time.seconds(counted, kind, reached, setup.imbalance)


def read(path: str | os.PathLike = MEASURED) -> list[Run]:
    """The runs of a table with the columns of measured.csv. Raises UserError where a row is none."""
    with open(path, newline="", encoding="utf-8") as file:
        return [_run(row, f"{path}: row {n}") for n, row in enumerate(csv.DictReader(file), 2)]


def _run(row: dict[str, str], where: str) -> Run:
    """The run of a row. where: what errors call it."""
    if row["chip"] not in CHIPS:
        raise UserError(f'{where}: chip is "{row["chip"]}"; kinds: {", ".join(CHIPS)}')

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
    n_chips, sequence = int(number("n_chips")), int(number("sequence"))
    rows = number("microbatch_rows")
    at_once = rows * sequence or step_time.MICROBATCH_TOKENS
    learned = shape.n_experts > 1 and row["balanced"] != "forced" and number("expert", 1) > 1
    setup = Setup(
        n_chips=n_chips,
        batch_tokens=number("batch_tokens") or at_once * n_chips,
        sequence=sequence,
        microbatch_tokens=at_once * (number("model", 1) if row["chip"] not in step_time.GPUS else 1),
        data=max(1, int(number("data", 1))),
        expert=int(number("expert", 1)),
        model=int(number("model", 1)),
        pipeline=int(number("pipeline", 1)),
        remat=row["remat"] or "dots",
        imbalance=step_time.IMBALANCE if learned else 1.0,
        domain=int(number("domain")),
    )
    speed = number("tokens_per_second_per_chip")
    if not speed and number("step_seconds"):
        speed = setup.batch_tokens / number("step_seconds") / n_chips
    if not speed:
        # MaxText and others publish the share of the peak alone, by FLOPs that the row says how to count.
        speed = number("mfu_percent") / 100 * CHIPS[row["chip"]].flops / number("source_flops_per_token")
    return Run(row["source"], row["chip"], shape, setup, speed, row)


def calibrate(runs: Sequence[Run]) -> Calibration:
    """The efficiencies that explain the runs best: least squares of ln speed, with an offset for each source.

    Each source weighs by its runs' square root at most, so that one long table does not decide.
    """
    from scipy import optimize

    chips = sorted({run.chip for run in runs})
    sources = sorted({run.source for run in runs})
    measured = np.log([run.tokens_per_second for run in runs])
    of_source = np.array([sources.index(run.source) for run in runs])
    weight = 1 / np.sqrt(np.maximum(1, np.bincount(of_source)[of_source] / 8))
    centres = np.log([PRIOR["products"][0]] * len(chips) + [PRIOR[name][0] for name in SHARED])
    widths = np.log([PRIOR["products"][1]] * len(chips) + [PRIOR[name][1] for name in SHARED])
    prepared = [_prepared(run) for run in runs]

    def predicted(logs: Array) -> Array:
        """ln tokens per second of each run."""
        values = np.exp(logs)
        shared = dict(zip(SHARED, values[len(chips) :]))
        reached = {chip: Efficiencies(products=values[i], **shared) for i, chip in enumerate(chips)}
        return np.array([math.log(speed(reached[run.chip])) for run, speed in zip(runs, prepared)])

    def residuals(x: Array) -> Array:
        """What is not explained, in units of its expected spread."""
        logs, offsets = x[: len(centres)], x[len(centres) :]
        errors = (measured - predicted(logs) - offsets[of_source]) / RUN_SPREAD * weight
        return np.concatenate([errors, offsets / SOURCE_SPREAD, (logs - centres) / widths])

    start = np.concatenate([centres, np.zeros(len(sources))])
    found = optimize.least_squares(residuals, start, loss="linear", max_nfev=60).x
    logs = found[: len(centres)]
    errors = measured - predicted(logs)
    offsets = found[len(centres) :]
    left = errors - offsets[of_source]
    freedom = max(1.0, len(runs) - len(sources) - len(SHARED))
    within = math.sqrt(float(np.sum(left**2)) / freedom)
    means = [float(np.mean(errors[of_source == i])) for i in range(len(sources))]
    between = math.sqrt(float(np.mean(np.square(means)))) if len(means) > 1 else SOURCE_SPREAD
    values = np.exp(logs)
    products = dict(zip(chips, map(float, values[: len(chips)])))
    shared = dict(zip(SHARED, map(float, values[len(chips) :])))
    return Calibration(products, shared, between, within)


def _prepared(run: Run) -> Callable[[Efficiencies], float]:
    """A function of efficiencies: tokens per second and chip of a run, whose counts are made once."""
    kind, setup = CHIPS[run.chip], run.setup
    counted = step_time.counts(run.shape, setup, setup.domain or kind.domain, run.chip in step_time.GPUS)

    def speed(reached: Efficiencies) -> float:
        """Tokens per second and chip."""
        return setup.tokens_per_chip / step_time.seconds(counted, kind, reached, setup.imbalance)

    return speed


@functools.cache
def calibrated() -> Calibration:
    """The calibration on measured.csv, as `python -m benchmarks.speeds --write` stored it."""
    return Calibration(**json.loads(CALIBRATED.read_text(encoding="utf-8")))


def recalibrated(prior: Calibration, runs: Sequence[Run]) -> Calibration:
    """A calibration for your own chips and software, from two of your runs on.

    It scales the efficiency of products, and what a mixture costs beyond it (`grouped` and `mixture`), to fit your
    runs; the published efficiencies are the prior, as wide as sources differ. Raises UserError below two runs.
    """
    from scipy import optimize

    if len(runs) < 2:
        raise UserError(f"--speeds: found {len(runs)} measured runs, expected at least 2 to recalibrate from")
    chips = {run.chip for run in runs}
    prepared = [_prepared(run) for run in runs]
    measured = np.log([run.tokens_per_second for run in runs])

    def scaled(x: Array) -> Calibration:
        """The prior with the efficiency of products, and that of mixtures, times exp(x)."""
        products = {chip: e * math.exp(x[0]) if chip in chips else e for chip, e in prior.products.items()}
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
        logs = [math.log(speed(reached.efficiencies(run.chip))) for run, speed in zip(runs, prepared)]
        spread = max(prior.between_sources, SOURCE_SPREAD)
        return np.concatenate([(measured - np.array(logs)) / OWN_SPREAD, x / (2 * spread)])

    found = optimize.least_squares(residuals, np.zeros(2)).x
    left = residuals(found)[:-2] * OWN_SPREAD
    # With few runs the spread that they leave says little: the published one counts as two runs.
    within = math.sqrt((2 * prior.within_source**2 + float(np.sum(left**2))) / (2 + len(runs)))
    between = within / math.sqrt(len(runs))
    return dataclasses.replace(scaled(found), between_sources=between, within_source=within, label="measured")


def read_own(
    path: str | os.PathLike, shape_of: Callable[[dict[str, str]], Shape], setup: Setup, chip: str
) -> list[Run]:
    """Your own measurements: a table with n_experts, d_model and tokens_per_second of all chips together.

    Args:
      path: the table; further columns are handed to shape_of.
      shape_of: the model of a row.
      setup: how they were trained, where the columns OWN_SETUP and remat of a row do not say. batch_tokens and
        microbatch_tokens are tokens of all chips; expert and model are sizes of the mesh's axes, the rest is data.
      chip: their chips' kind; a column chip comes first.

    Raises:
      UserError: where the file, a column or a number is missing.
    """
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        raise UserError(f"--speeds={path}: {error.strerror or error}") from error
    missing = [name for name in OWN_COLUMNS if rows and name not in rows[0]]
    if not rows or missing:
        what = f"has no column {missing[0]}" if missing else "has no rows"
        raise UserError(f"--speeds={path}: {what}; expected the columns {', '.join(OWN_COLUMNS)}")
    runs = []
    for n, row in enumerate(rows, 2):
        where = f"--speeds={path}: row {n}"
        speed = _positive(row, "tokens_per_second", where)
        for name in ("d_model", "n_experts"):
            _positive(row, name, where)
            whole(row, name, where)
        own = _own_setup(row, setup, where)
        kind = row.get("chip") or chip
        if kind not in CHIPS:
            raise UserError(f'{where}: chip is "{kind}"; kinds: {", ".join(CHIPS)}')
        runs.append(Run(str(path), kind, shape_of(row), own, speed / own.n_chips, row))
    return runs


def _own_setup(row: dict[str, str], default: Setup, where: str) -> Setup:
    """How the run of a row was trained. Raises UserError where its mesh does not divide its chips."""
    given = {name: whole(row, name, where) for name in OWN_SETUP if row.get(name)}
    n_chips = given.get("n_chips") or default.n_chips
    expert, model = given.get("expert") or 1, given.get("model") or 1
    if n_chips % (expert * model):
        raise UserError(f"{where}: expert {expert} times model {model} does not divide its {n_chips} chips")
    remat = row.get("remat") or default.remat
    if remat not in step_time.PASSES:
        raise UserError(f'{where}: remat is "{remat}", expected one of {", ".join(step_time.PASSES)}')
    return dataclasses.replace(
        default,
        n_chips=n_chips,
        batch_tokens=given.get("batch_tokens") or default.tokens_per_chip * n_chips,
        sequence=given.get("seq_len") or default.sequence,
        microbatch_tokens=given.get("microbatch_tokens", 0) * model / n_chips,
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
    """How fast a plan trains, "modelled": tokens per second of all chips, MFU and hours, each (low, median, high)."""

    tokens_per_second: tuple[float, float, float]
    mfu: tuple[float, float, float]
    hours: tuple[float, float, float]


def speed_of(calibration: Calibration, chip: str, shape: Shape, setup: Setup, n_tokens: float) -> Speed:
    """The speed of a plan's candidate."""
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
    d, heads = fields["d_model"], fields["n_heads"]
    size = fields.get("head_dim") or d // heads
    keys = fields.get("n_kv_heads") or heads
    n_experts = fields["n_experts"]
    return Shape(
        d_model=d,
        n_blocks=fields["n_blocks"],
        attention_weights=2 * d * size * (heads + keys),
        attention_width=heads * size,
        d_ff=fields["d_ff"],
        vocab_size=fields["vocab_size"],
        d_expert=(fields.get("d_expert") or fields["d_ff"]) if n_experts > 1 else 0,
        n_experts=n_experts,
        n_experts_per_token=fields.get("top_k", 1),
        n_shared_experts=fields.get("n_shared_experts", 0),
        n_dense_blocks=fields.get("n_dense_blocks", 0),
    )
