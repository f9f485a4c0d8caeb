"""The answer of `fit law`: the law, its error, the number of experts that it finds best, and how far it may be trusted;
all else (law_details.py) on demand."""

from collections.abc import Iterator

from fit.fitted_law.law import Law
from fit.fitted_law.tuning import Tuning
from fit.messages.lines import Line
from fit.messages.units import amount, say
from fit.planning.answer import odds_line
from fit.planning.context import reasons_to_doubt
from fit.planning.uncertainty import odds
from fit.planning.uncertainty.odds import Odds
from fit.planning.uncertainty.odds_of_law import NoOdds
from fit.render import law_details

ANSWER = "{errors}. {experts}"
OFF_FITTED = "{mean_relative_error:.2%} off on {runs} fitted runs"
OFF_HELD_OUT = "{held_out:.2%} off on {held_out_runs} held-out runs, {fitted:.2%} on {fitted_runs} fitted"
BEST = "E = {best} is best at {flops:flops} FLOPs, the most it was fitted to{tied}"
TIED = "; E = {others} is a close call, within {tie:.1%} of the loss or {budget:.0%} of the compute"
AT_EDGE = "; {which} experts were not compared"
OF_DENSE = "It holds for dense models alone"
OF_ONE_NUMBER = "It holds for mixtures of {n_experts} experts alone"
IGNORES_EXPERTS = "It does not read the number of experts"
NO_BEST = "It does not say which E is best: {why}"
UP_TO = ", up to {flops:flops} FLOPs"
BEYOND = (
    "fitted to 1/{factor} of the compute, {rmse_log:.2%} off on the other {runs} runs (mean "
    "{mean_error:+.2%}, by scatter alone {scatter:.2%})"
)
NOT_TESTED = "not tested; --holdout=compute:rolling tests it where the runs are enough"
NOT_SURE = "no intervals; --bootstrap=100 adds them"
WRITTEN = "written to {path}{tables}"
TABLES = " (--verbose: coefficients, errors, intervals)"
BEST_RATE = "{rate}{batch}; {near} of {runs} runs are near enough to count for intervals"
BEST_BATCH = "; best batch: {batch}"


def answer(law: Law, of_experts: Odds | NoOdds | None) -> list[Line]:
    """Lines on a fitted law: its error, the best number of experts and rate, why it has this form, how sure it is.

    Its warnings and the file that it is written to are not among them.

    Args:
      law: The law.
      of_experts: Its odds at the most compute that was fitted, by odds_of_law.
    """
    if of_experts is None:
        experts = _of_one_number(law)
    elif isinstance(of_experts, NoOdds):
        experts = say(NO_BEST, why=of_experts.why)
    else:
        experts = _best_number(law, of_experts)
    return [
        Line(f"{_chosen_form(law)} law", say(ANSWER, errors=_errors(law), experts=experts)),
        *([_tuning(law.tuning)] if law.tuning else []),
        *law_details.why_this_form(law),
        Line("Beyond its runs", _beyond(law)),
        *_how_sure(law, of_experts),
    ]


def _tuning(tuning: Tuning) -> Line:
    """The best rate and batch of a fit."""
    model = ", ".join(f"{name} {amount(value)}" for name, value in tuning.reference.items())
    batch = ""
    if tuning.with_batch:
        size = f"{amount(tuning.coefficients['batch'])} tokens"
        batch = say(BEST_BATCH, batch=_with_powers(tuning, "batch", size))
    rate = _with_powers(tuning, "rate", f"{tuning.coefficients['rate']:.3g}")
    at = f" at {model}" if model else ""
    return Line(f"best rate{at}", say(BEST_RATE, rate=rate, batch=batch, near=tuning.near, runs=tuning.runs))


def _with_powers(tuning: Tuning, name: str, value: str) -> str:
    """An optimum and the powers by which it changes with the model."""
    powers = [f"{column}^{tuning.coefficients[f'{name}_{column}']:+.2f}" for column in tuning.reference]
    return f"{value}, {' '.join(powers)}" if powers else value


def written(path: str, verbose: bool) -> Line:
    """The last line: the file of the law, and how to see the tables unless they are printed."""
    return Line("", say(WRITTEN, path=path, tables="" if verbose else TABLES))


def _chosen_form(law: Law) -> str:
    """The form that was chosen: an additive law is written as the coupled one with k = 1."""
    if law.choice and law.choice.tried and law.coefficients.get("k") == 1:
        return law.choice.tried[0].form
    return law.form.name


def _of_one_number(law: Law) -> str:
    """For which models a law holds that does not compare numbers of experts."""
    fitted = law.models.n_experts or ()
    if len(fitted) > 1:
        words = IGNORES_EXPERTS
    elif law.experts == (1,):
        words = OF_DENSE
    else:
        words = say(OF_ONE_NUMBER, n_experts=law.experts[0])
    if "training_flops" in law.ranges:
        words += say(UP_TO, flops=law.ranges["training_flops"][1])
    return words


def _best_number(law: Law, of_experts: Odds) -> str:
    """The best number of experts, another that is as good, and whether it is at the end of those compared."""
    best = of_experts.recommended
    tied = ""
    if of_experts.close_call:
        others = [n_experts for n_experts in of_experts.close_call if n_experts != best]
        tied = say(TIED, others=" and ".join(map(str, others)), tie=odds.CLOSE, budget=odds.CLOSE_BUDGET)
    edge = reasons_to_doubt.edge_of_best(law, law.experts, best)
    if edge is not None:
        tied += say(AT_EDGE, which="more" if edge == "largest" else "fewer")
    return say(BEST, best=best, flops=law.ranges["training_flops"][1], tied=tied)


def _errors(law: Law) -> str:
    """How far a fitted law is off, on held-out runs first."""
    fitted = law.fitted
    held_out = law.held_out
    assert fitted is not None
    if held_out is None:
        return say(OFF_FITTED, **fitted)
    return say(
        OFF_HELD_OUT,
        held_out=held_out.mean_relative_error,
        held_out_runs=held_out.runs,
        fitted=fitted.mean_relative_error,
        fitted_runs=fitted.runs,
    )


def _beyond(law: Law) -> str:
    """How far the law is off beyond the runs that it is fitted to, where rolling hold-outs say it."""
    return say(BEYOND, **law.rolling[-1]) if law.rolling else NOT_TESTED


def _how_sure(law: Law, of_experts: Odds | NoOdds | None) -> Iterator[Line]:
    """Lines on how often each number of experts is the best, and on what the draws leave open."""
    if law.bootstrap is None:
        yield Line("How sure", NOT_SURE)
        return
    if isinstance(of_experts, Odds) and of_experts.drawn:
        yield odds_line.line(of_experts)
    yield from law_details.forms_of_draws(law.bootstrap)
