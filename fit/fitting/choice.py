"""The form that `fit law` takes unless it is told one: the additive law or the coupled one, by how well they predict
the fitted runs of more compute from those of less; where the runs are too few to say, the coupled one.

They are fitted with the weights DEFAULT_WEIGHTS, so that a law is best where it will be asked: at the runs of most
compute and beyond (benchmarks/README.md says what they are worth, and what the coupled form is for few runs).
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from fit.data.table import Table
from fit.errors import UserError
from fit.fitting import fitting, rolling
from fit.fitting.prior import drawn_to
from fit.fitting.problem import Settings
from fit.fitting.sure import sampled
from fit.form import Form
from fit.lawbook.lawfile import Law
from fit.laws import FORMS
from fit.laws._coupled import SUFFIX

DEFAULT_WEIGHTS = "compute^0.6"
# Below this share of the coupled law's error the additive law's must be, to be taken: the coupled law has it in it, as
# k = 1, and over few runs the smaller of two such errors is often so by chance (benchmarks/README.md).
BETTER = 0.7


def fit_best(
    table: Table,
    settings_of: Callable[[Form], Settings],
    options: fitting.Options,
    quiet: bool = False,
    prior: Law | None = None,
) -> dict:
    """Fits the better of both forms to the runs of a table; returns the record that law.json holds, in which `choice`
    says which were tried, {form, rmse_log, rolling}, and why this one was taken.

    settings_of: of an additive Form, the Settings. prior: a law to which exponents are drawn, and whose k, or lack of
    one, then makes the choice. Raises UserError."""
    mixed = "n_experts" in table and len(np.unique(table.numbers("n_experts"))) > 1
    additive = FORMS["joint" if mixed else "chinchilla"]
    coupled, settings = FORMS[additive.name + SUFFIX], settings_of(additive)
    options = dataclasses.replace(options, weights=options.weights or DEFAULT_WEIGHTS)
    fitted = lambda form: fitting.fitted(table, form, settings, options, quiet)
    record = lambda law, why, tried=(), steps=None: (
        fitting.record_of(law, quiet, steps) | dict(choice=dict(tried=list(tried), why=why))
    )
    if prior:
        form = drawn_to(coupled if prior.form.shares else additive, prior)
        why = f"the law {prior.name}, to which its exponents are drawn, has {'a' if form.shares else 'no'} k"
        return record(fitted(form), why)
    fewest, laws, steps = rolling.RUNS_PER_COEFFICIENT * len(coupled.names), {}, {}
    try:
        for form in (coupled, additive):
            laws[form] = fitted(form)
            steps[form] = rolling.rolling(sampled(laws[form].problem), fewest, quiet)
    except UserError:  # too few runs, or something that the fit will name
        law = laws.get(coupled) or fitted(additive)
        why = (
            f"{law.fit.form.name}, for the runs are too few to say whether {additive.name} or {coupled.name} predicts "
            f"larger ones better: at half of the largest compute that takes {fewest} runs, and {rolling.FEWEST} above"
        )
        return record(law, why)
    scores = {form: rolling.score(found) for form, found in steps.items()}
    best, other = (additive, coupled) if scores[additive] < BETTER * scores[coupled] else (coupled, additive)
    tried = [dict(form=form.name, rmse_log=scores[form], rolling=steps[form]) for form in (additive, coupled)]
    why = (
        f"{best.name} predicts the fitted runs of more compute from those of less with an error of {scores[best]:.2%}, "
        f"{other.name} with {scores[other]:.2%}"
    )
    if scores[best] > scores[other]:
        why += f"; {additive.name} is taken only below {BETTER:.0%} of the other's"
    return record(laws[best], why, tried, steps[best])
