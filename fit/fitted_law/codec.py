"""From law.json to a Law.

The types of the parts (parts.py, models.py, tuning.py) say what a file may hold. What cannot be is refused here and
nowhere else. What a file has beyond these fields is left out of the Law.
"""

import numpy as np

from fit.aliases import Json
from fit.errors import UserError
from fit.fitted_law import tuning
from fit.fitted_law.architecture_ratios import PAPERS_RATIOS
from fit.fitted_law.decoding import MISSING, Invalid, decoded, fields_of
from fit.fitted_law.law import Law
from fit.fitted_law.law_data import VERSION, WITHOUT_EMBEDDING
from fit.fitted_law.models import Models
from fit.fitted_law.older_versions import upgraded
from fit.fitted_law.tuning import Tuning
from fit.form import Form


def law_of(name: str, form: Form, values: Json, where: str) -> Law:
    """The Law of an object as law.json holds it, or as a page of fit/laws declares a published law.

    Args:
      name: The law's name.
      form: Its form.
      values: The object; one that names no version is of version 1.
      where: Its name in errors.

    Raises:
      UserError: A field has a value that it cannot have.
    """
    try:
        version = values.get("version", 1)
        if type(version) is not int or version < 1:
            raise Invalid("version", version, f"a whole number from 1 to {VERSION}")
        if version > VERSION:
            raise Invalid("version", version, f"at most {VERSION}: a newer fit wrote it")
        values = upgraded(values, version)
        fields = fields_of(Law, values, "")
        if values.get("counts") is not None:
            fields["counts_embedding"] = decoded(str, values["counts"], "counts") != WITHOUT_EMBEDDING
        coefficients = fields.pop("coefficients")
        for coefficient in form.names:
            if coefficient not in coefficients:
                raise Invalid(f"coefficients.{coefficient}", MISSING, "a finite number")
        ordered = {coefficient: coefficients[coefficient] for coefficient in form.names}
        law = Law(name=name, form=form, coefficients=ordered, **fields)
        _check(law)
    except Invalid as error:
        raise UserError(f"{where}: {error}") from None
    return law


def _check(law: Law) -> None:
    """Raises Invalid where parts of a law do not fit together."""
    if law.bootstrap:
        _check_draws("bootstrap.draws", law.bootstrap.draws, len(law.form.names))
        beyond = law.bootstrap.beyond
        if beyond and len(beyond.drift) != law.n_draws:
            raise Invalid("bootstrap.beyond.drift", beyond.drift, f"a number for each of {law.n_draws} draws")
    _check_models(law.models)
    _check_coefficients(law)
    if law.tuning:
        _check_tuning(law.tuning, law.n_draws)


def _check_draws(field: str, draws: tuple[tuple[float, ...], ...], width: int) -> None:
    """Raises Invalid unless draws are rows of `width` coefficients."""
    if not draws or any(len(row) != width for row in draws):
        raise Invalid(field, draws, f"rows of {width} numbers")


def _check_models(models: Models) -> None:
    """Raises Invalid where shares have no sizes of their own, or a number that differs between runs is none."""
    shares = models.shares
    if shares and not (len(shares.n_active) == len(shares.share) and np.all(np.diff(shares.n_active) > 0)):
        raise Invalid("models.shares", shares.to_dict(), "n_active, rising, and as many shares")
    for name, values in models.differing.items():
        if (name == "vocab_size" or name in PAPERS_RATIOS) and str in map(type, values):
            raise Invalid(f"models.differing.{name}", values, "numbers")


def _check_coefficients(law: Law) -> None:
    """Raises Invalid where coefficients, or draws of them, are none of the form."""
    form = law.form
    for name in form.shares:
        smallest = form.smallest_share(name)
        expected = f"a number from {smallest:.3g} to 1"
        if not smallest <= law.coefficients[name] <= 1:
            raise Invalid(f"coefficients.{name}", law.coefficients[name], expected)
        drawn = [1.0] if law.draws is None else law.draws[name].tolist()
        if not smallest <= min(drawn) <= max(drawn) <= 1:
            raise Invalid("bootstrap.draws", drawn, f"{name}, {expected}")
    pairs = [f"{name} above {c.above}" for name, c in form.coefficients.items() if c.above]
    expected = " and ".join(["scales above 0", *pairs])
    with np.errstate(all="ignore"):
        if not np.all(np.isfinite(form.to_params(law.coefficients))):
            raise Invalid("coefficients", law.coefficients, expected)
        for row in law.bootstrap.draws if law.bootstrap else ():
            drawn = form.to_params(dict(zip(form.names, row, strict=True)))
            if not np.all(drawn < np.inf):  # -inf is a scale that ended at 0
                raise Invalid("bootstrap.draws", row, expected)


def _check_tuning(optima: Tuning, n_draws: int) -> None:
    """Raises Invalid where the coefficients of optima, their reference and draws do not fit together.

    Args:
      optima: The entry `rates`.
      n_draws: How many draws the law has.
    """
    if not set(optima.reference) <= set(tuning.OF_MODELS):
        raise Invalid("rates.reference", optima.reference, f"some of {', '.join(tuning.OF_MODELS)}")
    names = tuning.names(optima.reference, optima.with_batch)
    if list(optima.coefficients) != names:
        raise Invalid("rates.coefficients", optima.coefficients, ", ".join(names))
    with_scatter = ["rate", "batch"] if optima.with_batch else ["rate"]
    if list(optima.scatter) != with_scatter:
        raise Invalid("rates.scatter", optima.scatter, " and ".join(with_scatter))
    positive = [name for name in tuning.POSITIVE if name in names]
    if min(optima.coefficients[name] for name in positive) <= 0:
        raise Invalid("rates.coefficients", optima.coefficients, f"positive {', '.join(positive)}")
    if len(optima.draws) != n_draws:
        raise Invalid("rates.draws", optima.draws, f"one for each of {n_draws} draws")
    if n_draws:
        _check_draws("rates.draws", optima.draws, len(names))
        if min(row[names.index(name)] for row in optima.draws for name in positive) <= 0:
            raise Invalid("rates.draws", optima.draws, f"positive {', '.join(positive)}")
