"""Levanter's tracker_metrics.jsonl, which its Weights & Biases tracker writes to `replicate_path` at a run's end: the
config and the last value of each metric.

n_tokens is throughput/total_tokens, loss is eval/loss, n_total is parameter_count, and a model whose config names no
experts is dense. state is finished where the last step is the config's last.
"""

import os

from fit.aliases import Json
from fit.importers import json_lines
from fit.shape.like import NAMES

OURS = {"n_tokens": "throughput/total_tokens", "loss": "eval/loss", "n_total": "parameter_count"}


def rows(paths: list[str]) -> list[Json]:
    found = []
    for path in paths:
        (record,) = json_lines(path)
        config, summary = record["config"], _flat(record["summary"])
        row = {"run": os.path.basename(os.path.dirname(os.path.abspath(path)))} | summary
        row |= {ours: summary[theirs] for ours, theirs in OURS.items() if theirs in summary}
        if "model" in config:
            row["n_experts"] = next((config["model"][n] for n in NAMES["n_experts"] if config["model"].get(n)), 1)
            if row["n_experts"] == 1 and "n_total" in row:
                row["n_active"] = row["n_total"]
        steps = config.get("trainer", {}).get("num_train_steps")
        if steps and "_step" in summary:
            row["state"] = "finished" if summary["_step"] >= steps - 1 else "unfinished"
        found.append(row)
    return found


def _flat(values: Json, above: str = "") -> Json:
    """{"a/b": value} of nested dictionaries."""
    flat = {}
    for name, value in values.items():
        flat |= _flat(value, f"{above}{name}/") if isinstance(value, dict) else {above + name: value}
    return flat
