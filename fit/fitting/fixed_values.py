"""Checks the values of --fix: whether one can only be a logarithm, and which formula they belong to."""

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping

import numpy as np

from fit.errors import UserError
from fit.fitted_law.settings import Settings
from fit.fitting import fitting
from fit.form import Form
from fit.laws import FORMS
from fit.laws._coupled import SUFFIX
from fit.messages.finding import Finding, finding
from fit.table.runs import Runs, rms

# of the forms that a fit may choose by default
FORMULAS = dict(
    chinchilla="L = A / N^alpha + B / D^beta + E",
    chinchilla_coupled="L = (A / N^alpha + B / D^beta)^k + E",
    joint="L = a Ê^delta N^(alpha + gamma ln Ê) + b Ê^omega D^(beta + zeta ln Ê) + c",
    joint_coupled="L = (a Ê^delta N^(alpha + gamma ln Ê) + b Ê^omega D^(beta + zeta ln Ê))^k + c",
)
# A value can only be a logarithm if the fit with it has an error at least this many times that of the fit which leaves
# it free, and that of the fit with its exponential.
WORSE = 4.0
LARGEST_LOGARITHM = 27.0  # the exponential of a larger one is more than --fix accepts


def form_to_try(additive: Form, fix: Collection[str]) -> Form:
    """The form to try values in where the user names none: the additive one, if it has these coefficients."""
    return additive if set(fix) <= set(additive.names) else FORMS[additive.name + SUFFIX]


def check_logarithms(runs: Runs, form: Form, settings_of: Callable[[Form], Settings]) -> None:
    """Raises UserError where the runs contradict fixed values but not their exponentials.

    Args:
      runs: with the columns of the form.
      form: the form to try the values in.
      settings_of: the Settings for a Form, with the fixed values.
    """
    settings = settings_of(form)
    candidates = [
        name for name, value in settings.fix.items() if name in form.positive and abs(value) < LARGEST_LOGARITHM
    ]
    if not candidates:
        return
    error = _error(runs, form, settings)
    without_candidates = {name: value for name, value in settings.fix.items() if name not in candidates}
    if error < WORSE * _error(runs, form, dataclasses.replace(settings, fix=without_candidates)):
        return
    errors = {}
    for names in {(name,) for name in candidates} | {tuple(candidates)}:
        fix = _with_exponentials(settings.fix, names)
        errors[names] = _error(runs, form, dataclasses.replace(settings, fix=fix))
    names = min(errors, key=lambda names: errors[names])
    if error > WORSE * errors[names]:
        fix = _with_exponentials(settings.fix, names)
        logarithms = {name: settings.fix[name] for name in settings.fix if name in names}
        raise UserError(_sentence(form, logarithms, fix, error, errors[names]))


def _with_exponentials(fix: Mapping[str, float], names: Collection[str]) -> dict[str, float]:
    """Fixed values, those of `names` replaced by their exponentials."""
    return {name: float(np.exp(value)) if name in names else value for name, value in fix.items()}


def _error(runs: Runs, form: Form, settings: Settings) -> float:
    """The root mean square error of a fit on its own runs, of log loss; infinite where the runs allow no fit."""
    quick = dataclasses.replace(settings, bootstrap=0, holdout="none", select="objective", quiet=True)
    try:
        law = fitting.fit(runs, form, quick)
    except UserError:
        return np.inf
    return rms(form.log_loss(law.fit.params, law.runs.columns) - np.log(law.runs.loss))


def _sentence(form: Form, logarithms: dict[str, float], fix: dict[str, float], error: float, better: float) -> str:
    """The error for values that are logarithms.

    Args:
      form: the form in which they were tried.
      logarithms: the values that the user fixed.
      fix: all fixed values, with the exponentials of these.
      error: of the fit with the logarithms.
      better: of the fit with the exponentials.
    """
    typed = ",".join(f"{name}={value:g}" for name, value in logarithms.items())
    corrected = ",".join(f"{name}={value:.6g}" for name, value in fix.items())
    which = " and ".join(logarithms)
    return (
        f"--fix={typed}: expected {which} itself, found what can only be its logarithm: with it the {form.name} law is "
        f"{error:.1%} off the runs, and with the exponential {better:.2%}; say --fix={corrected}"
    )


def meaning(form: str, fix: dict[str, str]) -> Iterator[Finding]:
    """Yields a finding where a coupled form was chosen: its coefficients are not those of the additive form.

    Args:
      form: the name of the form that was chosen.
      fix: {coefficient: value}, as the user typed them.
    """
    additive = form.removesuffix(SUFFIX)
    if not fix or form not in FORMULAS or additive == form:
        return
    values = ", ".join(f"{name} = {value}" for name, value in fix.items())
    formulas = dict(form=form, formula=FORMULAS[form], additive=additive, additive_formula=FORMULAS[additive])
    yield finding("fixed_in_coupled", values=values, **formulas)
