"""What coefficients that --fix holds mean: in the form that was chosen, and whether a value is a logarithm."""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator

import numpy as np

from fit.data.table import Table
from fit.errors import UserError
from fit.fitting import fitting
from fit.fitting.problem import Settings
from fit.form import Form
from fit.laws import FORMS
from fit.laws._coupled import SUFFIX

# of the forms that may be chosen
FORMULAS = dict(
    chinchilla="L = A / N^alpha + B / D^beta + E",
    chinchilla_coupled="L = (A / N^alpha + B / D^beta)^k + E",
    joint="L = a Ê^delta N^(alpha + gamma ln Ê) + b Ê^omega D^(beta + zeta ln Ê) + c",
    joint_coupled="L = (a Ê^delta N^(alpha + gamma ln Ê) + b Ê^omega D^(beta + zeta ln Ê))^k + c",
)
# A value can only be a logarithm where it makes the error so many times that of the fit that leaves it free, and that
# of the fit with the exponential.
WORSE = 4.0
LARGEST_LOGARITHM = 27.0  # whose exponential --fix accepts


def form_to_try(table: Table, fix: Collection[str]) -> Form:
    """The form in which values are tried where the user names none: the additive one, if it has these coefficients."""
    is_mixed = "n_experts" in table and len(np.unique(table.numbers("n_experts"))) > 1
    additive = FORMS["joint" if is_mixed else "chinchilla"]
    return additive if set(fix) <= set(additive.names) else FORMS[additive.name + SUFFIX]


def check_logarithms(table: Table, form: Form, settings_of: Callable[[Form], Settings]) -> None:
    """Raises UserError where the runs contradict values that are fixed, and allow their exponentials.

    Args:
      table: the runs.
      form: in which the values are tried.
      settings_of: the Settings for a Form, with the fixed values.
    """
    settings = settings_of(form)
    candidates = [name for name, value in settings.fix if name in form.positive and abs(value) < LARGEST_LOGARITHM]
    if not candidates:
        return
    error = _error(table, form, settings)
    others = tuple((name, value) for name, value in settings.fix if name not in candidates)
    if error < WORSE * _error(table, form, dataclasses.replace(settings, fix=others)):
        return
    errors = {}
    for names in {(name,) for name in candidates} | {tuple(candidates)}:
        fix = _with_exponentials(settings.fix, names)
        errors[names] = _error(table, form, dataclasses.replace(settings, fix=fix))
    names = min(errors, key=lambda names: errors[names])
    if error > WORSE * errors[names]:
        fix = _with_exponentials(settings.fix, names)
        logarithms = {name: value for name, value in settings.fix if name in names}
        raise UserError(_sentence(form, logarithms, dict(fix), error, errors[names]))


def _with_exponentials(fix: Iterable[tuple[str, float]], names: Iterable[str]) -> tuple[tuple[str, float], ...]:
    """Fixed values, those of `names` replaced by their exponentials."""
    return tuple((name, float(np.exp(value)) if name in names else value) for name, value in fix)


def _error(table: Table, form: Form, settings: Settings) -> float:
    """The root mean square error of a fit on its runs, of the log loss; infinite where there is none."""
    quick = dataclasses.replace(settings, bootstrap=0, holdout="none", select="objective", quiet=True)
    try:
        law = fitting.fit_table(table, form, quick)
    except UserError:
        return np.inf
    return fitting.errors(form.log_loss(law.fit.params, law.runs.columns), law.runs)["rmse_log"]


def _sentence(form: Form, logarithms: dict[str, float], fix: dict[str, float], error: float, better: float) -> str:
    """Why values are refused, and what to type."""
    typed = ",".join(f"{name}={value:g}" for name, value in logarithms.items())
    given = ",".join(f"{name}={value:.6g}" for name, value in fix.items())
    which = " and ".join(logarithms)
    return (
        f"--fix={typed}: expected {which} itself, found what can only be its logarithm: with it the {form.name} law is "
        f"{error:.1%} off the runs, and with the exponential {better:.2%}; say --fix={given}"
    )


def meaning(form: str, fix: dict[str, str]) -> Iterator[str]:
    """A sentence on what fixed coefficients mean in the form that was chosen.

    Args:
      form: its name.
      fix: {coefficient: value}, as the user typed them.
    """
    other = form.removesuffix(SUFFIX)
    if not fix or form not in FORMULAS or other == form:
        return
    held = ", ".join(f"{name} = {value}" for name, value in fix.items())
    yield (
        f"--fix holds {held} as coefficients of the form chosen, {form}: {FORMULAS[form]}. Those of the additive form, "
        f"{FORMULAS[other]}, are other numbers: --form={other} holds them"
    )
