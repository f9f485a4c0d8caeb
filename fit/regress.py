"""Fit a law to runs: one objective, searched from many starts at once, in float64.

  objective = reduce_i w_i Huber_delta(ln L_predicted,i - ln L_i) + weight_decay / 2 |free|^2

`free` are the law's parameters as the solver moves them (scales in logarithm), reduce is the sum, or the mean over the
runs. Written as half a sum of squares (the Huber loss by its square root) for Levenberg-Marquardt; L-BFGS minimises the
same number.
"""
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import tqdm

from fit import UserError
from fit import solvers
from fit.laws import FORMS

BATCH = 64  # starts compiled together: their Jacobians of a few hundred runs stay in the cache
SEARCH_RUNS = 2000  # above so many runs the search uses a sample of them and only its best starts see all


@dataclasses.dataclass(frozen=True)
class Settings:
  """How to fit. huber_delta in log loss; reduction sum or mean; starts: a number, or 0 for the law's whole grid."""
  huber_delta: float = 1e-2
  reduction: str = "sum"
  weight_decay: float = 0.0
  starts: int = 256
  solver: str = "lm"
  seed: int = 0


@dataclasses.dataclass
class Fit:
  """free [n]: the best parameters; objective: its value; objectives [starts] and frees [starts, n]: of each start."""
  form: str
  free: np.ndarray
  objective: float
  frees: np.ndarray
  objectives: np.ndarray
  gradient_norm: float

  @property
  def coefficients(self):
    law = FORMS[self.form]
    return dict(zip(law.COEFFICIENTS, np.asarray(law.to_coefficients(self.free)).tolist()))


@functools.lru_cache(maxsize=None)
def residual_function(form):
  """residuals(x [n], data) -> [n_runs + n]; x are the law's parameters for centred columns, data as prepare gives."""
  law = FORMS[form]

  def residuals(x, data):
    r = law.log_loss(x, data["ln_n"], data["ln_d"], data["n_experts"]) - data["log_loss"]
    size, delta = jnp.abs(r), data["delta"]
    beyond = size > delta
    tail = jnp.sqrt(jnp.where(beyond, 2 * delta * size - delta**2, 1.0))  # double where: no NaN in its gradient
    r = jnp.where(beyond, jnp.sign(r) * tail, r)
    free = law.recentre(x, -data["shift_n"], -data["shift_d"])
    return jnp.concatenate([data["root_weight"] * r, jnp.sqrt(data["weight_decay"]) * free])
  return residuals


def prepare(runs, settings, weights=None):
  """The data that residual_function reads; weights [n_runs] multiply each run's loss."""
  weights = np.ones(len(runs)) if weights is None else np.asarray(weights, float)
  ln_n, ln_d = np.log(runs.n_active), np.log(runs.n_tokens)
  scale = 1.0 if settings.reduction == "sum" else 1.0 / len(runs)
  shift_n, shift_d = ln_n.mean(), ln_d.mean()
  return dict(ln_n=ln_n - shift_n, ln_d=ln_d - shift_d, n_experts=runs.n_experts, log_loss=np.log(runs.loss),
              root_weight=np.sqrt(weights * scale), delta=np.float64(settings.huber_delta),
              weight_decay=np.float64(settings.weight_decay), shift_n=shift_n, shift_d=shift_d)


def objective(form, free, data):
  """The objective of the law's own parameters `free` [n] on prepared data."""
  x = FORMS[form].recentre(jnp.asarray(free), data["shift_n"], data["shift_d"])
  return float(0.5 * jnp.sum(residual_function(form)(x, data) ** 2))


def take(data, rows):
  """Prepared data of some runs only."""
  per_run = ("ln_n", "ln_d", "n_experts", "log_loss", "root_weight")
  return {k: v[rows] if k in per_run else v for k, v in data.items()}


def run_batches(solve, starts, data, progress=None):
  """solve over all starts in batches of one compiled size; returns stacked (x, objective, gradient norm)."""
  batch = min(BATCH, len(starts))
  padded = np.concatenate([starts, np.repeat(starts[-1:], -len(starts) % batch, axis=0)])
  outs = []
  for i in range(0, len(padded), batch):
    outs.append([np.asarray(o) for o in solve(padded[i:i + batch], data)])
    if progress is not None:
      progress.update(min(batch, len(starts) - i))
      progress.set_postfix_str(f"best objective {np.nanmin(np.concatenate([o[1] for o in outs])):.6g}")
  return [np.concatenate(o)[:len(starts)] for o in zip(*outs)]


def fit(form, runs, settings=Settings(), weights=None, quiet=False):
  """The best fit of a law to runs. Raises UserError when the runs cannot determine the law at all."""
  law = FORMS[form]
  check_enough(form, runs)
  data = prepare(runs, settings, weights)
  centre = jax.vmap(lambda f, n, d: law.recentre(f, n, d), in_axes=(0, None, None))
  rng = np.random.default_rng(settings.seed)
  starts = law.starts()
  if 0 < settings.starts < len(starts):
    starts = starts[rng.choice(len(starts), settings.starts, replace=False)]
  starts = np.asarray(centre(starts, data["shift_n"], data["shift_d"]))

  search = data
  if len(runs) > SEARCH_RUNS:
    search = take(data, np.sort(rng.choice(len(runs), SEARCH_RUNS, replace=False)))
  residuals = residual_function(form)
  solve = solvers.SOLVERS[settings.solver](residuals, 100 if settings.solver == "lm" else 300, 1e-10, None)
  with tqdm.tqdm(total=len(starts), desc=f"fit {form}", unit="start", disable=quiet, leave=False) as progress:
    x, values, _ = run_batches(solve, starts, search, progress)
  values = np.where(np.isfinite(values), values, np.inf)
  # The best few go on to the end, whatever solver found them.
  best = np.argsort(values, kind="stable")[:8 if len(runs) <= SEARCH_RUNS else 2]
  polish = solvers.least_squares(residuals, 2000 if len(runs) <= SEARCH_RUNS else 100, 1e-13, None)
  polished, polished_values, errors = [np.asarray(o) for o in polish(x[best], data)]
  if len(runs) <= SEARCH_RUNS:
    x[best], values[best] = polished, polished_values
  winner = int(np.nanargmin(polished_values))
  frees = np.asarray(centre(x, -data["shift_n"], -data["shift_d"]))
  free = np.asarray(law.recentre(polished[winner], -data["shift_n"], -data["shift_d"]))
  return Fit(form, free, float(polished_values[winner]), frees, values, float(errors[winner]))


def check_enough(form, runs):
  """UserError when there are fewer distinct runs than coefficients, or a column of the law that never changes."""
  law = FORMS[form]
  columns = np.stack([getattr(runs, name) for name in law.COLUMNS])
  distinct = len(np.unique(columns, axis=1).T)
  if distinct < len(law.FREE):
    raise UserError(f"{runs.path}: found {distinct} distinct run{'s' * (distinct != 1)} to fit; the {form} law has "
                    f"{len(law.FREE)} coefficients and needs at least as many")
  for name, column in zip(law.COLUMNS, columns):
    if len(np.unique(column)) < 2:
      raise UserError(f"{runs.path}, column {name}: found {column[0]:g} in every run to fit; the {form} law needs at "
                      "least 2 different values")
