"""What runs and their law found, in sentences that need no scaling law to be understood."""

import numpy as np

from fit.aliases import Json
from fit.data.runs import Runs, trunks_of
from fit.fitted_law.law import Law
from fit.messages.units import amount, flops


def sentences(law: Law, runs: Runs | None, plan: Json) -> dict[str, str]:
    """{heading: a sentence}, as far as they can be said. plan: the law's, at the compute of its largest run."""
    by_heading = {"what was trained": _trained(runs) if runs else "", "what was found": _found(plan)}
    by_heading |= {"as measured": _measured(runs) if runs else "", "how sure": _sure(law.record, plan)}
    return {heading: sentence for heading, sentence in by_heading.items() if sentence}


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _model(e: float) -> str:
    return f"a mixture of {e:g} experts" if e > 1 else "a dense model (without experts)"


def _span(values: np.ndarray) -> str:
    low, high = map(amount, (values.min(), values.max()))
    return low if low == high else f"{low} to {high}"


def _trained(runs: Runs) -> str:
    labels, _ = trunks_of(runs.table)
    each = [] if labels is None else np.unique(np.bincount(labels)).tolist()  # runs of each trunk
    words = _many(len(runs), "run")
    if len(each) == 1:
        words = f"{_many(len(runs) // each[0], 'model')} at {_many(each[0], 'budget')} each ({words})"
    *most, last = (f"{e:g}" for e in np.unique(runs.n_experts))
    experts = f"{', '.join(most)} and {last} experts" if most else f"{last} experts"
    if not most and last == "1":
        experts = "dense models"
    return f"{words}: {experts}, {_span(runs.n_active)} active parameters, {_span(runs.n_tokens)} tokens"


def _found(plan: Json) -> str:
    best, dense = plan["best"], plan.get("dense")
    which = f"{_model(best['n_experts'])} is best"
    if len(plan["optima"]) + len(plan["infeasible"]) == 1:  # nothing was compared
        which = f"this is the best size of {_model(best['n_experts'])}"
    words = (
        f"with {flops(plan['constraints']['flops'])} training FLOPs, {which}: "
        f"{amount(best['n_active'])} active parameters on {amount(best['n_tokens'])} tokens, predicted loss "
        f"{best['loss']:.4f} (lower is better)"
    )
    if not dense or best["n_experts"] == 1:
        return words
    words += f", {dense['loss_saved'] / dense['loss']:.1%} below the best dense model"
    needed = dense["flops_for_the_same_loss"]
    if needed:
        words += f", which needs {needed / plan['constraints']['flops']:.1f} times the compute for that loss"
    return words


def _measured(runs: Runs) -> str:
    """The best mixture against the dense model of as many active parameters and tokens, where most was computed."""
    for spent in np.unique(runs.flops)[::-1]:
        same = np.isclose(runs.flops, spent, rtol=1e-9)
        loss = {e: runs.loss[same & (runs.n_experts == e)].mean() for e in np.unique(runs.n_experts[same])}
        if 1 in loss and len(loss) > 1:
            e = min((e for e in loss if e > 1), key=lambda e: loss[e])
            return (
                f"of the runs with the same {flops(spent)} FLOPs, the dense model ended at a loss of {loss[1]:.4f}, "
                f"the one with {e:g} experts at {loss[e]:.4f} ({loss[e] / loss[1] - 1:+.1%})"
            )
    return ""


def _sure(record: Json, plan: Json) -> str:
    words, drawn, errors = [], plan.get("bootstrap"), record.get("held_out")
    if drawn and plan["best_undecided"] is not None:
        e, draws = plan["best"]["n_experts"], drawn["draws"]
        won = next((row["best_in_draws"] for row in drawn["optima"] if row["n_experts"] == e), 0)
        settled = "" if plan["best_undecided"] is False else ": not settled"
        words.append(f"{_model(e)} is best in {won} of {draws} repeats of the fit with other errors{settled}")
    if errors:
        words.append(
            f"the law predicted {_many(errors['runs'], 'run')} that it had not seen to within "
            f"{errors['mean_relative_error']:.1%} on average"
        )
    return "; ".join(words)
