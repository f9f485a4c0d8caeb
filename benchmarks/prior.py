"""Measures whether a prior from other sweeps helps on sources that it was not made from, to decide on the default.

    python -m benchmarks.prior [--steplaw=FOLDER] [--misfitting=FOLDER] [--sims=20] [--draws=8] [--parts=runs,few,sims]

Each table is fitted by the additive law (a plain Huber fit), by `fit law --prior=none`, by `fit law --prior=population`
and by the default. The prior of a judged source is made without that source (`prior_without`, which refuses a prior
that was made from any judged run). Errors are root mean squares of log loss. Every source has one vote: the geometric
mean over its tables of the ratio of two errors. Printed as Markdown:

  runs   The runs of more compute than 1/3, 1/10 and 1/30 of a table's largest, predicted from the rest. A cut counts
         if it leaves FEWEST_FITTED runs to fit and FEWEST_LEFT to predict.
  few    The runs of more than 1/10, predicted from 6 to 8 of the others, drawn by default_rng([draw, runs]). So few
         runs have a prior by default.
  sims   36 simulated runs with 0.5% of noise. The true law is additive, or coupled with k = 0.5. Its exponents are
         log-uniform from 0.3 to 0.9. Printed are the error of the loss of the best model at ten times the largest
         compute, and how often the 80% interval covers that loss.

Step Law's and the misfitting tables state no licence (python -m benchmarks.tables fetch), so they need a flag with the
folder of a clone. Clark's final losses have one number of tokens and cannot be used. It takes ten minutes of one core.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import csv
import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from absl import app, flags

import fit
from benchmarks import extrapolation, tables
from fit.fitted_law.law import Law
from fit.fitting import population
from fit.laws import FORMS
from fit.planning.search import best_size
from fit.table.table import Table

STEPLAW = flags.DEFINE_string("steplaw", None, "Folder of a clone of step-law/steplaw.")
MISFITTING = flags.DEFINE_string("misfitting", None, "Folder of a clone of Open-Athena/scaling-law-analysis.")
SIMS = flags.DEFINE_integer("sims", 20, "Simulated sweeps of each truth.")
DRAWS = flags.DEFINE_integer("draws", 8, "Draws of each number of few runs.")
PARTS = flags.DEFINE_list("parts", ["runs", "few", "sims"], "What to measure.")
FEWEST_FITTED = 8
FEWEST_LEFT = 3
FEW = (6, 7, 8)
WAYS = ("additive", "none", "population", "default")
ADDITIVE, NONE, POPULATION, DEFAULT = WAYS
DENSE = FORMS["chinchilla_coupled"]
# size and tokens at which both terms of a simulated law are equal and the loss is 1 above the floor
MIDDLE = (3e8, 6e9)


class OverlapError(Exception):
    """A prior was made from runs that it is judged by."""


@dataclasses.dataclass(frozen=True)
class Score:
    """The root mean square error of log loss of one way to fit.

    Attributes:
        source, table: what was predicted.
        case: the cut, or the number of few runs.
        way: of WAYS.
        error: the error.
    """

    source: str
    table: str
    case: int
    way: str
    error: float


def judged_tables(steplaw: str | None = None, misfitting: str | None = None) -> dict[str, dict[str, Table]]:
    """Returns {source: {name: table}}; those of Step Law and misfitting where the folder of a clone is given."""
    by_name = extrapolation.tables()
    judged = {source: {name: by_name[name] for name in names} for source, (names, _) in extrapolation.SOURCES.items()}
    if steplaw:
        path = tables.table_path("steplaw", steplaw, "data/dense_lr_bs_loss.csv")
        names = dict(n_active="N", n_tokens="D", loss="smooth loss")
        judged["steplaw"] = {"steplaw": _runs_of_lowest_loss(path, names)}
    if misfitting:
        path = tables.table_path("misfitting", misfitting, "data/isoflops/extract/misfitting/isoflops.csv")
        names = dict(n_active="params", n_tokens="tokens", loss="loss")
        judged["misfitting"] = {"misfitting": _runs_of_lowest_loss(path, names)}
    return judged


def _runs_of_lowest_loss(path: os.PathLike, names: dict[str, str]) -> Table:
    """Returns the run of lowest loss of each size and number of tokens of a CSV; `names` are its columns."""
    lowest: dict[tuple[float, float], float] = {}  # by size and tokens
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            size_and_tokens = (float(row[names["n_active"]]), float(row[names["n_tokens"]]))
            lowest[size_and_tokens] = min(lowest.get(size_and_tokens, np.inf), float(row[names["loss"]]))
    sizes, tokens = zip(*lowest, strict=True)
    return fit.read(dict(n_active=list(sizes), n_tokens=list(tokens), loss=list(lowest.values())))


def runs_of(table: Table) -> set[tuple[float, ...]]:
    """Returns the runs of a table as (n_active, n_tokens, loss)."""
    return set(zip(*(table.numbers(name).tolist() for name in ("n_active", "n_tokens", "loss")), strict=True))


def prior_without(source: str, judged: dict[str, Table]) -> str:
    """Returns the value of --prior that leaves the judged source out.

    Args:
        source: its name.
        judged: its tables by name.

    Raises:
        OverlapError: A run of the judged tables is among those of another source of the population.
    """
    by_name = extrapolation.tables()
    for other, row in population.sources().items():
        if other == source:
            continue
        for name in row["tables"]:
            runs_of_prior = runs_of(by_name[name])
            for judged_name, table in judged.items():
                if runs_of_prior & runs_of(table):
                    raise OverlapError(
                        f"{judged_name} of {source}: its runs are in {name} of {other}, which the prior is made from"
                    )
    return f"{population.NAME}:{source}" if source in population.sources() else population.NAME


def fitted_law(way: str, table: Table, prior: str, has_experts: bool, **options: int) -> Law:
    """Fits a law.

    Args:
        way: of WAYS.
        table: the runs.
        prior: the prior without the judged source, for the ways that use one.
        has_experts: whether the table has several numbers of experts.
        options: of fit.law.
    """
    if way == ADDITIVE:
        return fit.law(table, form="joint" if has_experts else "chinchilla", mix_corpora=True, **options)
    if way == NONE:
        return fit.law(table, prior="none", mix_corpora=True, **options)
    if way == DEFAULT:
        law = fit.law(table, mix_corpora=True, **options)
        if law.settings.prior is None:
            return law
    return fit.law(table, prior=prior, mix_corpora=True, **options)


def scores_of_part(
    source: str,
    name: str,
    table: Table,
    is_fitted: np.ndarray,
    case: int,
    prior: str,
    ways: Sequence[str],
    **options: int,
) -> list[Score]:
    """Returns a Score for each of some ways; none where the runs are too few for a law."""
    rest = extrapolation.part(table, ~is_fitted)
    scores = []
    for way in ways:
        try:
            law = fitted_law(way, extrapolation.part(table, is_fitted), prior, name == "ours", **options)
        except fit.UserError:  # fewer distinct runs than coefficients
            return []
        predicted = law.predict(**{column: rest.numbers(column) for column in law.form.columns})
        error = float(np.sqrt(np.mean(np.log(predicted / rest.numbers("loss")) ** 2)))
        scores.append(Score(source, name, case, way, error))
    return scores


def flops_of(table: Table) -> np.ndarray:
    """Returns training FLOPs, [rows]."""
    return 6 * table.numbers("n_active") * table.numbers("n_tokens")


def scores_beyond_the_runs() -> Iterator[Score]:
    """Yields the scores of all cuts."""
    for source, judged in judged_tables(STEPLAW.value, MISFITTING.value).items():
        prior = prior_without(source, judged)
        for name, table in judged.items():
            flops = flops_of(table)
            for cut in extrapolation.CUTS:
                is_fitted = flops <= flops.max() / cut
                if is_fitted.sum() >= FEWEST_FITTED and (~is_fitted).sum() >= FEWEST_LEFT:
                    yield from scores_of_part(source, name, table, is_fitted, cut, prior, WAYS)


def scores_of_few_runs() -> Iterator[Score]:
    """Yields the scores of draws of few runs, of the tables of one number of experts."""
    for source, judged in judged_tables(STEPLAW.value, MISFITTING.value).items():
        prior = prior_without(source, judged)
        for name, table in judged.items():
            if name == "ours":  # has several numbers of experts
                continue
            for count in FEW:
                for drawn, is_fitted in _draws(table, count):
                    yield from scores_of_part(source, name, drawn, is_fitted, count, prior, (NONE, DEFAULT), starts=32)


def _draws(table: Table, count: int) -> Iterator[tuple[Table, np.ndarray]]:
    """Yields tables of `count` random runs of little compute and all of much, and whether each run is to be fitted."""
    flops = flops_of(table)
    is_predicted = flops > flops.max() / 10
    pool = np.flatnonzero(~is_predicted)
    if len(pool) < count:
        return
    for draw in range(DRAWS.value):
        rows = np.random.default_rng([draw, count]).permutation(pool)[:count]
        is_fitted = np.isin(np.arange(len(flops)), rows)
        is_used = is_fitted | is_predicted
        yield extrapolation.part(table, is_used), is_fitted[is_used]


def ratios(scores: list[Score], case: int, way: str, base: str) -> dict[str, dict[str, list[float]]]:
    """Returns {source: {table: ratios of the errors of `way` to those of `base`}} for a case."""
    by_source: dict[str, dict[str, list[float]]] = {}
    by_way = {}
    for name in (way, base):
        by_way[name] = [score for score in scores if (score.case, score.way) == (case, name)]
    for score, of_base in zip(by_way[way], by_way[base], strict=True):
        by_source.setdefault(score.source, {}).setdefault(score.table, []).append(score.error / of_base.error)
    return by_source


def geometric_mean(values: list[float]) -> float:
    """Returns the geometric mean."""
    return float(np.exp(np.mean(np.log(values))))


def votes(by_source: dict[str, dict[str, list[float]]]) -> dict[str, float]:
    """Returns {source: geometric mean over its tables}."""
    return {
        source: geometric_mean([geometric_mean(values) for values in by_table.values()])
        for source, by_table in by_source.items()
    }


def print_ratios(scores: list[Score], first_column: str, pairs: list[tuple[str, str]]) -> None:
    """Prints a Markdown row for each case and pair of ways.

    Args:
        scores: of all ways.
        first_column: the heading of the column of cases.
        pairs: ways whose errors are divided, (way, base).
    """
    print(f"| {first_column} | ratio of errors | sources, tables | all | worst table | by source |")
    print("|" + "---|" * 6)
    for case in sorted({score.case for score in scores}):
        for way, base in pairs:
            by_source = ratios(scores, case, way, base)
            of_source = votes(by_source)
            of_table = {
                name: geometric_mean(values) for by_table in by_source.values() for name, values in by_table.items()
            }
            worst = max(of_table, key=lambda name: of_table[name])
            each = ", ".join(f"{source} {vote:.2f}" for source, vote in of_source.items())
            print(
                f"| {case} | {way} over {base} | {len(of_source)}, {len(of_table)} | "
                f"**{geometric_mean(list(of_source.values())):.2f}** | {of_table[worst]:.2f} ({worst}) | {each} |",
                flush=True,
            )


def truth_of(k: float, rng: np.random.Generator) -> dict[str, float]:
    """Draws the coefficients of a dense law with this k."""
    alpha, beta = np.exp(rng.uniform(np.log(0.3), np.log(0.9), 2))
    floor = 1.8 * np.exp(0.08 * rng.normal())
    return dict(A=0.5 * MIDDLE[0] ** alpha, B=0.5 * MIDDLE[1] ** beta, E=floor, alpha=alpha, beta=beta, k=k)


def sweep(truth: dict[str, float], rng: np.random.Generator) -> Table:
    """Returns 36 simulated runs: 6 budgets of 1e18 to 1e20 FLOPs, 6 sizes within a factor of 5 of the best."""
    reduced = DENSE.chinchilla_coefficients_at(truth, np.ones(1))
    flops = np.repeat(np.geomspace(1e18, 1e20, 6), 6)
    size = best_size.compute_optimal(*reduced[:4], flops)[0] * np.tile(np.geomspace(1 / 5, 5, 6), 6)
    tokens = flops / 6 / size
    loss = reduced.loss(size, tokens) * np.exp(0.005 * rng.normal(size=36))
    return fit.read(dict(n_active=size.tolist(), n_tokens=tokens.tolist(), n_experts=[1] * 36, loss=loss.tolist()))


def print_simulations() -> None:
    """Prints a Markdown row for each truth and way."""
    print("| truth | fit | sweeps | mean error | root mean square | 80% intervals that hold | half-width |")
    print("|" + "---|" * 7)
    for name, k in (("additive", 1.0), ("coupled, k = 0.5", 0.5)):
        by_way: dict[str, list[tuple[float, bool, float]]] = {NONE: [], POPULATION: []}
        for seed in range(SIMS.value):
            for way, result in simulated(k, seed, by_way).items():
                by_way[way].append(result)
        for way, results in by_way.items():
            error, is_covered, width = np.array(results, float).T
            print(
                f"| {name} | {way} | {len(results)} | {error.mean():+.2%} | {np.sqrt(np.mean(error**2)):.2%} | "
                f"{is_covered.mean():.0%} | {np.median(width):.2%} |",
                flush=True,
            )


def simulated(k: float, seed: int, ways: Iterable[str]) -> dict[str, tuple[float, bool, float]]:
    """Fits a simulated sweep in each of some ways and predicts the best model at ten times its largest compute.

    Returns:
        {way: (error of the log loss, whether the 80% interval covers the true loss, half its width in log loss)}.
    """
    rng = np.random.default_rng([seed, round(10 * k)])
    truth = truth_of(k, rng)
    table = sweep(truth, rng)
    reduced = DENSE.chinchilla_coefficients_at(truth, np.ones(1))
    size, tokens = best_size.compute_optimal(*reduced[:4], 1e21)
    expected = float(reduced.loss(size, tokens)[0])
    model = dict(n_active=float(size[0]), n_tokens=float(tokens[0]))
    results = {}
    for way in ways:
        law = fit.law(table, prior=way, bootstrap=50, seed=seed)
        low, high = map(float, law.predict_interval(**model, new_run=False))
        error = float(np.log(law.predict(**model) / expected))
        results[way] = (error, low <= expected <= high, float(np.log(high / low) / 2))
    return results


def main(_: object) -> None:
    """Prints the tables."""
    if "runs" in PARTS.value:
        pairs = [(POPULATION, NONE), (DEFAULT, NONE), (DEFAULT, ADDITIVE)]
        print_ratios(list(scores_beyond_the_runs()), "beyond 1 /", pairs)
        print()
    if "few" in PARTS.value:
        print_ratios(list(scores_of_few_runs()), "runs fitted", [(DEFAULT, NONE)])
        print()
    if "sims" in PARTS.value:
        print_simulations()


if __name__ == "__main__":
    app.run(main)
