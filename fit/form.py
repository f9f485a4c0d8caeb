"""A law's form: what its page in fit/laws/ declares, and all that follows from that.

The solver does not move the coefficients c themselves but a vector `free` with one entry for each: ln c if c is
positive, ln(c / other - 1) if c must stay above another coefficient, ln(1 / c - 1) if it is a share, else c itself. A
page's formula reads a dictionary `c` that holds the coefficients by name and also the entries of `free` by theirs:
"ln a", "ln(E_max / E_start - 1)".

Axes: n coefficients of a law; k starts.
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
from fit.data.runs import Runs

SMALLEST_EXPONENT = 1e-6  # in size: below it a prior of its logarithm no longer pulls


@dataclasses.dataclass(frozen=True)
class Coefficient:
    """One coefficient, as a page declares it.

    starts: its values in the published grid; for one that is `above` another, values of c / other - 1.
    positive: whether it must be; one that is `above` another coefficient (given by name) is positive too.
    share: whether it lies in (0, 1]; at the lower of its bounds it is exactly 1.
    prior: (mean, standard deviation) of its entry of `free`, weighed against the scatter of the runs.
    bounds: of its entry of `free`; beyond them the loss in float64 no longer changes.
    slopes: {column: (other coefficient, divisor)}: its entry of `free` changes by other / divisor for each unit that
        the origin of ln column moves: in a N^alpha the slope of ln a in ln N is alpha.
    pinned_by: for one that data often leave open, so that it has a profile: {column: times}, which runs would settle
                it: those at `times` its largest value so far or, where times is 0, at its smallest.
    tried: the smallest and largest value that its profile tries.
    """

    starts: Floats
    positive: bool = False
    above: str | None = None
    share: bool = False
    prior: tuple[float, float] | None = None
    bounds: tuple[float, float] | None = None
    slopes: dict[str, tuple[str, float]] = dataclasses.field(default_factory=dict)
    pinned_by: dict[str, float] | None = None
    tried: tuple[float, float] = (1e-6, 1e3)


@dataclasses.dataclass(frozen=True)
class Prior:
    """A normal prior of p entries of `free`, or of the logarithms of their sizes.

    entries: their indices in `free`. signs: for each entry 0 where the prior is of the entry itself, and 1 or -1 where
    it is of ln(sign * entry), as of an exponent. mean [p], covariance [p, p]. record: what a law.json says of it.
    """

    entries: tuple[int, ...]
    signs: tuple[int, ...]
    mean: Array
    covariance: Array
    record: dict[str, typing.Any] | None = None

    def measure(self, free: Array, xp: ModuleType = np) -> Array:
        """[p, ...] of free [n, ...]: what the prior is of."""
        rows = []
        for entry, sign in zip(self.entries, self.signs, strict=True):
            row = free[entry]
            if sign:
                row = xp.log(xp.maximum(sign * row, SMALLEST_EXPONENT))
            rows.append(row)
        return xp.stack(rows)

    def slopes(self, free: Array) -> Array:
        """[p, n]: derivatives of `measure` at free [n]."""
        out = np.zeros((len(self.entries), len(free)))
        for row, (entry, sign) in enumerate(zip(self.entries, self.signs, strict=True)):
            out[row, entry] = 1 / (sign * max(sign * free[entry], SMALLEST_EXPONENT)) if sign else 1.0
        return out

    def root_weight(self, fixed: Collection[int] = ()) -> Array:
        """[p, p]: R with |R (measure - mean)|^2 the square of the distance to the mean in standard deviations. Entries
        that are `fixed` (indices) do not count: R is then that of the others alone."""
        counted = np.array([entry not in fixed for entry in self.entries], bool)
        root = np.zeros_like(self.covariance)
        block = np.ix_(counted, counted)
        root[block] = np.linalg.inv(np.linalg.cholesky(self.covariance[block]))
        return root


class Reduced(typing.NamedTuple):
    """What a law is at a number of experts, where it is a Chinchilla law there: L = (m N^mu + n D^nu)^k + c (Eq. 5 has
    k = 1). Arrays of one shape."""

    m: Array
    mu: Array
    n: Array
    nu: Array
    c: Array
    k: Numbers = 1.0

    def loss(self, n_active: Numbers, n_tokens: Numbers) -> Array:
        """Nats per token."""
        return (self.m * n_active**self.mu + self.n * n_tokens**self.nu) ** self.k + self.c


def _entry(name: str, coefficient: Coefficient) -> str:
    """What stands for a coefficient in `free`."""
    if coefficient.above:
        return f"ln({name} / {coefficient.above} - 1)"
    if coefficient.share:
        return f"ln(1 / {name} - 1)"
    return f"ln {name}" if coefficient.positive else name


def _usual_bounds(coefficient: Coefficient) -> tuple[float, float]:
    """Bounds of an entry of `free` whose page declares none."""
    if coefficient.above:
        return -14, 30
    return (-300, 300) if coefficient.positive else (-20, 20)


def _reduced(page: typing.Any, c: ByName, n_experts: Numbers) -> Reduced:
    """The Chinchilla law that a page's law is at these numbers of experts."""
    return Reduced(*page.at_experts(c, n_experts))


class Form:
    """A page as fit uses it: a module with what laws/__init__.py lists."""

    def __init__(self, page: typing.Any) -> None:
        self.page = page
        self.columns = page.COLUMNS
        self.presets = page.PRESETS
        self.name = getattr(page, "NAME", None) or pathlib.Path(page.__file__).stem
        self.coefficients: dict[str, Coefficient] = page.COEFFICIENTS
        self.names = tuple(self.coefficients)
        declarations = self.coefficients.values()
        self.free = tuple(_entry(name, c) for name, c in self.coefficients.items())
        self.ordered = [(i, self.names.index(c.above)) for i, c in enumerate(declarations) if c.above]
        self.shares = [name for name, c in self.coefficients.items() if c.share]  # such as k
        self.positive = {name for name, c in self.coefficients.items() if c.positive or c.above}
        # {column: [n, n]}: by which entries of `free` an entry changes for each unit that the origin of ln column moves
        self.slopes: dict[str, Array] = {}
        for i, c in enumerate(declarations):
            for column, (other, divisor) in c.slopes.items():
                slopes = self.slopes.setdefault(column, np.zeros((len(self.names), len(self.names))))
                slopes[i, self.names.index(other)] = 1 / divisor
        # {column: (coefficient, divisor)}: the exponent of each column's own term (of several the first), such as alpha
        # of a N^alpha; divided by its divisor it has the sign of that term's a
        self.exponents = dict(reversed([slope for c in declarations if c.positive for slope in c.slopes.items()]))
        self.separate: typing.Any = getattr(page, "SEPARATE", None)
        self.at_experts: Callable[[ByName, Numbers], Reduced] | None = None
        if hasattr(page, "at_experts"):
            self.at_experts = functools.partial(_reduced, page)
        self.bounds = np.array([c.bounds or _usual_bounds(c) for c in declarations], float)
        declared = [(i, *c.prior) for i, c in enumerate(declarations) if c.prior]
        # of the entries whose coefficients declare one, until with_prior puts another in its place
        self.prior: Prior | None = None
        if declared:
            entries, means, deviations = zip(*declared, strict=True)
            self.prior = Prior(entries, (0,) * len(entries), np.array(means), np.diag(np.square(deviations)))
        self.published = [self._start_entries(name) for name in self.names]
        # the lowest and the highest published start of each entry of `free`
        self.spans = [(float(entries.min()), float(entries.max())) for entries in self.published]

    def _start_entries(self, name: str) -> Array:
        """The published starts of a coefficient as entries of `free`."""
        values = np.array(self.coefficients[name].starts, float)
        if name in self.shares:
            return np.log(1 / values - 1)
        return np.log(values) if name in self.positive else values

    def of_loss_alone(self) -> Form:
        """This form without its closed form of an optimum: plans then ask it for losses only."""
        form = copy.copy(self)
        form.at_experts = None
        return form

    def smallest_share(self, name: str) -> float:
        """The smallest value that a share, such as k, can have: that at the upper of its bounds."""
        return float(1 / (1 + np.exp(self.bounds[self.names.index(name), 1])))

    def with_prior(self, prior: Prior) -> Form:
        """This form with another prior."""
        form = copy.copy(self)
        form.prior = prior
        return form

    def log_loss(self, free: Array, columns: ByName, xp: ModuleType = np) -> Array:
        """ln of the loss in nats per token; free [n, ...] and the columns (by name) broadcast together.

        columns may hold "ln NAME" too, where the logarithm is known. xp: numpy, or jax.numpy in compiled code.
        """
        x = dict(columns)
        with np.errstate(divide="ignore"):  # no page reads the logarithm of a column that may be zero
            for name in self.columns:
                x.setdefault(f"ln {name}", xp.log(x[name]))
        return self.page.log_loss(xp, self._by_name(free, xp), x)

    def _by_name(self, free: Array, xp: ModuleType) -> dict[str, Array]:
        """The coefficients of free [n, ...] by name, and the entries of `free` by theirs."""
        c = dict(zip(self.free, free, strict=True))
        for (name, coefficient), entry in zip(self.coefficients.items(), free, strict=True):
            if coefficient.above:
                c[f"ln {name}"] = c[f"ln {coefficient.above}"] + xp.logaddexp(0.0, entry)
            if coefficient.share:
                c[name] = 1 / (1 + xp.exp(entry))
            elif name in self.positive:
                c[name] = xp.exp(c[f"ln {name}"])
        return c

    def to_coefficients(self, free: Array) -> Array:
        """Coefficients [..., n] of free [..., n]."""
        c = self._by_name(np.moveaxis(np.asarray(free), -1, 0), np)
        return np.stack([c[name] for name in self.names], axis=-1)

    def to_free(self, c: ByName) -> Array:
        """free [n, ...] of coefficients by name, numbers or arrays."""
        free = []
        for (name, coefficient), bounds in zip(self.coefficients.items(), self.bounds, strict=True):
            entry = np.log(c[name]) if coefficient.positive else c[name]
            if coefficient.above:
                entry = np.log(c[name] / c[coefficient.above] - 1)
            if coefficient.share:
                with np.errstate(divide="ignore"):
                    entry = np.clip(np.log(1 / np.asarray(c[name], float) - 1), *bounds)
            free.append(entry)
        return np.array(free)

    def recentre(self, free: Array, origin: Mapping[str, float], xp: ModuleType = np) -> Array:
        """free [n, ...] of the same law with ln column measured from `origin` {column: number}."""
        shift = sum(origin[column] * slopes for column, slopes in self.slopes.items())
        return free + xp.tensordot(shift, free, 1) if self.slopes else free

    def hold(self, free: Array, held: Array, xp: ModuleType = np) -> Array:
        """free [n, ...] with coefficients held at values: held [n, ...] in the order of names, NaN where one is free.

        If only the upper of two ordered coefficients is held, the lower follows from their ratio and so stays below.
        """
        is_held = ~xp.isnan(held)
        column = (-1, *[1] * (free.ndim - 1))
        value = xp.where(is_held, held, 1.0)
        positive = is_held & np.reshape([c.positive for c in self.coefficients.values()], column)
        rows = xp.where(positive, xp.log(xp.where(positive, held, 1.0)), xp.where(is_held, held, free))
        if self.shares:  # the bounds make of it what stands for exactly 1
            share = is_held & np.reshape([c.share for c in self.coefficients.values()], column)
            rows = xp.where(share, xp.log(xp.maximum(1 / xp.where(share, held, 1.0) - 1, 1e-300)), rows)
        place = np.arange(len(self.names)).reshape(column)
        for i, j in self.ordered:
            low = xp.log(value[j])
            high = xp.log(value[i])
            both = is_held[i] & is_held[j]
            ratio = xp.where(both, xp.log(xp.expm1(xp.where(both, high - low, 1.0))), free[i])
            lower = xp.where(is_held[j], low, xp.where(is_held[i], high - xp.logaddexp(0.0, ratio), free[j]))
            rows = xp.where(place == i, ratio, xp.where(place == j, lower, rows))
        return rows

    def begin(self, free: Array, held: Array) -> Array:
        """The free [n, ...] at which a search with held coefficients begins: if only the upper of two ordered
        coefficients is held, the lower begins at its value in `free`."""
        rows = list(free)
        for i, j in self.ordered:
            alone = np.isnan(held[j]) & ~np.isnan(held[i])
            gap = np.log(np.where(alone, held[i], np.e)) - np.where(alone, free[j], 0)
            rows[i] = np.where(alone, np.log(np.expm1(np.maximum(gap, 0.1))), free[i])
        return np.stack(rows)

    def moving(self, held: Array) -> Array:
        """bool [n, ...]: which entries of `free` the search still moves when `held` are held."""
        rows = list(np.isnan(held))
        for i, j in self.ordered:
            rows[i], rows[j] = rows[i] | rows[j], rows[i] & rows[j]
        return np.stack(rows)

    def starts(self) -> Array:
        """The published grid of starts, rows of `free` [k, n] for columns as they are."""
        return np.array(list(itertools.product(*self.published)))

    def scaled_starts(self, rng: np.random.Generator, count: int, runs: Runs) -> Array:
        """`count` random starts, rows of `free` for columns centred by the means of their logarithms: drawn by the
        page's scaled_starts to fit the runs or, without one, from the span of the published grid."""
        if hasattr(self.page, "scaled_starts"):
            drawn = self.page.scaled_starts(rng, count, runs)
            return np.stack([drawn[name] for name in self.free], axis=1)
        free = np.stack([rng.uniform(low, high, count) for low, high in self.spans])
        return self.recentre(free, {name: np.mean(np.log(runs.columns[name])) for name in self.slopes}).T
