"""A law: a form with coefficients. These give the losses of models; draws of them give intervals."""

import dataclasses
import difflib
import functools
import math
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fit.aliases import Array, ByName, Numbers
from fit.errors import UserError
from fit.fitted_law import intervals, published_draws
from fit.fitted_law.counting import Counting
from fit.fitted_law.law_data import LawData
from fit.form import Reduced
from fit.laws import FORMS
from fit.model.architecture import training_flops
from fit.table import table, validate
from fit.table.runs import unlikely
from fit.table.table import Table

INTERVALS_AT_ONCE = 4096  # models: draws times errors times more of them would not fit into memory


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Law(LawData):
    """A form with coefficients: a paper's, or one that was fitted to runs. LawData lists its fields."""

    @functools.cached_property
    def counting(self) -> Counting:
        """How it counts the parameters of models."""
        return Counting.of(self.models, self.published, self.counts_embedding)

    def __repr__(self) -> str:
        values = ", ".join(f"{name} {value:.4g}" for name, value in self.coefficients.items())
        parts = [values]
        if self.ranges:
            parts.append(f"fitted to {self.ranges_in_words}")
        if self.draws:
            fits = published_draws.fits_in_words(self.source_of_draws)
            parts.append(f"{self.n_draws} {fits}")
        return f"<{self.form.name} law {self.name}: {'; '.join(parts)}>"

    def predict(
        self,
        n_active: Any = None,
        n_tokens: ArrayLike | None = None,
        n_experts: ArrayLike | None = None,
        **columns: ArrayLike | None,
    ) -> Array:
        """The loss of models in nats per token.

        Numbers, lists and arrays broadcast together; columns that only other laws read may be anything. It warns of few
        or many tokens per parameter.

        Args:
          n_active: active parameters; or a table of models, as fit.read takes it, for the loss of each row.
          n_tokens: training tokens.
          n_experts: experts of a layer; by default that of the law, or 1. A fraction, such as a plan's law_experts, is
            one of experts as wide as the dense layer.
          columns: others that laws read, by name.

        Raises:
          UserError: for values that no model has, such as n_active=-1, for a number of experts for which the law does
            not hold, for a column that the law reads and that is missing, for one that no law reads, and for values
            that do not broadcast, or that stand beside a table.
        """
        models = self._models_of(n_active, n_tokens, n_experts, columns)
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

    def _models_of(self, n_active: Any, n_tokens: Any, n_experts: Any, columns: dict[str, Any]) -> dict[str, Array]:
        """The columns that the law reads of what `predict` takes, as float64 arrays. Raises UserError as it does."""
        arguments = dict(n_active=n_active, n_tokens=n_tokens, n_experts=n_experts) | columns
        arguments = {name: value for name, value in arguments.items() if value is not None}
        self._check_names(arguments)
        if table.is_table(n_active):
            others = [name for name in arguments if name != "n_active"]
            if others:
                raise UserError(f"{others[0]}: the models are those of a table, which has a column of them")
            return self.columns_of(table.read(n_active))
        arguments.setdefault("n_experts", self.only_n_experts or 1.0)
        self.check_experts(arguments["n_experts"], "n_experts")
        models = {}
        for name in self.form.columns:
            if name not in arguments:
                raise UserError(f"{name} is missing: the {self.form.name} law reads {', '.join(self.form.columns)}")
            models[name] = _as_numbers(name, arguments[name])
            low, high = table.BOUNDS.get(name, (-np.inf, np.inf))
            bad = ~((low <= models[name]) & (models[name] <= high))
            if bad.any():
                first = models[name].flat[int(np.argmax(bad))]
                raise UserError(f"{name}: found {first:g}, expected a number from {low:g} to {high:g}")
        try:
            np.broadcast_shapes(*(values.shape for values in models.values()))
        except ValueError:
            shapes = ", ".join(f"{name} {values.shape}" for name, values in models.items())
            raise UserError(f"shapes of {shapes}: expected arrays that broadcast together") from None
        return models

    def _check_names(self, names: Iterable[str]) -> None:
        """Raises UserError at the first of these names of columns that no law reads."""
        known = {"n_active", "n_tokens", "n_experts", *self.form.columns}
        for form in FORMS.values():
            known.update(form.columns)
        for name in names:
            if name not in known:
                near = difflib.get_close_matches(name, sorted(known), 1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise UserError(f"{name}: no law reads such a column{hint}")

    def check_experts(self, n_experts: object, field: str) -> None:
        """Raises UserError where one of these numbers of experts is not the only one for which the law holds.

        Args:
          field: what the error calls it.
        """
        if self.only_n_experts is None:
            return
        values = np.atleast_1d(_as_numbers(field, n_experts))
        others = values[values != self.only_n_experts]
        if others.size:
            raise UserError(f"{field}={others[0]:g}: {self.only_words}")

    def columns_of(self, models: Table) -> dict[str, Array]:
        """The columns that the law reads of a table of models, their parameters counted as it counts them.

        Raises:
          UserError: names the first row with a value that no model has, or with a number of experts for which the law
            does not hold.
        """
        validate.require(models, self.form.columns)
        if self.only_n_experts is not None and "n_experts" in models:
            for row, value in zip(models.rows, models.numbers("n_experts"), strict=True):
                if value != self.only_n_experts:
                    where = f"{models.path}, row {row}, column n_experts"
                    raise UserError(f"{where}: found {value:g}; {self.only_words}")
        columns = {name: models.numbers(name) for name in self.form.columns}
        return self.counting.of_table(models, columns)

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

        It is a draw's drift times ln(FLOPs / C) beyond the largest C that the law was fitted to, and 0 for a law
        without rolling hold-outs.

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
        n_active: Any = None,
        n_tokens: ArrayLike | None = None,
        n_experts: ArrayLike | None = None,
        new_run: bool = False,
        **columns: ArrayLike | None,
    ) -> Array:
        """Percentiles of the loss of models; takes what `predict` takes.

        Args:
          new_run: the interval of a new run, which has its own error too. Fitting more runs does not reduce that.

        Returns:
          (low, high) of the loss in nats per token, each of the models' shape: over the bootstrap's draws and, beyond
          the fitted runs, the form's own error where rolling hold-outs measured it.

        Raises:
          UserError: as `predict`; for a law without draws, or for a new run where the law does not know its noise.
        """
        models = self._models_of(n_active, n_tokens, n_experts, columns)
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


def _as_numbers(field: str, value: Any) -> Array:
    """A number, a list or an array as float64 numbers. Raises UserError where it is none.

    Args:
      field: What the error calls it.
    """
    try:
        return np.asarray(value, float)
    except (TypeError, ValueError):
        raise UserError(f"{field}: found {table.shown(value)}, expected numbers") from None
