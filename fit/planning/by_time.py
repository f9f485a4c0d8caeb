"""Plans by the clock: the speed of models of every size on the chips, and what a plan says of it.

Models of the grid of hardware.py are timed at WIDTHS, each on the mesh of least time, with the batch of its recipe.
"""

import dataclasses
import math
from collections.abc import Iterator

import numpy as np

from fit.aliases import Floats, Json
from fit.errors import UserError
from fit.fitted_law.law import Law
from fit.messages import sentences
from fit.messages.units import say
from fit.planning import cost, optimum, recipe, startable, step_time
from fit.planning import speed as speed_lib
from fit.planning.clock import SECONDS, Clock, Curve
from fit.planning.constraints import Chips, Constraints
from fit.planning.speed import Calibration
from fit.shape import hardware
from fit.shape.architecture import INFERENCE, TRAINING, Architecture, Model, training_flops

# of the models that are timed; a speed in between is at most as far from the truth as the models are apart
WIDTHS = (
    *(64, 128, 192, 256, 320, 384, 512, 640, 768, 1024, 1280, 1536, 2048, 2560, 3072, 4096, 5120, 6144, 8192, 10_240),
    *(12_288, 16_384, 20_480, 24_576, 32_768),
)
TYPICAL = 20  # tokens of an active parameter, where a table of speeds does not say for how long runs trained
AT_ONCE = step_time.MICROBATCH_TOKENS  # of a chip in a step, where a table of speeds does not say the batch
# fields of config.model that a table of speeds may have as columns
OF_MODEL = (
    *("n_blocks", "n_heads", "n_kv_heads", "head_dim", "d_ff", "vocab_size"),
    *("d_expert", "top_k", "n_shared_experts", "n_dense_blocks"),
)


def constraints_of(
    law: Law,
    architecture: Architecture,
    constraints: Constraints,
    experts: Floats,
    shapes: startable.Shapes,
    budget: tuple[float, Calibration],
) -> Constraints:
    """The constraints with a Clock as their budget.

    Args:
      constraints: with chips, without FLOPs.
      experts: the numbers of experts compared.
      shapes: what is asked of the mesh and the shape of models.
      budget: the hours, and what the chips reach.

    Raises:
      UserError: where the chips can train no model of any size.
    """
    hours, calibration = budget
    assert constraints.chips is not None
    known = Clock(hours, {}, calibration)
    layouts = startable.Layouts(law, constraints.chips, shapes, clock=known)
    constraints = dataclasses.replace(constraints, clock=known)
    curves, untrainable = {}, set()
    dense = [1.0] if law.knows_dense else []  # what the best is set against
    for e in {*map(float, optimum.allowed_experts(law, experts)), *dense}:
        timed = _Timed(law, architecture, constraints, layouts, e)
        curve = timed.curve()
        if curve is None:
            untrainable.add(e)
        else:
            curves[e] = curve
    if not curves:
        raise UserError(say(sentences.NOTHING_TIMED, **vars(constraints.chips)))
    return dataclasses.replace(constraints, clock=dataclasses.replace(known, curves=curves, untrainable=untrainable))


def calibration_of(
    law: Law, architecture: Architecture, chips: Chips, shapes: startable.Shapes, path: str | None
) -> Calibration:
    """What the chips reach: as published or, with a table of your own speeds at `path`, recalibrated by it. Raises
    UserError where the table cannot be read, has fewer than two rows, or none on these chips."""
    published = speed_lib.calibrated()
    if path is None:
        return published
    runs = own_runs(law, architecture, chips, shapes, path)
    if chips.kind not in {run.chip for run in runs}:
        raise UserError(say(sentences.NO_SPEED_OF_CHIPS, path=path, kind=chips.kind))
    return speed_lib.recalibrated(published, runs)


def own_runs(
    law: Law, architecture: Architecture, chips: Chips, shapes: startable.Shapes, path: str
) -> list[speed_lib.Run]:
    """The runs in a table of your own speeds. Their models are built as the plan's where columns OF_MODEL do not say.
    Raises UserError where the table cannot be read."""

    def shape_of(row: dict[str, str]) -> step_time.Shape:
        """The model of a row."""
        width, routed = int(float(row["d_model"])), int(float(row["n_experts"]))
        model = _model_of(law, architecture, shapes, width, routed)
        given = {name: speed_lib.whole(row, name, f"--speeds={path}") for name in OF_MODEL if row.get(name)}
        return speed_lib.shape_of_model(model.shape | dict(n_experts=routed) | given)

    setup = step_time.Setup(chips.count, AT_ONCE * chips.count, recipe.PRETRAIN_SEQUENCE)
    return speed_lib.read_own(path, shape_of, setup, chips.kind)


@dataclasses.dataclass(frozen=True)
class ByTime:
    """Plans by the clock of laws that choose among several architectures.

    constraints: with chips, without FLOPs. speeds: path of a table of your own speeds, or None.
    """

    constraints: Constraints
    hours: float
    speeds: str | None = None
    shapes: startable.Shapes = startable.Shapes()
    known: dict[tuple, Constraints] = dataclasses.field(default_factory=dict, compare=False)

    def of(self, law: Law, architecture: Architecture, experts: Floats) -> Constraints:
        """The constraints with the Clock of these models. Experts that all tokens use are timed as if tokens chose them
        too: which of the two they are changes the speed little. Raises UserError as constraints_of."""
        timed = dataclasses.replace(architecture, shared=0)
        key = law.name, timed, tuple(map(float, experts))
        if key not in self.known:
            chips = self.constraints.chips
            assert chips is not None
            calibration = calibration_of(law, timed, chips, self.shapes, self.speeds)
            budget = self.hours, calibration
            self.known[key] = constraints_of(law, timed, self.constraints, experts, self.shapes, budget)
        return self.known[key]


def _model_of(
    law: Law, architecture: Architecture, shapes: startable.Shapes, width: int, routed: int, flops: float | None = None
) -> Model:
    """The model of the grid of a width, with so many experts as the trainer counts them. It is shaped as published
    models where its recipe is theirs, as for plans. flops: of its training; None: TYPICAL tokens a parameter."""
    padded = dataclasses.replace(architecture, vocab_size=hardware.padded(architecture.vocab_size))
    n_active = float(padded.n_active(width, routed))
    beyond = shapes.family or not startable.of_own_sizes(law, dict(n_active=n_active))
    for as_published in (beyond, not beyond):
        style = hardware.style_of(architecture, as_published, shapes.asked)
        n_blocks = max(round(width / style.aspects[1]), architecture.n_dense + 1)
        model = hardware.built(padded, style, width, n_blocks, routed)
        n_tokens = TYPICAL * model.n_active
        if flops is not None:
            n_tokens = max(flops / (TRAINING * model.n_active), 1.0)
        own = recipe.recipe_of(law, model, n_tokens, shapes.family)
        if own.of_published_models == as_published:
            break
    return model


@dataclasses.dataclass(frozen=True)
class _Timed:
    """Models of e experts, as the law counts them, and how fast the chips train each."""

    law: Law
    architecture: Architecture
    constraints: Constraints  # with the clock of the layouts
    layouts: startable.Layouts
    e: float

    def curve(self) -> Curve | None:
        """The curve through all models that the chips train; None where they train none."""
        if not self.architecture.has_enough_experts(self.e):
            return None
        found, too_wide = [], None
        for width in WIDTHS:
            one = self._one(width)
            if one:
                found.append((width, *one))
                too_wide = None
            elif too_wide is None:  # or its mesh does not divide, and that of a wider one does
                too_wide = width
        if not found:
            return None
        if too_wide:
            found += self._up_to(found[-1][0], too_wide)
        _, sizes, speeds = zip(*found)
        return Curve.of(sizes, speeds, bounded=too_wide is not None)

    def _up_to(self, width: int, too_wide: int) -> Iterator[tuple[int, float, float]]:
        """(width, n_active, tokens per second) of models up to the widest that the chips train."""
        while too_wide - width > 2 * hardware.step(width):
            middle = hardware.multiple((width + too_wide) / 2, hardware.step(width))
            one = self._one(middle)
            if one:
                width = middle
                yield (width, *one)
            else:
                too_wide = middle

    def _one(self, width: int) -> tuple[float, float] | None:
        """(n_active, tokens per second) of the model of a width; None where the chips cannot train it."""
        chips, clock = self.layouts.chips, self.layouts.clock
        assert clock is not None
        rate = cost.MFU * chips.count * chips.chip.flops
        flops = SECONDS * float(clock.hours) * rate
        model = _model_of(self.law, self.architecture, self.layouts.shapes, width, self._routed(), flops)
        speed = rate / (TRAINING * model.n_active)
        batches: list[int] = []
        for _ in range(2):  # the batch depends on the tokens, which depend on the speed
            n_tokens = max(1.0, float(self.constraints.tokens_at(speed)))
            before, batches = batches, [batch for _, batch in self.layouts.run(model, n_tokens).ramp]
            if batches == before:
                break
            timed = self.layouts.timed(model, n_tokens)
            if timed is None:
                return None
            _, speed = timed
        return model.n_active, speed

    def _routed(self) -> int:
        """The number of experts that the trainer has where the law counts e."""
        known = hardware.whole_experts(self.architecture, self.e)
        return min(known, key=lambda n: abs(math.log(hardware.law_experts(self.architecture, n) / self.e)))


def add_to(plan: Json, law: Law, architecture: Architecture, constraints: Constraints) -> Constraints:
    """Adds to a plan by the clock `clock`, and to its optima and buildable model `speed`; returns the constraints with
    the MFU of each optimum as that of the chips.

    speed: as speed_of makes it. clock: as against_flops makes it.
    """
    clock, chips, best = constraints.clock, constraints.chips, plan["best"]
    assert clock is not None and chips is not None
    for row in plan["optima"]:
        speed = float(clock.at(row["n_experts"]).speed(row["n_active"]))
        row["speed"] = speed_of(clock.calibration, chips, speed, row)
    if built := plan["buildable"]:
        e = built.get("law_experts", built["n_experts"])
        speed = built.pop("modelled_speed", None) or float(clock.at(e).speed(built["n_active"]))
        built["speed"] = speed_of(clock.calibration, chips, speed, built)
    trained = [row["n_experts"] for row in plan["optima"]]
    plan["clock"] = against_flops(law, architecture, constraints, best, trained)
    mfu = {row["n_experts"]: float(f"{row['speed']['mfu'][1]:.3g}") for row in plan["optima"]}
    return dataclasses.replace(constraints, chips=dataclasses.replace(chips, mfu=mfu))


def against_flops(law: Law, architecture: Architecture, constraints: Constraints, best: Json, experts: Floats) -> Json:
    """{hours, label, by_flops, n_active, ratio} of the best model by the clock, {n_experts, n_active, n_tokens}.

    by_flops: the best of these numbers of experts by FLOPs, as many as the best model takes. ratio: how fast it trains
    over the best one, [10th percentile, median, 90th percentile], where both have n_active active parameters.
    """
    clock = constraints.clock
    assert clock is not None
    flops = best["n_active"] * (TRAINING * best["n_tokens"] + INFERENCE * constraints.inference_tokens)
    equal = dataclasses.replace(constraints, flops=flops, clock=None)
    solved = optimum.optima(law, architecture, equal, experts)
    by_flops = int(solved.n_experts[int(np.nanargmin(solved.loss))])
    pair = (by_flops, best["n_experts"])
    size = min(best["n_active"], *(float(clock.at(e).largest()) for e in pair))
    one, other = (float(clock.at(e).speed(size)) for e in pair)
    return dict(
        hours=float(clock.hours),
        label=clock.calibration.label,
        by_flops=by_flops,
        n_active=size,
        ratio=[one / other * factor for factor in clock.calibration.factors(of_ratio=True)],
    )


def speed_of(calibration: Calibration, chips: Chips, tokens_per_second: float, model: Json) -> Json:
    """{tokens_per_second, mfu, hours} of the training of a model, {n_active, n_tokens}, each [10th percentile, median,
    90th percentile]. MFU counts 6 FLOPs for each active parameter and token, as --mfu does."""
    speeds = [tokens_per_second * factor for factor in calibration.factors()]
    peak = chips.count * chips.chip.flops
    return dict(
        tokens_per_second=speeds,
        mfu=[training_flops(model["n_active"], speed) / peak for speed in speeds],
        hours=[model["n_tokens"] / speed / SECONDS for speed in reversed(speeds)],
    )


def text(plan: Json) -> Iterator[str]:
    """Lines on the speed of each number of experts, and on whether the clock and FLOPs choose otherwise."""
    clock, best = plan["clock"], plan["best"]
    yield say(sentences.CLOCK_HEAD, **clock)
    for row in plan["optima"]:
        yield say(sentences.CLOCK_ROW, **row, words=words(row["speed"]))
    yield from differing(clock, best["n_experts"])


def differing(clock: Json, by_time: int) -> Iterator[str]:
    """The sentence on what FLOPs choose instead of so many experts, where they do."""
    if clock["by_flops"] != by_time:
        low, middle, high = clock["ratio"]
        names = dict(by_flops=clock["by_flops"], by_time=by_time, n_active=clock["n_active"])
        yield say(sentences.CLOCK_DIFFERS, **names, ratio=middle, ends=[low, high], label=clock["label"])


def words(speed: Json) -> str:
    """A speed in words, each number with its range."""
    ends = {f"{name}_ends": [values[0], values[2]] for name, values in speed.items()}
    return say(sentences.CLOCK_SPEED, **ends, **{name: values[1] for name, values in speed.items()})
