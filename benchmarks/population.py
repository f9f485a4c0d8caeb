"""The coefficients of every source's laws, for the prior of new fits: writes fit/fitting/population.json.

    python -m benchmarks.population [--file=fit/fitting/population.json]

Each table is fitted by the additive and by the coupled law of dense models. The latter has the weights of the default,
and no prior but the weak one on k. A table of mixtures is split by number of experts. A source's exponents, k and floor
over lowest loss are means over its tables, of the logarithms and of ln(1/k - 1). Its scatter and its drift (drift_rms
of rolling hold-outs) are those of the coupled law, as root mean squares. It takes a minute of one core.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import json
import pathlib

import numpy as np
from absl import app, flags

import fit
from benchmarks import extrapolation
from fit.fitted_law.law import Law
from fit.fitting import rolling
from fit.fitting.forms import DEFAULT_WEIGHTS
from fit.laws._coupled import SUFFIX
from fit.table.runs import ROLLING
from fit.table.table import Table

ROOT = pathlib.Path(__file__).parents[1]
OUT = flags.DEFINE_string("file", str(ROOT / "fit/fitting/population.json"), "File to write.")
KINDS = {"additive": "chinchilla", "coupled": "chinchilla" + SUFFIX}


def laws_of(table: Table) -> dict[str, Law]:
    """Returns {kind: law} of a table."""
    laws = {}
    for kind, form in KINDS.items():
        weights = DEFAULT_WEIGHTS if kind == "coupled" else "none"
        laws[kind] = fit.law(table, form=form, weights=weights, mix_corpora=True)
    return laws


def drift_of(table: Table) -> float | None:
    """Returns by how much the coupled law drifts for each factor of e in compute; None for too few runs."""
    options = dict(form=KINDS["coupled"], weights=DEFAULT_WEIGHTS, mix_corpora=True, holdout=ROLLING)
    try:
        return rolling.drift_std(fit.law(table, **options).rolling)
    except fit.UserError:
        return None


def root_mean_square(values: list[float]) -> float:
    """Returns the root mean square, to two digits."""
    return float(f"{np.sqrt(np.mean(np.square(values))):.2g}")


def mean_law(laws: list[dict[str, float]], lowest: list[float], is_coupled: bool) -> dict[str, float]:
    """Returns alpha, beta and, for the coupled law, k and floor: means of logarithms, and of ln(1/k - 1).

    Args:
        laws: the coefficients of the law of each table.
        lowest: the lowest loss of each table, of which the floor is a share.
    """
    mean = {name: float(np.exp(np.mean([np.log(law[name]) for law in laws]))) for name in ("alpha", "beta")}
    if is_coupled:
        mean["k"] = float(1 / (1 + np.exp(np.mean([np.log(1 / law["k"] - 1) for law in laws]))))
        shares = [law["E"] / loss for law, loss in zip(laws, lowest, strict=True)]
        mean["floor"] = float(np.exp(np.mean(np.log(shares))))
    return {name: round(value, 4) for name, value in mean.items()}


def main(_: object) -> None:
    """Fits all sources, and writes the file."""
    tables = extrapolation.tables()
    sources = {}
    for source, (names, reference) in extrapolation.SOURCES.items():
        names = [name for name in names if name != "ours"]  # it holds the runs of the others
        laws = [laws_of(tables[name]) for name in names]
        lowest = [float(tables[name].numbers("loss").min()) for name in names]
        row = dict(tables=names, runs=sum(len(tables[name]) for name in names), reference=reference)
        for kind in KINDS:
            row[kind] = mean_law([law[kind].coefficients for law in laws], lowest, kind == "coupled")
        row["scatter"] = root_mean_square([law["coupled"].noise.total for law in laws])
        drifts = [drift_of(tables[name]) for name in names]
        row["drift"] = root_mean_square([drift for drift in drifts if drift is not None])
        sources[source] = row
        print(source, {name: row[name] for name in (*KINDS, "scatter", "drift")}, flush=True)
    what = "laws fitted to public sweeps and our own; benchmarks/tables/README.md has licences"
    record = dict(what=what, command="python -m benchmarks.population", sources=sources)
    pathlib.Path(OUT.value).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    app.run(main)
