"""Where a monotone function crosses zero, many at once, in plain NumPy: nothing to import, nothing to compile."""

import numpy as np


def root(function, low, high, *data):
    """Where function(x, *data) changes sign between low and high, elementwise, to the last bits of a float64.

    low, high and data broadcast together to the shape of the result; `function` takes and returns arrays. NaN where the
    signs at both ends do not differ.
    """
    low, high, *data = np.broadcast_arrays(low, high, *data)
    low, high = np.array(low, float), np.array(high, float)
    with np.errstate(all="ignore"):
        at_low, at_high = function(low, *data), function(high, *data)
        brackets = np.sign(at_low) * np.sign(at_high) <= 0
        low, high = np.where(at_high == 0, high, low), np.where(at_low == 0, low, high)  # a root at an end is the end
        falls = at_low > at_high
        while True:
            x = (low + high) / 2
            if np.all((x == low) | (x == high) | ~brackets):
                return np.where(brackets, x, np.nan)
            below = (function(x, *data) > 0) == falls
            low, high = np.where(below, x, low), np.where(below, high, x)
