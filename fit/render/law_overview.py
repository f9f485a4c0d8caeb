"""The findings of runs and their law in four lines, for readers who do not know scaling laws."""

from collections.abc import Iterator

import numpy as np

from fit.aliases import Array
from fit.fitted_law.law import Law
from fit.messages.lines import Line
from fit.messages.units import amount, counted, flops
from fit.planning.answer import odds_line
from fit.planning.plan import Plan
from fit.table.runs import Runs, trunks_of


def overview(law: Law, runs: Runs | None, plan: Plan) -> list[Line]:
    """A line for each of four questions that the data answer.

    Args:
      runs: that the law was fitted to; None where they are not given.
      plan: the law's, at the compute of its largest run.
    """
    lines = [
        Line("What was trained", _trained(runs) if runs else ""),
        Line("What was found", _best_model(plan)),
        Line("As measured", _measured(runs) if runs else ""),
        *_certainty(law, plan),
    ]
    return [line for line in lines if line.value]


def _model(n_experts: float) -> str:
    return f"a mixture of {n_experts:g} experts" if n_experts > 1 else "a dense model (without experts)"


def _span(values: Array) -> str:
    """The least and the largest value; one of them where both read the same."""
    low = amount(values.min())
    high = amount(values.max())
    return low if low == high else f"{low} to {high}"


def _trained(runs: Runs) -> str:
    """A sentence on the runs and their models."""
    labels, _ = trunks_of(runs.table)
    runs_of_trunks = [] if labels is None else np.unique(np.bincount(labels)).tolist()
    words = counted(len(runs), "run")
    if len(runs_of_trunks) == 1:
        n_budgets = runs_of_trunks[0]
        words = f"{counted(len(runs) // n_budgets, 'model')} at {counted(n_budgets, 'budget')} each ({words})"
    *most, last = (f"{e:g}" for e in np.unique(runs.n_experts))
    experts = f"{', '.join(most)} and {last} experts" if most else f"{last} experts"
    if not most and last == "1":
        experts = "dense models"
    return f"{words}: {experts}, {_span(runs.n_active)} active parameters, {_span(runs.n_tokens)} tokens"


def _best_model(plan: Plan) -> str:
    """The best model of the plan, and what it saves against the best dense model."""
    best = plan.best
    dense = plan.dense
    which = f"{_model(best.n_experts)} is best"
    if plan.n_compared == 1:
        which = f"this is the best size of {_model(best.n_experts)}"
    words = (
        f"with {flops(plan.constraints['flops'])} training FLOPs, {which}: "
        f"{amount(best.n_active)} active parameters on {amount(best.n_tokens)} tokens, predicted loss "
        f"{best.loss:.4f} (lower is better)"
    )
    if not dense or best.n_experts == 1:
        return words
    words += f", {dense.loss_saved / dense.loss:.1%} below the best dense model"
    needed = dense.flops_for_the_same_loss
    if needed:
        words += f", which needs {needed / plan.constraints['flops']:.1f} times the compute for that loss"
    return words


def _measured(runs: Runs) -> str:
    """The best number of experts against dense models at the largest FLOPs at which both were trained. Each number's
    loss is the mean over all its runs of these FLOPs, whatever their sizes and tokens."""
    for budget in np.unique(runs.flops)[::-1]:
        same = np.isclose(runs.flops, budget, rtol=1e-9)
        loss = {e: runs.loss[same & (runs.n_experts == e)].mean() for e in np.unique(runs.n_experts[same])}
        if 1 in loss and len(loss) > 1:
            best = min((e for e in loss if e > 1), key=lambda e: loss[e])
            return (
                f"of the runs with the same {flops(budget)} FLOPs, the dense model ended at a loss of {loss[1]:.4f}, "
                f"the one with {best:g} experts at {loss[best]:.4f} ({loss[best] / loss[1] - 1:+.1%})"
            )
    return ""


def _certainty(law: Law, plan: Plan) -> Iterator[Line]:
    """How often each number of experts is the best in the draws, what to measure, and the error on held-out runs."""
    words = []
    errors = law.held_out
    if errors:
        words.append(
            f"the law predicted {counted(errors.runs, 'run')} that it had not seen to within "
            f"{errors.mean_relative_error:.1%} on average"
        )
    if plan.odds.drawn and plan.odds.second is not None:
        yield odds_line.line(plan.odds, words)
    elif words:
        yield Line("How sure", "; ".join(words))
