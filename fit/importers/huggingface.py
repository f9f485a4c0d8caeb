"""Runs of Hugging Face's Trainer: the trainer_state.json of each run's last checkpoint, with its config.json and
safetensors where they lie beside it.

loss is the last eval_loss and n_tokens the tokens up to there (num_input_tokens_seen, which the Trainer counts with
include_num_input_tokens_seen); state is finished where that was the run's last step. n_total counts every weight of
the safetensors, and a model whose config.json names no experts is dense.
"""

import glob
import json
import math
import os
import re

from fit.aliases import Json
from fit.shape.like import NAMES


def rows(paths: list[str]) -> list[Json]:
    last: dict[str, tuple[Json, str]] = {}
    for path in map(os.path.abspath, paths):
        with open(path, encoding="utf-8") as f:
            state = json.load(f)
        run = re.sub(r"/checkpoint-\d+$", "", os.path.dirname(path))
        if run not in last or state["global_step"] > last[run][0]["global_step"]:
            last[run] = state, os.path.dirname(path)
    return [{"run": os.path.basename(run)} | _row(state, folder) for run, (state, folder) in last.items()]


def _row(state: Json, folder: str) -> Json:
    evaluated = [entry for entry in state["log_history"] if "eval_loss" in entry]
    entry = evaluated[-1] if evaluated else {"step": state["global_step"]}
    row = {"step": entry["step"], "state": "finished" if entry["step"] >= state["max_steps"] else "unfinished"}
    row |= {"loss": entry["eval_loss"]} if evaluated else {}
    if tokens := entry.get("num_input_tokens_seen") or state.get("num_input_tokens_seen"):
        row["n_tokens"] = tokens if "num_input_tokens_seen" in entry else tokens * entry["step"] / state["global_step"]
    if os.path.exists(path := os.path.join(folder, "config.json")):
        with open(path, encoding="utf-8") as f:
            config = json.load(f)
        row["n_experts"] = next((config[name] for name in NAMES["n_experts"] if config.get(name)), 1)
    if weights := sum(map(_weights, glob.glob(f"{folder}/*.safetensors"))):
        row["n_total"] = weights
        row |= {"n_active": weights} if row.get("n_experts") == 1 else {}
    return row


def _weights(path: str) -> int:
    """How many numbers a safetensors file holds, by its header: 8 bytes of length, then JSON."""
    with open(path, "rb") as f:
        header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
    return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
