"""Where the runs of a budget lie: the sparsities around each size, and the sizes between several sparsities."""

import numpy as np

from fit.aliases import Array
from fit.studies.surfaces.surface import GRID, sparsity_of, z_of


def sparsity_range(n_total: Array, sparsity: Array, sizes: Array) -> tuple[Array, Array]:
    """The sparsities at which runs lie on both sides of each size.

    Between the sparsities that were run, the smallest and the largest size follow a line in z.

    Args:
      n_total, sparsity: [n], of the runs.
      sizes: n_total in question.

    Returns:
      (lowest, highest) sparsity of each size; NaN where there is none.
    """
    x = np.log(n_total)
    z = z_of(sparsity)
    levels = np.unique(z)
    grid = np.union1d(np.linspace(levels[0], levels[-1], GRID), levels)[:, None]
    smallest = np.interp(grid, levels, [np.min(x[z == level]) for level in levels])
    largest = np.interp(grid, levels, [np.max(x[z == level]) for level in levels])
    inside = (np.log(sizes) >= smallest - 1e-9) & (np.log(sizes) <= largest + 1e-9)
    exists = inside.any(axis=0)
    low = np.where(exists, np.min(np.where(inside, grid, np.inf), axis=0), np.nan)
    high = np.where(exists, np.max(np.where(inside, grid, -np.inf), axis=0), np.nan)
    return sparsity_of(low), sparsity_of(high)


def sizes_within(n_total: Array, sparsity: Array) -> Array:
    """Five sizes from the smallest to the largest that lies between the runs of 3 or more sparsities.

    Args:
      n_total, sparsity: [n], of the runs.

    Returns:
      n_total [5], or [0] where no size does.
    """
    every = np.geomspace(n_total.min(), n_total.max(), GRID)
    groups = [n_total[sparsity == level] for level in np.unique(sparsity)]
    ends = np.array([(group.min(), group.max()) for group in groups])
    enough = ((ends[:, :1] <= every) & (every <= ends[:, 1:])).sum(axis=0) >= 3
    if not enough.any():
        return np.array([])
    smallest, largest = every[enough][[0, -1]]
    return np.geomspace(smallest, largest, 5)
