"""Writes the table (in benchmarks/README.md) and the figure of the runs of configs/sweeps/mixtures_small.py:

    python -m benchmarks.mixtures --runs=results/mixtures.csv

Losses in nats per token with nothing dropped, mean and standard deviation over seeds; shares dropped in training.
"""

import collections
import csv
import pathlib
import statistics
import sys

import matplotlib.pyplot as plt
from absl import app, flags

HERE = pathlib.Path(__file__).parent
BEGIN = "<!-- made by benchmarks/mixtures.py -->\n"
END = "<!-- end -->"
COLOURS = {"1 of 8": "#444444", "8 of 64": "#1b7fa8", "7 of 64 + 1 shared": "#d9822b"}

RUNS = flags.DEFINE_string("runs", "results/mixtures.csv", "runs.csv of the sweep.")


def model(row: dict) -> tuple[str, str]:
    """Returns which experts a run has, and what balances them."""
    shared = f" + {row['n_shared_experts']} shared" if row["n_shared_experts"] != "0" else ""
    return f"{row['top_k']} of {row['n_experts']}{shared}", row["balance"]


def table(groups: dict, budgets: list[int]) -> str:
    """Returns a table in Markdown: for each model, its loss and its share of dropped choices at each budget."""
    header = [f"{what}, {budget / 1e6:.1f}M tokens" for budget in budgets for what in ("loss", "dropped")]
    lines = [["experts", "balanced by", "seeds", *header], ["---"] * (3 + len(header))]
    for (experts, balance), runs in groups.items():
        cells = []
        for budget in budgets:
            losses = [float(row["loss"]) for row in runs[budget]]
            spread = f" ± {statistics.stdev(losses):.4f}" if len(losses) > 1 else ""
            cells.append(f"{statistics.mean(losses):.4f}{spread}" if losses else "-")
            drops = [float(row["drop_rate"]) for row in runs[budget]]
            cells.append(f"{statistics.mean(drops):.1%}" if drops else "-")
        lines.append([experts, balance, str(max(map(len, runs.values()))), *cells])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def draw(groups: dict, budgets: list[int], path: pathlib.Path) -> None:
    """Draws each run's loss against its share of dropped choices, with a panel for each budget."""
    figure, axes = plt.subplots(1, len(budgets), figsize=(7.2, 3.6), layout="constrained", squeeze=False)
    for axis, budget in zip(axes[0], budgets, strict=True):
        for (experts, balance), runs in groups.items():
            points = [(100 * float(row["drop_rate"]), float(row["loss"])) for row in runs[budget]]
            marker = {"loss": "o", "bias": "^"}[balance]
            style = dict(color=COLOURS[experts], marker=marker, linestyle="", markersize=5, alpha=0.8)
            drops, losses = zip(*points, strict=True)
            axis.plot(drops, losses, **style, label=f"{experts}, by {balance}")
        axis.set(title=f"{budget / 1e6:.1f}M tokens", xlabel="choices dropped in training, %")
    axes[0][0].set_ylabel("validation loss, nats per byte")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path, dpi=120, metadata={"Software": None})
    plt.close(figure)


def main(_: object) -> None:
    """Writes the figure, and the table into the page."""
    with open(RUNS.value, newline="") as file:
        rows = list(csv.DictReader(file))
    groups = {}
    for row in rows:
        groups.setdefault(model(row), collections.defaultdict(list))[int(row["n_tokens"])].append(row)
    groups = dict(sorted(groups.items(), key=lambda item: (list(COLOURS).index(item[0][0]), item[0][1] == "bias")))
    budgets = sorted({int(row["n_tokens"]) for row in rows})
    draw(groups, budgets, HERE / "mixtures.png")
    page = HERE / "README.md"
    before, begin, rest = page.read_text().partition(BEGIN)
    if not begin or END not in rest:
        sys.exit(f"{page} has no place between {BEGIN.strip()} and {END}")
    page.write_text(before + BEGIN + table(groups, budgets) + rest[rest.index(END) :])
    print(table(groups, budgets), end="")


if __name__ == "__main__":
    app.run(main)
