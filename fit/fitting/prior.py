"""What another law knows: a form whose exponents are drawn to those of that law, for runs too few to settle them."""

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
    spreads = {}
    for column in shared:
        (name, divisor), (other, by) = ours[column], theirs[column]
        value = law.coefficients[other] / by * divisor
        spreads[name] = (value, SPREAD * abs(value))
    for name in form.shares:
        spreads[name] = (float(np.log(1 / min(law.coefficients[name], LARGEST_SHARE) - 1)), SPREAD_OF_SHARE)
    drawn = form.believing(spreads)
    of_share = lambda name: [law.coefficients[name], SPREAD_OF_SHARE]
    drawn.prior = dict(
        law=law.name,
        spreads={name: of_share(name) if name in form.shares else list(pair) for name, pair in spreads.items()},
        not_taken=[ours[column][0] for column in ours if column not in theirs],
    )
    return drawn
