"""The paper's figure 1b by our law and by the paper's: loss against training FLOPs of models of equal memory."""

import collections
import os
import pathlib
from collections.abc import Callable

import matplotlib.pyplot as plt
import numpy as np

from configs import joint_moe
from configs.sweeps import memory_matched as papers
from jmoe.config import counts

POINTS = 40
COLOURS = {1: "#444444", 2: "#1b7fa8", 4: "#d9822b"}


def memory_matched(
    path: pathlib.Path,
    rows: list[dict],
    predicted: Callable[[list[dict], str | os.PathLike], list[dict]],
    law: str | os.PathLike,
) -> None:
    """Draws both laws side by side, ours with the runs.

    Args:
        path: the picture to write.
        rows: the runs of equal memory.
        predicted: from models and a law to the models with predicted_loss.
        law: our law.
    """
    ours = {row["n_experts"]: row for row in rows}
    config = joint_moe.get_config()
    theirs = {}
    for override in papers.get_sweep()[1]:
        config.update_from_flattened_dict({name: value for name, value in override.items() if name != "n_tokens"})
        model = config.model
        size = dict(n_active=counts.n_active(model), n_total=counts.n_total(model), n_experts=model.n_experts)
        theirs[model.n_experts] = size | dict(flops=counts.training_flops(size["n_active"], override["n_tokens"][-1]))
    figure, axes = plt.subplots(1, 2, figsize=(7.2, 3.0), layout="constrained")
    for axis, models, name, title in (
        (axes[0], ours, law, "our law, and its runs"),
        (axes[1], theirs, "joint-moe-2025", "the paper's law"),
    ):
        for n_experts, model in sorted(models.items()):
            flops = float(model["flops"]) * np.geomspace(1 / 16, 2, POINTS)
            points = [
                {name: model[name] for name in ("n_active", "n_total", "n_experts")}
                | {"n_tokens": x / counts.training_flops(model["n_active"], 1), "loss": 1.0}
                for x in flops
            ]
            losses = [row["predicted_loss"] for row in predicted(points, name)]
            label = "dense" if n_experts == 1 else f"E = {n_experts:g}"
            axis.plot(flops, losses, color=COLOURS[int(n_experts)], label=label)
        axis.set(xscale="log", xlabel="training FLOPs", title=title)
        axis.xaxis.set_minor_formatter("")
    measured = collections.defaultdict(list)
    for row in rows:
        measured[row["n_experts"], row["flops"]].append(row["loss"])
    for (n_experts, flops), losses in measured.items():
        axes[0].plot([flops] * len(losses), losses, "o", color=COLOURS[int(n_experts)], markersize=3, alpha=0.7)
    axes[0].set_ylabel("loss (nats per token)")
    axes[0].legend(frameon=False)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=150, metadata={"Software": None})
    plt.close(figure)
