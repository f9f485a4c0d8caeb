"""The paper's figure 1b by our law and by the paper's: loss of models of equal memory, against training FLOPs, and by
the clock: against the hours that chips take at the modelled speed of each model."""

import collections
import os
import pathlib
from collections.abc import Callable

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from configs import joint_moe
from configs.sweeps import memory_matched as papers
from jmoe.config import counts
from launch import prices

POINTS = 40
CHIPS = ("H100", 8)  # kind and count, of the right panel
COLOURS = {1: "#444444", 2: "#1b7fa8", 4: "#d9822b"}


Predict = Callable[[list[dict], str | os.PathLike], list[dict]]  # from models and a law to rows with predicted_loss


def memory_matched(path: pathlib.Path, rows: list[dict], predicted: Predict, law: str | os.PathLike) -> None:
    """Draws both laws side by side, ours with the runs.

    Args:
        path: the picture to write.
        rows: the runs of equal memory.
        predicted: from models and a law to the models with predicted_loss.
        law: our law.
    """
    kind, count = CHIPS
    ours = {row["n_experts"]: row for row in rows}
    theirs = {}
    tokens_per_hour = {}
    config = joint_moe.get_config()
    for override in papers.get_sweep()[1]:
        config.update_from_flattened_dict({name: value for name, value in override.items() if name != "n_tokens"})
        model = config.model
        size = dict(n_active=counts.n_active(model), n_total=counts.n_total(model), n_experts=model.n_experts)
        theirs[model.n_experts] = size | dict(flops=counts.training_flops(size["n_active"], override["n_tokens"][-1]))
        of_chip = prices.tokens_per_chip_second(config, f"{kind}:{count}")
        assert of_chip is not None
        tokens_per_hour[model.n_experts] = 3600 * count * of_chip
    figure, axes = plt.subplots(1, 2, figsize=(7.2, 3.0), layout="constrained")
    for n_experts, model in sorted(ours.items()):
        tokens, losses = _curve(model, predicted, law)
        _draw(axes[0], n_experts, counts.training_flops(float(model["n_active"]), tokens), losses)
    for n_experts, model in sorted(theirs.items()):
        tokens, losses = _curve(model, predicted, "joint-moe-2025")
        _draw(axes[1], n_experts, tokens / tokens_per_hour[n_experts], losses)
    measured = collections.defaultdict(list)
    for row in rows:
        measured[row["n_experts"], row["flops"]].append(row["loss"])
    for (n_experts, flops), losses in measured.items():
        axes[0].plot([flops] * len(losses), losses, "o", color=COLOURS[int(n_experts)], markersize=3, alpha=0.7)
    axes[0].set(xlabel="training FLOPs", ylabel="loss (nats per token)", title="our law, and its runs")
    axes[1].xaxis.set_major_formatter("{x:g}")
    axes[1].set(xlabel=f"hours on {count} x {kind}, modelled", title="the paper's law, by the clock")
    axes[0].legend(frameon=False)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=150, metadata={"Software": None})
    plt.close(figure)


def _curve(model: dict, predicted: Predict, law: str | os.PathLike) -> tuple[np.ndarray, list[float]]:
    """Returns training tokens [POINTS] up to twice those of a model's FLOPs, and its losses by a law."""
    flops = float(model["flops"]) * np.geomspace(1 / 16, 2, POINTS)
    tokens = flops / counts.training_flops(float(model["n_active"]), 1)
    sizes = {name: model[name] for name in ("n_active", "n_total", "n_experts")}
    points = [{**sizes, "n_tokens": n_tokens, "loss": 1.0} for n_tokens in tokens.tolist()]
    return tokens, [row["predicted_loss"] for row in predicted(points, law)]


def _draw(axis: Axes, n_experts: float, cost: np.ndarray, losses: list[float]) -> None:
    """Draws the losses of models of so many experts over what they cost, on a logarithmic axis."""
    label = "dense" if n_experts == 1 else f"E = {n_experts:g}"
    axis.plot(cost, losses, color=COLOURS[int(n_experts)], label=label)
    axis.set_xscale("log")
    axis.xaxis.set_minor_formatter("")
