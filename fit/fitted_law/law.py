"""A law: a form with coefficients, and the models it was fitted to.

It is a published preset or the law.json of a fit; presets/ has our own fits. Its coefficients give the losses of
models; the bootstrap's draws give their intervals.
"""

import dataclasses
import functools
import math
import os
import pathlib
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fit.aliases import Array, ByName, Json, Numbers, Opt
from fit.errors import UserError
from fit.fitted_law import codec, intervals, published_draws
from fit.fitted_law.bounds import Coefficient
from fit.fitted_law.columns import as_numbers, checked_columns
from fit.fitted_law.models import Models, first_values
from fit.fitted_law.parts import (
    Bootstrap,
    Choice,
    FittedRuns,
    HoldOut,
    ProfileInterval,
    PublishedTable,
    Scatter,
    SeparateErrors,
    SeparateLaw,
    Starts,
)
from fit.fitted_law.settings import DEFAULTS, Settings
from fit.fitted_law.tuning import Tuning
from fit.form import Form, Reduced
from fit.laws import FORMS, PRESETS
from fit.messages import finding, sentences
from fit.messages.finding import Finding
from fit.messages.units import amount, flops, say
from fit.model.architecture import EXPERTS, OF_EXPERTS, PAPER, Architecture, training_flops
from fit.results import NOT_IN_JSON
from fit.table import table, validate
from fit.table.files import check_writable
from fit.table.runs import Errors, unlikely

ROUNDING = 5e-3  # a value outside a range by less than this share counts as inside: three digits hide it
SHAPE = ("d_model", "n_blocks")  # columns whose ranges are known where the table of runs has them
INTERVALS_AT_ONCE = 4096  # models: draws times errors times more of them would not fit into memory
OURS = {path.stem: path for path in pathlib.Path(__file__).parent.glob("presets/*.json")}  # fitted to runs of jmoe
NAMES = (*PRESETS, *OURS)  # of the laws that need no file


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Law:
    """A form with coefficients, and what is known of their fit. A field is None, or empty, where it is not known.

    Attributes:
      name: Of the preset, or the file.
      form: The formula.
      coefficients: By name.
      objective: Of the best fit.
      settings: How the law was fitted.
      runs: What it was fitted to.
      models: The models of these runs.
      fitted, held_out: Errors on the fitted runs, and on those kept out.
      starts: The starts of the fit.
      versions: {package: version} of what fitted it.
      rolling: Rolling hold-outs by compute.
      separate: {number of experts: the law of its runs alone}; separate_fitted and separate_held_out are their errors.
      sample: How many of the fitted runs its uncertainty is from, where it is not from all.
      noise: How runs scatter around the law.
      profile: {coefficient: its profile interval}.
      bootstrap: Fits to resampled runs.
      choice: Why it has its form, where several could be fitted.
      tuning: The best rate and batch of a model; None for a law that was fitted without them.
      findings: What to know of the runs and the fit; `warnings` are these in words.
      beyond_runs: A finding on known errors of this law beyond its runs; `warning` is this in words.
      source, note: Where a published law is from, and what to know of it.
      counts_embedding: Whether n_active and n_total are with embedding and head.
      dense: The preset that the dense models of the same paper follow.
      fixed: Columns that all runs of a published law share, so that its formula does not read them.
      no_draws: Why a published law has no draws, in words.
      table_2: The paper's table of the best numbers of experts.

    What it holds for follows from the columns that its form reads and from the models that it was fitted to:

      its models                        reads_n_experts  only_n_experts  holds_for_mixtures  holds_for_dense
      dense ones                        no               1               no                  yes
      mixtures of 8 experts             no               8               yes                 no
      of several numbers of experts     yes              None            yes                 yes
      a preset's of 64, fixed in it     yes              None            yes                 yes

    The last has_fixed_n_experts too. A form without experts, fitted to several numbers of them, is as of dense models,
    or as of mixtures where none was dense, but its only_n_experts is None.
    """

    name: str = dataclasses.field(metadata=NOT_IN_JSON)
    form: Form = dataclasses.field(metadata=NOT_IN_JSON)
    coefficients: dict[str, Coefficient]
    _: dataclasses.KW_ONLY
    objective: float | None = None
    settings: Settings = DEFAULTS
    runs: FittedRuns = FittedRuns()
    models: Models = Models()
    fitted: Errors | None = None
    held_out: Errors | None = None
    starts: Starts | None = None
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    rolling: tuple[HoldOut, ...] = ()
    separate: dict[str, SeparateLaw] = dataclasses.field(default_factory=dict)
    separate_fitted: SeparateErrors | None = None
    separate_held_out: SeparateErrors | None = None
    sample: int | None = None
    noise: Scatter | None = None
    profile: dict[str, ProfileInterval] = dataclasses.field(default_factory=dict)
    bootstrap: Bootstrap | None = None
    choice: Choice | None = None
    tuning: Tuning | None = dataclasses.field(default=None, metadata={"key": "rates"})
    findings: tuple[Finding, ...] = ()
    beyond_runs: Finding | None = None
    source: str = ""
    note: str = ""
    counts_embedding: bool = dataclasses.field(default=True, metadata=NOT_IN_JSON)  # "counts" there, by the codec
    dense: str | None = None
    fixed: tuple[str, ...] = ()
    no_draws: str = ""
    table_2: PublishedTable | None = None

    def to_dict(self) -> Json:
        """The law as law.json holds it."""
        return codec.to_dict(self)

    @property
    def warnings(self) -> list[str]:
        """The findings in words."""
        return finding.in_words(self.findings)

    @property
    def warning(self) -> str:
        """The finding on known errors beyond its runs in words; "" without one."""
        return "" if self.beyond_runs is None else str(self.beyond_runs)

    @property
    def published(self) -> bool:
        """Whether it is a paper's law, not one that a fit wrote."""
        return self.name in PRESETS

    @functools.cached_property
    def draws(self) -> dict[str, Array] | None:
        """The bootstrap's coefficients by name, each [n_draws]; None without a bootstrap."""
        if self.bootstrap is None:
            return None
        return dict(zip(self.form.names, np.array(self.bootstrap.draws).T, strict=True))

    @property
    def n_draws(self) -> int:
        """How many draws the bootstrap has; 0 without one."""
        return 0 if self.bootstrap is None else len(self.bootstrap.draws)

    @property
    def percentiles(self) -> list[float]:
        """The ends of the bootstrap's intervals; [] without one."""
        return [] if self.bootstrap is None else list(self.bootstrap.percentiles)

    @property
    def source_of_draws(self) -> str:
        """Where draws of a published law are from, in words; "" for those of a fit."""
        return "" if self.bootstrap is None else self.bootstrap.source or ""

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """{column: (low, high)} of the fitted runs: n_active, n_tokens, n_experts, training_flops, where known."""
        names = dict.fromkeys(("n_active", "n_tokens", "n_experts", *self.form.columns, "training_flops"))
        return {name: self.runs.ranges[name] for name in names if name in self.runs.ranges}

    @property
    def shape_ranges(self) -> dict[str, tuple[float, float]]:
        """{column: (low, high)} of d_model and n_blocks of these runs, where their table has them."""
        return {name: self.runs.ranges[name] for name in SHAPE if name in self.runs.ranges}

    @property
    def reads_n_experts(self) -> bool:
        """Whether the loss depends on the number of experts."""
        return not set(OF_EXPERTS).isdisjoint(self.form.columns)

    @property
    def reads_active_width(self) -> bool:
        """Whether the loss depends on how many experts a token uses."""
        return not {"sparsity", "top_k"}.isdisjoint(self.form.columns)

    @property
    def has_fixed_n_experts(self) -> bool:
        """Whether all runs of a published law have one number of experts, which its formula does not read."""
        return "n_experts" in self.fixed

    @property
    def chooses_experts(self) -> bool:
        """Whether a plan by the law may choose among numbers of experts."""
        return self.reads_n_experts and not self.has_fixed_n_experts

    @property
    def experts(self) -> tuple[int, ...]:
        """The numbers of experts that a plan compares by default: those fitted, else the paper's; of a law whose
        formula does not read it, the one number that its models have."""
        fitted = self.models.n_experts or ()
        if self.reads_n_experts:
            return fitted or EXPERTS
        return fitted[:1] if fitted and 1 not in fitted else (1,)

    @property
    def only_n_experts(self) -> int | None:
        """The only number of experts for which the law holds; None where it holds for several."""
        holds_for_several = self.reads_n_experts or len(self.models.n_experts or ()) > 1
        return None if holds_for_several else self.experts[0]

    @property
    def holds_for_mixtures(self) -> bool:
        """Whether its models are mixtures, of one number of experts or of several."""
        return self.reads_n_experts or self.experts != (1,)

    @property
    def holds_for_dense(self) -> bool:
        """Whether the law can say what a dense model would reach."""
        return self.reads_n_experts or not self.holds_for_mixtures

    def __repr__(self) -> str:
        values = ", ".join(f"{name} {value:.4g}" for name, value in self.coefficients.items())
        parts = [values]
        if self.ranges:
            parts.append(f"fitted to {self.ranges_in_words}")
        if self.draws:
            fits = published_draws.fits_in_words(self.source_of_draws)
            parts.append(f"{self.n_draws} {fits}")
        return f"<{self.form.name} law {self.name}: {'; '.join(parts)}>"

    @property
    def ranges_in_words(self) -> str:
        """The ranges of the fitted runs in words; "" if none is known."""
        ranges = []
        for name, ends in self.ranges.items():
            write = flops if name == "training_flops" else amount
            ranges.append(f"{name} {' to '.join(map(write, ends))}")
        return ", ".join(ranges)

    def predict(
        self, n_active: Any = 1.0, n_tokens: ArrayLike = 1.0, n_experts: ArrayLike | None = None, **columns: ArrayLike
    ) -> Array:
        """The loss of models in nats per token.

        Numbers, lists and arrays broadcast together; columns that the law does not read may be anything. It warns of
        few or many tokens per parameter.

        Args:
          n_active: active parameters; or a table of models, as fit.read takes it, for the loss of each row by its
            parameters as they are. fit.predict counts them with the law's vocabulary.
          n_tokens: training tokens.
          n_experts: experts of a layer; by default that of the law, or 1.
          columns: others by name.

        Raises:
          UserError: for values that no model has, such as n_active=-1, and for a number of experts for which the law
            does not hold.
        """
        models = self._read_columns(columns | dict(n_active=n_active, n_tokens=n_tokens, n_experts=n_experts))
        odd = unlikely(models, 0.5)  # not of grids, which reach far
        if odd:
            warnings.warn(str(odd), stacklevel=2)
        with np.errstate(all="ignore"):
            loss = self.loss(self.coefficients, models)
        if not np.isfinite(loss).all():
            first = int(np.argmax(~np.isfinite(loss)))
            where = ", ".join(f"{name} {np.broadcast_to(v, loss.shape).flat[first]:g}" for name, v in models.items())
            raise UserError(f"the {self.form.name} law gives no loss at {where}")
        return loss

    def _read_columns(self, arguments: dict[str, Any]) -> dict[str, Array]:
        """The columns that the law reads, as float64 arrays.

        Raises:
          UserError: at the first value that no model has, or at a number of experts for which the law does not hold.
        """
        if table.is_table(arguments["n_active"]):
            models = table.read(arguments["n_active"])
            validate.require(models, self.form.columns)
            self.check_experts_of(models)
            return {name: models.numbers(name) for name in self.form.columns}
        if arguments["n_experts"] is None:
            arguments = arguments | dict(n_experts=self.only_n_experts or 1.0)
        if self.only_n_experts is not None:
            self.check_experts(arguments["n_experts"], "n_experts")
        return checked_columns(self.form.name, self.form.columns, arguments)

    def check_experts(self, n_experts: object, field: str) -> None:
        """Raises UserError where one of these numbers of experts is not the only one for which the law holds.

        Args:
          field: what the error calls it.
        """
        values = np.atleast_1d(as_numbers(field, n_experts))
        if self.only_n_experts is None:
            return
        others = values[values != self.only_n_experts]
        if others.size:
            raise UserError(f"{field}={others[0]:g}: {self.only_words}")

    def check_experts_of(self, models: table.Table) -> None:
        """Raises UserError at the first row of a table with another number of experts than the only one of the law."""
        if self.only_n_experts is None or "n_experts" not in models:
            return
        for row, value in zip(models.rows, models.numbers("n_experts"), strict=True):
            if value != self.only_n_experts:
                raise UserError(f"{models.path}, row {row}, column n_experts: found {value:g}; {self.only_words}")

    @property
    def only_words(self) -> str:
        """A sentence on why the law predicts no other numbers of experts."""
        if self.holds_for_mixtures:
            return say(sentences.ONE_NUMBER, law=self.name, own=self.experts[0])
        return say(sentences.DENSE_ALONE, law=self.name)

    def loss(self, coefficients: ByName, columns: ByName) -> Array:
        """Loss in nats per token with these coefficients by name; all arguments broadcast together."""
        columns = {name: np.asarray(columns[name], float) for name in self.form.columns}
        values = np.broadcast_arrays(*(coefficients[name] for name in self.form.names))
        params = self.form.to_params(dict(zip(self.form.names, values, strict=True)))
        return np.exp(self.form.log_loss(params, columns))

    def check_plannable(self) -> None:
        """Raises UserError where the law does not read n_tokens, which a plan must choose."""
        if "n_tokens" not in self.form.columns:
            others = " or ".join(form.name for form in FORMS.values() if "n_tokens" in form.columns)
            raise UserError(
                f"--law={self.name}: the {self.form.name} law knows no n_tokens, so it has no optimum of size and "
                f"tokens; use a law of form {others}"
            )

    @property
    def reduces_to_chinchilla(self) -> bool:
        """Whether a plan may use the law's closed form at a number of experts: it has one, and its n_active is the
        planner's, which counts embedding and head."""
        return bool(self.form.chinchilla_coefficients_at) and self.counts_embedding

    def chinchilla_coefficients_at(self, n_experts: Numbers, coefficients: ByName | None = None) -> Reduced:
        """The Chinchilla law to which this law reduces at each n_experts (Eq. 5 of the joint law's paper).

        Args:
          coefficients: by name, also arrays; by default the law's own.

        Raises:
          UserError: where the law has no such form.
        """
        self.check_plannable()
        if not self.form.chinchilla_coefficients_at:
            raise UserError(
                f"--law={self.name}: the {self.form.name} law is no Chinchilla law at each number of experts, so it "
                "has no such table or picture"
            )
        return self.form.chinchilla_coefficients_at(coefficients or self.coefficients, np.asarray(n_experts, float))

    def check_has_draws(self) -> None:
        """Raise UserError if the law has no draws, which intervals need."""
        if not self.draws:
            why = self.no_draws or "fit it with --bootstrap=100"
            raise UserError(f"--law={self.name}: holds no draws, so it has no intervals; {why}")

    def log_change(self, flops: Numbers, draws: slice | Array = slice(None)) -> np.ndarray:
        """The change of the models' log loss in each bootstrap draw by the form's own error.

        It is a draw's drift times ln(FLOPs / C) beyond the largest C that the law was fitted to. Rolling hold-outs
        measure the drift (fit/fitting/rolling.py). The change is 0 for a law without them.

        Args:
          flops: training FLOPs of the models, that broadcast with [n_draws, 1], or one for each draw, [n_draws].
          draws: indices of the draws.
        """
        beyond = self.bootstrap.beyond if self.bootstrap else None
        if beyond is None:
            return np.zeros(np.shape(flops))
        drift = np.array(beyond.drift)[draws].reshape(-1, *[1] * (np.ndim(flops) - 1))
        with np.errstate(invalid="ignore", divide="ignore"):  # of what is no model, or has no optimum
            return drift * np.log(np.maximum(np.asarray(flops) / beyond.training_flops, 1))

    def predict_interval(
        self,
        n_active: Any = 1.0,
        n_tokens: ArrayLike = 1.0,
        n_experts: ArrayLike | None = None,
        new_run: bool = False,
        **columns: ArrayLike,
    ) -> Array:
        """Percentiles of the loss of models; takes what `predict` takes.

        Args:
          new_run: the interval of a new run, which has its own error too. Fitting more runs does not reduce that.

        Returns:
          (low, high) of the loss in nats per token, each of the models' shape: over the bootstrap's draws and, beyond
          the fitted runs, the form's own error where rolling hold-outs measured it.

        Raises:
          UserError: for a law without draws, or for a new run where the law does not know its noise.
        """
        models = self._read_columns(columns | dict(n_active=n_active, n_tokens=n_tokens, n_experts=n_experts))
        self.check_has_draws()
        if new_run and self.noise is None:
            raise UserError(f"--law={self.name}: does not say how runs scatter around it; no interval of a new run")
        arrays = dict(zip(models, np.broadcast_arrays(*models.values()), strict=True))
        shape = next(iter(arrays.values())).shape
        ends = np.empty((2, math.prod(shape)))
        for part in range(0, ends.shape[1], INTERVALS_AT_ONCE):
            rows = slice(part, part + INTERVALS_AT_ONCE)
            ends[:, rows] = self._log_interval({name: values.ravel()[rows] for name, values in arrays.items()}, new_run)
        return np.exp(ends).reshape(2, *shape)

    def _log_interval(self, models: dict[str, Array], new_run: bool) -> Array:
        """(low, high) of the log loss of models, columns [models] by name; see `predict_interval`."""
        draws = {name: values[:, None] for name, values in (self.draws or {}).items()}
        log_loss = np.log(self.loss(draws, models))  # [draws, models]
        flops = None
        if {"n_active", "n_tokens"} <= models.keys():
            flops = training_flops(models["n_active"], models["n_tokens"])
            log_loss = log_loss + self.log_change(flops[None])
        return intervals.log_interval(log_loss, self.percentiles, self.noise if new_run else None, flops)

    @property
    def architecture(self) -> Architecture:
        """The Architecture that the law was fitted to; by default the paper's."""
        return self.shaped()

    def shaped(self, vocab_size: int | None = None, width_per_block: int | None = None) -> Architecture:
        """The Architecture of the law's models with another vocabulary or width per block; None takes the law's.

        Raises:
          UserError: where its runs had several, none in a majority.
        """
        shape: dict[str, Any] = dict(vocab_size=vocab_size, width_per_block=width_per_block)
        for name in shape:
            several = self.models.differing.get(name)
            known = getattr(self.models, name)
            if shape[name] is None and known is None and several:
                raise UserError(
                    f"--law={self.name}: its runs have {len(several)} values of {name} "
                    f"({first_values(several)}), none of them in most: say which by --shape={name}:…"
                )
            shape[name] = shape[name] or known or getattr(PAPER, name)
        shape["final_norm"] = self.models.final_norm
        ratios = self.models.architecture
        return ratios.architecture(**shape) if ratios else Architecture(**shape)

    def extrapolation(
        self,
        n_active: Opt = None,
        n_tokens: Opt = None,
        n_experts: Opt = None,
        flops: Opt = None,
        **columns: Opt,
    ) -> list[Json]:
        """The values of a model outside the fitted range. None stands for a value that is not known.

        Args:
          n_active: active parameters, as the law counts them.
          n_tokens: training tokens.
          n_experts: experts of a layer.
          flops: of training, by default 6 n_active n_tokens.
          columns: others that the law reads, by name.

        Returns:
          A list of {column, value, low, high, factor}, empty inside; `factor` > 1 says how far outside. The column
          unique_tokens is n_tokens against the tokens of the text that the law was fitted on (low is 0).
        """
        with_ranges = self._with_ranges(n_active, n_tokens, n_experts, flops, **columns)
        rows = [outside_range(column, *numbers) for column, numbers in with_ranges.items()]
        return [row for row in rows if row is not None]

    def inside(
        self,
        n_active: Opt = None,
        n_tokens: Opt = None,
        n_experts: Opt = None,
        flops: Opt = None,
        **columns: Opt,
    ) -> Array:
        """Whether models lie inside the fitted range, where `extrapolation` is empty. It takes what that takes; the
        arguments broadcast."""
        values = [v for v in (n_active, n_tokens, n_experts, flops, *columns.values()) if v is not None]
        ranges = self._with_ranges(n_active, n_tokens, n_experts, flops, **columns).values()
        fine = [(low * (1 - ROUNDING) <= value) & (value <= high * (1 + ROUNDING)) for value, low, high in ranges]
        return np.logical_and.reduce(np.broadcast_arrays(True, *fine, *values)[: 1 + len(fine)])

    def _with_ranges(
        self, n_active: Opt = None, n_tokens: Opt = None, n_experts: Opt = None, flops: Opt = None, **more: Opt
    ) -> dict[str, tuple]:
        """{column: (value, low, high)} of the values that are not None and have a known range."""
        if flops is None and n_active is not None and n_tokens is not None:
            flops = training_flops(n_active, n_tokens)
        values = dict(more, n_active=n_active, n_tokens=n_tokens, n_experts=n_experts, training_flops=flops)
        names = [name for name in (*self.form.columns, *self.fixed, "training_flops") if values.get(name) is not None]
        with_ranges = {name: (values[name], *self.ranges[name]) for name in names if name in self.ranges}
        if "n_tokens" in self.form.columns and n_tokens is not None and self.models.unique_tokens:
            with_ranges["unique_tokens"] = n_tokens, 0, self.models.unique_tokens
        return with_ranges


def outside_range(column: str, value: Any, low: float, high: float) -> Json | None:
    """{column, value, low, high, factor} of a value outside a range; None inside."""
    if low * (1 - ROUNDING) <= value <= high * (1 + ROUNDING):
        return None
    factor = value / high if value > high else low / value
    return dict(column=column, value=float(value), low=low, high=high, factor=float(factor))


def in_words(outside: Iterable[Json]) -> str:
    """The result of Law.extrapolation in words: "n_tokens 7 times above 1.31M, ..."; "" if it is empty."""
    words = []
    for row in outside:
        column = row["column"]
        above = row["value"] > row["high"]
        end = row["high"] if above else row["low"]
        end = f"{end:.3g}" if column == "training_flops" else amount(end)
        form = "{column} {factor} times above {end}" if above else "{column} {factor} times below {end}"
        form = "n_tokens {factor} times the {end} of the text" if column == "unique_tokens" else form
        words.append(form.format(column=column, factor=amount(row["factor"]), end=end))
    return ", ".join(words)


def warning_of(outside: list[Json]) -> str:
    """The warning on an answer outside the fitted range; "" for one inside."""
    return f"outside the fitted range: {in_words(outside)}" if outside else ""


def load(law: Law | str | os.PathLike, field: str = "law") -> Law:
    """Load a law.json by its path, or a published law by its name.

    Args:
      field: the flag's name in errors.

    Raises:
      UserError: if there is no such law, or the file has no complete law.
    """
    if isinstance(law, Law):
        return law
    if not isinstance(law, (str, os.PathLike)) or len(str(law)) > table.LONGEST_PATH:
        raise UserError(f"{field}: found {table.shown(law)}, expected a published law's name or the path of a law.json")
    name = os.fspath(law)
    if name in PRESETS:
        return _published(name, field)
    path = OURS.get(name, name)
    if not os.path.exists(path):
        raise UserError(f"--{field}={name}: no such file, nor a published law; published laws: {', '.join(NAMES)}")
    return codec.read(Law, path, name, f"--{field}={name}")


@functools.cache
def _published(name: str, field: str) -> Law:
    """A published law, with the draws that are simulated for it. field: the flag's name in errors."""
    form = PRESETS[name]
    values = form.presets[name] | dict(bootstrap=published_draws.bootstrap_of(name))
    return codec.from_dict(Law, name, form, values, f"--{field}={name}")


def check_law_file(path: str) -> None:
    """Raises UserError where no law can be written to a file, or --law would not read it from there."""
    if path in NAMES:
        raise UserError(
            f"--out={path}: --law={path} is a law that needs no file, so the new law would never be read: name another "
            "file, such as law.json"
        )
    check_writable(path)


def save(law: Law, path: str | os.PathLike) -> None:
    """Writes a law as a law.json. Raises UserError where the file cannot be written."""
    codec.write(law, path)
