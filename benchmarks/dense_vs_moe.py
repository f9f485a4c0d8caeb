"""Draws validation loss against training tokens for dense models and mixtures, with a line for each seed:

    python -m benchmarks.dense_vs_moe --runs=runs/dense_vs_moe/runs.csv --out=benchmarks/dense_vs_moe.png

The runs are those of configs/sweeps/dense_vs_moe.py. Models of equal width have equal FLOPs for any number of experts.
"""

import csv

import matplotlib.pyplot as plt
from absl import app, flags

RUNS = flags.DEFINE_string("runs", None, "runs.csv of the sweep.", required=True)
OUT = flags.DEFINE_string("out", None, "Picture to write.", required=True)


def main(_: object) -> None:
    """Draws the figure, and prints the losses after the most tokens."""
    with open(RUNS.value) as file:
        rows = list(csv.DictReader(file))
    curves = {}  # (n_experts, seed) -> [(n_tokens, loss)]
    for row in rows:
        curves.setdefault((int(row["n_experts"]), int(row["seed"])), []).append(
            (int(row["n_tokens"]), float(row["loss"]))
        )
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for (n_experts, seed), points in sorted(curves.items()):
        name = "dense" if n_experts == 1 else f"E = {n_experts}"
        style = dict(color=f"C{n_experts > 1:d}", marker="o", linewidth=1, markersize=3)
        n_tokens, losses = zip(*sorted(points), strict=True)
        axes.plot(n_tokens, losses, **style, label=name if seed == 0 else None)
    axes.set(xscale="log", xlabel="n_tokens", ylabel="validation loss, nats per token, nothing dropped")
    axes.set_title(f"n_active {int(rows[0]['n_active']):,}, {len({seed for _, seed in curves})} seeds")
    axes.legend()
    figure.savefig(OUT.value, dpi=120)

    last = max(int(row["n_tokens"]) for row in rows)
    print(f"loss after {last:,} tokens")
    for (n_experts, seed), points in sorted(curves.items()):
        print(f"  n_experts {n_experts}, seed {seed}: {dict(points)[last]:.4f}")


if __name__ == "__main__":
    app.run(main)
