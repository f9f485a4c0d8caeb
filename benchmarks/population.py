"""The exponents and k of every source of runs, for the prior of new fits: writes fit/fitting/population.json.

    python -m benchmarks.population [--file=fit/fitting/population.json]

Each table is fitted by the additive and by the coupled law of dense models. The latter has the weights of the default,
and no prior but the weak one on k. A table of mixtures is split by number of experts. A source's values are means over
its tables, of the logarithms and of ln(1/k - 1). It takes half a minute of one core.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import json
import pathlib

import numpy as np
from absl import app, flags

import fit
from benchmarks import extrapolation
from fit.data.table import Table
from fit.fitting.forms import DEFAULT_WEIGHTS
from fit.laws._coupled import SUFFIX

ROOT = pathlib.Path(__file__).parents[1]
OUT = flags.DEFINE_string("file", str(ROOT / "fit/fitting/population.json"), "File to write.")
KINDS = {"additive": "chinchilla", "coupled": "chinchilla" + SUFFIX}


def laws_of(table: Table) -> dict[str, dict[str, float]]:
    """Returns {kind: coefficients} of the laws of a table."""
    coefficients = {}
    for kind, form in KINDS.items():
        weights = DEFAULT_WEIGHTS if kind == "coupled" else "none"
        law = fit.law(table, form=form, weights=weights, mix_corpora=True)
        coefficients[kind] = law.coefficients
    return coefficients


def mean_law(laws: list[dict], kind: str) -> dict:
    """Returns alpha, beta and, for the coupled law, k: means of their logarithms, and of ln(1/k - 1)."""
    mean = {name: float(np.exp(np.mean([np.log(law[kind][name]) for law in laws]))) for name in ("alpha", "beta")}
    if kind == "coupled":
        mean["k"] = float(1 / (1 + np.exp(np.mean([np.log(1 / law[kind]["k"] - 1) for law in laws]))))
    return {name: round(value, 4) for name, value in mean.items()}


def main(_: object) -> None:
    """Fits all sources, and writes the file."""
    tables = extrapolation.tables()
    sources = {}
    for source, (names, reference) in extrapolation.SOURCES.items():
        names = [name for name in names if name != "ours"]  # it holds the runs of the others
        laws = [laws_of(tables[name]) for name in names]
        runs = sum(len(tables[name]) for name in names)
        row = dict(tables=names, runs=runs, reference=reference)
        sources[source] = row | {kind: mean_law(laws, kind) for kind in KINDS}
        print(source, {kind: sources[source][kind] for kind in KINDS}, flush=True)
    what = "exponents and k of laws fitted to public sweeps and our own; benchmarks/tables/README.md has licences"
    record = dict(what=what, command="python -m benchmarks.population", sources=sources)
    pathlib.Path(OUT.value).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    app.run(main)
