"""Dense, mixture, or undecided: what a plan decides, and what the decision costs where it is wrong.

Two numbers of experts are tied, or equally good, where the losses of their best models differ by less than TIE. They
are not told apart where these differ by more, and the law's draws do not say which of the two is lower: the interval of
the difference, taken within each draw, holds 0.
"""

import math

from fit.messages import sentences
from fit.messages.units import say
from fit.planning.results import Bootstrap, Optimum, Verdict

TIE = 5e-4  # share of the loss within which models are as good as each other
COLUMNS = dict(memory_bytes="memory", n_tokens="tokens", inference_flops_per_token="FLOPs of serving a token")
APART = 1.1  # tied models differ in memory, tokens or serving from this ratio on


def of_plan(optima: list[Optimum], best: Optimum, bootstrap: Bootstrap | None) -> Verdict:
    """What a plan decides.

    Args:
      optima: The best model with each number of experts.
      best: The one of the lowest loss.
      bootstrap: The plan by the draws of the law's bootstrap; None without draws.
    """
    tied = [row for row in optima if row.loss <= best.loss * (1 + TIE)]
    not_told_apart = [row for row in optima if row not in tied and _may_be_better(row, bootstrap)]
    others = [row.loss for row in optima if (row.n_experts > 1) != (best.n_experts > 1)]
    return Verdict(
        choice=_choice(optima, [*tied, *not_told_apart]),
        tied=[row.n_experts for row in tied],
        not_told_apart=[row.n_experts for row in not_told_apart],
        cost=bootstrap.regret if bootstrap else TIE * best.loss,
        margin=min(others) - best.loss if others else None,
        differ=_differ(tied),
    )


def _may_be_better(row: Optimum, bootstrap: Bootstrap | None) -> bool:
    """Whether the law's draws leave open that a model is better than the best."""
    drawn = bootstrap.row(row.n_experts) if bootstrap else None
    low = drawn.behind[0] if drawn else math.inf
    return low <= 0


def _choice(optima: list[Optimum], candidates: list[Optimum]) -> str | None:
    """ "dense", "mixture" or "undecided" of those that may be best; None where one number of experts is compared."""
    if len(optima) == 1:
        return None
    kinds = {row.n_experts > 1 for row in candidates}
    if len(kinds) > 1:
        return "undecided"
    return "mixture" if kinds == {True} else "dense"


def _differ(tied: list[Optimum]) -> dict[str, list[float]]:
    """{column: [least, most]} of the columns in which tied models differ by APART or more."""
    differ = {}
    for name in COLUMNS:
        values = [row[name] for row in tied]
        if max(values) >= APART * min(values):
            differ[name] = [min(values), max(values)]
    return differ


def text(verdict: Verdict, optima: list[Optimum]) -> list[str]:
    """The verdict in sentences. `optima`: those of the plan."""
    tied = [row for row in optima if row.n_experts in verdict.tied]
    lines = []
    if verdict.choice == "undecided":
        lines.append(say(sentences.UNDECIDED_KIND, cost=verdict.cost))
    elif verdict.choice is not None and verdict.margin is not None:
        other = "dense model" if verdict.choice == "mixture" else "mixture"
        lines.append(say(sentences.DECIDED_KIND, choice=verdict.choice, other=other, margin=verdict.margin))
    if len(tied) > 1:
        apart = " and ".join(COLUMNS[name] for name in verdict.differ) or "nothing that is counted here"
        models = ", ".join(say(sentences.TIED_MODEL, **row) for row in tied)
        lines.append(say(sentences.TIED_MODELS, tie=TIE, models=models, apart=apart))
    if verdict.not_told_apart:
        best = min(optima, key=lambda row: row.loss)
        others = [row for row in optima if row.n_experts in verdict.not_told_apart]
        models = ", ".join(
            say(sentences.NOT_TOLD_MODEL, n_experts=row.n_experts, behind=row.loss - best.loss) for row in others
        )
        lines.append(say(sentences.NOT_TOLD_APART, best=best.n_experts, models=models))
    return lines


def is_settled(verdict: Verdict, undecided: bool | None) -> bool:
    """Whether one number of experts stands out: several are compared, the draws agree on it, none is as good.

    Args:
      verdict: What a plan decides.
      undecided: Whether the draws leave the best open; None without draws, or where one number is compared.
    """
    return undecided is False and len(verdict.tied) == 1
