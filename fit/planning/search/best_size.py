"""The best size of models by FLOPs, as a real number.

A law that is a Chinchilla law at each number of experts, L = m N^mu + n D^nu + c with mu, nu < 0 (Eq. 5), has a best
size in closed form (App. C; the G of Eq. 9 has the wrong sign as printed). With inference tokens it is the root of a
monotone function. Of any other law only losses are known: the best size is searched for on a grid that is refined.

Axes: all arguments broadcast together. A search has an axis of GRID sizes in front of theirs.
"""

from collections.abc import Callable, Sequence

import numpy as np

from fit.aliases import Array, Numbers
from fit.errors import UserError
from fit.messages import sentences
from fit.messages.units import say
from fit.model.architecture import INFERENCE, TRAINING, root
from fit.planning.inputs.constraints import Constraints
from fit.planning.inputs.problem import PLATEAU

GRID = 129  # sizes of a search
REFINED = 7  # how often the grid is laid again, between the neighbours of the best size


def compute_optimal(m: Numbers, mu: Numbers, n: Numbers, nu: Numbers, flops: Numbers) -> tuple[Array, Array]:
    """The compute-optimal size and tokens of a Chinchilla law, in closed form (App. C).

    Args:
      m, mu, n, nu: of L = m N^mu + n D^nu + c.
      flops: 6 N D; all arguments broadcast together.

    Returns:
      (N, D) that minimise L at these FLOPs; NaN where there is no optimum.
    """
    with np.errstate(all="ignore"):
        size = (m * mu / (n * nu)) ** (-1 / (mu + nu)) * (flops / TRAINING) ** (nu / (mu + nu))
        size = np.where((np.asarray(mu) < 0) & (np.asarray(nu) < 0), size, np.nan)
    return size, flops / (TRAINING * size)


def closed_form(reduced: Sequence[Numbers], n_experts: Array, constraints: Constraints) -> Numbers:
    """The best n_active of a Chinchilla law under FLOPs and inference tokens alone.

    Args:
      reduced: (m, mu, n, nu) of Eq. 5.
      n_experts: of the same shape, for the error.
      constraints: infinite sizes are the best without FLOPs.

    Raises:
      UserError: where the law has no optimum.
    """
    m, mu, n, nu = reduced
    if not (np.all(mu < 0) and np.all(nu < 0)):
        at = n_experts[(mu >= 0) | (nu >= 0)].ravel()[0]
        raise UserError(say(sentences.NO_OPTIMUM, at=at, mu=np.max(mu), nu=np.max(nu)))
    if constraints.flops is None:
        return np.inf
    if constraints.inference_tokens == 0:
        return compute_optimal(m, mu, n, nu, constraints.flops)[0]
    budget = constraints.flops / TRAINING
    inference = INFERENCE / TRAINING * constraints.inference_tokens
    largest = np.log(budget / inference)  # no token is left to train on

    def gain_over_cost(log_n: Numbers) -> Numbers:
        """Logarithm of what a larger model gains over what its lost tokens cost: falling, 0 at the optimum."""
        n_tokens = budget * np.exp(-log_n) - inference
        gain = np.log(m * -mu) + mu * log_n
        cost = np.log(n * -nu) + (nu - 1) * np.log(n_tokens) + np.log(budget) - log_n
        return gain - cost

    return np.exp(root(gain_over_cost, largest - 200, largest - 1e-13 * abs(largest)))


def searched(loss: Callable[[Array], Array], low: Array, high: Array) -> Array:
    """The n_active of the least loss between low and high, by a grid that is refined.

    Args:
      loss: of n_active [n_sizes, ...], of the same shape.
      low, high: ends [...].
    """
    low = np.log(low)
    high = np.log(high)
    share = np.linspace(0, 1, GRID).reshape(-1, *[1] * np.ndim(low))
    sizes = low + share * (high - low)
    best = _lowest(loss, sizes)
    for _ in range(REFINED - 1):
        below = np.clip(best - 1, 0, len(sizes) - 1)
        above = np.clip(best + 1, 0, len(sizes) - 1)
        low = np.take_along_axis(sizes, below, axis=0)
        high = np.take_along_axis(sizes, above, axis=0)
        sizes = low + share * (high - low)
        best = _lowest(loss, sizes)
    return np.exp(np.take_along_axis(sizes, best, axis=0)[0])


def _lowest(loss: Callable[[Array], Array], log_sizes: Array) -> Array:
    """Indices [1, ...] of the sizes [n_sizes, ...] with the least loss."""
    with np.errstate(all="ignore"):
        losses = np.nan_to_num(loss(np.exp(log_sizes)), nan=np.inf)
    return np.argmin(losses, axis=0)[None]


def on_plateau(tolerance: float, loss: Callable[[Array], Array], size: Array, smallest: Array) -> Array:
    """The least size whose loss is within a tolerance of that of `size`, where it is at most PLATEAU of it.

    Args:
      tolerance: share of the loss, of a law of repeated text.
      loss: of n_active, an array.
      size, smallest: arrays of one shape.

    Returns:
      The sizes; NaN where the loss is no plateau.
    """
    allowed_loss = loss(size) * (1 + tolerance)
    candidate = np.maximum(PLATEAU * size, smallest)

    def excess(log_n: Numbers) -> Numbers:
        """The loss above the allowed one, at this logarithm of the size."""
        return loss(np.exp(log_n)) - allowed_loss

    edge = np.exp(root(excess, np.log(smallest), np.log(candidate)))
    edge = np.where(loss(smallest) <= allowed_loss, smallest, edge)
    return np.where((candidate < size) & (loss(candidate) <= allowed_loss), edge, np.nan)
