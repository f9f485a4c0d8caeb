"""The joint law with one exponent around size and data, as in Kaplan et al. (2020, arXiv 2001.08361), Eq. 1.5.

  L = (a Ê^delta N^(alpha + gamma ln Ê) + b Ê^omega D^(beta + zeta ln Ê))^k + c

With k = 1 it is the joint law (fit/laws/joint.py), by which more tokens lower the loss of models of all sizes alike.
With k < 1 they lower that of larger models more. Kaplan et al. have no c.
"""

import numpy as np

from fit.form import Coefficient
from fit.laws import joint

COLUMNS = joint.COLUMNS
COEFFICIENTS = joint.COEFFICIENTS | dict(k=Coefficient((0.4, 0.7, 1.0), positive=True, bounds=(-3, 1)))


def log_loss(xp, c, x):
    """By log-sum-exp."""
    return xp.logaddexp(c["k"] * joint.log_above_floor(xp, c, x), c["ln c"])


def scaled_starts(rng, count, runs):
    """Those of the joint law, with a and b such that size and data make the same loss for any k."""
    drawn = joint.scaled_starts(rng, count, runs)
    k = rng.uniform(0.3, 1.1, count)
    above_floor = np.log(np.exp(np.mean(np.log(runs.loss))) - np.exp(drawn["ln c"]))
    more = {name: drawn[name] + (1 / k - 1) * above_floor for name in ("ln a", "ln b")}
    return drawn | more | {"ln k": np.log(k)}


PRESETS = {}
