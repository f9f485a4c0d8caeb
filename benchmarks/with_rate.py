"""Best losses and best rates from a tenth of Step Law's dense runs: `fit law --with_rate` against the best run tried.

    python -m benchmarks.tables fetch                        # says how to get the table, which states no licence
    python -m benchmarks.with_rate --clone=/tmp/steplaw

Step Law (Li et al. 2025, arXiv 2503.04715) trained 17 cells, each a dense model on one number of tokens, at some 120
pairs of learning rate and batch. For each seed a random tenth of all runs is drawn. Two answers for each cell:

  best run   the drawn run of the cell with the lowest loss
  the law    one fit of loss, rate and batch to all drawn runs, good and bad

The truth is of all runs of the cell: its lowest loss, and the geometric mean of the rates and batches of the runs
within 0.25% of that. Errors are those of the logarithm. `holds` is the share of cells whose truth lies in the 80%
interval.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import concurrent.futures
import csv
import dataclasses
import multiprocessing
import pathlib

import numpy as np
from absl import app, flags

import fit
from benchmarks import tables

FILE = "data/dense_lr_bs_loss.csv"
NEAR = 1.0025  # runs within 0.25% of the best count as near-optimal, as in DeepSeek LLM
ROW = 2_048  # tokens in a row, which the table lacks
QUANTITIES = ("loss", "rate", "batch")
CLONE = flags.DEFINE_string("clone", None, "Folder of a clone of step-law/steplaw.")
SEEDS = flags.DEFINE_integer("seeds", 10, "How many random draws.")
SHARE = flags.DEFINE_float("share", 0.1, "Share of the runs that is drawn.")
DRAWS = flags.DEFINE_integer("bootstrap", 50, "Bootstrap fits, for intervals.")
COLUMNS = ("n_active", "n_tokens", "peak_learning_rate", "batch_tokens", "loss")


@dataclasses.dataclass(frozen=True)
class Errors:
    """How one draw of the runs predicts the cells.

    Attributes:
        best_run, law: float64 [cells, 3] of the errors of ln loss, ln rate and ln batch; NaN for a cell of no run.
        holds: bool [cells, 3], whether the law's intervals hold the truth.
        widths: float64 [cells, 3], widths of these intervals, in ln.
    """

    best_run: np.ndarray
    law: np.ndarray
    holds: np.ndarray
    widths: np.ndarray


def read(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Returns the columns of the table by the names that fit reads."""
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    names = dict(n_active="N", n_tokens="D", peak_learning_rate="lr", batch_tokens="bs", loss="smooth loss")
    columns = {name: np.array([float(row[theirs]) for row in rows]) for name, theirs in names.items()}
    columns["batch_tokens"] *= ROW
    return columns


def cells_of(runs: dict[str, np.ndarray]) -> np.ndarray:
    """Returns the cells (n_active, n_tokens), [cells, 2]."""
    return np.unique(np.stack([runs["n_active"], runs["n_tokens"]], axis=1), axis=0)


def best_of(runs: dict[str, np.ndarray], cell: np.ndarray, near: float) -> np.ndarray:
    """Returns ln of loss, rate and batch of a cell: the lowest loss, and means over the runs within `near` times it.

    They are NaN where no run is of the cell.
    """
    of_cell = (runs["n_active"] == cell[0]) & (runs["n_tokens"] == cell[1])
    if not of_cell.any():
        return np.full(3, np.nan)
    lowest = runs["loss"][of_cell].min()
    nearest = of_cell & (runs["loss"] <= near * lowest)
    rate = np.log(runs["peak_learning_rate"][nearest]).mean()
    batch = np.log(runs["batch_tokens"][nearest]).mean()
    return np.array([np.log(lowest), rate, batch])


def errors_of(runs: dict[str, np.ndarray], seed: int, share: float, draws: int) -> Errors:
    """Returns how a random share of the runs predicts all cells."""
    count = len(runs["loss"])
    rows = np.random.default_rng(seed).choice(count, round(share * count), replace=False)
    drawn = {name: values[rows] for name, values in runs.items()}
    law = fit.law({name: drawn[name].tolist() for name in COLUMNS}, with_rate=True, bootstrap=draws)
    assert law.tuning is not None
    best_run = []
    predicted = []
    lows = []
    highs = []
    truths = []
    for cell in cells_of(runs):
        model = dict(n_active=float(cell[0]), n_tokens=float(cell[1]))
        rate = law.tuning.rate(**model)
        batch = law.tuning.batch(**model)
        assert batch is not None
        low, high = law.predict_interval(**model, new_run=True)
        predicted.append(np.log([float(law.predict(**model)), rate.value, batch.value]))
        lows.append(np.log([float(low), rate.low, batch.low]))
        highs.append(np.log([float(high), rate.high, batch.high]))
        best_run.append(best_of(drawn, cell, 1.0))
        truths.append(best_of(runs, cell, NEAR))
    truth = np.array(truths)
    low = np.array(lows)
    high = np.array(highs)
    return Errors(np.array(best_run) - truth, np.array(predicted) - truth, (low <= truth) & (truth <= high), high - low)


def lines(all_errors: list[Errors]) -> list[str]:
    """Returns the printed table: medians over cells and draws of the absolute errors, root mean squares, coverage."""
    best_run = np.concatenate([errors.best_run for errors in all_errors])
    law = np.concatenate([errors.law for errors in all_errors])
    known = np.isfinite(best_run[:, 0])
    rows = [f"{'':9} {'best run':>18} {'the law':>18} {'holds':>7} {'half-width':>11}"]
    for i, name in enumerate(QUANTITIES):
        form = ".2%" if name == "loss" else ".3f"
        texts = []
        for errors in (best_run[known, i], law[known, i]):
            median = np.median(np.abs(errors))
            texts.append(f"{median:{form}} ({np.sqrt(np.mean(errors**2)):{form}})")
        holds = np.mean([errors.holds[:, i] for errors in all_errors])
        width = np.median([errors.widths[:, i] for errors in all_errors]) / 2
        rows.append(f"ln {name:6} {texts[0]:>18} {texts[1]:>18} {holds:7.0%} {width:11{form}}")
    return rows


def main(_: list[str]) -> None:
    """Prints the table."""
    if CLONE.value is None:  # a required flag would be asked of every program that imports this module
        raise app.UsageError("--clone is missing")
    try:
        path = tables.table_path("steplaw", CLONE.value, FILE)
    except tables.WrongTableError as error:
        raise app.UsageError(str(error)) from error
    runs = read(path)
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=context) as pool:
        seeds = range(SEEDS.value)
        futures = [pool.submit(errors_of, runs, seed, SHARE.value, DRAWS.value) for seed in seeds]
        all_errors = [future.result() for future in futures]
    n_runs = len(runs["loss"])
    print(f"{round(SHARE.value * n_runs)} of {n_runs} runs, {SEEDS.value} draws")
    print("median absolute error (root mean square), over the cells of all draws")
    print("\n".join(lines(all_errors)))


if __name__ == "__main__":
    app.run(main)
