"""Dense, mixture, or undecided: what a plan decides, and what the decision costs where it is wrong.

Two numbers of experts are tied where the losses of their best models differ by less than TIE, or where the law's draws
do not say which of the two is lower: the interval of the difference, taken within each draw, holds 0.
"""

from fit.aliases import Json
from fit.messages import sentences
from fit.messages.units import say

TIE = 5e-4  # share of the loss within which models are as good as each other
COLUMNS = dict(memory_bytes="memory", n_tokens="tokens", inference_flops_per_token="FLOPs of serving a token")
APART = 1.1  # tied models differ in memory, tokens or serving from this ratio on


def of_plan(rows: list[Json], best: Json, drawn: Json | None) -> Json:
    """What a plan decides.

    rows: the optimum at each number of experts; best: that of the lowest loss; drawn: the plan's `bootstrap`, if any.

    choice: "dense", "mixture" or "undecided"; None where there is one number of experts only. tied: the numbers of
    experts that the law cannot tell apart from the best, the best among them. cost: nats per token that the best loses
    where another of the tied ones is better: the upper percentile of the draws, else the difference of TIE. margin:
    nats by which the best model of the other kind is worse. differ: {column: [least, most]} of what sets the tied
    models apart.
    """
    draws = {row["n_experts"]: row for row in (drawn["optima"] if drawn else [])}
    tied = []
    for row in rows:
        near = row["loss"] <= best["loss"] * (1 + TIE)
        behind = draws.get(row["n_experts"], {}).get("behind")
        if row is best or near or (behind is not None and behind[0] <= 0):
            tied.append(row)
    kinds = {row["n_experts"] > 1 for row in tied}
    choice = None
    if len(rows) > 1:
        choice = "undecided" if len(kinds) > 1 else "mixture" if kinds == {True} else "dense"
    others = [row["loss"] for row in rows if (row["n_experts"] > 1) != (best["n_experts"] > 1)]
    return dict(
        choice=choice,
        tied=[row["n_experts"] for row in tied],
        cost=drawn["regret"] if drawn else TIE * best["loss"],
        margin=min(others) - best["loss"] if others else None,
        differ=_differ(tied),
    )


def _differ(tied: list[Json]) -> Json:
    """{column: [least, most]} of the columns in which tied models differ by APART or more."""
    found = {}
    for name in COLUMNS:
        values = [row[name] for row in tied]
        if max(values) >= APART * min(values):
            found[name] = [min(values), max(values)]
    return found


def text(verdict: Json, rows: list[Json]) -> list[str]:
    """The verdict in sentences; rows: the plan's `optima`."""
    tied = [row for row in rows if row["n_experts"] in verdict["tied"]]
    lines = []
    margin = verdict["margin"]
    if verdict["choice"] == "undecided":
        lines.append(say(sentences.UNDECIDED_KIND, cost=verdict["cost"]))
    elif verdict["choice"] is not None and margin is not None:
        other = "dense model" if verdict["choice"] == "mixture" else "mixture"
        lines.append(say(sentences.DECIDED_KIND, choice=verdict["choice"], other=other, margin=margin))
    if len(tied) > 1:
        apart = " and ".join(COLUMNS[name] for name in verdict["differ"]) or "nothing that is counted here"
        models = ", ".join(say(sentences.TIED_MODEL, **row) for row in tied)
        lines.append(say(sentences.TIED_MODELS, models=models, apart=apart))
    return lines
