"""The population of other sweeps: their exponents and k as a prior for those of a new sweep.

population.json holds, for each source of runs, the exponents and k of laws fitted to its tables
(python -m benchmarks.population writes it). Over the S sources, each of which counts once,

  x     = ln alpha, ln beta and, of a coupled law, ln(1/k - 1), of a source the mean of its tables
  mean  = mean of x
  cov   = (1 + 1/S) (D GUESSED^2 + sum (x - mean)(x - mean)') / (D + S - 1),    D = GUESS_COUNTS

So the covariance begins as a guess that counts as much as D sources, and the error of the mean is added. A law's p
exponents get a Student-t prior of D + S - p degrees of freedom: the predictive distribution of one more source. Its
pull weakens far from the mean. It is weighed against the scatter of the runs around the fit without it, and dropped
where it costs more than that scatter explains (fitting.py). So runs that determine an exponent keep it.

Fewer runs than a law has coefficients (few_runs.py) also get a prior of ln(floor / lowest loss), as a fourth entry of
x. ln(size / data), the ratio of both terms at the mean run, has a guess; scatter and drift are those of the sources.
That prior is normal, for so few runs cannot contradict it.

Axes: p exponents, with k, or with k and the floor.
"""

import dataclasses
import functools
import json
import pathlib

import numpy as np

from fit.aliases import Json
from fit.errors import UserError
from fit.form import Form, Prior, PriorSummary
from fit.table.runs import Runs

PATH = pathlib.Path(__file__).parent / "population.json"
NAME = "population"
# Standard deviations between sources before any was seen: of ln alpha, ln beta, ln(1/k - 1), ln(floor / lowest loss).
# The first three are those of the difference of two laws (law_prior.SPREAD) over the root of two.
GUESSED = (0.24, 0.24, 0.5, 0.3)
SPREAD_OF_RATIO = 1.0  # of ln(size / data) around 0: with 80% size is 0.22 to 0.78 of both
GUESS_COUNTS = 1  # number of sources that the guess counts as


@functools.cache
def sources() -> Json:
    """The sources of population.json.

    Returns:
      {source: {tables, runs, reference, additive: {alpha, beta}, coupled: {alpha, beta, k, floor}, scatter, drift}}:
      floor is a share of the lowest loss, scatter and drift are those of the coupled law in log loss, the latter for
      each factor of e in compute.
    """
    return json.loads(PATH.read_text(encoding="utf-8"))["sources"]


def left_out_of(value: str) -> str | None:
    """The source that --prior=population:SOURCE leaves out; None for --prior=population.

    Raises:
      UserError: for an unknown source.
    """
    _, colon, source = value.partition(":")
    if colon and source not in sources():
        raise UserError(f"--prior={value}: found no source {source!r} to leave out; sources: {', '.join(sources())}")
    return source or None


def moments(kind: str, left_out: str | None = None, with_floor: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Mean [p] and covariance [p, p] of ln alpha, ln beta and, of coupled laws, ln(1/k - 1) over the sources.

    Args:
      kind: "additive" or "coupled".
      left_out: a source that does not count.
      with_floor: of coupled laws, whether ln(floor / lowest loss) is the last entry.
    """
    rows = []
    for name, source in sources().items():
        if name != left_out:
            law = source[kind]
            row = [np.log(law["alpha"]), np.log(law["beta"])]
            if kind == "coupled":
                row.append(np.log(1 / law["k"] - 1))
            if with_floor:
                row.append(np.log(law["floor"]))
            rows.append(row)
    values = np.array(rows)
    count, width = values.shape
    mean = values.mean(axis=0)
    scatter = (values - mean).T @ (values - mean)
    guess = np.diag(np.square(GUESSED[:width]))
    covariance = (1 + 1 / count) * (GUESS_COUNTS * guess + scatter) / (GUESS_COUNTS + count - 1)
    return mean, covariance


def values_of(name: str, left_out: str | None = None) -> np.ndarray:
    """The "scatter" or "drift" of each source, [S].

    Args:
      left_out: a source that does not count.
    """
    return np.array([row[name] for source, row in sources().items() if source != left_out])


def suits(form: Form) -> bool:
    """Whether the population has a prior for a form: one with a term in size and one in data above a floor."""
    return hasattr(form.page, "FLOOR") and {"n_active", "n_tokens"} <= form.exponents.keys()


@functools.cache  # so that fits of one form to several tables share its compiled search
def with_population(form: Form, left_out: str | None = None) -> Form:
    """The form with the population's prior on its exponents of size and data and on its k.

    Args:
      left_out: a source that does not count, so that the prior can be tested on its runs.

    Raises:
      UserError: for a form that `suits` does not accept.
    """
    if not suits(form):
        raise UserError(
            f"--prior={NAME}: the {form.name} law has not one exponent of size and one of data above a floor, of which "
            "the population's laws could say something"
        )
    kind = "coupled" if form.shares else "additive"
    mean, covariance = moments(kind, left_out)
    names, signs = _entries(form)
    summary = _summary(names, signs, mean, covariance, left_out)
    entries = tuple(form.names.index(name) for name in names)
    count = sum(name != left_out for name in sources())
    freedom = float(GUESS_COUNTS + count - len(entries))
    return form.with_prior(Prior(entries, signs, mean, covariance, summary, freedom=freedom))


def with_floor(form: Form, runs: Runs, left_out: str | None = None) -> Form:
    """The coupled dense form with the population's prior on its exponents, k, floor and terms, and with its scatter.

    Args:
      runs: those to fit; the floor is a share of their lowest loss.
      left_out: a source that does not count.
    """
    mean, covariance = moments("coupled", left_out, with_floor=True)
    mean[-1] += np.log(runs.loss.min())
    names, signs = _entries(form)
    summary = _summary(names, signs, mean[:-1], covariance[:-1, :-1], left_out)
    of_floor = {form.page.FLOOR: (float(np.exp(mean[-1])), float(np.sqrt(covariance[-1, -1])))}
    summary = dataclasses.replace(summary, spreads=summary.spreads | of_floor)
    entries = tuple(form.names.index(name) for name in (*names, form.page.FLOOR))
    scatter = float(np.median(values_of("scatter", left_out)))
    size_over_data = dict(A=1.0, B=-1.0, alpha=-np.mean(np.log(runs.n_active)), beta=np.mean(np.log(runs.n_tokens)))
    factors = tuple(float(size_over_data.get(name, 0.0)) for name in form.names)
    mean = np.append(mean, 0.0)
    covariance = np.pad(covariance, (0, 1))
    covariance[-1, -1] = SPREAD_OF_RATIO**2
    return form.with_prior(Prior(entries, (*signs, 0), mean, covariance, summary, scatter, (factors,)))


def _entries(form: Form) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Names and signs of the coefficients that have a prior: exponents of size and data, and k (sign 0)."""
    names = []
    signs = []
    for column in ("n_active", "n_tokens"):
        name, divisor = form.exponents[column]
        names.append(name)
        signs.append(-int(np.sign(divisor)))  # of A / N^alpha the divisor is -1 and alpha positive
    names += form.shares
    signs += [0] * len(form.shares)
    return tuple(names), tuple(signs)


def _summary(
    names: tuple[str, ...],
    signs: tuple[int, ...],
    mean: np.ndarray,
    covariance: np.ndarray,
    left_out: str | None,
) -> PriorSummary:
    """The prior as law.json describes it."""
    spreads = {}
    for name, sign, middle, variance in zip(names, signs, mean, np.diag(covariance), strict=True):
        value = sign * np.exp(middle) if sign else 1 / (1 + np.exp(middle))
        spreads[name] = (float(value), float(np.sqrt(variance)))
    tables = [table for source, row in sources().items() if source != left_out for table in row["tables"]]
    return PriorSummary(law=NAME, spreads=spreads, tables=len(tables), left_out=left_out)
