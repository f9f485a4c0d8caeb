"""Do intervals contain the truth if the form of the law is not known? A simulation with sweeps of both forms.

    python -m benchmarks.both_forms [--repeats=20] [--file=both_forms.csv]

Eight cells: the truth additive, or coupled with k = 0.5; 24 or 60 dense runs; 0.3 or 1% of noise. Each simulation draws
a law (alpha, beta and the floor around published ones), trains runs at 4 or 6 budgets of 1e18 to 1e20 FLOPs with sizes
within a factor of 5 of the best, and fits them as `python -m fit law --bootstrap=100` does. Printed for each cell: how
often the 80% interval of the plan at ten times the largest compute contains the true best loss, n_active and n_tokens;
the mean error of the predicted loss; how often the fit chooses the additive law; the mean share of that law in the
draws.

--file stores each simulation as a row and is read at the start, so that a stopped run continues. A simulation takes
three seconds of one core.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import csv
import itertools
import pathlib

import numpy as np
from absl import app, flags

import fit
from fit.laws import FORMS
from fit.planning.search import best_size
from fit.table.table import Table

REPEATS = flags.DEFINE_integer("repeats", 20, "Simulations of each cell.")
FILE = flags.DEFINE_string("file", None, "CSV to store the simulations in.")
CELLS = tuple(itertools.product(("additive", "coupled"), (24, 60), (0.003, 0.01)))
BUDGETS = {24: (4, 6), 60: (6, 10)}  # {runs: (budgets, sizes at each)}
PLANNED = ("loss", "n_active", "n_tokens")
COLUMNS = ("truth", "runs", "noise", "repeat", *PLANNED, "error", "additive_taken", "additive_share")
MIDDLE = (3e8, 6e9)  # size and tokens at which the terms of size and data are equal and the loss is 1 above the floor


def truth_of(kind: str, rng: np.random.Generator) -> dict[str, float]:
    """Draws the coefficients of a law of the form chinchilla_coupled; `kind` is "additive" or "coupled"."""
    alpha, beta, k = (0.35, 0.37, 1.0) if kind == "additive" else (0.58, 0.48, 0.5)
    alpha, beta = np.array([alpha, beta]) * np.exp(0.12 * rng.normal(size=2))
    floor = 1.8 * np.exp(0.08 * rng.normal())
    return dict(A=0.5 * MIDDLE[0] ** alpha, B=0.5 * MIDDLE[1] ** beta, E=floor, alpha=alpha, beta=beta, k=k)


def sweep(truth: dict[str, float], runs: int, noise: float, rng: np.random.Generator) -> Table:
    """Returns simulated runs at a few budgets, with sizes around the best."""
    reduced = FORMS["chinchilla_coupled"].chinchilla_coefficients_at(truth, np.ones(1))
    budgets, sizes = BUDGETS[runs]
    flops = np.repeat(np.geomspace(1e18, 1e20, budgets), sizes)
    best = best_size.compute_optimal(*reduced[:4], flops)[0]
    n_active = best * np.tile(np.geomspace(1 / 5, 5, sizes), budgets)
    n_tokens = flops / 6 / n_active
    loss = reduced.loss(n_active, n_tokens) * np.exp(noise * rng.normal(size=runs))
    columns = dict(n_active=n_active.tolist(), n_tokens=n_tokens.tolist(), n_experts=[1] * runs, loss=loss.tolist())
    return Table("a simulated sweep", columns, list(range(2, runs + 2)))


def simulate(kind: str, runs: int, noise: float, repeat: int) -> dict:
    """Returns a row of the result.

    It says whether the intervals contain the true loss, n_active and n_tokens, and how far off the predicted loss is.
    """
    rng = np.random.default_rng([repeat, runs, round(noise * 1000), kind == "additive"])
    truth = truth_of(kind, rng)
    table = sweep(truth, runs, noise, rng)
    law = fit.law(table, bootstrap=100, seed=repeat)
    flops = 10 * 6 * float(np.max(table.numbers("n_active") * table.numbers("n_tokens")))
    reduced = FORMS["chinchilla_coupled"].chinchilla_coefficients_at(truth, np.ones(1))
    n_active, n_tokens = best_size.compute_optimal(*reduced[:4], flops)
    expected = dict(loss=reduced.loss(n_active, n_tokens), n_active=n_active, n_tokens=n_tokens)
    plan = fit.plan(law, flops=flops)
    row = dict(truth=kind, runs=runs, noise=noise, repeat=repeat)
    (drawn,) = plan.odds.experts
    for name in PLANNED:
        low, high = drawn[name]
        row[name] = int(low <= float(expected[name][0]) <= high)
    row["error"] = float(np.log(plan.best["loss"] / expected["loss"][0]))
    row["additive_taken"] = int(law.coefficients["k"] == 1)
    row["additive_share"] = float(np.mean(law.draws["k"] == 1))
    return row


def main(_: object) -> None:
    """Simulates what --file lacks, and prints a line for each cell."""
    path = pathlib.Path(FILE.value) if FILE.value else None
    rows = []
    if path and path.exists():
        with open(path, newline="", encoding="utf-8") as file:
            rows = [{name: value if name == "truth" else float(value) for name, value in row.items()}
                    for row in csv.DictReader(file)]  # fmt: skip
    done = {(row["truth"], row["runs"], row["noise"], row["repeat"]) for row in rows}
    for repeat in range(REPEATS.value):
        for cell in CELLS:
            if (*cell, repeat) in done:
                continue
            rows.append(simulate(*cell, repeat))
            if path:
                with open(path, "w", newline="", encoding="utf-8") as file:
                    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
                    writer.writeheader()
                    writer.writerows(rows)
    print(f"{'truth':9} {'runs':>4} {'noise':>6} {'sims':>4}  loss n_active n_tokens  error  taken  share")
    for cell in CELLS:
        of_cell = [row for row in rows if (row["truth"], row["runs"], row["noise"]) == cell]
        mean = {name: float(np.mean([row[name] for row in of_cell])) for name in COLUMNS[4:]}
        print(
            "{:9} {:4d} {:6.1%} {:4d}".format(*cell, len(of_cell)),
            "{loss:5.0%} {n_active:8.0%} {n_tokens:8.0%} {error:+6.2%} {additive_taken:6.0%} "
            "{additive_share:6.2f}".format(**mean),
        )


if __name__ == "__main__":
    app.run(main)
