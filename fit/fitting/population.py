"""The population of other sweeps: their exponents and k as a prior for those of a new sweep.

population.json holds, for each source of runs, the exponents and k of laws fitted to its tables
(python -m benchmarks.population writes it). Over the S sources, each of which counts once,

  x     = ln alpha, ln beta and, of a coupled law, ln(1/k - 1), of a source the mean of its tables
  mean  = mean of x
  cov   = (1 + 1/S) (D GUESSED^2 + sum (x - mean)(x - mean)') / (D + S - 1),    D = GUESS_COUNTS

So the covariance begins as a guess that counts as much as D sources, and the mean's own error is added. A law's
exponents get the normal prior (mean, cov), weighed against the scatter of the runs (problem.py): a hundred runs
overrule it.

Axes: p exponents, with k.
"""

import functools
import json
import pathlib

import numpy as np

from fit.aliases import Json
from fit.errors import UserError
from fit.form import Form, Prior

PATH = pathlib.Path(__file__).parent / "population.json"
NAME = "population"
# Standard deviations between sources before any was seen, of ln alpha, ln beta and ln(1/k - 1): those by which two laws
# differ where one is the other's prior (law_prior.SPREAD), over the root of two.
GUESSED = (0.24, 0.24, 0.5)
GUESS_COUNTS = 1  # the guess counts as much as so many sources


@functools.cache
def sources() -> Json:
    """{source: {tables, runs, reference, additive: {alpha, beta}, coupled: {alpha, beta, k}}} of population.json."""
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


def moments(kind: str, left_out: str | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Mean [p] and covariance [p, p] of ln alpha, ln beta and, of coupled laws, ln(1/k - 1) over the sources.

    Args:
      kind: "additive" or "coupled".
      left_out: a source that does not count.
    """
    rows = []
    for name, source in sources().items():
        if name != left_out:
            law = source[kind]
            row = [np.log(law["alpha"]), np.log(law["beta"])]
            if kind == "coupled":
                row.append(np.log(1 / law["k"] - 1))
            rows.append(row)
    values = np.array(rows)
    count, width = values.shape
    mean = values.mean(axis=0)
    scatter = (values - mean).T @ (values - mean)
    guess = np.diag(np.square(GUESSED[:width]))
    covariance = (1 + 1 / count) * (GUESS_COUNTS * guess + scatter) / (GUESS_COUNTS + count - 1)
    return mean, covariance


def suits(form: Form) -> bool:
    """Whether the population says something of a form: it has a term in size and one in data above a floor."""
    return hasattr(form.page, "FLOOR") and {"n_active", "n_tokens"} <= form.exponents.keys()


@functools.cache  # so that fits of one form to several tables share its compiled search
def with_population(form: Form, left_out: str | None = None) -> Form:
    """The form with the population's prior on its exponents of size and data and on its k.

    Args:
      left_out: a source that does not count, so that its own runs can be scored.

    Raises:
      UserError: for a form of which the population says nothing.
    """
    if not suits(form):
        raise UserError(
            f"--prior={NAME}: the {form.name} law has not one exponent of size and one of data above a floor, of which "
            "the population's laws could say something"
        )
    kind = "coupled" if form.shares else "additive"
    mean, covariance = moments(kind, left_out)
    names = []
    signs = []
    for column in ("n_active", "n_tokens"):
        name, divisor = form.exponents[column]
        names.append(name)
        signs.append(-int(np.sign(divisor)))  # of A / N^alpha the divisor is -1 and alpha positive
    names += form.shares
    signs += [0] * len(form.shares)
    spreads = {}
    for name, sign, middle, variance in zip(names, signs, mean, np.diag(covariance), strict=True):
        value = sign * np.exp(middle) if sign else 1 / (1 + np.exp(middle))
        spreads[name] = [float(value), float(np.sqrt(variance))]
    tables = [table for source, row in sources().items() if source != left_out for table in row["tables"]]
    record = dict(law=NAME, spreads=spreads, not_taken=[], tables=len(tables), left_out=left_out)
    entries = tuple(form.names.index(name) for name in names)
    return form.with_prior(Prior(entries, tuple(signs), mean, covariance, record))
