"""A law's form: what its page in fit/laws/ declares, and all that follows from that.

The solver does not move the coefficients c themselves but a vector `params` with one entry for each: ln c if c is
positive, ln(c / other - 1) if c must stay above another coefficient, ln(1 / c - 1) if it is a share, else c itself. A
page's formula reads a dictionary `c` that holds the coefficients by name and also the entries of `params` by theirs:
"ln a", "ln(E_max / E_start - 1)".

Axes: n coefficients of a law; k starts; p entries of a prior.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import pathlib
import typing
from collections.abc import Callable, Collection, Mapping
from types import ModuleType

import numpy as np

from fit.aliases import Array, ByName, Floats, Numbers
from fit.results import Record, optional
from fit.table.runs import Runs

SMALLEST_EXPONENT = 1e-6  # in size: below it a prior of its logarithm no longer pulls
SMALLEST_RATIO = 1e-300  # of a share that is exactly 1; its logarithm is below all bounds


@dataclasses.dataclass(frozen=True)
class Coefficient:
    """One coefficient, as a page declares it.

    Attributes:
      starts: its values in the published grid; for one that is `above` another, values of c / other - 1.
      positive: whether it must be positive; one that is `above` another is positive too.
      above: the coefficient that it must stay above, by name.
      share: whether it lies in (0, 1]; at the lower of its bounds it is exactly 1.
      prior: mean and standard deviation of its entry of `params`, weighed against the scatter of the runs.
      bounds: of its entry of `params`; beyond them the loss in float64 no longer changes.
      slopes: {column: (other coefficient, divisor)}. Its entry of `params` changes by other / divisor for each unit
        that the origin of ln column moves: in a N^alpha the slope of ln a in ln N is alpha.
      identified_by: {column: times} of a coefficient that data often leave open, so that it has a profile. Runs at
        `times` the largest value so far would identify it, or at the smallest value where times is 0.
      tried: the smallest and largest value that its profile tries.
    """

    starts: Floats
    positive: bool = False
    above: str | None = None
    share: bool = False
    prior: tuple[float, float] | None = None
    bounds: tuple[float, float] | None = None
    slopes: dict[str, tuple[str, float]] = dataclasses.field(default_factory=dict)
    identified_by: dict[str, float] | None = None
    tried: tuple[float, float] = (1e-6, 1e3)

    def entry_name(self, name: str) -> str:
        """The value in `params` for the coefficient of this name."""
        if self.above:
            return f"ln({name} / {self.above} - 1)"
        if self.share:
            return f"ln(1 / {name} - 1)"
        return f"ln {name}" if self.positive else name

    @property
    def entry_bounds(self) -> tuple[float, float]:
        """Bounds of its entry of `params`, also where the page declares none."""
        if self.bounds:
            return self.bounds
        if self.above:
            return -14, 30
        return (-300, 300) if self.positive else (-20, 20)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PriorSummary(Record):
    """A prior as law.json describes it.

    Attributes:
      law: The law that it is from, or population.
      spreads: {coefficient: (mean, standard deviation)}.
      not_taken: Coefficients for which that law has no value.
      tables: Of how many tables the population's prior is.
      left_out: The source that it leaves out.
      yielded: Where the prior was given up because the fit with it was worse, by how many times the variance.
      by_default: Whether the population's prior was the default.
    """

    law: str
    spreads: dict[str, tuple[float, float]]
    not_taken: tuple[str, ...] = ()
    tables: int | None = optional()
    left_out: str | None = optional()
    yielded: float | None = optional()
    by_default: bool | None = optional()


@dataclasses.dataclass(frozen=True)
class Prior:
    """A normal or Student-t prior of entries of `params`, or of logarithms of their sizes, and of sums of entries; p in
    all.

    Attributes:
      entries: their indices in `params`.
      signs: for each entry 0 where the prior is of the entry itself, and 1 or -1 where it is of ln(sign * entry), as of
        an exponent.
      mean: [p].
      covariance: [p, p]; of a Student-t prior its scale matrix.
      summary: what a law.json says of it.
      scatter: standard deviation of a run's log loss around the law, where the runs are too few to show it; each entry
        then counts as a run when it is asked whether they determine a law.
      sums: for each sum the factor of each entry of `params`; they follow the entries in mean and covariance.
      freedom: degrees of freedom of a Student-t prior, whose pull gives way far from the mean; None for a normal one.
    """

    entries: tuple[int, ...]
    signs: tuple[int, ...]
    mean: Array
    covariance: Array
    summary: PriorSummary | None = None
    scatter: float | None = None
    sums: tuple[tuple[float, ...], ...] = ()
    freedom: float | None = None

    def pull(self, params: Array, fixed: Collection[int] = ()) -> float:
        """The weight of the normal prior of this mean and covariance that pulls at params [n] as this prior does.

        With d the distance to the mean in standard deviations, a Student-t prior of f degrees of freedom adds
        (f + p) / 2 ln(1 + d^2 / f) to the objective. Its slope is that of w d^2 / 2 with w = (f + p) / (f + d^2).

        Args:
          fixed: indices of entries that do not count.
        """
        if self.freedom is None:
            return 1.0
        root = self.root_weight(fixed)
        counted = int(np.sum(np.any(root != 0, axis=1)))
        squared_distance = float(np.sum((root @ (self.measure(params) - self.mean)) ** 2))
        return (self.freedom + counted) / (self.freedom + squared_distance)

    def measure(self, params: Array, xp: ModuleType = np) -> Array:
        """[p, ...] of params [n, ...]: what the prior is of."""
        rows = []
        for entry, sign in zip(self.entries, self.signs, strict=True):
            row = params[entry]
            if sign:
                row = xp.log(xp.maximum(sign * row, SMALLEST_EXPONENT))
            rows.append(row)
        for factors in self.sums:
            rows.append(xp.tensordot(np.array(factors), params, 1))
        return xp.stack(rows)

    def slopes(self, params: Array) -> Array:
        """[p, n]: derivatives of `measure` at params [n]."""
        out = np.zeros((len(self.entries), len(params)))
        for row, (entry, sign) in enumerate(zip(self.entries, self.signs, strict=True)):
            out[row, entry] = 1 / (sign * max(sign * params[entry], SMALLEST_EXPONENT)) if sign else 1.0
        return np.concatenate([out, np.reshape(self.sums, (len(self.sums), len(params)))])

    def root_weight(self, fixed: Collection[int] = ()) -> Array:
        """[p, p]: R with |R (measure - mean)|^2 the square of the distance to the mean in standard deviations.

        Args:
          fixed: indices of entries that do not count; R is then that of the others alone.
        """
        counted = np.ones(len(self.mean), bool)
        counted[: len(self.entries)] = [entry not in fixed for entry in self.entries]
        root = np.zeros_like(self.covariance)
        block = np.ix_(counted, counted)
        root[block] = np.linalg.inv(np.linalg.cholesky(self.covariance[block]))
        return root


class Reduced(typing.NamedTuple):
    """A Chinchilla law, L = (m N^mu + n D^nu)^k + c (Eq. 5 has k = 1), with coefficients of one shape.

    Many laws are one at each number of experts.
    """

    m: Array
    mu: Array
    n: Array
    nu: Array
    c: Array
    k: Numbers = 1.0

    def loss(self, n_active: Numbers, n_tokens: Numbers) -> Array:
        """Nats per token."""
        return (self.m * n_active**self.mu + self.n * n_tokens**self.nu) ** self.k + self.c


def _reduced(page: typing.Any, c: ByName, n_experts: Numbers) -> Reduced:
    """The Chinchilla law that a page's law is at these numbers of experts."""
    return Reduced(*page.chinchilla_coefficients_at(c, n_experts))


class Form:
    """A page as fit uses it: a module with what laws/__init__.py lists.

    Attributes:
      page: the module.
      name: of the law.
      columns: what it reads of a run besides the loss.
      presets: {name: published coefficients and their source}.
      coefficients: {name: Coefficient}.
      names: of the coefficients, in order.
      param_names: of the entries of `params`, in the same order.
      ordered: [(i, j)] of coefficients i that must stay above coefficients j.
      shares: names of the coefficients that are shares, such as k.
      positive: names of those that must be positive.
      slopes: {column: [n, n]}, by which entries of `params` an entry changes for each unit that the origin of ln column
        moves.
      exponents: {column: (coefficient, divisor)}, the exponent of each column's own term, such as alpha of a N^alpha;
        of several terms the first. Divided by its divisor it has the sign of that term's a.
      separate: SEPARATE of the page, or None.
      chinchilla_coefficients_at: the Chinchilla law at each number of experts, where the law is one.
      bounds: of the entries of `params`, [n, 2].
      prior: of the entries whose coefficients declare one; with_prior puts another in its place.
      replaced: the form whose prior with_prior replaced, or None.
      published: the published starts of each entry of `params`.
      spans: the lowest and the highest of them.
    """

    def __init__(self, page: typing.Any) -> None:
        self.page = page
        self.columns = page.COLUMNS
        self.presets = page.PRESETS
        self.name = getattr(page, "NAME", None) or pathlib.Path(page.__file__).stem
        self.coefficients: dict[str, Coefficient] = page.COEFFICIENTS
        self.names = tuple(self.coefficients)
        self.param_names = tuple(c.entry_name(name) for name, c in self.coefficients.items())
        declarations = list(self.coefficients.values())
        self.ordered = [(i, self.names.index(c.above)) for i, c in enumerate(declarations) if c.above]
        self.shares = [name for name, c in self.coefficients.items() if c.share]
        self.positive = {name for name, c in self.coefficients.items() if c.positive or c.above}
        self.slopes = self._slopes()
        self.exponents = dict(reversed([slope for c in declarations if c.positive for slope in c.slopes.items()]))
        self.separate: typing.Any = getattr(page, "SEPARATE", None)
        self.chinchilla_coefficients_at: Callable[[ByName, Numbers], Reduced] | None = None
        if hasattr(page, "chinchilla_coefficients_at"):
            self.chinchilla_coefficients_at = functools.partial(_reduced, page)
        self.bounds = np.array([c.entry_bounds for c in declarations], float)
        self.prior = self._declared_prior()
        self.replaced: Form | None = None
        self.published = [self._start_entries(name) for name in self.names]
        self.spans = [(float(entries.min()), float(entries.max())) for entries in self.published]

    def _slopes(self) -> dict[str, Array]:
        all_slopes: dict[str, Array] = {}
        for i, coefficient in enumerate(self.coefficients.values()):
            for column, (other, divisor) in coefficient.slopes.items():
                slopes = all_slopes.setdefault(column, np.zeros((len(self.names), len(self.names))))
                slopes[i, self.names.index(other)] = 1 / divisor
        return all_slopes

    def _declared_prior(self) -> Prior | None:
        """The prior of the coefficients that declare one; None where none does."""
        declared = [(i, *c.prior) for i, c in enumerate(self.coefficients.values()) if c.prior]
        if not declared:
            return None
        entries, means, deviations = zip(*declared, strict=True)
        return Prior(entries, (0,) * len(entries), np.array(means), np.diag(np.square(deviations)))

    def _start_entries(self, name: str) -> Array:
        """The published starts of a coefficient as entries of `params`."""
        values = np.array(self.coefficients[name].starts, float)
        if name in self.shares:
            return np.log(1 / values - 1)
        return np.log(values) if name in self.positive else values

    def of_loss_alone(self) -> Form:
        """This form without its closed form of an optimum: plans then ask it for losses only."""
        form = copy.copy(self)
        form.chinchilla_coefficients_at = None
        return form

    def smallest_share(self, name: str) -> float:
        """The smallest value that a share, such as k, can have: that at the upper of its bounds."""
        return float(1 / (1 + np.exp(self.bounds[self.names.index(name), 1])))

    def with_prior(self, prior: Prior) -> Form:
        """This form with another prior."""
        form = copy.copy(self)
        form.prior = prior
        form.replaced = self
        return form

    def log_loss(self, params: Array, columns: ByName, xp: ModuleType = np) -> Array:
        """ln of the loss in nats per token.

        Args:
          params: [n, ...]; it and the columns broadcast together.
          columns: of the models by name, also as "ln NAME" where the logarithm is known.
          xp: numpy, or jax.numpy in compiled code.
        """
        x = dict(columns)
        with np.errstate(divide="ignore"):  # no page reads the logarithm of a column that may be zero
            for name in self.columns:
                x.setdefault(f"ln {name}", xp.log(x[name]))
        return self.page.log_loss(xp, self._by_name(params, xp), x)

    def _by_name(self, params: Array, xp: ModuleType) -> dict[str, Array]:
        """The coefficients of params [n, ...] by name, and the entries of `params` by theirs."""
        c = dict(zip(self.param_names, params, strict=True))
        for (name, coefficient), entry in zip(self.coefficients.items(), params, strict=True):
            if coefficient.above:
                c[f"ln {name}"] = c[f"ln {coefficient.above}"] + xp.logaddexp(0.0, entry)
            if coefficient.share:
                c[name] = 1 / (1 + xp.exp(entry))
            elif name in self.positive:
                c[name] = xp.exp(c[f"ln {name}"])
        return c

    def to_coefficients(self, params: Array) -> Array:
        """Coefficients [..., n] of params [..., n]."""
        c = self._by_name(np.moveaxis(np.asarray(params), -1, 0), np)
        return np.stack([c[name] for name in self.names], axis=-1)

    def to_params(self, c: ByName) -> Array:
        """params [n, ...] of coefficients by name, numbers or arrays."""
        params = []
        for (name, coefficient), bounds in zip(self.coefficients.items(), self.bounds, strict=True):
            if coefficient.share:
                with np.errstate(divide="ignore"):
                    entry = np.clip(np.log(1 / np.asarray(c[name], float) - 1), *bounds)
            elif coefficient.above:
                entry = np.log(c[name] / c[coefficient.above] - 1)
            elif coefficient.positive:
                entry = np.log(c[name])
            else:
                entry = c[name]
            params.append(entry)
        return np.array(params)

    def recentre(self, params: Array, origin: Mapping[str, float], xp: ModuleType = np) -> Array:
        """params [n, ...] of the same law with ln column measured from `origin` {column: number}."""
        shift = sum(origin[column] * slopes for column, slopes in self.slopes.items())
        return params + xp.tensordot(shift, params, 1) if self.slopes else params

    def fix(self, params: Array, fixed_values: Array, xp: ModuleType = np) -> Array:
        """params [n, ...] with some coefficients fixed.

        If only the upper of two ordered coefficients is fixed, the lower follows from their ratio and so stays below.

        Args:
          fixed_values: of the coefficients in the order of names, [n, ...], NaN where one is free.
        """
        is_fixed = ~xp.isnan(fixed_values)
        column = (-1, *[1] * (params.ndim - 1))
        value = xp.where(is_fixed, fixed_values, 1.0)
        positive = is_fixed & np.reshape([c.positive for c in self.coefficients.values()], column)
        rows = xp.where(is_fixed, fixed_values, params)
        rows = xp.where(positive, xp.log(xp.where(positive, fixed_values, 1.0)), rows)
        if self.shares:  # the bounds make of it what stands for exactly 1
            share = is_fixed & np.reshape([c.share for c in self.coefficients.values()], column)
            ratio = xp.maximum(1 / xp.where(share, fixed_values, 1.0) - 1, SMALLEST_RATIO)
            rows = xp.where(share, xp.log(ratio), rows)
        place = np.arange(len(self.names)).reshape(column)
        for i, j in self.ordered:
            low = xp.log(value[j])
            high = xp.log(value[i])
            both = is_fixed[i] & is_fixed[j]
            ratio = xp.where(both, xp.log(xp.expm1(xp.where(both, high - low, 1.0))), params[i])
            lower = xp.where(is_fixed[j], low, xp.where(is_fixed[i], high - xp.logaddexp(0.0, ratio), params[j]))
            rows = xp.where(place == i, ratio, xp.where(place == j, lower, rows))
        return rows

    def begin(self, params: Array, fixed_values: Array) -> Array:
        """The params [n, ...] at which a search begins that holds coefficients at fixed_values [n, ...].

        If only the upper of two ordered coefficients is fixed, the lower begins at its value in `params`.
        """
        rows = list(params)
        for i, j in self.ordered:
            alone = np.isnan(fixed_values[j]) & ~np.isnan(fixed_values[i])
            gap = np.log(np.where(alone, fixed_values[i], np.e)) - np.where(alone, params[j], 0)
            rows[i] = np.where(alone, np.log(np.expm1(np.maximum(gap, 0.1))), params[i])
        return np.stack(rows)

    def moving(self, fixed_values: Array) -> Array:
        """bool [n, ...]: which entries of `params` a search moves that holds coefficients at fixed_values [n, ...]."""
        rows = list(np.isnan(fixed_values))
        for i, j in self.ordered:
            upper = rows[i]
            lower = rows[j]
            rows[i] = upper | lower
            rows[j] = upper & lower
        return np.stack(rows)

    def starts(self) -> Array:
        """The published grid of starts, rows of `params` [k, n] for columns that are not centred."""
        return np.array(list(itertools.product(*self.published)))

    def scaled_starts(self, rng: np.random.Generator, count: int, runs: Runs) -> Array:
        """Random starts, rows of `params` [count, n] for columns centred by the means of their logarithms.

        The page's scaled_starts draws them to fit the runs. Without one they are from the span of the published grid.
        """
        if hasattr(self.page, "scaled_starts"):
            drawn = self.page.scaled_starts(rng, count, runs)
            return np.stack([drawn[name] for name in self.param_names], axis=1)
        params = np.stack([rng.uniform(low, high, count) for low, high in self.spans])
        return self.recentre(params, {name: np.mean(np.log(runs.columns[name])) for name in self.slopes}).T
