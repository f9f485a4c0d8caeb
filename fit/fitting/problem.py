"""A fit as a least-squares problem in float64: the runs, weighted, and the residuals that compiled code computes.

  objective = reduce_i w_i Huber_delta(ln L_predicted,i - ln L_i) + weight_decay / 2 |free|^2
              + variance / 2 d(free)^2, d the distance to the mean of the form's Prior in standard deviations

`free` is the vector that stands for a law's coefficients (fit/form.py); reduce is the sum, or the mean over the runs.
For Levenberg-Marquardt it is written as half a sum of squares, with the square root of the Huber loss. The solver moves
x, which is `free` for centred columns: these make the normal equations well conditioned. What differs from start to
start is data (PER_START), and tables are filled up with runs of no weight to one of a few lengths: so all searches of a
law over tables of about the same length share one compiled program.

Axes: n coefficients; r runs, filled up; k starts.
"""

import dataclasses
import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from fit.aliases import Array, Floats
from fit.data.runs import Runs, subset
from fit.form import Form

Data = dict[str, Any]  # see Problem
Residuals = Callable[[Any, Data], jax.Array]  # of x [n], an array of numpy or jax
PER_START = ("log_loss", "root_weight", "held", "moving", "prior_mean")  # what may differ from start to start


@dataclasses.dataclass(frozen=True)
class Settings:
    """How to fit, and what to do beside it. huber_delta in log loss; reduction sum or mean; starts: how many random
    ones, scaled to the runs, or 0 for the law's published grid; fix: ((coefficient, value), ...) that the fit holds;
    variance: of a run's log loss around the law, against which priors are weighed, 0 for none of them.

    holdout, weights: rules of runs.held_out and run_weights, weights None where none are asked for; select:
    objective or rmse; bootstrap: how many draws; bootstrap_form: one of law_check.WAYS_OF_DRAWING; bootstrap_by: what
    shares an error, as runs.trunks_of takes it; quiet: no progress on stderr."""

    huber_delta: float = 1e-2
    reduction: str = "sum"
    weight_decay: float = 0.0
    starts: int = 128
    solver: str = "lm"
    seed: int = 0
    fix: tuple[tuple[str, float], ...] = ()
    variance: float = 0.0
    holdout: str = "none"
    weights: str | None = None
    select: str = "objective"
    mix_corpora: bool = False
    bootstrap: int = 0
    bootstrap_form: str = "errors"
    bootstrap_by: str = "trunk"
    percentiles: tuple[float, float] = (10.0, 90.0)
    quiet: bool = True


@dataclasses.dataclass
class Problem:
    """A law's form to be fitted to runs. sample_of: of how many runs these are a sample. data, for compiled code:

    columns {name and "ln name": [r]}; log_loss, root_weight [r] or [k, r]; delta; weight_decay
    centre {column: mean of its logarithm}
    held, moving [n] or [k, n]: coefficients at values, NaN where free; 1 where the search moves the entry of x
    prior_mean [p] or [k, p], prior_root [p, p]: of the form's Prior, the root weighed by the runs' variance; p is 0
    where it has none
    """

    form: Form
    runs: Runs
    settings: Settings
    sample_of: int
    data: Data

    def __len__(self) -> int:
        return len(self.runs)

    @property
    def fixed(self) -> dict[str, float]:
        return dict(self.settings.fix)

    def changed(self, **data: Any) -> Self:
        """The same problem with other data."""
        return dataclasses.replace(self, data=self.data | data)

    def holding(self, held: Floats) -> Self:
        """The same problem with other coefficients held: [n] or [k, n], NaN where one is free."""
        held = np.asarray(held, float)
        return self.changed(held=held, moving=self.form.moving(held.T).T.astype(float))

    def part(self, rows: Array) -> Self:
        """The same problem with the runs `rows` (indices) alone, filled up again."""
        more = padded_length(len(rows)) - len(rows)

        def take(values: Array) -> Array:
            """The rows of the part, filled up with copies of its first row."""
            return np.concatenate([values[rows], np.repeat(values[rows[:1]], more)])

        columns = {name: take(values) for name, values in self.data["columns"].items()}
        root_weight = np.append(self.data["root_weight"][rows], np.zeros(more))
        part = self.changed(columns=columns, log_loss=take(self.data["log_loss"]), root_weight=root_weight)
        return dataclasses.replace(part, runs=subset(self.runs, rows))

    def filled(self, rows: Array) -> Array:
        """[..., n_runs] filled up to [..., r] with zeros."""
        return np.pad(rows, [(0, 0)] * (np.ndim(rows) - 1) + [(0, self.data["log_loss"].shape[-1] - len(self.runs))])

    def centre(self, frees: Array) -> Array:
        """The solver's x [k, n] from which it begins at the law's own `free` [k, n]."""
        frees = np.asarray(frees, float)
        held = np.broadcast_to(self.data["held"], frees.shape).T
        x = self.form.recentre(self.form.begin(frees.T, held), self.data["centre"]).T
        return np.where(self.data["moving"] > 0, x, 0.0)

    def own(self, x: Array) -> Array:
        """The law's own `free` [k, n] of the solver's x [k, n]."""
        held = np.broadcast_to(self.data["held"], np.shape(x)).T
        return place(self.form, np.asarray(x).T, self.data | {"held": held}, np).T


def prepare(form: Form, runs: Runs, settings: Settings = Settings(), sample_of: int | None = None) -> Problem:
    """The Problem; the coefficients that the settings fix are held."""
    n = len(runs)
    with np.errstate(divide="ignore"):  # of a column that may be zero, such as sparsity
        logs = {name: np.log(runs.columns[name]) for name in form.columns}
    centre = {name: logs[name].mean() for name in form.slopes}
    # the centre is taken off and put back so that a fit gives the same last bits as it always did
    logs |= {name: (logs[name] - centre[name]) + centre[name] for name in form.slopes}
    scale = 1.0 if settings.reduction == "sum" else 1.0 / n
    data = dict(
        columns={name: runs.columns[name] for name in form.columns} | {f"ln {name}": v for name, v in logs.items()},
        log_loss=np.log(runs.loss),
        root_weight=np.sqrt(runs.weights * scale),
        delta=np.float64(settings.huber_delta),
        weight_decay=np.float64(settings.weight_decay),
        prior_mean=np.zeros(0),
        prior_root=np.zeros((0, 0)),
        centre=centre,
    )
    held = [dict(settings.fix).get(name, np.nan) for name in form.names]
    if form.prior:
        fixed = np.flatnonzero(np.isfinite(held))
        data["prior_mean"] = form.prior.mean
        data["prior_root"] = np.sqrt(settings.variance * scale) * form.prior.root_weight(fixed)
    return Problem(form, runs, settings, sample_of or n, data).part(np.arange(n)).holding(held)


def padded_length(n: int) -> int:
    """The number of rows that n runs are filled up to: an eighth more at most (or a multiple of 32); n above 4,096."""
    step = max(32, 2 ** (int(n).bit_length() - 4))
    return n if n > 4096 else -(-n // step) * step


def place(form: Form, x: Any, data: Data, xp: ModuleType = jnp) -> Any:
    """The law's own `free` [n, ...] of the solver's x [n, ...]: for columns as they are, with coefficients held as
    data["held"] [n, ...] says, within the form's bounds. Entries of x that nothing moves are 0."""
    low, high = (b.reshape(-1, *[1] * (x.ndim - 1)) for b in form.bounds.T)
    origin = {column: -value for column, value in data["centre"].items()}
    free = form.recentre(form.hold(x, data["held"], xp), origin, xp)  # exponents first: scales follow
    return xp.clip(form.hold(free, data["held"], xp), low, high)


@functools.cache
def residual_function(form: Form) -> Residuals:
    """residuals(x [n], data) -> [r + n]; data as a Problem has it, for one start."""

    def residuals(x: Any, data: Data) -> jax.Array:
        free = jax.lax.optimization_barrier(place(form, x, data))
        r = form.log_loss(free, data["columns"], jnp) - data["log_loss"]
        size = jnp.abs(r)
        delta = data["delta"]
        beyond = size > delta
        tail = jnp.sqrt(jnp.where(beyond, 2 * delta * size - delta**2, 1.0))  # double where: no NaN in its gradient
        r = jnp.where(beyond, jnp.sign(r) * tail, r)
        decay = jnp.where(data["moving"] > 0, jnp.sqrt(data["weight_decay"]) * free, x)
        rows = [data["root_weight"] * r, decay]
        if form.prior:
            rows.append(data["prior_root"] @ (form.prior.measure(free, jnp) - data["prior_mean"]))
        return jnp.concatenate(rows)

    return residuals
