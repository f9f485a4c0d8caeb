"""The frontier of a recipe: loss over cost, L = c + A C^-b, fitted to a few runs, with draws of what they leave open.

It is a straight line in ln(L - c) over ln C. The draws are those of a Bayesian linear regression with flat priors of
its level, its slope and the logarithm of its scatter (Gelman et al., Bayesian Data Analysis, 14.2), and of c on a grid.

Axes: n_runs runs; 1 + DRAWS rows, of which the first is the best estimate.
"""

import dataclasses

import numpy as np

from fit.aliases import Array
from fit.errors import UserError

COEFFICIENTS = ("c", "b")  # that may be held
DRAWS = 4000
FLOORS = 201  # values of c on its grid
HIGHEST_FLOOR = 0.97  # of the lowest loss
MIN_SQUARED_ERROR = 1e-18  # keeps the posterior finite where runs lie exactly on a line
LEAST_SLOPE = 0.05  # of the best one, in a draw: a loss that does not fall says nothing of compute


@dataclasses.dataclass(frozen=True)
class Frontier:
    """The best estimate of a frontier, then draws of it. Each attribute is an array [1 + DRAWS].

    Attributes:
      floors: c.
      exponents: b.
      levels: ln A.
      scatters: standard deviation of ln(L - c) of a run.
    """

    floors: Array
    exponents: Array
    levels: Array
    scatters: Array

    def log_reducible(self, loss: float, errors: Array) -> Array:
        """ln(L - c) of a run [1 + DRAWS], less its own error.

        Args:
          loss: The loss of the run.
          errors: Standard normal numbers [DRAWS], times the scatter of each draw.
        """
        reducible = np.log(np.maximum(loss - self.floors, 1e-12))
        return reducible - self.scatters * np.concatenate([[0.0], errors])


def fit_frontier(
    cost: Array, loss: Array, lowest: float, fixed: dict[str, float], seed: int = 0, source: str = "runs"
) -> Frontier:
    """Fits a frontier.

    Args:
      cost: Of each run, [n_runs].
      loss: Of each run, [n_runs].
      lowest: The lowest loss that the frontier is asked about; c lies below it.
      fixed: {"c": floor, "b": exponent} that are known.
      seed: Seed of the draws.
      source: What errors call the runs.

    Raises:
      UserError: There are too few runs, a value in `fixed` cannot be, or the loss does not fall.
    """
    log_cost = np.log(cost)
    free = [name for name in COEFFICIENTS if name not in fixed]
    needed = 2 + len(free)
    has_no_slope = "b" in free and np.ptp(log_cost) == 0
    if len(loss) < needed or has_no_slope:
        hint = f", or --fix={free[0]}=VALUE" if free else ""
        raise UserError(f"{source} has {len(loss)} runs, expected at least {needed} at different budgets{hint}")
    grid = np.linspace(0.0, HIGHEST_FLOOR * lowest, FLOORS)
    if "c" in fixed:
        grid = np.array([fixed["c"]])
        if fixed["c"] >= lowest:
            raise UserError(f"--fix=c={fixed['c']:g}: expected a floor below the lowest loss, {lowest:g}")

    # one line for each floor of the grid
    columns = [np.ones(len(loss))]
    if "b" in free:
        columns.append(-log_cost)
    design = np.column_stack(columns)
    covariance = np.linalg.inv(design.T @ design)
    degrees_of_freedom = len(loss) - design.shape[1]
    log_reducible = np.log(loss - grid[:, None])
    heights = log_reducible + fixed.get("b", 0.0) * log_cost
    coefficients_at_floor = heights @ design @ covariance
    squares = np.maximum(np.sum((heights - coefficients_at_floor @ design.T) ** 2, axis=1), MIN_SQUARED_ERROR)

    # posterior of each floor; its second term is the Jacobian of ln(L - c), so that floors compare by the density of L
    log_posterior = -0.5 * degrees_of_freedom * np.log(squares) - log_reducible.sum(axis=1)
    posterior = np.exp(log_posterior - log_posterior.max())
    posterior /= posterior.sum()
    best = int(np.searchsorted(np.cumsum(posterior), 0.5))  # the median, as few runs have no sharp best

    rng = np.random.default_rng([seed, 0])
    drawn = rng.choice(len(grid), DRAWS, p=posterior)
    scatters = np.sqrt(squares[drawn] / rng.chisquare(degrees_of_freedom, DRAWS))
    deviations = rng.standard_normal((DRAWS, design.shape[1])) @ np.linalg.cholesky(covariance).T
    coefficients = np.vstack(
        [coefficients_at_floor[best], coefficients_at_floor[drawn] + deviations * scatters[:, None]]
    )
    exponents = coefficients[:, 1] if "b" in free else np.full(1 + DRAWS, fixed["b"])
    if not exponents[0] > 0:
        raise UserError(f"{source}: its loss does not fall with its cost")
    return Frontier(
        floors=np.concatenate([[grid[best]], grid[drawn]]),
        exponents=np.maximum(exponents, LEAST_SLOPE * exponents[0]),
        levels=coefficients[:, 0],
        scatters=np.concatenate([[np.sqrt(squares[best] / degrees_of_freedom)], scatters]),
    )
