"""Laws as text: the summary of a fit, several forms side by side, and predictions for the models of a table."""

import dataclasses
import warnings
from collections.abc import Iterable, Iterator

import numpy as np

from fit.aliases import Json
from fit.fitted_law import models, own_counts, tuning_text
from fit.fitted_law.law import NAMES, Law, in_words, load
from fit.fitted_law.parts import LEVEL, SIMULATED, WAYS_OF_DRAWING, Bootstrap, HoldOut, ProfileInterval
from fit.fitted_law.published_draws import HOW, fits_in_words
from fit.messages.finding import finding
from fit.table import validate
from fit.table.runs import Errors, WorstRun, unlikely
from fit.table.table import Table


def built_in_laws() -> Iterator[str]:
    """Lines on each built-in law: the columns it reads, the runs it was fitted to, and its source."""
    for name in NAMES:
        law = load(name)
        yield name
        yield f"    reads {', '.join(law.form.columns)}"
        yield f"    fitted to {law.ranges_in_words or 'runs whose range is not known'}"
        yield f"    {law.source or 'our own runs, on bytes of source code (results/)'}"


def summary(law: Law) -> Iterator[str]:
    """Lines on a fitted law."""
    yield from _fit_lines(law)
    yield from _error_lines(law)
    yield from _noise_lines(law)
    yield from _interval_lines(law)


def warnings_of(law: Law) -> list[str]:
    """The warnings of a fit."""
    beyond = [law.warning] if law.warning else []
    return [*models.notes(law.models), *beyond, *law.warnings]


def why_this_form(law: Law) -> Iterator[str]:
    """A line on why a law has its form, where several were tried."""
    if law.choice:
        yield f"form chosen: {law.choice.why}"


def forms_of_draws(bootstrap: Bootstrap) -> Iterator[str]:
    """A line on the forms of a bootstrap's draws, where these are of several."""
    if bootstrap.forms:
        counts = " and ".join(f"{count} of {form}" for form, count in bootstrap.forms.items())
        yield f"  ({counts}: which form holds beyond the runs is open)"


def _fit_lines(law: Law) -> Iterator[str]:
    """Coefficients, the choice of the form, the objective, and what settings added to it."""
    settings = law.settings
    fixed = settings.fix
    values = [f"{name} {v:.6g}{' (fixed)' if name in fixed else ''}" for name, v in law.coefficients.items()]
    yield f"{law.form.name} law: {', '.join(values)}"
    yield from why_this_form(law)
    if law.objective is not None:
        line = f"objective {law.objective:.6e}"
        # the others were left where they fell behind; an older law counts them among those that ended elsewhere
        if law.starts and law.starts.followed is not None:
            ends = "starts followed to their end: {followed} of {tried}, {within_1_percent} of them to within 1% of it"
            line += f"; {ends.format(**law.starts)}"
        yield line
    if settings.weight_decay_default and settings.weight_decay is not None:
        yield (
            f"weight decay {settings.weight_decay:.1e}, at most a hundredth of the runs' variance, the default "
            "for so few runs: it keeps finite what they leave open (weight_decay=0 in fit.law for none)"
        )
    prior = settings.prior
    if prior and prior.yielded is None:
        spreads = ", ".join(_spread(prior.law, *row) for row in prior.spreads.items())
        lacks = f"; it has no value for {', '.join(prior.not_taken)}" if prior.not_taken else ""
        yield f"drawn to {prior.law}: {spreads}{lacks}"


def _spread(law: str, name: str, ends: tuple[float, float]) -> str:
    """A prior's mean and standard deviation of a coefficient, in words."""
    mean, deviation = ends
    if name == "k":
        return f"k {mean:.4g} ± {deviation:.2g} of ln(1/k - 1)"
    if law == "population":  # whose priors are of logarithms
        return f"{name} {mean:.4g} within a factor of {np.exp(deviation):.2f}"
    return f"{name} {mean:.4g} ± {deviation:.2g}"


def _error_lines(law: Law) -> Iterator[str]:
    """Errors on fitted and held-out runs, of rolling hold-outs, and of separate laws."""
    for errors, words in ((law.fitted, "fitted"), (law.held_out, "held-out")):
        if errors:
            yield _mean_error(errors, words)
            if errors.worst:
                yield f"  {worst(errors.worst)}"
    for step in law.rolling:
        yield _rolling_line(step)
    for separate, words in ((law.separate_fitted, "fitted"), (law.separate_held_out, "held-out")):
        if separate:
            yield (
                f"a separate Chinchilla law for each number of experts: RMSE {separate.rmse_nats:.4f} nats on "
                f"{separate.runs} {words} runs"
            )


def mean_errors(law: Law) -> list[str]:
    """A line each on the errors on fitted and on held-out runs, where the law has them."""
    both = ((law.fitted, "fitted"), (law.held_out, "held-out"))
    return [_mean_error(errors, words) for errors, words in both if errors]


def _mean_error(errors: Errors, words: str) -> str:
    """The errors on some runs, in words."""
    return f"mean relative error on {errors.runs} {words} runs: {_size(errors)}"


def _rolling_line(step: HoldOut) -> str:
    """One rolling hold-out, in words."""
    return (
        f"rolling hold-out, 1/{step.factor} of the compute: fitted to the {step.fitted} runs up to "
        f"{step.fitted_flops:.3g} FLOPs, the law predicts the other {step.runs} with an error of "
        f"{step.rmse_log:.2%} (mean {step.mean_error:+.2%}; by scatter alone it would be {step.scatter:.2%}); "
        f"{step.coverage:.0%} lie in their {LEVEL:.0%} intervals"
    )


def _size(errors: Errors) -> str:
    """Mean and largest relative error, and RMSE, in words."""
    return (
        f"{errors.mean_relative_error:.2%} (largest {errors.max_relative_error:.2%}, RMSE {errors.rmse_nats:.4f} nats)"
    )


def worst(run: WorstRun) -> str:
    """The run with the largest error, in words."""
    names = [] if run.row is None else [f"row {run.row}"]
    if run.run is not None:
        names.append(run.run)
    which = f" is {', '.join(names)}" if names else ""
    return f"the worst{which}: predicted {run.predicted:.4f}, measured {run.measured:.4f}"


def _noise_lines(law: Law) -> Iterator[str]:
    """Lines on the scatter of runs, and on the number of runs behind the intervals."""
    noise = law.noise
    if noise and noise.trunks is not None:
        parts = "each run for itself"
        if noise.trunks:
            parts = f"{noise.trunk:.2%} shared within each of {noise.trunks} {noise.by}, {noise.run:.2%} each run's own"
        yield f"runs scatter around the law by {noise.total:.2%} (one standard deviation): {parts}"
    if law.sample and law.fitted:
        yield (
            f"intervals and warnings from a random sample of {law.sample:,} of the {law.fitted.runs:,} fitted runs, "
            "scaled to the number of all of them"
        )


def _interval_lines(law: Law) -> Iterator[str]:
    """Profile intervals, and percentiles of the bootstrap."""
    for name, interval in law.profile.items():
        yield f"{name} {interval.value:.5g}, {LEVEL:.0%} profile interval: {_profile_ends(interval)}"
    bootstrap = law.bootstrap
    if not bootstrap or not bootstrap.intervals:
        return
    first, last = bootstrap.percentiles
    intervals = [f"{name} {low:.4g} to {high:.4g}" for name, (low, high) in bootstrap.intervals.items()]
    count = len(bootstrap.draws)
    yield f"{first:g}th to {last:g}th percentile of {count} bootstrap fits: {', '.join(intervals)}"
    yield f"  ({drawn(bootstrap.form, bootstrap.by)})"
    yield from forms_of_draws(bootstrap)


def _profile_ends(interval: ProfileInterval) -> str:
    """The ends of a profile's interval; an open one in words."""
    if interval.low is None or interval.high is None:
        return span(interval)
    return f"{interval.low:.5g} to {interval.high:.5g}"


def drawn(form: str, by: str | None) -> str:
    """A bootstrap's way of resampling, in words.

    Args:
      form, by: as of a Bootstrap.
    """
    if form == SIMULATED:
        return HOW
    return WAYS_OF_DRAWING[form].format(by=by)


def span(interval: ProfileInterval) -> str:
    """A profile's interval in words."""
    low = interval.low
    high = interval.high
    if low is None and high is None:
        return "unbounded both ways, any value tried fits as well"
    if high is None:
        return f"unbounded above, anything from {low:.4g} up fits as well"
    if low is None:
        return f"unbounded below, anything up to {high:.4g} fits as well"
    return f"anything from {low:.4g} to {high:.4g} fits as well"


def of_forms(result: Json) -> Iterator[str]:
    """Lines on a result of form_comparison.compare: a table, the form of least AIC first."""
    on_held_out = ", on the held-out ones" if any(row["held_out"] for row in result["forms"]) else ""
    yield f"{'form':14} {'k':>3} {'RMSE':>8} {'held-out':>9} {'left-out':>9} {'AIC':>9} {'BIC':>9}"
    for row in sorted(result["forms"], key=lambda row: row["aic"]):
        yield (
            f"{row['form']:14} {len(row['coefficients']):3d} {_rmse(row['fitted']):>8} {_rmse(row['held_out']):>9} "
            f"{_rmse(row['left_out']):>9} {row['aic']:9.1f} {row['bic']:9.1f}"
        )
    yield (
        f"RMSE in nats per token on the {result['runs']} fitted runs{on_held_out}, and on each of "
        f"the {result['budgets']} budgets ({result['budgets_by']}) by the fit to all others; k coefficients; AIC and "
        "BIC take the runs' errors for independent"
    )
    yield from of_parabolas(result["isoflop"])


def _rmse(errors: Json | None) -> str:
    return f"{errors['rmse_nats']:.4f}" if errors else "-"


def _interval(ends: list[float] | None, form: str) -> str:
    """The ends of an interval in brackets after a space; "" where they are not known."""
    return f" [{form.format(ends[0])}, {form.format(ends[1])}]" if ends else ""


def of_parabolas(profiles: Iterable[Json]) -> Iterator[str]:
    """Lines on a result of isoflop.profiles over n_active."""
    for profile in profiles:
        power = profile["power"]
        points = ", ".join(
            f"n_active = {row['best']:.3g}{_interval(row['interval'], '{:.3g}')} at {row['flops']:.3g}"
            for row in profile["budgets"]
        )
        law = ""
        if power:
            exponent = _interval(profile["exponent"], "{:.3f}")
            law = f"; n_active_opt = {power[0]:.3g} C^{power[1]:.3f}{exponent}"
        experts = "experts" if profile["n_experts"] > 1 else "expert"
        yield f"isoFLOP parabolas, {profile['n_experts']} {experts}: {points}{law}"


def predict(law: Law, table: Table) -> Json:
    """The losses of the models of a table, in nats per token.

    Returns:
      {columns, findings}. columns: lists with a value for each row: predicted_loss; with bootstrap draws law_loss_low
      and law_loss_high, and where the law knows its noise predicted_loss_low and _high of a new run; the columns of
      tuning_text.columns_of where the law has best rates; and outside_fitted_range, in words.

    Raises:
      UserError: for a value that no model has.
    """
    validate.require(table, law.form.columns)
    law.check_experts_of(table)
    values = {name: table.numbers(name) for name in law.form.columns}
    values = own_counts.columns_of_table(law, table, values)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # said among the warnings
        columns = {"predicted_loss": law.predict(**values).tolist()}
    if law.draws:
        if law.noise is not None:
            low, high = law.predict_interval(new_run=True, **values)
            columns |= dict(predicted_loss_low=low.tolist(), predicted_loss_high=high.tolist())
        low, high = law.predict_interval(new_run=False, **values)
        columns |= dict(law_loss_low=low.tolist(), law_loss_high=high.tolist())
    if law.tuning:
        columns |= tuning_text.columns_of(law.tuning, table)
    inside = law.inside(**values)
    columns["outside_fitted_range"] = [
        "" if inside[i] else in_words(law.extrapolation(**{name: column[i] for name, column in values.items()}))
        for i in range(len(table))
    ]
    odd = unlikely(values)
    findings = [odd] if odd else []
    if "loss" in table:
        findings += [finding("table", doubt=doubt) for doubt in validate.doubts(table) if "loss" in doubt]
    if law.warning and not inside.all():
        findings.append(finding("outside_with_errors", sentence=law.warning))
    return dict(columns=columns, findings=findings)


def extended(table: Table, columns: dict[str, list]) -> Table:
    """The table with these columns, instead of those of the same names from an earlier prediction."""
    arrow = table.arrow
    if arrow is not None:
        arrow = arrow.select([name for name in arrow.column_names if name not in columns])
    return dataclasses.replace(table, columns=table.columns | columns, arrow=arrow)


def against_measured(law: Law, table: Table, columns: dict[str, list]) -> str:
    """A sentence that compares the measured losses of a table with the predictions.

    Args:
      columns: what `predict` returns.

    Raises:
      UserError: where a loss of the table is not a number.
    """
    error = np.log(table.numbers("loss") / np.array(columns["predicted_loss"]))
    differs = ""
    outside = sum(map(bool, columns["outside_fitted_range"]))
    if _others(table, "vocab_size", law.models.vocab_size):
        differs = ", and their vocabulary is not the law's: nats per token of both do not compare"
    elif _others(table, "corpus_fingerprint", law.models.corpus):
        differs = ", and their text is not the law's"
    covered = ""
    if "predicted_loss_low" in columns:
        low = np.array(columns["predicted_loss_low"])
        high = np.array(columns["predicted_loss_high"])
        loss = table.numbers("loss")
        first, last = law.percentiles
        count = int(np.sum((low <= loss) & (loss <= high)))
        covered = f"; {count} lie between the {first:g}th and {last:g}th percentile predicted for a run"
    return (
        f"{len(table)} measured losses are {np.expm1(error.mean()):+.2%} off {law.name} on average and scatter by "
        f"{error.std():.2%} around that; {outside} of the models lie outside its fitted range"
        f"{covered}{differs}"
    )


def _others(table: Table, column: str, known: object) -> bool:
    """Whether any row of the table has another value than the law's, `known`. False if that is not known."""
    values = {str(value).removesuffix(".0") for value in table.columns.get(column, ()) if value not in (None, "")}
    return known is not None and bool(values - {str(known)})


def in_lines(law: Law, columns: dict[str, list]) -> str:
    """Lines on one prediction and its intervals.

    Args:
      columns: what `predict` returns for a single model.
    """
    first = {name: column[0] for name, column in columns.items()}
    text = f"{first['predicted_loss']:.6f}"
    words = dict(law_loss="the fit (the law itself)")
    if law.noise is not None:
        words = dict(predicted_loss=f"a new run (its own noise of {law.noise.total:.2%} included)") | words
    for name, what in words.items() if law.draws else ():
        ends = "{:g}th to {:g}th percentile".format(*law.percentiles)
        text += f"\n{ends} of {what}: {first[f'{name}_low']:.6f} to {first[f'{name}_high']:.6f}"
    if law.source_of_draws:
        text += f"\n{of_source(law.source_of_draws)}"
    return text


def of_source(source: str) -> str:
    """A line below intervals by the draws of a published law. source: where these are from."""
    return f"intervals by {fits_in_words(source)}"
