"""The curve from loss to accuracy, and its least-squares fit in float64 to many resamples of the runs at once.

  accuracy = floor + (top - floor) / (1 + exp((loss + shift ln E - middle) / width))

It lies between floor and top at every loss. A known chance level counts as one more run: a model that has learned
nothing answers by chance. A wide prior, weighed against the scatter of the runs, holds what these leave open, such as a
top that no run comes near. In a resample the prior's centre is drawn as well, so that resamples differ in that, too.

Axes: k resamples; s starts of each; r runs; x [5] is (middle, ln width, logit of the top's share, logit of the floor,
shift), where losses are centred and scaled.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from fit.aliases import Array
from fit.fitting import solvers

CENTRE = np.array([-1.0, -0.5, 1.0, -1.5, 0.0])  # x of the prior: a curve that bends within the runs
DEVIATION = np.array([3.0, 0.7, 1.5, 2.0, 0.3])  # of x around it
FIRST_SCATTER = 1e-2  # of accuracies, before a first fit tells it
LEAST_SCATTER = 1e-4
STEPS = 200  # of the solver, at most
# middle and ln width of the starts, in standard deviations of the losses
STARTS = tuple((middle, width) for middle in (-2.0, -0.5, 1.0) for width in (-1.5, -0.3, 0.7))
LOGIT_MARGIN = 1e-9  # shares are clipped to [margin, 1 - margin] before the logit


@dataclasses.dataclass(frozen=True)
class Points:
    """The runs of one task.

    Attributes:
      loss: nats per token, [r].
      accuracy: shares, [r].
      log_experts: ln E, [r]; zeros for a map that does not read E.
      chance: accuracy of guessing; None where it is not known.
      fixes_floor: whether the floor is that chance level.
    """

    loss: Array
    accuracy: Array
    log_experts: Array
    chance: float | None
    fixes_floor: bool


def fit(
    points: Points, weights: Array, start: Array | None = None, scatter: float = FIRST_SCATTER, seed: int | None = None
) -> Array:
    """The curve of least squares for each resample. Needs jax in float64.

    Args:
      points: the runs of one task.
      weights: how often each run counts in each resample, [k, r].
      start: coefficients [5] of a nearby curve to start from; by default STARTS, of which the best result counts.
      scatter: standard deviation of a run's accuracy, against which the prior is weighed.
      seed: of the prior's centres, other ones in each resample; by default all have CENTRE.

    Returns:
      Coefficients (floor, top, middle, width, shift), [k, 5].
    """
    centre = float(np.mean(points.loss))
    scale = float(np.std(points.loss)) or 1.0
    if start is None:
        starts = np.array([(middle, log_width, *CENTRE[2:]) for middle, log_width in STARTS])
    else:
        starts = _to_x(start, centre, scale)[None]
    k = len(weights)
    s = len(starts)
    prior_mean = np.tile(CENTRE, (k, 1))
    if seed is not None:
        prior_mean = prior_mean + DEVIATION * np.random.default_rng(seed).standard_normal((k, len(CENTRE)))
    data = dict(
        loss=(points.loss - centre) / scale,
        accuracy=points.accuracy,
        log_experts=points.log_experts,
        root_weight=np.repeat(np.sqrt(weights), s, axis=0),
        prior_mean=np.repeat(prior_mean, s, axis=0),
        prior_weight=max(scatter, LEAST_SCATTER) / DEVIATION,
        chance=np.float64(points.chance or 0.0),
        counts_chance=np.float64(points.chance is not None),
        fixes_floor=np.float64(points.fixes_floor),
    )
    solve = solvers.least_squares(_residuals, STEPS, False)
    ends, objectives, _ = solve(np.tile(starts, (k, 1)), data)
    objectives = np.nan_to_num(np.asarray(objectives).reshape(k, s), nan=np.inf)
    best = np.asarray(ends).reshape(k, s, -1)[np.arange(k), np.argmin(objectives, axis=1)]
    return _to_coefficients(best, points, centre, scale)


def _residuals(x: jax.Array, data: solvers.Data) -> jax.Array:
    """Weighted errors of the runs [r], of the chance level [1], and of the prior [5]."""
    middle, log_width, top_share, floor_logit, shift = x
    floor = jnp.where(data["fixes_floor"] > 0, data["chance"], jax.nn.sigmoid(floor_logit))
    height = (1 - floor) * jax.nn.sigmoid(top_share)
    rise = jax.nn.sigmoid((middle - data["loss"] - shift * data["log_experts"]) * jnp.exp(-log_width))
    of_runs = data["root_weight"] * (floor + height * rise - data["accuracy"])
    of_chance = data["counts_chance"] * (floor - data["chance"])
    of_prior = data["prior_weight"] * (x - data["prior_mean"])
    return jnp.concatenate([of_runs, of_chance[None], of_prior])


def _to_x(coefficients: Array, centre: float, scale: float) -> Array:
    """The point x [5] of a curve."""
    floor, top, middle, width, shift = coefficients
    top_share = (top - floor) / (1 - floor)
    return np.array([(middle - centre) / scale, np.log(width / scale), _logit(top_share), _logit(floor), shift / scale])


def _logit(share: float) -> float:
    """ln(share / (1 - share)), finite."""
    share = min(max(share, LOGIT_MARGIN), 1 - LOGIT_MARGIN)
    return float(np.log(share / (1 - share)))


def _to_coefficients(x: Array, points: Points, centre: float, scale: float) -> Array:
    """Coefficients [k, 5] of points x [k, 5]."""
    middle, log_width, top_share, floor_logit, shift = x.T
    floor = 1 / (1 + np.exp(-floor_logit))
    if points.fixes_floor:
        assert points.chance is not None
        floor = np.full(len(x), points.chance)
    top = floor + (1 - floor) / (1 + np.exp(-top_share))
    if not points.log_experts.any():  # nothing but the prior moves it
        shift = np.zeros_like(shift)
    return np.stack([floor, top, centre + scale * middle, scale * np.exp(log_width), scale * shift], axis=1)
