"""The first lines of `fit next`: the runs, their cost, and their gain over the fitted runs and over a plain grid.

next_text.py has the tables.
"""

import statistics
from collections.abc import Iterator

from fit.aliases import Json
from fit.messages import lines
from fit.messages.units import say
from fit.studies.next_runs import next_text

RUNS = "Train {count} for {flops:flops} FLOPs: {gain}"
GAIN_PLAN = "the loss at {target_flops:flops} FLOPs, now {before:.4f}, is then known to {after:.4f}"
NO_GAIN_PLAN = (
    "they tell numbers of experts apart; the loss at {target_flops:flops} FLOPs stays as uncertain as it is, "
    "{before:.4f}"
)
GAIN_COEFFICIENTS = "the standard errors of {count} {change}{median}"
SHRINK = "shrink by {share:.0%}"
GROW = "grow by {share:.0%}"
STAY = "stay as they are"
IN_THE_MEDIAN = " in the median"
MODELS = "Models: {models}"
MODEL = "E = {n_experts} {n_active:amount} active on {n_tokens:amount} tokens"
GAP = (
    "E = {other} lies {above:.2%} ± {before:.2%} above E = {best}, the best; then ± {after:.2%}, with a plain grid ± "
    "{grid:.2%}"
)
COEFFICIENTS = "Standard errors, now and then: {coefficients}"
COEFFICIENT = "{name} ± {before:.3g}, {after:.3g}"
GRID_PLAN = "A plain grid of {count} for {flops:flops} FLOPs would leave it at {grid:.4f}"
GRID_COEFFICIENTS = "A plain grid of {count} for {flops:flops} FLOPs would make them {change}{median}"
NO_CHANGE = 5e-3  # share of standard errors that would read as 0%
TABLES = "Tables: --verbose (each run, all that is expected); --emit_sweep=next.py writes the runs as a sweep"


def text(result: Json) -> str:
    """The answer in ten lines or so."""
    *_, precision = next_text.notes(result)
    return lines.text([*_answer(result), precision, TABLES])


def verbose(result: Json) -> str:
    """The same lines, then every run and all expected errors."""
    return lines.with_details(_answer(result), next_text.text(result).split("\n"))


def _answer(result: Json) -> Iterator[str]:
    """The lines on the runs, their cost and gain, and the gain of a plain grid."""
    expected = result["expected"]
    grid = result["grid"]
    values = dict(count=next_text.counted(grid["runs"], "run"), flops=grid["flops"])
    yield say(
        RUNS,
        count=next_text.counted(next_text.n_runs(result), "run"),
        flops=result["flops"],
        gain=_gain(result),
    )
    yield next_text.summary(result)
    yield say(MODELS, models="; ".join(_models(result)))
    if "coefficients" in expected:
        rows = expected["coefficients"]
        yield say(GRID_COEFFICIENTS, **values, **_shrinking(rows, "grid"))
        coefficients = [say(COEFFICIENT, name=row["name"], **row["standard_error"]) for row in rows]
        yield say(COEFFICIENTS, coefficients="; ".join(coefficients))
        return
    yield say(GRID_PLAN, **values, grid=expected["loss"]["grid"])
    yield from _closest(expected)


def _gain(result: Json) -> str:
    """A sentence on how much the runs reduce the uncertainty."""
    expected = result["expected"]
    if "coefficients" in expected:
        rows = expected["coefficients"]
        count = next_text.counted(len(rows), "coefficient")
        return say(GAIN_COEFFICIENTS, count=count, **_shrinking(rows, "after"))
    error = expected["log_error"]
    sentence = GAIN_PLAN if error["after"] < error["before"] else NO_GAIN_PLAN
    return say(sentence, target_flops=result["target_flops"], **expected["loss"])


def _shrinking(rows: list[Json], stage: str) -> Json:
    """The median change of the coefficients' standard errors until a stage, as fields of a template."""
    errors = [row["standard_error"] for row in rows]
    shares = [1 - error[stage] / error["before"] for error in errors if error["before"] > 0]  # 0 without noise
    return dict(change=change(statistics.median(shares or [0.0])), median=IN_THE_MEDIAN if len(rows) > 1 else "")


def change(share: float) -> str:
    """How standard errors that shrink by this share change, in words. A negative share means that they grow."""
    if abs(share) < NO_CHANGE:
        return STAY
    return say(SHRINK, share=share) if share > 0 else say(GROW, share=-share)


def _models(result: Json) -> Iterator[str]:
    """For each number of experts the sizes and the tokens of its runs: the least and the most."""
    for n_experts in dict.fromkeys(trunk["n_experts"] for trunk in result["trunks"]):
        trunks = [trunk for trunk in result["trunks"] if trunk["n_experts"] == n_experts]
        sizes = [trunk["n_active"] for trunk in trunks]
        tokens = [n_tokens for trunk in trunks for n_tokens in trunk["n_tokens"]]
        yield say(MODEL, n_experts=n_experts, n_active=_ends(sizes), n_tokens=_ends(tokens))


def _ends(values: list[float]) -> list[float]:
    """The least and the largest value; one where both are the same."""
    return sorted({min(values), max(values)})


def _closest(expected: Json) -> Iterator[str]:
    """A line on the number of experts that is hardest to tell from the best."""
    others = expected["others"]
    if not others:
        return
    closest = min(others, key=lambda row: row["log_loss_above"] / max(row["log_error"]["before"], 1e-300))
    yield say(
        GAP,
        other=closest["n_experts"],
        best=expected["best"]["n_experts"],
        above=closest["log_loss_above"],
        **closest["log_error"],
    )
