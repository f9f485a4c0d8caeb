"""A law fitted again, to more runs, as it was fitted before; and what to type for that."""

import dataclasses
import shlex
from typing import Any

from fit.aliases import Json
from fit.fitted_law.law import Law
from fit.fitted_law.law_files import NAMES
from fit.fitting import fit_law
from fit.fitting.fitting import FEW_RUNS
from fit.fitting.forms import DEFAULT_WEIGHTS
from fit.fitting.options import FitOptions
from fit.form import PriorSummary
from fit.table.runs import read_runs
from fit.table.table import Table

# settings of a fit that the next fit takes over as they are
SETTINGS = ("huber_delta", "reduction", "seed", "fix", "holdout", "select", "bootstrap_by", "with_rate")
# options that fit law has a flag for, in the order in which they are typed
FLAGS = ("bootstrap", "form", "fix", "holdout", "prior", "solver", "bootstrap_by", "with_rate", "mix_corpora")
USUAL_DRAWS = 100  # of the bootstrap, in the command to type


def options_of_fit(law: Law) -> Json:
    """The options of the fit that made a law.json, for fit.law.

    Where that fit chose between two forms, their weights and their prior, the new one chooses too.
    """
    settings = law.settings
    fit_options: Json = {name: settings[name] for name in SETTINGS}
    if not law.choice:
        fit_options["form"] = law.form.name
    if settings.weights not in (None, _default_weights(law)):
        fit_options["weights"] = settings.weights
    fit_options |= dict(algorithm=settings.solver, starts=settings.starts or "paper")
    if not _is_default_decay(law):
        fit_options["weight_decay"] = settings.weight_decay
    prior = settings.prior
    if prior and not _is_default_prior(prior, law.choice is not None):
        fit_options["prior"] = f"{prior.law}:{prior.left_out}" if prior.left_out else prior.law
    if law.bootstrap:
        fit_options["bootstrap"] = law.n_draws
        fit_options["bootstrap_form"] = law.bootstrap.form
        fit_options["percentiles"] = law.bootstrap.percentiles
    return fit_options


def _default_weights(law: Law) -> str:
    """The weights that a fit without --weights has: of a form that it chose, those of that form."""
    return DEFAULT_WEIGHTS if law.choice and law.form.shares else "none"


def _is_default_decay(law: Law) -> bool:
    """Whether the weight decay was the default, which is 0 for many runs."""
    has_many_runs = law.fitted is not None and law.fitted.runs > FEW_RUNS
    return law.settings.weight_decay_default or (has_many_runs and law.settings.weight_decay == 0)


def _is_default_prior(prior: PriorSummary, chose: bool) -> bool:
    """Whether a prior was the default of its fit. An older law does not say it: all fits that `chose` between forms
    had the population's prior then."""
    if prior.by_default is None:
        return chose and prior.law == "population"
    return prior.by_default


def fitted_again(law: Law, runs: Table, mix_corpora: bool, with_draws: bool) -> Law:
    """The law fitted to these runs with the options of its own fit."""
    options: Json = options_of_fit(law) | dict(mix_corpora=mix_corpora)
    if not with_draws:
        options["bootstrap"] = 0
    return fit_law.fit_law(runs, FitOptions(**options))


def was_fitted_to(law: Law, table: Table) -> bool:
    """Whether a law.json was fitted to the runs of a table, and no others."""
    return read_runs(table, law.form.columns, mix_corpora=True).fingerprint() == law.runs.fingerprint


def next_step(law: Law, table: Table, mix_corpora: bool, out: str | None) -> str:
    """What to do next, and the command to type.

    Args:
      law: The one that the runs were compared with.
      table: All runs.
      mix_corpora: Whether they may be of several texts.
      out: The file of the law of all runs, where it was written.
    """
    if out is not None:
        return f"the law of all runs is written to {out}; next: python -m fit plan --law={out}"
    if law.published:
        return f"next, once the table has runs of several sizes: python -m fit law --runs={table.path} --out=law.json"
    return f"next: {_how_to_fit(law, table, mix_corpora)}, then plan with it"


def _how_to_fit(law: Law, table: Table, mix_corpora: bool) -> str:
    """The command that fits a law to a table as it was fitted before, with draws; or the call in Python, where the fit
    had options for which there is no flag."""
    out = "law.json" if law.name in NAMES else law.name
    given: Json = options_of_fit(law) | dict(bootstrap=USUAL_DRAWS, mix_corpora=mix_corpora)
    wanted = FitOptions(**given)
    if law.settings.solver == "lbfgs" and not law.settings.with_rate:
        given["solver"] = "paper"
    flags = {name: given[name] for name in FLAGS if name in given}
    typed = FitOptions(**flags)
    default = FitOptions()
    if _differing(law, typed, wanted):
        arguments = [f"{name}={given[name]!r}" for name in given if getattr(wanted, name) != getattr(default, name)]
        return f"in Python, fit.save(fit.law({', '.join([_runs_in_python(table), *arguments])}), {out!r})"
    words = [_flag(name, value) for name, value in flags.items() if getattr(typed, name) != getattr(default, name)]
    words += [_flag(name, pairs) for name, pairs in dict(columns=table.names, units=table.units).items() if pairs]
    return shlex.join(["python", "-m", "fit", "law", f"--runs={table.path}", f"--out={out}", *words])


def _differing(law: Law, typed: FitOptions, wanted: FitOptions) -> list[str]:
    """The options in which a fit by the flags that are typed would differ from the one that is wanted.

    Both have the same prior. A law without draws does not say how they are to be made.
    """
    alike = {"solver", "prior"}
    if not law.bootstrap:
        alike |= {"bootstrap_form", "percentiles"}
    names = [field.name for field in dataclasses.fields(FitOptions) if field.name not in alike]
    return [name for name in names if getattr(typed, name) != getattr(wanted, name)]


def _flag(name: str, value: Any) -> str:
    """An option as fit law takes it."""
    if value is True:
        return f"--{name}"
    if isinstance(value, dict):
        mark = "=" if name == "fix" else ":"
        value = ",".join(f"{key}{mark}{each}" for key, each in value.items())
    return f"--{name}={value}"


def _runs_in_python(table: Table) -> str:
    """The argument `runs` of fit.law for a table in a file."""
    named = [f"{name}={pairs!r}" for name, pairs in dict(columns=table.names, units=table.units).items() if pairs]
    if not named:
        return repr(table.path)
    return f"fit.read({', '.join([repr(table.path), *named])})"
