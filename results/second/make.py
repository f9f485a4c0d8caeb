"""The law of the second study, what it predicts for the tests, and how far it was off.

    python -m results.second.make predict    # fit.csv -> law.json, predictions.csv; before the first test starts
    python -m results.second.make score      # predictions.csv and tests.csv -> a table, tests.png

Losses are in nats per byte. `predict` refuses to work once tests.csv is there: nothing is refitted afterwards.
"""

import pathlib
import sys

import numpy as np

import fit
from fit.prediction.predictions import extended
from fit.table import table
from jmoe.config import counts
from results import rows
from results.second import tests_sweep

HERE = pathlib.Path(__file__).parent
LAW, FITTED, PREDICTED, TESTED = (HERE / name for name in ("law.json", "fit.csv", "predictions.csv", "tests.csv"))
DRAWS = 200  # of the bootstrap
ADDITIVE = "joint"  # the form that the first study fitted, beside the law


def models() -> list[dict]:
    """Of each test: what a law reads of it."""
    from configs import bytes_2026_tuned

    found = []
    for overrides in tests_sweep.get_sweep()[1]:
        config = bytes_2026_tuned.get_config()
        config.update_from_flattened_dict(overrides)
        model = config.model
        found += [
            dict(
                d_model=model.d_model,
                n_experts=model.n_experts,
                n_active=counts.n_active(model),
                n_total=counts.n_total(model),
                n_tokens=n_tokens,
            )
            for n_tokens in config.n_tokens
        ]
    return found


def predict() -> None:
    if TESTED.exists():
        sys.exit(f"{TESTED} is there: the tests have been seen, and {PREDICTED.name} stays as it was")
    law = fit.law(str(FITTED), bootstrap=DRAWS, quiet=False)
    fit.save(law, LAW)
    additive, tests = fit.law(str(FITTED), form=ADDITIVE), models()
    other = fit.predict(additive, tests).columns["predicted_loss"]
    table.write(extended(fit.predict(law, tests).table, dict(additive_loss=other)), str(PREDICTED))
    print(PREDICTED.read_text())


def score() -> None:
    def key(row):
        return (row["d_model"], row["n_experts"], row["n_tokens"])

    measured = {key(row): row["loss"] for row in rows.read(TESTED)}
    errors = {"predicted_loss": [], "additive_loss": []}
    print("| width | experts | measured | predicted | 80% interval | error | additive |\n|---|---|---|---|---|---|---|")
    n_within = 0
    for row in rows.read(PREDICTED):
        loss = measured[key(row)]
        low, high = row["predicted_loss_low"], row["predicted_loss_high"]
        n_within += low <= loss <= high
        for name, of in errors.items():
            of.append(loss - row[name])
        print(
            f"| {row['d_model']:.0f} | {row['n_experts']:.0f} | {loss:.4f} | {row['predicted_loss']:.4f} "
            f"| {low:.4f} to {high:.4f} | {errors['predicted_loss'][-1]:+.4f} | {errors['additive_loss'][-1]:+.4f} |"
        )
    rmse = {name: np.sqrt(np.mean(np.square(of))) for name, of in errors.items()}
    print(f"RMSE {rmse['predicted_loss']:.4f} nats, additive {rmse['additive_loss']:.4f}")
    print(f"{n_within} of {len(measured)} within their intervals")
    draw()


def draw() -> None:
    """Loss against tokens at the two widths of the tests: the law with its 80% intervals, the runs, the tests."""
    from matplotlib import pyplot as plt

    law, fitted, tested = fit.load(LAW), rows.read(FITTED), rows.read(TESTED)
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True)
    for axis, d_model in zip(axes, tests_sweep.BUDGETS, strict=True):
        for row in (row for row in tested if row["d_model"] == d_model):
            color = {1: "C0", 4: "C1", 16: "C2"}[row["n_experts"]]

            def here(other, row=row):
                return all(other[name] == row[name] for name in ("d_model", "n_experts"))

            n_tokens = np.geomspace(1e6, row["n_tokens"], 30)
            model = {name: row[name] for name in ("n_active", "n_total", "n_experts")}
            columns = fit.predict(law, [model | dict(n_tokens=n) for n in n_tokens]).columns
            axis.plot(n_tokens, columns["predicted_loss"], color=color, label=f"E = {row['n_experts']:.0f}")
            low, high = columns["predicted_loss_low"], columns["predicted_loss_high"]
            axis.fill_between(n_tokens, low, high, color=color, alpha=0.12, linewidth=0)
            for table_rows, marker in ((fitted, "."), ([row], "*")):
                points = [(r["n_tokens"], r["loss"]) for r in table_rows if here(r)]
                axis.plot(*zip(*points, strict=True), marker, color=color) if points else None
        axis.set(xscale="log", title=f"width {d_model}", xlabel="training tokens")
    axes[0].set_ylabel("loss (nats per byte)")
    axes[0].legend(title=". fitted, * test")
    figure.savefig(HERE / "tests.png", dpi=110, bbox_inches="tight")


if __name__ == "__main__":
    if sys.argv[1:] not in (["predict"], ["score"]):
        sys.exit(f"found {' '.join(sys.argv[1:]) or 'nothing'}, expected predict or score")
    {"predict": predict, "score": score}[sys.argv[1]]()
