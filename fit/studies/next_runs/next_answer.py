"""The answer of `fit next`: the runs, their cost, and their gain over the fitted runs and over a plain grid; tables on
demand."""

import statistics
from collections.abc import Iterator, Sequence

from fit.aliases import Json
from fit.fitted_law.parts import LEVEL
from fit.messages import lines
from fit.messages.lines import Line
from fit.messages.units import amount, counted, say
from fit.studies.next_runs.results import ExpectedCoefficient, ExpectedCoefficients, ExpectedPlan, NextRuns

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
MODEL = "E = {n_experts} {n_active:amount} active on {n_tokens:amount} tokens"
GAP = (
    "E = {other} lies {above:.2%} ± {before:.2%} above E = {best}, the best; then ± {after:.2%}, with a plain grid ± "
    "{grid:.2%}"
)
COEFFICIENT = "{name} ± {before:.3g}, {after:.3g}"
GRID_PLAN = "A plain grid of {count} for {flops:flops} FLOPs would leave it at {grid:.4f}"
GRID_COEFFICIENTS = "A plain grid of {count} for {flops:flops} FLOPs would make them {change}{median}"
NO_CHANGE = 5e-3  # share of standard errors that would read as 0%
TABLES = Line("Tables", "--verbose (each run, all that is expected); --emit_sweep=next.py writes the runs as a sweep")
PRECISION = f"all of it to first order around the law, by the noise of its runs; intervals hold {LEVEL:.0%}"
STAGES = ("fitted runs", "and these", "or a plain grid")


def answer(result: NextRuns) -> Iterator[Line]:
    """The answer in ten lines or so."""
    yield from _answer(result)
    yield Line("", PRECISION)
    yield TABLES


def verbose(result: NextRuns) -> Iterator[Line]:
    """The same lines, then every run and all expected errors."""
    return lines.with_details(_answer(result), lines.joined(_details(result)))


def _answer(result: NextRuns) -> Iterator[Line]:
    """The lines on the runs, their cost and gain, and the gain of a plain grid."""
    expected = result.expected
    grid = result.grid
    values = dict(count=counted(grid.runs, "run"), flops=grid.flops)
    runs = say(RUNS, count=counted(n_runs(result), "run"), flops=result.flops, gain=_gain(result))
    yield Line("", runs)
    yield _cost(result)
    yield Line("Models", "; ".join(_models(result)))
    if isinstance(expected, ExpectedCoefficients):
        rows = expected.coefficients
        yield Line("", say(GRID_COEFFICIENTS, **values, **_shrinking(rows, "grid")))
        coefficients = [say(COEFFICIENT, name=row.name, **row.standard_error) for row in rows]
        yield Line("Standard errors, now and then", "; ".join(coefficients))
        return
    yield Line("", say(GRID_PLAN, **values, grid=expected.loss.grid))
    yield from _closest(expected)


def _gain(result: NextRuns) -> str:
    """A sentence on how much the runs reduce the uncertainty."""
    expected = result.expected
    if isinstance(expected, ExpectedCoefficients):
        rows = expected.coefficients
        count = counted(len(rows), "coefficient")
        return say(GAIN_COEFFICIENTS, count=count, **_shrinking(rows, "after"))
    error = expected.log_error
    sentence = GAIN_PLAN if error.after < error.before else NO_GAIN_PLAN
    return say(sentence, target_flops=result.target_flops, **expected.loss)


def _shrinking(rows: list[ExpectedCoefficient], stage: str) -> Json:
    """The median change of the coefficients' standard errors until a stage, as fields of a template."""
    errors = [row.standard_error for row in rows]
    shares = [1 - error[stage] / error.before for error in errors if error.before > 0]  # 0 without noise
    return dict(change=change(statistics.median(shares or [0.0])), median=IN_THE_MEDIAN if len(rows) > 1 else "")


def change(share: float) -> str:
    """How standard errors that shrink by this share change, in words. A negative share means that they grow."""
    if abs(share) < NO_CHANGE:
        return STAY
    return say(SHRINK, share=share) if share > 0 else say(GROW, share=-share)


def _models(result: NextRuns) -> Iterator[str]:
    """For each number of experts the sizes and the tokens of its runs: the least and the most."""
    for n_experts in dict.fromkeys(trunk.n_experts for trunk in result.trunks):
        trunks = [trunk for trunk in result.trunks if trunk.n_experts == n_experts]
        sizes = [trunk.n_active for trunk in trunks]
        tokens = [n_tokens for trunk in trunks for n_tokens in trunk.n_tokens]
        yield say(MODEL, n_experts=n_experts, n_active=_ends(sizes), n_tokens=_ends(tokens))


def _ends(values: Sequence[float]) -> list[float]:
    """The least and the largest value; one where both are the same."""
    return sorted({min(values), max(values)})


def _closest(expected: ExpectedPlan) -> Iterator[Line]:
    """A line on the number of experts that is hardest to tell from the best."""
    if not expected.others:
        return
    closest = min(expected.others, key=lambda gap: gap.log_loss_above / max(gap.log_error.before, 1e-300))
    numbers = dict(other=closest.n_experts, best=expected.best["n_experts"])
    yield Line("", say(GAP, **numbers, above=closest.log_loss_above, **closest.log_error))


def _details(result: NextRuns) -> Iterator[list[Line]]:
    """Every run, what all of them cost, all expected errors, and the plain grid that they are compared with."""
    columns = "{:>9} {:>8} {:>7} {:>9} {:>10}  {}"
    expected = "{:32} {:>20} {:>20} {:>20}"
    runs = [("n_experts", "d_model", "blocks", "n_active", "FLOPs", "n_tokens"), *_trunks(result)]
    errors = [("what is expected", *STAGES), *_certainty(result)]
    grid = result.grid
    of_grid = (
        f"{counted(grid.runs, 'run')} on {counted(grid.trunks, 'trunk')}, {grid.flops:.4g} FLOPs, evenly "
        "spaced in the logarithms of size and tokens, at every number of experts"
    )
    yield [lines.rows(columns.format(*row) for row in runs), _cost(result)]
    yield [lines.rows(expected.format(*row) for row in errors)]
    yield [Line("the plain grid", of_grid), Line("", PRECISION)]


def _trunks(result: NextRuns) -> list[list]:
    """For each trunk: n_experts, d_model, blocks, n_active, FLOPs, n_tokens."""
    rows = []
    for trunk in result.trunks:
        shape = [trunk.n_experts, trunk.d_model, trunk.n_blocks]
        tokens = ", ".join(map(amount, trunk.n_tokens))
        rows.append([*shape, amount(trunk.n_active), f"{trunk.flops:.3g}", tokens])
    return rows


def _cost(result: NextRuns) -> Line:
    """The total cost of the runs."""
    saved = 1 - result.flops / result.flops_one_by_one
    cost = f"{result.flops:.4g} of {result.budget:.4g} FLOPs; sharing trunks saves {saved:.0%}"
    return Line(f"{counted(n_runs(result), 'run')} on {counted(len(result.trunks), 'trunk')}", cost)


def n_runs(result: NextRuns) -> int:
    """How many runs all trunks have together."""
    return sum(len(trunk.n_tokens) for trunk in result.trunks)


def _certainty(result: NextRuns) -> list[list[str]]:
    """[[a goal, its error at each of STAGES]]."""
    expected = result.expected
    if isinstance(expected, ExpectedCoefficients):
        return [
            [f"{row.name} {row.value:.4g}", *(f"± {error:.3g}" for error in row.standard_error.values())]
            for row in expected.coefficients
        ]
    best = expected.best
    intervals = [f"{low:.4f} to {high:.4f}" for low, high in expected.loss.values()]
    rows = [[f"loss {best['loss']:.4f} at {result.target_flops:.3g} FLOPs", *intervals]]
    for gap in expected.others:
        gaps = [f"{gap.log_loss_above:.2%} ± {error:.2%}" for error in gap.log_error.values()]
        rows.append([f"E = {gap.n_experts} above E = {best['n_experts']}", *gaps])
    return rows
