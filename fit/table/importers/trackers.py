"""Files of other tools, one function for each tool.

A function takes the paths of a tool's files and returns a dictionary for each run. It holds whatever the tool says,
and under our names (run, state, n_tokens, loss, ...) what is sure.
"""

import collections
import glob
import json
import math
import os
import re
from collections.abc import Iterator

from fit.aliases import Json
from fit.model.reference_model import EXPERTS
from fit.table.importers import wandb_chart
from fit.table.importers.nested import flat
from fit.table.table import read


def huggingface(paths: list[str]) -> list[Json]:
    """Hugging Face's Trainer: the trainer_state.json of each run's last checkpoint, with its config.json and
    safetensors where they lie beside it.

    loss is the last eval_loss and n_tokens the tokens up to there (num_input_tokens_seen, which the Trainer counts with
    include_num_input_tokens_seen); state is finished where that was the run's last step. n_total counts every weight of
    the safetensors, and a model whose config.json names no experts is dense.
    """
    last_checkpoints: dict[str, tuple[Json, str]] = {}
    for path in map(os.path.abspath, paths):
        state = _json(path)
        folder = os.path.dirname(path)
        run = re.sub(r"/checkpoint-\d+$", "", folder)
        if run not in last_checkpoints or state["global_step"] > last_checkpoints[run][0]["global_step"]:
            last_checkpoints[run] = state, folder
    rows = []
    for run, (state, folder) in last_checkpoints.items():
        rows.append({"run": os.path.basename(run)} | _checkpoint(state, folder))
    return rows


def _checkpoint(state: Json, folder: str) -> Json:
    """The row of a run, from a checkpoint of Hugging Face's Trainer.

    Args:
      state: its trainer_state.json.
      folder: of the checkpoint.
    """
    evaluations = [entry for entry in state["log_history"] if "eval_loss" in entry]
    last = evaluations[-1] if evaluations else {"step": state["global_step"]}
    row = {"step": last["step"], "state": _state(last["step"] >= state["max_steps"])}
    if evaluations:
        row["loss"] = last["eval_loss"]
    tokens = last.get("num_input_tokens_seen") or state.get("num_input_tokens_seen")
    if tokens:
        row["n_tokens"] = tokens if "num_input_tokens_seen" in last else tokens * last["step"] / state["global_step"]
    config = os.path.join(folder, "config.json")
    if os.path.exists(config):
        row["n_experts"] = _experts(_json(config))
    weights = sum(map(_weights, glob.glob(f"{folder}/*.safetensors")))
    if weights:
        row["n_total"] = weights
        if row.get("n_experts") == 1:
            row["n_active"] = weights
    return row


def _weights(path: str) -> int:
    """How many numbers a safetensors file holds, by its header: 8 bytes of length, then JSON."""
    with open(path, "rb") as f:
        header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
    return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")


def levanter(paths: list[str]) -> Iterator[Json]:
    """Levanter's tracker_metrics.jsonl, which its Weights & Biases tracker writes to `replicate_path` at a run's end:
    the config and the last value of each metric.

    n_tokens is throughput/total_tokens, loss is eval/loss, n_total is parameter_count, and a model whose config names
    no experts is dense. state is finished where the last step is the config's last.
    """
    names = {"n_tokens": "throughput/total_tokens", "loss": "eval/loss", "n_total": "parameter_count"}
    for path in paths:
        (record,) = _json_lines(path)
        config = record["config"]
        summary = flat(record["summary"], "/")
        row = {"run": os.path.basename(os.path.dirname(os.path.abspath(path)))} | summary
        row |= {ours: summary[theirs] for ours, theirs in names.items() if theirs in summary}
        if "model" in config:
            row["n_experts"] = _experts(config["model"])
            if row["n_experts"] == 1 and "n_total" in row:
                row["n_active"] = row["n_total"]
        steps = config.get("trainer", {}).get("num_train_steps")
        if steps and "_step" in summary:
            row["state"] = _state(summary["_step"] >= steps - 1)
        yield row


def maxtext(paths: list[str]) -> list[Json]:
    """MaxText's metrics files (metrics_file=PATH, or gcs_metrics=True): a JSON object for each step, by run_name.

    n_tokens is the sum of learning/total_weights, the tokens of each step that counted in its loss; loss is the last
    eval/avg_loss, measured after training. Parameters and experts are not in these files.
    """
    runs: dict[str, Json] = {}
    tokens: dict[str, dict[float, float]] = collections.defaultdict(dict)  # a step that was trained again counts once
    for path in paths:
        for line in _json_lines(path):
            name = line["run_name"]
            runs[name] = runs.get(name, {"run": name}) | line
            if "learning/total_weights" in line:
                tokens[name][line["step"]] = line["learning/total_weights"]
    for name, row in runs.items():
        steps = tokens[name]
        if steps and len(steps) == max(steps) - min(steps) + 1 and min(steps) == 0:  # a file of every step
            row["n_tokens"] = sum(steps.values())
        row["step"] = max(steps, default=-1) + 1
        if "eval/avg_loss" in row:
            row["loss"] = row["eval/avg_loss"]
    return list(runs.values())


def tensorboard(paths: list[str]) -> Iterator[Json]:
    """TensorBoard event files: each folder with some is a run, with the last value of each scalar by its tag, and
    `step`, the last one; --columns=loss:TAG says which is the loss."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    folders = sorted({os.path.dirname(path) for path in paths})
    common = os.path.commonpath(folders)
    for folder in folders:
        events = EventAccumulator(folder, size_guidance={"scalars": 0, "tensors": 0}).Reload()
        tags = events.Tags()
        last = {tag: (events.Scalars(tag)[-1].step, events.Scalars(tag)[-1].value) for tag in tags["scalars"]}
        for tag in tags["tensors"]:  # scalars as TensorFlow 2 and PyTorch's newer writers put them
            event = events.Tensors(tag)[-1]
            value = make_ndarray(event.tensor_proto)
            if value.size == 1 and value.dtype.kind == "f":
                last[tag] = event.step, float(value.item())
        run = os.path.relpath(folder, common) if len(folders) > 1 else os.path.basename(folder)
        row = {"run": run, "step": max((step for step, _ in last.values()), default=0)}
        yield row | {tag: value for tag, (_, value) in last.items()}


def nanochat(paths: list[str]) -> Iterator[Json]:
    """The results.csv of nanochat's sweeps: runs/scaling_laws.sh (a row for each budget and depth), and
    runs/miniseries.sh (one for each depth).

    n_active counts embedding, head and blocks, as the trainer of this repository does: params_wte + params_lm_head +
    params_transformer. It leaves out value embeddings and scalars. Older files have no such parts, and so no n_active.
    All models are dense. val_bpb is in bits per byte and stays under its name.
    """
    for table in map(read, paths):
        for i, row_number in enumerate(table.rows):
            row = {name: values[i] for name, values in table.columns.items()} | {"row": row_number}
            yield row | _nanochat_sizes(row)


def is_nanochat(path: str) -> bool:
    """Whether a CSV file is a results.csv of nanochat, by its columns."""
    with open(path, encoding="utf-8-sig", errors="replace") as f:
        names = f.readline().strip().split(",")
    return {"depth", "model_dim", "num_iterations", "tokens_trained", "val_bpb"} <= set(names)


def _nanochat_sizes(row: Json) -> Json:
    """The sizes and tokens of a row of nanochat, under our names."""
    name = f"d{row['depth']}"
    if "flops_budget" in row:
        name = f"{row['flops_budget']}_{name}"
    sizes = {"run": name, "n_experts": 1, "n_blocks": row["depth"], "d_model": row["model_dim"]}
    sizes["n_tokens"] = row["tokens_trained"]
    parts = ("params_wte", "params_lm_head", "params_transformer")
    if all(row.get(part) for part in parts):
        sizes["n_active"] = sum(int(row[part]) for part in parts)
        sizes["vocab_size"] = int(row["params_wte"]) // int(row["model_dim"])
    if row["tokens_trained"] and row["num_iterations"]:
        sizes["batch_tokens"] = int(row["tokens_trained"]) // int(row["num_iterations"])
    return sizes


def wandb(paths: list[str]) -> list[Json]:
    """Exports of Weights & Biases, CSV or Parquet.

    A table of runs (on the project's page choose the table, then Export) has a row for each run, with its config and
    last values. Its columns Name and State become run and state, and row is its row number in the file. A chart
    (Export of its panel) has a column for each run; the run's loss is its last value. Charts of several metrics are
    joined by the names of runs.
    """
    ours = {"Name": "run", "State": "state"}
    rows: list[Json] = []
    of_charts: dict[str, Json] = {}
    for path in paths:
        wandb_chart.check_header(path)
        table = read(path)
        if wandb_chart.is_chart(list(table.columns)):
            for row in wandb_chart.rows_of(table):
                of_charts[row["run"]] = of_charts.get(row["run"], {}) | row
            continue
        names = [ours.get(name, name) for name in table.columns]
        for row_number, *values in zip(table.rows, *table.columns.values(), strict=True):
            rows.append(dict(zip(names, values, strict=True)) | {"row": row_number})
    return [*rows, *of_charts.values()]


def _json(path: str) -> Json:
    """The object of a JSON file."""
    with open(path, encoding="utf-8") as f:
        return json.load(f)


def _json_lines(path: str) -> list[Json]:
    """The objects of a file with one on each line."""
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f if line.strip()]


def _experts(config: Json) -> int:
    """The experts that a model's config names, 1 where it names none."""
    return next((config[name] for name in EXPERTS if config.get(name)), 1)


def _state(finished: bool) -> str:
    """The column `state` of a run."""
    return "finished" if finished else "unfinished"
