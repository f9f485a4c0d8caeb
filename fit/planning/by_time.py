"""The speed of models of every size on the chips: plans by the clock, and the hours of plans by FLOPs.

Models of the grid of hardware.py are timed at all WIDTHS, each on the mesh of least time, with the batch of its recipe.
"""

import dataclasses
import math
from collections.abc import Iterator

import numpy as np

from fit.aliases import Floats
from fit.errors import UserError
from fit.fitted_law.law import Law
from fit.messages import sentences
from fit.messages.units import say
from fit.model import efficiencies, measured
from fit.model.efficiencies import Calibration
from fit.model.measured import MeasuredRun
from fit.model.shape import ModelShape
from fit.planning import cost, optimum, recipe, startable
from fit.planning.clock import SECONDS, Clock, Curve
from fit.planning.constraints import Chips, Constraints
from fit.planning.results import Buildable, ClockComparison, Optimum, Speed, Target, TargetRow
from fit.shape import hardware
from fit.shape.architecture import INFERENCE, TRAINING, Architecture, Model, training_flops

# of the models that are timed: all of the grid, as a mesh that divides one width may not divide the next
WIDTHS = hardware.widths(64, 32_768)
TYPICAL = 20  # tokens of an active parameter, where a table of speeds does not say for how long runs trained
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
      law: The law that plans.
      architecture: How models are built.
      constraints: With chips, without FLOPs.
      experts: The numbers of experts to compare.
      shapes: What the user fixes of the mesh and the shape of models.
      budget: The hours, and what the chips reach.

    Raises:
      UserError: The chips can train no model of any size.
    """
    hours, calibration = budget
    assert constraints.chips is not None
    constraints = dataclasses.replace(constraints, clock=Clock(hours, {}, calibration), calibration=None)
    dense = [1.0] if law.knows_dense else []  # what the best is compared with
    clock = speeds_of(law, architecture, constraints, [*optimum.allowed_experts(law, experts), *dense], shapes)
    if not clock.curves:
        raise UserError(say(sentences.NOTHING_TIMED, **vars(constraints.chips)))
    return dataclasses.replace(constraints, clock=clock)


def speeds_of(
    law: Law, architecture: Architecture, constraints: Constraints, experts: Floats, shapes: startable.Shapes
) -> Clock:
    """The speeds of models of every size, each trained on the tokens that the budget leaves.

    Args:
      law: The law that plans.
      architecture: How models are built.
      constraints: With chips, and with a clock or a calibration.
      experts: The numbers of experts, as the law counts them.
      shapes: What the user fixes of the mesh and the shape of models.

    Returns:
      The clock of the constraints with curves or, where FLOPs are the budget, a clock without hours.
    """
    chips = constraints.chips
    clock = constraints.clock
    if clock is None:
        assert constraints.calibration is not None
        clock = Clock(math.nan, {}, constraints.calibration)
    assert chips is not None
    layouts = startable.Layouts(law, chips, shapes, calibration=clock.calibration)
    curves = {}
    untrainable = set()
    for e in set(map(float, experts)):
        curve = _Timed(law, architecture, constraints, layouts, e).curve()
        if curve is None:
            untrainable.add(e)
        else:
            curves[e] = curve
    return dataclasses.replace(clock, curves=curves, untrainable=untrainable)


def calibration_of(
    law: Law, architecture: Architecture, chips: Chips, shapes: startable.Shapes, path: str | None
) -> Calibration:
    """What the chips reach: as published or, with a table of the user's speeds at `path`, recalibrated by it.

    Raises:
      UserError: The table cannot be read, has fewer than two rows, or none on these chips.
    """
    published = efficiencies.of_our_trainer(chips.kind, chips.count)
    if path is None:
        return published
    runs = measured_runs(law, architecture, chips, shapes, path)
    if chips.kind not in {run.kind for run in runs}:
        raise UserError(say(sentences.NO_SPEED_OF_CHIPS, path=path, kind=chips.kind))
    return efficiencies.recalibrated(published, runs)


def measured_runs(
    law: Law, architecture: Architecture, chips: Chips, shapes: startable.Shapes, path: str
) -> list[MeasuredRun]:
    """The runs in a table of the user's speeds. Where columns OF_MODEL do not say how a model is built, it is built
    like the plan's. Raises UserError where the table cannot be read."""

    def shape_of(row: dict[str, str]) -> ModelShape:
        """The model of a row."""
        width = int(float(row["d_model"]))
        routed = int(float(row["n_experts"]))
        model = _model_of(law, architecture, shapes, width, routed)
        given = {name: measured.whole(row, name, f"--speeds={path}") for name in OF_MODEL if row.get(name)}
        return ModelShape.of_config(model.shape | dict(n_experts=routed) | given)

    return measured.read_own(path, shape_of, chips.kind, chips.count, recipe.PRETRAIN_SEQUENCE)


@dataclasses.dataclass(frozen=True)
class ByTime:
    """Plans by the clock of laws that choose among several architectures.

    Attributes:
      constraints: With chips, without FLOPs.
      hours: The budget.
      speeds: Path of a table of the user's speeds, or None.
      shapes: What the user fixes of the shape of models.
      cache: The constraints of architectures that are timed already.
    """

    constraints: Constraints
    hours: float
    speeds: str | None = None
    shapes: startable.Shapes = startable.Shapes()
    cache: dict[tuple, Constraints] = dataclasses.field(default_factory=dict, compare=False)

    def of(self, law: Law, architecture: Architecture, experts: Floats) -> Constraints:
        """The constraints with the Clock of these models.

        Experts that all tokens use are timed as if tokens chose them too: which of the two they are changes the speed
        little. Raises UserError as constraints_of.
        """
        timed = dataclasses.replace(architecture, shared=0)
        key = (law.name, timed, tuple(map(float, experts)))
        if key not in self.cache:
            chips = self.constraints.chips
            assert chips is not None
            calibration = calibration_of(law, timed, chips, self.shapes, self.speeds)
            budget = (self.hours, calibration)
            self.cache[key] = constraints_of(law, timed, self.constraints, experts, self.shapes, budget)
        return self.cache[key]


def _model_of(
    law: Law, architecture: Architecture, shapes: startable.Shapes, width: int, routed: int, flops: float | None = None
) -> Model:
    """The model of the grid of a width, with so many experts as the trainer counts them.

    It is shaped as published models where its recipe is theirs, as for plans. `flops`: of its training; None: TYPICAL
    tokens for each active parameter.
    """
    padded = dataclasses.replace(architecture, vocab_size=hardware.padded(architecture.vocab_size))
    is_beyond = shapes.family or not startable.is_within_runs(law, float(padded.n_active(width, routed)))
    for as_published in (is_beyond, not is_beyond):
        style = hardware.style_of(architecture, as_published, shapes.fixed)
        n_blocks = max(round(width / style.aspects[1]), architecture.n_dense + 1)
        model = hardware.built(padded, style, width, n_blocks, routed)
        n_tokens = TYPICAL * model.n_active
        if flops is not None:
            n_tokens = max(flops / (TRAINING * model.n_active), 1.0)
        run_recipe = recipe.recipe_of(law, model, n_tokens, shapes.family)
        if run_recipe.of_published_models == as_published:
            break
    return model


@dataclasses.dataclass(frozen=True)
class _Timed:
    """Models of e experts, as the law counts them, and how fast the chips train each."""

    law: Law
    architecture: Architecture
    constraints: Constraints  # with a clock, or with FLOPs
    layouts: startable.Layouts
    e: float

    def curve(self) -> Curve | None:
        """The curve through all models that the chips train; None where they train none."""
        if not self.architecture.has_enough_experts(self.e):
            return None
        timed: list[tuple[float, float]] = []  # (n_active, tokens per second)
        is_bounded = False
        for width in WIDTHS:
            size_and_speed = self._size_and_speed(width)
            is_bounded = size_and_speed is None  # or its mesh does not divide, and that of a wider one does
            if size_and_speed:
                timed.append(size_and_speed)
        if not timed:
            return None
        sizes = [size for size, _ in timed]
        speeds = [speed for _, speed in timed]
        return Curve.of(sizes, speeds, bounded=is_bounded)

    def _size_and_speed(self, width: int) -> tuple[float, float] | None:
        """(n_active, tokens per second) of the model of a width; None where the chips cannot train it."""
        chips = self.layouts.chips
        clock = self.constraints.clock
        if clock is None:
            return self._size_and_speed_by_flops(width)
        rate = cost.MFU * chips.count * chips.chip.flops
        flops = SECONDS * float(clock.hours) * rate
        model = _model_of(self.law, self.architecture, self.layouts.shapes, width, self._routed(), flops)
        speed = rate / (TRAINING * model.n_active)
        batches: list[int] = []
        for _ in range(2):  # the batch depends on the tokens, which depend on the speed
            n_tokens = max(1.0, float(self.constraints.tokens_at(speed)))
            previous_batches = batches
            batches = [batch for _, batch in self.layouts.run(model, n_tokens).ramp]
            if batches == previous_batches:
                break
            timed = self.layouts.timed(model, n_tokens)
            if timed is None:
                return None
            _, speed = timed
        return model.n_active, speed

    def _size_and_speed_by_flops(self, width: int) -> tuple[float, float] | None:
        """The same, trained on the tokens that the FLOPs leave."""
        flops = self.constraints.flops
        model = _model_of(self.law, self.architecture, self.layouts.shapes, width, self._routed(), flops)
        n_tokens = float(self.constraints.tokens(model.n_active))
        if not math.isfinite(n_tokens):  # nothing bounds them
            n_tokens = TYPICAL * model.n_active
        timed = self.layouts.timed(model, max(1.0, n_tokens))
        return None if timed is None else (model.n_active, timed[1])

    def _routed(self) -> int:
        """The number of experts that the trainer has where the law counts e."""

        def distance(routed: int) -> float:
            """How far the law's count of so many experts is from e."""
            return abs(math.log(hardware.law_experts(self.architecture, routed) / self.e))

        return min(hardware.whole_experts(self.architecture, self.e), key=distance)


def speed_of_optimum(clock: Clock, chips: Chips, n_experts: float, n_active: float, n_tokens: float) -> Speed | None:
    """The speed of the best model with one number of experts, by the curve of its number of experts.

    None where the chips train no such model.
    """
    if not clock.curves or n_experts in clock.untrainable:
        return None
    tokens_per_second = float(clock.at(n_experts).speed(n_active))
    return speed_of(clock.calibration, chips, tokens_per_second, n_active, n_tokens)


def speed_of_buildable(clock: Clock, chips: Chips, built: Buildable) -> Speed | None:
    """The speed of the model to build: in its own layout or, where that has none, by the curve.

    None where the chips train no such model.
    """
    if not built.modelled_speed:
        return speed_of_optimum(clock, chips, built.experts_of_law, built.n_active, built.n_tokens)
    return speed_of(clock.calibration, chips, built.modelled_speed, built.n_active, built.n_tokens)


def with_modelled_mfu(chips: Chips, optima: list[Optimum], built: Buildable | None) -> Chips:
    """The chips with the MFU of each optimum by its speed; of one without speed, the MFU that is assumed."""
    mfu = {row.n_experts: float(f"{row.speed.mfu[1]:.3g}") if row.speed else cost.MFU for row in optima}
    models = [*optima, built] if built else optima
    return dataclasses.replace(chips, mfu=mfu, mfu_is_assumed=any(model.speed is None for model in models))


def _clock_and_chips(constraints: Constraints) -> tuple[Clock, Chips]:
    """The clock and the chips of constraints that have both."""
    assert constraints.clock is not None and constraints.chips is not None
    return constraints.clock, constraints.chips


def against_flops(
    law: Law,
    architecture: Architecture,
    constraints: Constraints,
    n_experts: int,
    n_active: float,
    n_tokens: float,
    experts: Floats,
) -> ClockComparison:
    """What FLOPs would choose of these numbers of experts, in place of hours.

    Args:
      law: The law that plans.
      architecture: How models are built.
      constraints: With the clock.
      n_experts, n_active, n_tokens: The best model by the clock.
      experts: The numbers of experts to choose from.
    """
    clock, _ = _clock_and_chips(constraints)
    flops = n_active * (TRAINING * n_tokens + INFERENCE * constraints.inference_tokens)
    by_flops = dataclasses.replace(constraints, flops=flops, clock=None)
    solved = optimum.optima(law, architecture, by_flops, experts)
    chosen = int(solved.n_experts[int(np.nanargmin(solved.loss))])
    return _comparison(clock, chosen, n_experts, n_active)


def _comparison(clock: Clock, by_flops: int, by_time: int, n_active: float) -> ClockComparison:
    """The best numbers of experts by FLOPs and by the clock beside each other. n_active: of the best by the clock."""
    largest = float(clock.at(by_flops).largest())
    size = min(n_active, largest)
    ratio = float(clock.at(by_flops).speed(size)) / float(clock.at(by_time).speed(size))
    return ClockComparison(
        hours=float(clock.hours),
        label=clock.calibration.label,
        by_flops=by_flops,
        by_time=by_time,
        n_active=size,
        largest=largest if largest < n_active else None,
        ratio=[ratio * factor for factor in clock.calibration.factors(of_ratio=True)],
    )


def hours_with_serving(constraints: Constraints, n_tokens: float, speed: Speed) -> float:
    """Hours of training on n_tokens tokens, and of the inference tokens of the constraints."""
    tokens = n_tokens + INFERENCE / TRAINING * constraints.inference_tokens
    return tokens / speed.tokens_per_second[1] / SECONDS


def against_hours(
    law: Law,
    architecture: Architecture,
    constraints: Constraints,
    n_experts: int,
    hours: float,
    experts: Floats,
    shapes: startable.Shapes,
) -> ClockComparison | None:
    """What hours would choose, in place of FLOPs: those that the best model by FLOPs takes, with what it serves.

    Args:
      law: The law that plans.
      architecture: How models are built.
      constraints: With chips and a calibration.
      n_experts: Of the best model by FLOPs.
      hours: That it takes, as hours_with_serving says.
      experts: The numbers of experts to choose from.
      shapes: What the user fixes of the mesh and the shape of models.

    Returns:
      The comparison; None where the chips train no such model in these hours.
    """
    assert constraints.calibration is not None
    by_hours = dataclasses.replace(constraints, flops=None)
    by_hours = constraints_of(law, architecture, by_hours, experts, shapes, (hours, constraints.calibration))
    clock, _ = _clock_and_chips(by_hours)
    if n_experts in clock.untrainable:
        return None
    solved = optimum.optima(law, architecture, by_hours, experts)
    chosen = int(np.nanargmin(solved.loss))
    return _comparison(clock, n_experts, int(solved.n_experts[chosen]), float(solved.n_active[chosen]))


def priced_target(target: Target, clock: Clock, chips: Chips) -> Target:
    """A target whose models are priced at their modelled speeds, where the chips train such models."""

    def priced(row: TargetRow) -> TargetRow:
        """A model with its hours and dollars."""
        if row.flops is None or row.n_active is None or row.n_experts in clock.untrainable or not clock.curves:
            return row
        tokens_per_second = float(clock.at(row.n_experts).speed(row.n_active))
        hours = row.flops / training_flops(row.n_active, tokens_per_second) / SECONDS
        return dataclasses.replace(row, **chips.price_of_hours(hours))

    return dataclasses.replace(
        target,
        optima=[priced(row) for row in target.optima],
        best=priced(target.best),
        front=[priced(row) for row in target.front],
    )


def speed_of(
    calibration: Calibration, chips: Chips, tokens_per_second: float, n_active: float, n_tokens: float
) -> Speed:
    """The speed of the training of a model of n_active parameters on n_tokens tokens.

    Args:
      calibration: How far a speed may be from the modelled one.
      chips: The chips to train on.
      tokens_per_second: The modelled speed, of all chips.
      n_active: Active parameters.
      n_tokens: Training tokens.
    """
    speeds = [tokens_per_second * factor for factor in calibration.factors()]
    peak = chips.count * chips.chip.flops
    return Speed(
        tokens_per_second=speeds,
        mfu=[training_flops(n_active, speed) / peak for speed in speeds],
        hours=[n_tokens / speed / SECONDS for speed in reversed(speeds)],
    )


def rows(clock: ClockComparison, optima: list[Optimum]) -> Iterator[str]:
    """Lines on the speed of each number of experts."""
    yield say(sentences.CLOCK_HEAD, **clock)
    for row in optima:
        if row.speed:
            yield say(sentences.CLOCK_ROW, **row, words=words(row.speed))
        else:
            yield say(sentences.CLOCK_ROW_ASSUMED, **row, mfu=cost.MFU)


def differing(clock: ClockComparison) -> Iterator[str]:
    """The sentence on what FLOPs and hours choose, where they differ."""
    if clock.by_flops == clock.by_time:
        return
    if clock.largest is not None:
        yield say(sentences.CLOCK_DIFFERS_BY_SIZE, **clock)
        return
    low, middle, high = clock.ratio
    yield say(
        sentences.CLOCK_DIFFERS,
        by_flops=clock.by_flops,
        by_time=clock.by_time,
        n_active=clock.n_active,
        ratio=middle,
        ends=[low, high],
        label=clock.label,
    )


def words(speed: Speed) -> str:
    """A speed in words, each number with its range."""
    values = {}
    for name, (low, middle, high) in speed.items():
        values[name] = middle
        values[f"{name}_ends"] = [low, high]
    return say(sentences.CLOCK_SPEED, **values)
