"""How many times the compute a law's recipe needs for the losses that other runs reached.

For a run of 6 N D = C training FLOPs and loss L the factor is C* / C, C* the least FLOPs at which the law's own best
model (its compute-optimal size, the run's number of experts) reaches L. A run whose size is not the best for its C
scores lower for that: compare runs of sizes that one would train.

By time the factor is of hours, H* / H, on the same chips: each run's tokens per second over those of the law's recipe
at the run's size are in the table, and the recipe is taken to keep its MFU at its own best size.

Intervals are percentiles over the draws of the law's bootstrap, the form's own error beyond its runs included, with
each run's own error, as the law's runs scatter, drawn anew in every draw.
"""

import numpy as np

from fit.aliases import Array, ByName, Json, Numbers
from fit.data import sense
from fit.data.table import Table
from fit.errors import UserError
from fit.fitted_law.law import Law, warning_of
from fit.messages import sentences
from fit.messages.units import say, table
from fit.planning.optimum import compute_optimal
from fit.shape.architecture import training_flops

FURTHEST, POINTS = 1e6, 600  # C* is looked for within this factor of the runs' FLOPs, between so many values
SLOWEST = 1e-6  # tokens per second that a table may have
COLUMNS = (
    "{n_active:amount:>9} {n_tokens:amount:>9} {n_experts:g:>9} {loss:.4f:>8} {flops:flops:>10} {law_flops:flops:>10} "
    "{factor:.2f:>7}{ends}"
)


SPEEDS = ("tokens_per_second", "law_tokens_per_second")  # columns of each run: its own, and that of the law's recipe


def speedup(law: Law, runs: Table, seed: int = 0, by: str = "flops") -> dict:
    """{by, runs: [{n_active, n_tokens, n_experts, loss, flops, law_flops, factor, interval}], factor, interval,
    per_tenfold, per_tenfold_interval, percentiles, answer, warnings}: of each run, then the geometric mean of their
    factors, and by how many times the factor changes with ten times the compute (None for runs of one compute). by:
    "flops" or "time", whose runs also have speed_ratio, their speed over that of the law's recipe.
    law_flops and factor are None where no compute in reach gives the loss; intervals are None without draws. Raises
    UserError for a law with no optimum of size and tokens, or a bad value in runs."""
    law.check_plannable()
    if not law.form.chinchilla_coefficients_at:
        raise UserError(sentences.NO_SPEEDUP.format(law=law.name, form=law.form.name))
    size, tokens, loss = (runs.numbers(name) for name in ("n_active", "n_tokens", "loss"))
    sense.check(runs)
    experts = np.full(len(loss), float(law.only_experts or 1))
    if "n_experts" in runs and law.knows_experts:
        experts = runs.numbers("n_experts")
    flops = training_flops(size, tokens)
    log_speed = np.zeros(len(loss))
    if by == "time":
        own, of_law = (runs.numbers(name, (SLOWEST, np.inf)) for name in SPEEDS)
        log_speed = np.log(own / of_law)
    of_flops = _log_factors(law, law.coefficients, experts, flops, np.log(loss)[None])[0]
    best = of_flops + log_speed
    reached, log_flops = np.isfinite(best), np.log10(flops)
    if not reached.any():
        raise UserError(sentences.NONE_REACHED.format(file=runs.path, law=law.name, furthest=FURTHEST))
    drawn = None
    if law.draws:
        noise = (law.noise or 0) * normal(seed, len(law.record["bootstrap"]["draws"]), len(loss))
        draws = {name: values[:, None] for name, values in law.draws.items()}
        drawn = _log_factors(law, draws, experts, flops, np.log(loss) + noise, drawn=True)
        drawn = np.where(np.isfinite(drawn), drawn, np.log(FURTHEST)) + log_speed
    ends = lambda values: np.exp(np.percentile(values, law.percentiles, method="weibull")).tolist()
    slope = lambda values: np.polyfit(log_flops[reached], values[..., reached].T, 1)[0]
    several = np.ptp(log_flops[reached]) > 0
    columns = dict(n_active=size, n_tokens=tokens, n_experts=experts, loss=loss, flops=flops)
    rows = []
    if by == "time":
        columns |= dict(speed_ratio=np.exp(log_speed))
    for i, factor in enumerate(np.exp(best).tolist()):
        found = dict(law_flops=None, factor=None, interval=None)
        if reached[i]:
            interval = None if drawn is None else ends(drawn[:, i])
            law_flops = float(flops[i] * np.exp(of_flops[i]))
            found = dict(law_flops=law_flops, factor=factor, interval=interval)
        rows.append({name: float(values[i]) for name, values in columns.items()} | found)
    result = dict(
        law=law.name,
        by=by,
        runs=rows,
        factor=float(np.exp(best[reached].mean())),
        interval=None if drawn is None else ends(drawn[:, reached].mean(axis=1)),
        per_tenfold=float(np.exp(slope(best))) if several else None,
        per_tenfold_interval=ends(slope(drawn)) if several and drawn is not None else None,
        percentiles=None if drawn is None else law.percentiles,
    )
    result["warnings"] = [*_outside(law, experts[reached], (flops * np.exp(of_flops))[reached]), *sense.doubts(runs)]
    return result | dict(answer=answer(result))


def _outside(law: Law, experts: Array, law_flops: Array) -> list[str]:
    """Sentences on the numbers of experts, and the FLOPs that the law's recipe needs, of runs [k] that lie outside what
    the law was fitted to: the farthest of each."""
    farthest: dict[str, Json] = {}
    for e, flops in {(float(e), float(flops)) for e, flops in zip(experts, law_flops)}:
        for found in law.extrapolation(n_experts=e, flops=flops):
            column = found["column"]
            if column not in farthest or found["factor"] > farthest[column]["factor"]:
                farthest[column] = found
    if not farthest:
        return []
    return [warning_of([farthest[name] for name in sorted(farthest)]), *([law.warning] if law.warning else [])]


def normal(seed: int, n_draws: int, n_runs: int) -> np.ndarray:
    """[n_draws, n_runs] of standard normal numbers, such as the planner page draws too: mulberry32, Box and Muller."""
    state = (seed % 2**32 + 0x6D2B79F5 * np.arange(1, 2 * n_draws * n_runs + 1, dtype=np.uint64)).astype(np.uint32)
    t = (state ^ state >> 15) * (state | 1)
    t ^= t + (t ^ t >> 7) * (t | 61)
    u, v = ((t ^ t >> 14) / 2**32).reshape(n_draws, n_runs, 2).T
    return (np.sqrt(-2 * np.log(u + 2.0**-33)) * np.cos(2 * np.pi * v)).T


def _log_factors(
    law: Law, coefficients: ByName, experts: Numbers, flops: Array, log_loss: Array, drawn: bool = False
) -> np.ndarray:
    """ln(C* / C) [k, n_runs] of k rows of log losses, each of its own draw of the coefficients; NaN out of reach."""
    out = np.full(log_loss.shape, np.nan)
    grid = np.exp(np.linspace(np.log(flops.min() / FURTHEST), np.log(flops.max() * FURTHEST), POINTS))
    for e in np.unique(experts):
        reduced = law.chinchilla_coefficients_at(e, coefficients)
        losses = np.log(np.atleast_2d(reduced.loss(*compute_optimal(*reduced[:4], grid))))
        if drawn:
            losses = losses + law.log_change(grid[None])
        for found, wanted, curve in zip(out, log_loss, losses):
            within = (experts == e) & (curve[-1] <= wanted) & (wanted <= curve[0]) & np.isfinite(curve).all()
            found[within] = np.interp(-wanted[within], -curve, np.log(grid)) - np.log(flops[within])
    return out


def answer(result: dict) -> str:
    """One sentence."""
    span = lambda ends: say(sentences.SPAN, ends=ends) if ends else ""
    count = sum(row["factor"] is not None for row in result["runs"])
    ends, change = result["per_tenfold_interval"], result["per_tenfold"]
    said = ""
    if change is not None:
        sentence = sentences.CHANGE_OPEN if ends and ends[0] <= 1 <= ends[1] else sentences.CHANGES
        said = sentence.format(how="grows" if change > 1 else "falls", change=change, span=span(ends))
    what = "hours" if result["by"] == "time" else "compute"
    return sentences.SPEEDUP.format(**result | dict(count=count, what=what, span=span(result["interval"]), change=said))


def text(result: dict) -> str:
    """What `speedup` returns, as a table and its sentence."""
    rows = [row | dict(ends=say(" {interval:.2f}", **row) if row["interval"] else "") for row in result["runs"]]
    lines = table(COLUMNS, rows, flops="FLOPs", law_flops="by the law", ends="")
    return "\n".join([*lines, result["answer"][0].upper() + result["answer"][1:]])
