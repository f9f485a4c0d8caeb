"""Lack of fit where it matters: whether the runs of most compute, tokens or size lie off the law beyond their noise."""

import numpy as np

from fit.data.runs import Runs
from fit.fitting.noise import Noise
from fit.form import Form

TWO_DOUBLINGS, FEWEST = 4.0, 3  # runs within this factor of the largest; how many of them it takes
BEYOND_NOISE = 3.0  # standard errors of their mean: three quantities are looked at, so one law in 120 by chance


def lack_of_fit(form: Form, free: np.ndarray, runs: Runs, trunks: np.ndarray | None, noise: Noise) -> str:
    """A sentence where the mean residual of the last two doublings of compute, tokens or size, of whichever it is most
    standard errors, is BEYOND_NOISE of them; else "". trunks: labels int [n_runs] of the runs that share an error."""
    residual = np.log(runs.loss) - form.log_loss(free, runs.columns)
    trunks, worst = np.arange(len(runs)) if trunks is None else trunks, (BEYOND_NOISE, "")
    for name, values in (("compute", runs.flops), ("n_tokens", runs.n_tokens), ("n_active", runs.n_active)):
        last = values >= values.max() / TWO_DOUBLINGS
        if not FEWEST <= last.sum() <= len(runs) / 2:
            continue
        shares = np.bincount(trunks[last]) / last.sum()
        error = np.sqrt(noise.run**2 / last.sum() + noise.trunk**2 * np.sum(shares**2))
        mean = residual[last].mean()
        if abs(mean) >= worst[0] * error > 0:
            side, then = ("below", "lower") if mean < 0 else ("above", "higher")
            worst = (
                abs(mean) / error,
                f"the {last.sum()} runs of the last two doublings of {name} lie {abs(mean):.2%} {side} this law on "
                f"average, {abs(mean) / error:.1f} standard errors: what lies beyond may be {then} than it says",
            )
    return worst[1]
