"""Predicts the runs of the third study by a law of the second study's, made on a laptop, and scores the predictions.

    python -m results.third.make predict    # ../second/fit.csv, tests.csv -> law.json, predictions.csv
    python -m results.third.make score      # predictions.csv and results/accelerators/*.json -> tables

Losses are in nats per byte. `predict` refuses to run once a run of the study is measured: nothing is refitted then.
"""

import json
import pathlib
import statistics
import sys

import numpy as np

import fit
from fit.table import table
from results import rows
from results.second import make as second
from results.third.cells import cells

HERE = pathlib.Path(__file__).parent
LAW = HERE / "law.json"
PREDICTED = HERE / "predictions.csv"
ACCELERATORS = HERE.parent / "accelerators"
DRAWS = 200  # of the bootstrap
HOUR = 3600


def laptop_runs() -> list[dict]:
    """The runs of the second study, its tests too."""
    names = ("n_active", "n_total", "n_tokens", "n_experts", "loss")
    runs = [*rows.read(second.FITTED), *rows.read(second.TESTED)]
    return [{name: row[name] for name in names} for row in runs]


def measured() -> dict[str, dict]:
    """{cell: its row} of the runs that are measured; of a run on several accelerators, the first by name."""
    row_of_cell: dict[str, dict] = {}
    for path in sorted(ACCELERATORS.glob("*.json")):
        part = json.loads(path.read_text())["parts"].get("study", {})
        for row in part.get("result", {}).get("rows", []):
            row_of_cell.setdefault(row["cell"], row | {"on": path.stem})
    return row_of_cell


def predict() -> None:
    """Fits the default law to the laptop's runs and writes its predictions of the study's runs."""
    if measured():
        sys.exit(f"runs of the study are in {ACCELERATORS}: {PREDICTED.name} stays as it was")
    runs = laptop_runs()
    law = fit.law(runs, bootstrap=DRAWS, quiet=False)
    fit.save(law, LAW)
    largest = max(6 * row["n_active"] * row["n_tokens"] for row in runs)
    predictable = [cell for cell in cells() if cell.trunk.top_k == 1]  # the laptop trained no finer experts
    models = [cell.columns() for cell in predictable]
    columns = fit.predict(law, models).columns
    names = [name for name in columns if name.startswith("predicted_loss")]
    predictions = [
        {"cell": cell.name}
        | model
        | {"times_largest_flops": model["flops"] / largest}
        | {name: float(columns[name][i]) for name in names}
        for i, (cell, model) in enumerate(zip(predictable, models, strict=True))
    ]
    table.write(table.read(predictions), str(PREDICTED))
    print(PREDICTED.read_text())


def score() -> None:
    """Prints each run's error, then errors and coverage by factor of extrapolation, and the best numbers of experts."""
    losses = measured()
    predicted = [row for row in rows.texts(PREDICTED) if row["cell"] in losses]
    if not predicted:
        sys.exit(f"no run of the study is in {ACCELERATORS} yet: make gpu trains them on a GPU")
    print("| run | on | x largest | measured | predicted | 80% interval | error |\n|---|---|---|---|---|---|---|")
    scored = []
    for row in predicted:
        loss = losses[row["cell"]]["loss"]
        predicted_loss, low, high = (float(row[f"predicted_loss{end}"]) for end in ("", "_low", "_high"))
        factor = float(row["times_largest_flops"])
        error = loss / predicted_loss - 1
        scored.append((factor, error, low <= loss <= high))
        print(
            f"| {row['cell']} | {losses[row['cell']]['on']} | {factor:.3g} | {loss:.4f} | {predicted_loss:.4f} "
            f"| {low:.4f} to {high:.4f} | {error:+.2%} |"
        )
    print(
        "\n| runs of x largest compute | n | error, root mean square | mean | in the interval |\n|---|---|---|---|---|"
    )
    for low, high in ((0, 10), (10, 100), (100, 1_000), (1_000, np.inf)):
        chosen = [(error, is_covered) for factor, error, is_covered in scored if low <= factor < high]
        if chosen:
            errors = [error for error, _ in chosen]
            print(
                f"| {low:g} to {high:g} | {len(chosen)} | {np.sqrt(np.mean(np.square(errors))):.2%} "
                f"| {statistics.mean(errors):+.2%} | {sum(is_covered for _, is_covered in chosen)} |"
            )
    best_experts(predicted, losses)


def best_experts(predicted: list[dict], losses: dict[str, dict]) -> None:
    """Prints the best number of experts at each size and number of tokens, predicted, measured, and by the hour."""
    print(
        "\n| active | tokens | FLOPs | best E predicted | measured | losses, and the hours of each trunk and branch |"
    )
    print("|---|---|---|---|---|---|")
    groups: dict[tuple[float, float], list[dict]] = {}
    for row in predicted:
        groups.setdefault((float(row["n_active"]), float(row["n_tokens"])), []).append(row)
    for (n_active, n_tokens), group in sorted(groups.items()):
        by_prediction = min(group, key=lambda row: float(row["predicted_loss"]))
        by_loss = min(group, key=lambda row: losses[row["cell"]]["loss"])
        clock = ", ".join(
            f"E = {float(row['n_experts']):.0f}: {losses[row['cell']]['loss']:.4f} "
            f"in {losses[row['cell']]['seconds'] / HOUR:.3g} h"
            for row in group
        )
        print(
            f"| {n_active:.3g} | {n_tokens:.3g} | {6 * n_active * n_tokens:.2g} "
            f"| {float(by_prediction['n_experts']):.0f} | {float(by_loss['n_experts']):.0f} | {clock} |"
        )


if __name__ == "__main__":
    if sys.argv[1:] not in (["predict"], ["score"]):
        sys.exit(f"found {' '.join(sys.argv[1:]) or 'nothing'}, expected predict or score")
    {"predict": predict, "score": score}[sys.argv[1]]()
