"""Roots of functions of one number, many at once."""

from collections.abc import Callable

import numpy as np

from fit.aliases import Array, Numbers


def root(function: Callable[[Numbers], Numbers], low: Numbers, high: Numbers) -> Array:
    """Where function(x) changes sign between low and high, elementwise, to the last bits of a float64, by bisection of
    all elements at once. NaN where the signs at both ends do not differ."""
    with np.errstate(all="ignore"):
        low, high, at_low, at_high = map(np.array, np.broadcast_arrays(low, high, function(low), function(high)))
        brackets = np.sign(at_low) * np.sign(at_high) <= 0
        low, high = np.where(at_high == 0, high, low), np.where(at_low == 0, low, high)  # a root at an end is the end
        falls = at_low > at_high
        while True:
            x = (low + high) / 2
            if np.all((x == low) | (x == high) | ~brackets):
                return np.where(brackets, x, np.nan)
            below = (function(x) > 0) == falls
            low, high = np.where(below, x, low), np.where(below, high, x)
