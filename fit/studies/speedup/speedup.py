"""How many times the compute a law's recipe needs for the losses that other runs reached.

For a run of 6 N D = C training FLOPs and loss L the factor is C* / C, C* the least FLOPs at which the law's own best
model (its compute-optimal size, the run's number of experts if the law reads that) reaches L. A run whose size is not
the best for its C scores lower for that: compare runs of sizes that one would train.

By time the factor is of hours, H* / H, on the same chips: each run's tokens per second over those of the law's recipe
at the run's size are in the table, and we assume that the recipe keeps its MFU at its own best size.

Parameters count as in the law, with the vocabulary of its runs, as `fit predict` counts those of a table.

Intervals are percentiles over the draws of the law's bootstrap, the form's own error beyond its runs included, with
each run's own error, as the law's runs scatter, drawn anew in every draw.
"""

import dataclasses

import numpy as np

from fit.aliases import Array, ByName, Json
from fit.errors import UserError
from fit.fitted_law import extrapolation
from fit.fitted_law.extrapolation import Outside, in_words
from fit.fitted_law.law import Law
from fit.messages.finding import Finding, finding
from fit.model.architecture import training_flops
from fit.planning.search.best_size import compute_optimal
from fit.studies.speedup import speedup_answer
from fit.studies.speedup.results import RunSpeedup, Speedup
from fit.table import validate
from fit.table.table import Table

FURTHEST = 1e6  # C* is looked for within this factor of the runs' FLOPs
POINTS = 600  # values between which C* is interpolated
SLOWEST = 1e-6  # tokens per second that a table may have
SPEEDS = ("tokens_per_second", "law_tokens_per_second")  # columns of each run: its own, and that of the law's recipe


@dataclasses.dataclass(frozen=True)
class LogFactors:
    """ln of how many times the compute, or the hours, of each run the law's recipe needs for its loss.

    Attributes:
      of_flops: [n_runs], of compute; NaN where no compute that is looked at reaches the loss.
      best: [n_runs], of compute or hours.
      drawn: [n_draws, n_runs], `best` by the draws of the law; None without draws.
    """

    of_flops: Array
    best: Array
    drawn: Array | None

    @property
    def are_reached(self) -> Array:
        """Which losses the law reaches, boolean [n_runs]."""
        return np.isfinite(self.best)


def speedup(law: Law, runs: Table, seed: int = 0, by: str = "flops", verbose: bool = False) -> Speedup:
    """How many times the compute a law's recipe needs for the losses of runs, and whether that grows with compute.

    Args:
      law: A law that is a Chinchilla law at each number of experts.
      runs: A table with n_active, n_tokens, loss, and n_experts where the law reads it.
      seed: Seed of the runs' errors that intervals draw.
      by: "flops", or "time" for hours on the same chips. Runs then have the columns SPEEDS.
      verbose: Whether the text has the table of the runs.

    Raises:
      UserError: The law has no optimum of size and tokens, counts no embedding, or reaches none of the losses; or a
        value in runs is bad.
    """
    _check_law(law)
    columns = _columns(law, runs, by)
    factors = _log_factors(law, columns, seed)
    reached = factors.are_reached
    if not reached.any():
        raise UserError(
            f"{runs.path}: --law={law.name} reaches none of these losses with up to {FURTHEST:g} times the compute"
        )
    law_flops = columns["flops"] * np.exp(factors.of_flops)
    per_tenfold, per_tenfold_interval = _per_tenfold(law, columns["flops"], factors)
    return Speedup(
        law=law.name,
        by=by,
        runs=_run_speedups(law, columns, law_flops, factors),
        factor=float(np.exp(factors.best[reached].mean())),
        interval=None if factors.drawn is None else _interval(law, factors.drawn[:, reached].mean(axis=1)),
        per_tenfold=per_tenfold,
        per_tenfold_interval=per_tenfold_interval,
        percentiles=None if factors.drawn is None else law.percentiles,
        findings=[*_outside(law, columns["n_experts"][reached], law_flops[reached]), *validate.doubts(runs)],
        answer_of=speedup_answer.verbose if verbose else speedup_answer.answer,
    )


def _check_law(law: Law) -> None:
    """Raises UserError where the law does not say what compute a loss takes."""
    law.check_plannable()
    if not law.form.chinchilla_coefficients_at:
        raise UserError(
            f"--law={law.name}: the {law.form.name} law is no Chinchilla law at each number of experts, so it does "
            "not say what compute a loss takes"
        )
    if not law.counts_embedding:
        raise UserError(
            f"--law={law.name}: counts sizes without the embedding, so its FLOPs are not those of the runs; choose "
            "another law, such as joint-moe-2025"
        )


def _columns(law: Law, runs: Table, by: str) -> dict[str, Array]:
    """{column: [n_runs]} of RunSpeedup that the table gives. Raises UserError for a bad value."""
    validate.check(runs, ("n_active", "n_tokens", "loss"))
    size = law.counting.of_table(runs, dict(n_active=runs.numbers("n_active")))["n_active"]
    tokens = runs.numbers("n_tokens")
    loss = runs.numbers("loss")
    experts = np.full(len(loss), float(law.only_n_experts or 1))
    if "n_experts" in runs:
        experts = runs.numbers("n_experts")
    columns = dict(n_active=size, n_tokens=tokens, n_experts=experts, loss=loss, flops=training_flops(size, tokens))
    if by == "time":
        validate.require(runs, SPEEDS)
        speed, recipe_speed = (runs.numbers(name, (SLOWEST, np.inf)) for name in SPEEDS)
        columns["speed_ratio"] = speed / recipe_speed
    return columns


def _log_factors(law: Law, columns: dict[str, Array], seed: int) -> LogFactors:
    """The factors of the runs, by the law and by its draws."""
    experts = columns["n_experts"]
    flops = columns["flops"]
    log_loss = np.log(columns["loss"])
    log_speed = np.zeros(len(flops))  # of the run's speed over that of the recipe
    if "speed_ratio" in columns:
        log_speed = np.log(columns["speed_ratio"])
    log_factor_of_flops = _log_compute_ratios(law, law.coefficients, experts, flops, log_loss[None])[0]
    log_factor = log_factor_of_flops + log_speed
    drawn = _drawn_log_compute_ratios(law, experts, flops, log_loss, seed)
    if drawn is not None:
        drawn = drawn + log_speed
    return LogFactors(log_factor_of_flops, log_factor, drawn)


def _run_speedups(law: Law, columns: dict[str, Array], law_flops: Array, factors: LogFactors) -> list[RunSpeedup]:
    """The runs with their factors. law_flops: of the recipe at their losses, [n_runs]."""
    rows = []
    for i, is_reached in enumerate(factors.are_reached):
        values: Json = {name: float(column[i]) for name, column in columns.items()}
        interval = None
        if is_reached and factors.drawn is not None:
            interval = _interval(law, factors.drawn[:, i])
        row = RunSpeedup(
            **values,
            law_flops=float(law_flops[i]) if is_reached else None,
            factor=float(np.exp(factors.best[i])) if is_reached else None,
            interval=interval,
        )
        rows.append(row)
    return rows


def _per_tenfold(law: Law, flops: Array, factors: LogFactors) -> tuple[float | None, list[float] | None]:
    """(how many times the factor changes with ten times the compute, its interval); None for runs of one compute."""
    reached = factors.are_reached
    log_flops = np.log10(flops[reached])
    if np.ptp(log_flops) == 0:
        return None, None
    change = float(np.exp(_slope(log_flops, factors.best[reached])))
    if factors.drawn is None:
        return change, None
    return change, _interval(law, _slope(log_flops, factors.drawn[:, reached]))


def _interval(law: Law, log_values: Array) -> list[float]:
    """[low, high] of the exponential of drawn values [n_draws], at the law's percentiles."""
    return np.exp(np.percentile(log_values, law.percentiles, method="weibull")).tolist()


def _slope(log_flops: Array, log_factors: Array) -> Array:
    """Slope [...] of log factors [..., n_runs] over log10 FLOPs [n_runs]."""
    return np.polyfit(log_flops, log_factors.T, 1)[0]


def _outside(law: Law, experts: Array, law_flops: Array) -> list[Finding]:
    """Findings on the numbers of experts, and the FLOPs that the law's recipe needs, of runs [k] that lie outside what
    the law was fitted to: the farthest of each."""
    farthest: dict[str, Outside] = {}
    pairs = {(float(e), float(flops)) for e, flops in zip(experts, law_flops, strict=True)}
    for e, flops in pairs:
        for outside in extrapolation.outside(law, n_experts=e, training_flops=flops):
            known = farthest.get(outside.column)
            if known is None or outside.is_farther_than(known):
                farthest[outside.column] = outside
    if not farthest:
        return []
    findings = [finding("law_used_outside", outside=in_words(farthest[name] for name in sorted(farthest)))]
    if law.beyond_runs:
        findings.append(law.beyond_runs)
    return findings


def _log_compute_ratios(
    law: Law, coefficients: ByName, experts: Array, flops: Array, log_loss: Array, with_form_error: bool = False
) -> Array:
    """ln(C* / C) [k, n_runs] of k rows of log losses, each of its own draw of the coefficients; NaN out of reach.

    Args:
      law: The law.
      coefficients: Its coefficients, or draws of them, [k, 1] each.
      experts, flops: Of the runs, [n_runs].
      log_loss: Their log losses, [k, n_runs].
      with_form_error: Whether the rows are draws, which have the form's own error beyond the law's runs.
    """
    log_ratios = np.full(log_loss.shape, np.nan)
    grid = np.exp(np.linspace(np.log(flops.min() / FURTHEST), np.log(flops.max() * FURTHEST), POINTS))
    for e in np.unique(experts):
        reduced = law.chinchilla_coefficients_at(e, coefficients)
        losses = np.log(np.atleast_2d(reduced.loss(*compute_optimal(*reduced[:4], grid))))
        if with_form_error:
            losses = losses + law.log_change(grid[None])
        curves = np.broadcast_to(losses, (len(log_ratios), POINTS))
        for row, target, curve in zip(log_ratios, log_loss, curves, strict=True):
            within = (experts == e) & (curve[-1] <= target) & (target <= curve[0]) & np.isfinite(curve).all()
            row[within] = np.interp(-target[within], -curve, np.log(grid)) - np.log(flops[within])
    return log_ratios


def _drawn_log_compute_ratios(law: Law, experts: Array, flops: Array, log_loss: Array, seed: int) -> Array | None:
    """ln(C* / C) [n_draws, n_runs] by the draws of the law's bootstrap, each with errors of the runs; None without
    draws."""
    if not law.draws:
        return None
    scatter = np.zeros(len(flops)) if law.noise is None else law.noise.total * law.noise.ratio_at(flops)
    errors = scatter * normal(seed, law.n_draws, len(log_loss))
    draws = {name: values[:, None] for name, values in law.draws.items()}
    drawn = _log_compute_ratios(law, draws, experts, flops, log_loss + errors, with_form_error=True)
    return np.where(np.isfinite(drawn), drawn, np.log(FURTHEST))


def normal(seed: int, n_draws: int, n_runs: int) -> np.ndarray:
    """[n_draws, n_runs] of standard normal numbers: mulberry32, Box and Muller."""
    state = (seed % 2**32 + 0x6D2B79F5 * np.arange(1, 2 * n_draws * n_runs + 1, dtype=np.uint64)).astype(np.uint32)
    t = (state ^ state >> 15) * (state | 1)
    t ^= t + (t ^ t >> 7) * (t | 61)
    u, v = ((t ^ t >> 14) / 2**32).reshape(n_draws, n_runs, 2).T
    return (np.sqrt(-2 * np.log(u + 2.0**-33)) * np.cos(2 * np.pi * v)).T
