"""How far a law's irreducible loss can be trusted: two far forecasts, and floors held at a share of the lowest loss.

    python -m benchmarks.floors [--tables=llama3]

Three tables are printed.

  marin at 1e21   the default law of marin's mixtures up to 3e20, 1e20 and 3e19 FLOPs predicts their run of 1e21
  marin's 67B     `fit law --prior=population` of its three anchors predicts it at 166 times their largest compute
  floors          the coupled law is fitted with its floor held at a share of the lowest loss fitted, and predicts the
                  runs of more compute: root mean square error and, in brackets, mean error

Priors, where there are any, leave out the source of the table that is predicted.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import csv
import math
import pathlib

import numpy as np
from absl import app

import fit
from benchmarks import extrapolation
from fit.fitting.forms import DEFAULT_WEIGHTS
from fit.table.table import Table

MARIN = "marin"
ANCHORS = pathlib.Path(__file__).parent / "tables" / "mixtures" / "marin_67b_anchors.csv"
CUTS = (3e20, 1e20, 3e19)
SHARES = (None, 0.3, 0.45, 0.55, 0.65, 0.75)  # of the lowest loss; None for the floor that the fit finds
MEASURED_67B = 2.256
DRAWS = 500
STARTS = 24


def flops_of(table: Table) -> np.ndarray:
    """Returns training FLOPs, [rows]."""
    return 6 * table.numbers("n_active") * table.numbers("n_tokens")


def marin_at_1e21() -> list[str]:
    """Returns a line for each cut: what the default law says of marin's run of 1e21 FLOPs with the lowest loss."""
    table = extrapolation.tables()["marin_v16"]
    flops = flops_of(table)
    loss = table.numbers("loss")
    best = int(np.argmin(np.where(flops > 0.9e21, loss, np.inf)))
    model = {name: float(table.numbers(name)[best]) for name in ("n_active", "n_tokens", "n_experts")}
    lines = []
    for cut in CUTS:
        fitted = extrapolation.part(table, flops <= 1.05 * cut)
        law = fit.law(fitted, bootstrap=100)
        low, high = map(float, law.predict_interval(**model, new_run=True))
        predicted = float(law.predict(**model))
        lines.append(
            f"{len(fitted):3d} runs up to {cut:.0e}: floor {law.coefficients['E']:.3f}, "
            f"{in_words((low, predicted, high), loss[best])}"
        )
    return lines


def marin_67b() -> list[str]:
    """Returns what the anchors and the population's prior say of the 67B model, with and without marin's own laws."""
    anchors, target = anchors_and_target()
    lines = []
    for prior in ("population", f"population:{MARIN}"):
        law = fit.law(anchors, prior=prior, bootstrap=DRAWS)
        low, high = map(float, law.predict_interval(**target, new_run=True))
        words = in_words((low, float(law.predict(**target)), high), MEASURED_67B)
        lines.append(f"--prior={prior}: floor {law.coefficients['E']:.3f}, {words}")
    return lines


def anchors_and_target() -> tuple[Table, dict[str, float]]:
    """Returns the runs of the three anchors, and the 67B model; sizes are without embedding and head."""
    with open(ANCHORS, newline="") as file:
        rows = list(csv.DictReader(file))
    columns: dict[str, list[float]] = {"n_active": [], "n_tokens": [], "n_experts": [], "loss": []}
    for row in rows:
        if row["role"] == "anchor":
            columns["n_active"].append(float(row["n_active_no_embedding"]))
            for name in ("n_tokens", "n_experts", "loss"):
                columns[name].append(float(row[name]))
    (target,) = [row for row in rows if row["role"] == "target_step_127500"]
    size = float(target["n_active_no_embedding"])
    model = dict(n_active=size, n_tokens=float(target["n_tokens"]), n_experts=float(target["n_experts"]))
    return fit.read(columns), model


def in_words(quantiles: tuple[float, ...], measured: float) -> str:
    """Returns a forecast with its interval against what was measured."""
    low, middle, high = quantiles
    error = math.log(middle / measured)
    half = math.log(high / low) / 2
    holds = "holds" if low <= measured <= high else "misses"
    return (
        f"{middle:.3f} ({low:.3f} to {high:.3f}) {holds} {measured:.3f}; error {error:+.2%}, half-width {half:.2%}, "
        f"{half / abs(error):.1f} times the error"
    )


def held_floors(names: list[str]) -> list[str]:
    """Returns a line for each table and cut: errors with the floor held at each of SHARES of the lowest loss."""
    lines = []
    all_errors = []
    for name, table in extrapolation.tables().items():
        if name == "ours" or (names and name not in names):
            continue
        flops = flops_of(table)
        for cut in extrapolation.CUTS:
            is_fitted = flops <= flops.max() / cut
            if is_fitted.sum() < extrapolation.LEAST_FITTED or (~is_fitted).sum() < extrapolation.LEAST_LEFT:
                continue
            share, errors = errors_of_floors(name, extrapolation.part(table, is_fitted), ~is_fitted, table)
            all_errors.append(errors)
            cells = "  ".join(f"{error:6.2%} ({bias:+.2%})" for error, bias in errors)
            lines.append(f"{name:15} 1/{cut:<3} {share:5.2f}  {cells}")
    if all_errors:
        array = np.array(all_errors)
        error = np.exp(np.log(array[:, :, 0]).mean(axis=0))
        bias = array[:, :, 1].mean(axis=0)
        cells = "  ".join(f"{e:6.2%} ({b:+.2%})" for e, b in zip(error, bias, strict=True))
        lines.append(f"{'geometric mean':27}  {cells}")
    return lines


def errors_of_floors(
    name: str, fitted: Table, is_left: np.ndarray, table: Table
) -> tuple[float, list[tuple[float, float]]]:
    """Returns (the share of the lowest loss that a free floor has, [(error, bias)] for each of SHARES)."""
    left = extrapolation.part(table, is_left)
    lowest = float(fitted.numbers("loss").min())
    prior = f"population:{extrapolation.source_of(name)}"
    errors = []
    free = math.nan
    for share in SHARES:
        fixed = {} if share is None else {"E": share * lowest}
        law = fit.law(
            fitted,
            "chinchilla_coupled",
            prior=prior,
            weights=DEFAULT_WEIGHTS,
            mix_corpora=True,
            starts=STARTS,
            fix=fixed,
        )
        if share is None:
            free = law.coefficients["E"] / lowest
        error = np.log(
            law.predict(**{column: left.numbers(column) for column in law.form.columns}) / left.numbers("loss")
        )
        errors.append((float(np.sqrt(np.mean(error**2))), float(np.mean(error))))
    return free, errors


def main(_: list[str]) -> None:
    """Prints the three tables."""
    print("marin's run of 1e21 FLOPs by the default law of smaller runs: prediction, 80% interval of a run, measured")
    for line in marin_at_1e21():
        print(f"  {line}", flush=True)
    print("\nmarin's 67B model from its three anchors and the population's prior")
    for line in marin_67b():
        print(f"  {line}", flush=True)
    shares = ", ".join(f"{share:g}" for share in SHARES if share)
    print(f"\nfree floor over lowest loss, and errors with a free floor and with floors of {shares} of the lowest loss")
    for line in held_floors(extrapolation.TABLES.value):
        print(f"  {line}", flush=True)


if __name__ == "__main__":
    app.run(main)
