"""MaxText's metrics files (metrics_file=PATH, or gcs_metrics=True): a JSON object for each step, by run_name.

n_tokens is the sum of learning/total_weights, the tokens of each step that counted in its loss; loss is the last
eval/avg_loss, measured after training. Parameters and experts are not in these files.
"""

from fit.aliases import Json
from fit.importers import json_lines


def rows(paths: list[str]) -> list[Json]:
    runs: dict[str, Json] = {}
    tokens: dict[str, dict[float, float]] = {}  # of each step: one that was trained again counts once
    for line in (line for path in paths for line in json_lines(path)):
        name = line["run_name"]
        row = runs.setdefault(name, {"run": name})
        row |= line
        if "learning/total_weights" in line:
            tokens.setdefault(name, {})[line["step"]] = line["learning/total_weights"]
    for name, row in runs.items():
        steps = tokens.get(name, {})
        if steps and len(steps) == max(steps) - min(steps) + 1 and min(steps) == 0:  # a file of every step
            row["n_tokens"] = sum(steps.values())
        row["step"] = max(steps, default=-1) + 1
        if "eval/avg_loss" in row:
            row["loss"] = row["eval/avg_loss"]
    return list(runs.values())
