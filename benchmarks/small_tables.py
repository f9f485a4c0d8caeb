"""A dozen runs as predictors of larger models: draws of runs of at most 1/10 of a table's compute predict the others.

    python -m benchmarks.small_tables [--runs=12,16,24] [--draws=4]

Runs are drawn from every table of benchmarks/extrapolation.py (by numpy's default_rng([draw, runs])). Each draw is
fitted in three ways: by the additive law; by the coupled law with weights, the default of `python -m fit law` for so
few runs; and by that law with the law of another table as a prior (--prior), of Chinchilla's runs or, for these, of
Llama 3's. Printed first: how the exponents of the tables' laws differ, from which come the spreads in
fit/fitting/law_prior.py. Then the geometric mean of the root mean square errors of a table's draws, and of all tables.
It takes two minutes of one core.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from typing import Any

import numpy as np
from absl import app, flags

import fit
from benchmarks import extrapolation
from fit.fitted_law.law import Law
from fit.fitting.forms import DEFAULT_WEIGHTS
from fit.laws._coupled import SUFFIX
from fit.table.table import Table

RUNS = flags.DEFINE_list("runs", ["12", "16", "24"], "Numbers of runs to draw.")
DRAWS = flags.DEFINE_integer("draws", 4, "Number of draws of each number of runs.")
CUT = 10
SWEEPS = ("llama3", "marin_comma", "marin_v16", "chinchilla", "ours_e1")  # a table of each sweep


def fitted(table: Table, form: str, **options: Any) -> Law:
    """Fits a law with fewer starts than `fit law`."""
    return fit.law(table, form=form, mix_corpora=True, starts=32, **options)


def print_spreads(tables: dict[str, Table]) -> None:
    """Prints the standard deviations of ln exponents and ln(1/k - 1) between two sweeps."""
    for form in ("chinchilla", "chinchilla" + SUFFIX):
        for weights in ("none", DEFAULT_WEIGHTS):
            laws = [fitted(tables[name], form, weights=weights).coefficients for name in SWEEPS]
            columns = {f"ln {name}": [np.log(c[name]) for c in laws] for name in ("alpha", "beta")}
            if "k" in laws[0]:
                columns["ln(1/k - 1)"] = [np.log(1 / c["k"] - 1) for c in laws]
            differ = ", ".join(f"{name} {np.sqrt(2) * np.std(v, ddof=1):.2f}" for name, v in columns.items())
            print(f"{form}, weights {weights}: between two sweeps differ {differ}")


def errors(name: str, table: Table, prior: Law | None, runs: int) -> dict[str, list[float]]:
    """Returns {way of fitting: root mean square errors [draws] of the larger runs}; {} if there are too few runs."""
    flops = 6 * table.numbers("n_active") * table.numbers("n_tokens")
    pool = np.flatnonzero(flops <= flops.max() / CUT)
    if runs > len(pool):
        return {}
    rest = extrapolation.part(table, flops > flops.max() / CUT)
    form = "joint" if name == "ours" else "chinchilla"
    coupled = dict(form=form + SUFFIX, weights=DEFAULT_WEIGHTS)
    ways = dict(additive=dict(form=form), coupled=coupled)
    if prior:
        ways["drawn"] = coupled | dict(prior=prior)
    errors_of: dict[str, list[float]] = {}
    for draw in range(DRAWS.value):
        rows = np.zeros(len(flops), bool)
        rows[np.random.default_rng([draw, runs]).permutation(pool)[:runs]] = True
        for way, options in ways.items():
            try:
                law = fitted(extrapolation.part(table, rows), **options)
            except fit.UserError:  # fewer distinct runs than coefficients
                return {}
            error = np.log(law.predict(**{c: rest.numbers(c) for c in law.form.columns}) / rest.numbers("loss"))
            errors_of.setdefault(way, []).append(float(np.sqrt(np.mean(error**2))))
    return errors_of


def main(_: object) -> None:
    """Prints the spreads, and the errors of each table."""
    tables = extrapolation.tables()
    print_spreads(tables)
    law_of = {
        name: fitted(tables[name], "chinchilla" + SUFFIX, weights=DEFAULT_WEIGHTS) for name in ("chinchilla", "llama3")
    }
    for runs in map(int, RUNS.value):
        means_of_tables: dict[str, list[float]] = {}
        for name, table in tables.items():
            prior = None if name == "ours" else law_of["llama3" if name == "chinchilla" else "chinchilla"]
            means = {way: geometric_mean(values) for way, values in errors(name, table, prior, runs).items()}
            if not means:
                continue
            print(f"{runs} runs of {name:15}", *(f"{way} {mean:.2%}" for way, mean in means.items()), flush=True)
            if prior:
                for way, mean in means.items():
                    means_of_tables.setdefault(way, []).append(mean)
        cells = [f"{way} {geometric_mean(values):.2%}" for way, values in means_of_tables.items()]
        print(f"{runs} runs, {len(means_of_tables['additive'])} tables:", *cells)


def geometric_mean(values: list[float]) -> float:
    """Returns the geometric mean."""
    return float(np.exp(np.mean(np.log(values))))


if __name__ == "__main__":
    app.run(main)
