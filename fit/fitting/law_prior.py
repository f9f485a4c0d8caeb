"""Priors that a user asks for with --prior: the population's, another law's, or none."""

import functools

import numpy as np

from fit.errors import UserError
from fit.fitted_law.law import Law
from fit.fitting import population
from fit.form import Form, Prior, PriorSummary

NO_PRIOR = "none"  # of --prior
# Standard deviations of an exponent, as a share of it, and of ln(1/k - 1): how two sweeps of the benchmark's tables
# differ (docs/guides/fit-your-runs.md, "What another law knows").
SPREAD = 1 / 3
SPREAD_OF_SHARE = 0.7
LARGEST_SHARE = 0.95  # so that a law with k = 1 has a finite prior mean


def with_prior(form: Form, prior: Law | str | None) -> Form:
    """The form with the prior that --prior asks for: the population's, that of a law, or none.

    Raises:
      UserError: where the prior says nothing of the form's exponents.
    """
    if isinstance(prior, Law):
        return with_law_prior(form, prior)
    if prior is None or prior == NO_PRIOR:
        return form
    return population.with_population(form, population.left_out_of(prior))


def with_law_prior(form: Form, law: Law) -> Form:
    """The form with normal priors around a law's exponents of size and data, and around its k where it has one.

    `not_taken` of the prior's summary are the exponents of the form for which the law has no value.

    Raises:
      UserError: where the law has none of the exponents, or only one of the two has a k: their exponents do not mean
        the same then.
    """
    flag = f"--prior={law.name}"
    exponents = form.exponents
    law_exponents = law.form.exponents
    shared = [column for column in exponents if column in law_exponents]
    if not shared:
        raise UserError(
            f"{flag}: the {law.form.name} law has no exponent of {' or '.join(exponents) or 'size or data'} to which "
            f"those of the {form.name} law could be drawn"
        )
    if form.shares != law.form.shares:
        has, lacks = (form, law.form) if form.shares else (law.form, form)
        raise UserError(
            f"{flag}: the {has.name} law has the coefficient {has.shares[0]} and the {lacks.name} law has none, so "
            f"their exponents do not mean the same; expected a law with{'' if form.shares else 'out'} {has.shares[0]}"
        )
    means = {}
    for column in shared:
        name, divisor = exponents[column]
        law_coefficient, law_divisor = law_exponents[column]
        means[name] = law.coefficients[law_coefficient] / law_divisor * divisor
    for name in form.shares:
        means[name] = law.coefficients[name]
    not_taken = tuple(exponents[column][0] for column in exponents if column not in law_exponents)
    return _with_means(form, law.name, tuple(means.items()), not_taken)


@functools.cache  # so that fits of one form to several tables share its compiled search
def _with_means(form: Form, law: str, means: tuple[tuple[str, float], ...], not_taken: tuple[str, ...]) -> Form:
    """The form with normal priors around these means of coefficients, ((name, mean), ...)."""
    prior_mean = []
    deviations = []
    spreads = {}
    for name, mean in means:
        if name in form.shares:
            prior_mean.append(float(np.log(1 / min(mean, LARGEST_SHARE) - 1)))
            deviations.append(SPREAD_OF_SHARE)
        else:
            prior_mean.append(mean)
            deviations.append(SPREAD * abs(mean))
        spreads[name] = (mean, deviations[-1])
    entries = tuple(form.names.index(name) for name, _ in means)
    summary = PriorSummary(law=law, spreads=spreads, not_taken=not_taken)
    covariance = np.diag(np.square(deviations))
    return form.with_prior(Prior(entries, (0,) * len(entries), np.array(prior_mean), covariance, summary))
