"""What another law knows: a form whose exponents are drawn to those of that law, for runs too few to settle them."""

import copy
import dataclasses
import functools

import numpy as np

from fit.errors import UserError
from fit.form import Form
from fit.lawbook.lawfile import Law

# Standard deviations of an exponent, as a share of it, and of ln(1/k - 1): how two sweeps of the benchmark's tables
# differ (docs/laws.md, "What another law knows").
SPREAD, SPREAD_OF_SHARE = 1 / 3, 0.7
LARGEST_SHARE = 0.95  # so that a law with k = 1 has a mean to draw to


def drawn_to(form: Form, law: Law) -> Form:
    """The Form with normal priors on its exponents of size and data, and on k where it has one, around the law's;
    form.prior says of it what law.json holds: law, spreads {coefficient: [mean, standard deviation]}, and not_taken,
    which of its exponents the law has no value for. Raises UserError where the law has none of them, or only one of
    both has a k: its exponents are then those of something else."""
    flag = f"--prior={law.name}"
    ours, theirs = form.exponents, law.form.exponents
    shared = [column for column in ours if column in theirs]
    if not shared:
        raise UserError(
            f"{flag}: the {law.form.name} law has no exponent of {' or '.join(ours) or 'size or data'} to which those "
            f"of the {form.name} law could be drawn"
        )
    if form.shares != law.form.shares:
        has, lacks = (form, law.form) if form.shares else (law.form, form)
        raise UserError(
            f"{flag}: the {has.name} law has the coefficient {has.shares[0]} and the {lacks.name} law has none, so "
            f"their exponents do not mean the same; expected a law with{'' if form.shares else 'out'} {has.shares[0]}"
        )
    means = {}
    for column in shared:
        (name, divisor), (other, by) = ours[column], theirs[column]
        means[name] = law.coefficients[other] / by * divisor
    means |= {name: law.coefficients[name] for name in form.shares}
    return _drawn(form, law.name, tuple(means.items()), tuple(ours[c][0] for c in ours if c not in theirs))


@functools.cache  # so that fits of one form to several tables share its compiled search
def _drawn(form: Form, law: str, means: tuple[tuple[str, float], ...], not_taken: tuple[str, ...]) -> Form:
    drawn, spreads = copy.copy(form), {}
    drawn.coefficients = dict(form.coefficients)
    for name, mean in means:
        entry, spread = mean, SPREAD * abs(mean)
        if name in form.shares:
            entry, spread = float(np.log(1 / min(mean, LARGEST_SHARE) - 1)), SPREAD_OF_SHARE
        drawn.coefficients[name] = dataclasses.replace(form.coefficients[name], prior=(entry, spread))
        spreads[name] = [mean, spread]
    drawn.prior = dict(law=law, spreads=spreads, not_taken=list(not_taken))
    return drawn
