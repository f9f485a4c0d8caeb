"""All of a fitted law that its answer leaves out: coefficients, errors on all runs, scatter and intervals."""

from collections.abc import Iterator

import numpy as np

from fit.fitted_law.law import Law
from fit.fitted_law.parts import LEVEL, Bootstrap, HoldOut
from fit.fitted_law.published_draws import drawing_in_words
from fit.messages.catalogue import SPAN_OF_PROFILE
from fit.messages.finding import Finding
from fit.messages.lines import Line
from fit.messages.units import say_first
from fit.table.runs import Errors, WorstRun


def details(law: Law) -> Iterator[Line]:
    """All lines on a fitted law but its findings."""
    yield from _coefficients(law)
    yield from _errors(law)
    yield from _noise(law)
    yield from _intervals(law)


def findings(law: Law) -> list[Finding]:
    """Findings on the models of a law, on its errors beyond its runs, and on its fit."""
    beyond = [law.beyond_runs] if law.beyond_runs else []
    return [*law.models.findings(), *beyond, *law.findings]


def why_this_form(law: Law) -> Iterator[Line]:
    """A line on why a law has its form, where several were tried."""
    if law.choice:
        yield Line("form chosen", law.choice.why)


def forms_of_draws(bootstrap: Bootstrap) -> Iterator[Line]:
    """A line on the forms of a bootstrap's draws, where these are of several."""
    if bootstrap.forms:
        counts = " and ".join(f"{count} of {form}" for form, count in bootstrap.forms.items())
        yield Line("", f"  ({counts}: which form holds beyond the runs is open)")


def _coefficients(law: Law) -> Iterator[Line]:
    """Coefficients, the choice of the form, the objective, and what settings added to it."""
    settings = law.settings
    fixed = settings.fix
    values = [f"{name} {v:.6g}{' (fixed)' if name in fixed else ''}" for name, v in law.coefficients.items()]
    yield Line(f"{law.form.name} law", ", ".join(values))
    yield from why_this_form(law)
    if law.objective is not None:
        line = f"objective {law.objective:.6e}"
        # the others were left where they fell behind; an older law counts them among those that ended elsewhere
        if law.starts and law.starts.followed is not None:
            ends = "starts followed to their end: {followed} of {tried}, {within_1_percent} of them to within 1% of it"
            line += f"; {ends.format(**law.starts)}"
        yield Line("", line)
    if settings.weight_decay_default and settings.weight_decay is not None:
        yield Line(
            "",
            f"weight decay {settings.weight_decay:.1e}, at most a hundredth of the runs' variance, the default "
            "for so few runs: it keeps finite what they leave open (weight_decay=0 in fit.law for none)",
        )
    prior = settings.prior
    if prior and prior.yielded is None:
        spreads = ", ".join(_spread(prior.law, *row) for row in prior.spreads.items())
        lacks = f"; it has no value for {', '.join(prior.not_taken)}" if prior.not_taken else ""
        yield Line(f"drawn to {prior.law}", f"{spreads}{lacks}")


def _spread(law: str, name: str, ends: tuple[float, float]) -> str:
    """A prior's mean and standard deviation of a coefficient, in words."""
    mean, deviation = ends
    if name == "k":
        return f"k {mean:.4g} ± {deviation:.2g} of ln(1/k - 1)"
    if law == "population":  # whose priors are of logarithms
        return f"{name} {mean:.4g} within a factor of {np.exp(deviation):.2f}"
    return f"{name} {mean:.4g} ± {deviation:.2g}"


def _errors(law: Law) -> Iterator[Line]:
    """Errors on fitted and held-out runs, of rolling hold-outs, and of separate laws."""
    for errors, words in ((law.fitted, "fitted"), (law.held_out, "held-out")):
        if errors:
            worst = (f"  {_worst(errors.worst)}",) if errors.worst else ()
            yield _mean_error(errors, words, worst)
    yield from (_rolling(step) for step in law.rolling)
    for separate, words in ((law.separate_fitted, "fitted"), (law.separate_held_out, "held-out")):
        if separate:
            rmse = f"RMSE {separate.rmse_nats:.4f} nats on {separate.runs} {words} runs"
            yield Line("a separate Chinchilla law for each number of experts", rmse)


def mean_errors(law: Law) -> list[Line]:
    """A line each on the errors on fitted and on held-out runs, where the law has them."""
    both = ((law.fitted, "fitted"), (law.held_out, "held-out"))
    return [_mean_error(errors, words) for errors, words in both if errors]


def _mean_error(errors: Errors, words: str, worst: tuple[str, ...] = ()) -> Line:
    """The errors on some runs. worst: the run with the largest one, below them."""
    size = (
        f"{errors.mean_relative_error:.2%} (largest {errors.max_relative_error:.2%}, RMSE {errors.rmse_nats:.4f} nats)"
    )
    return Line(f"mean relative error on {errors.runs} {words} runs", size, worst)


def _rolling(step: HoldOut) -> Line:
    """One rolling hold-out."""
    return Line(
        f"rolling hold-out, 1/{step.factor} of the compute",
        f"fitted to the {step.fitted} runs up to {step.fitted_flops:.3g} FLOPs, the law predicts the other {step.runs} "
        f"with an error of {step.rmse_log:.2%} (mean {step.mean_error:+.2%}; by scatter alone it would be "
        f"{step.scatter:.2%}); {step.coverage:.0%} lie in their {LEVEL:.0%} intervals",
    )


def _worst(run: WorstRun) -> str:
    """The run with the largest error, in words."""
    names = [] if run.row is None else [f"row {run.row}"]
    if run.run is not None:
        names.append(run.run)
    which = f" is {', '.join(names)}" if names else ""
    return f"the worst{which}: predicted {run.predicted:.4f}, measured {run.measured:.4f}"


def _noise(law: Law) -> Iterator[Line]:
    """Lines on the scatter of runs, and on the number of runs behind the intervals."""
    noise = law.noise
    if noise and noise.trunks is not None:
        parts = "each run for itself"
        if noise.trunks:
            parts = f"{noise.trunk:.2%} shared within each of {noise.trunks} {noise.by}, {noise.run:.2%} each run's own"
        yield Line(f"runs scatter around the law by {noise.total:.2%} (one standard deviation)", parts)
    if law.sample and law.fitted:
        yield Line(
            "",
            f"intervals and warnings from a random sample of {law.sample:,} of the {law.fitted.runs:,} fitted runs, "
            "scaled to the number of all of them",
        )


def _intervals(law: Law) -> Iterator[Line]:
    """Profile intervals, and percentiles of the bootstrap."""
    for name, interval in law.profile.items():
        ends = {end: interval[end] for end in ("low", "high") if interval[end] is not None}
        words = say_first(SPAN_OF_PROFILE, ends)
        if len(ends) == 2:
            words = f"{interval.low:.5g} to {interval.high:.5g}"
        yield Line(f"{name} {interval.value:.5g}, {LEVEL:.0%} profile interval", words)
    bootstrap = law.bootstrap
    if not bootstrap or not bootstrap.intervals:
        return
    first, last = bootstrap.percentiles
    intervals = ", ".join(f"{name} {low:.4g} to {high:.4g}" for name, (low, high) in bootstrap.intervals.items())
    head = f"{first:g}th to {last:g}th percentile of {len(bootstrap.draws)} bootstrap fits"
    yield Line(head, intervals, (f"  ({drawing_in_words(bootstrap.form, bootstrap.by)})",))
    yield from forms_of_draws(bootstrap)
