"""What a law.json says of how sure its law is: noise, intervals, warnings, draws; of many runs, from a sample of
them."""

import numpy as np

from fit import bootstrap, profile, regress, uncertainty
from fit import noise as noise_lib
from fit.laws import FORMS
from fit.runs import subset


def how_sure(form, runs, settings, weights, found, labels, by, options, quiet=False):
    """{noise, profile, warnings} of a fit and, where asked for, its bootstrap; for the joint law the laws of each
    number of experts alone (separate); above regress.SEARCH_RUNS runs, of what sample all this comes (sample).

    labels: the trunk of each run, or None where none are shared; by: what they are in words; options: fitting.Options.
    """
    sure, count, of_all = {}, len(runs), found
    if len(runs) > regress.SEARCH_RUNS:
        rows = sample_of(len(runs), labels, settings.seed)
        runs, weights = subset(runs, rows), weights[rows]
        labels = None if labels is None else np.unique(labels[rows], return_inverse=True)[1]
        found = regress.again(form, runs, settings, weights, found)
        sure["sample"] = dict(runs=len(runs), of=count)
    if form == "joint":
        sure["separate"] = uncertainty.separate(runs, settings, weights)
    context = (form, runs, settings, weights, found)
    data = regress.prepared(form, runs, settings, weights)
    alone = noise_lib.noise(form, found.free, data, len(runs))
    noise = alone if labels is None else noise_lib.noise(form, found.free, data, len(runs), labels)
    sure["noise"] = dict(
        run=noise.run,
        trunk=noise.trunk,
        total=noise.total,
        trunks=0 if labels is None else int(labels.max()) + 1,
        by=by,
        degrees_of_freedom=list(noise.degrees_of_freedom),
    )
    errors = uncertainty.standard_errors(*context, noise, labels, count=count)
    inflation = uncertainty.inflation(*context, noise, alone, labels, count)
    sure["profile"] = profiles = profile.profile(*context, errors, inflation, count, quiet)
    for name, p in profiles.items():  # around what all runs gave
        scale = of_all.coefficients[name] / p["value"]
        profiles[name] = {end: value if value is None else value * scale for end, value in p.items()}
    sure["warnings"] = uncertainty.warnings(*context, profiles, noise, labels, count)
    if options.bootstrap:
        how, context = options.bootstrap_form, (form, runs, settings, weights, of_all)
        draws = bootstrap.bootstrap(*context, options.bootstrap, how, noise, labels, count, quiet)
        ends = np.percentile(draws, options.percentiles, axis=0, method="weibull")
        sure["bootstrap"] = dict(
            form=how,
            by=by,
            percentiles=list(options.percentiles),
            draws=draws.tolist(),
            intervals=dict(zip(FORMS[form].COEFFICIENTS, ends.T.tolist())),
        )
    return sure


def sample_of(n, labels, seed):
    """Indices of a random sample of at most regress.SEARCH_RUNS of n runs, of whole trunks where they have labels."""
    rng = np.random.default_rng([seed, 4])
    if labels is None:
        return np.sort(rng.choice(n, regress.SEARCH_RUNS, replace=False))
    order = rng.permutation(labels.max() + 1)
    sizes = np.cumsum(np.bincount(labels)[order])
    chosen = order[: max(1, int(np.searchsorted(sizes, regress.SEARCH_RUNS, side="right")))]
    return np.flatnonzero(np.isin(labels, chosen))[: regress.SEARCH_RUNS]
