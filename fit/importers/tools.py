"""Runs of other tools as a table. One function per tool: from paths of its files to a dictionary of each run, with
whatever the tool says, and under our names (run, state, n_tokens, loss, ...) what is sure."""

import collections
import fnmatch
import glob
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping

from fit.aliases import Json
from fit.data.table import BOUNDS, Table, checked_units, read, shown
from fit.errors import UserError
from fit.shape.reference_model import EXPERTS

STEPS = ("step", "_step", "global_step", "trainer/global_step")  # what tools call a run's last step
# columns of a table of runs that fit reads
KEPT = (*BOUNDS, "top_k", "d_expert", "n_shared_experts", "granularity", "d_model", "n_blocks", "vocab_size")
KEPT += ("peak_learning_rate", "batch_tokens", "epochs", "corpus_fingerprint", "run", "seed")


def huggingface(paths: list[str]) -> list[Json]:
    """Hugging Face's Trainer: the trainer_state.json of each run's last checkpoint, with its config.json and
    safetensors where they lie beside it.

    loss is the last eval_loss and n_tokens the tokens up to there (num_input_tokens_seen, which the Trainer counts with
    include_num_input_tokens_seen); state is finished where that was the run's last step. n_total counts every weight of
    the safetensors, and a model whose config.json names no experts is dense.
    """
    last: dict[str, tuple[Json, str]] = {}
    for path in map(os.path.abspath, paths):
        state, folder = _json(path), os.path.dirname(path)
        run = re.sub(r"/checkpoint-\d+$", "", folder)
        if run not in last or state["global_step"] > last[run][0]["global_step"]:
            last[run] = state, folder
    return [{"run": os.path.basename(run)} | _checkpoint(state, folder) for run, (state, folder) in last.items()]


def _checkpoint(state: Json, folder: str) -> Json:
    evaluated = [entry for entry in state["log_history"] if "eval_loss" in entry]
    entry = evaluated[-1] if evaluated else {"step": state["global_step"]}
    row = {"step": entry["step"], "state": _state(entry["step"] >= state["max_steps"])}
    row |= {"loss": entry["eval_loss"]} if evaluated else {}
    if tokens := entry.get("num_input_tokens_seen") or state.get("num_input_tokens_seen"):
        row["n_tokens"] = tokens if "num_input_tokens_seen" in entry else tokens * entry["step"] / state["global_step"]
    if os.path.exists(path := os.path.join(folder, "config.json")):
        row["n_experts"] = _experts(_json(path))
    if weights := sum(map(_weights, glob.glob(f"{folder}/*.safetensors"))):
        row["n_total"] = weights
        row |= {"n_active": weights} if row.get("n_experts") == 1 else {}
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
        config, summary = record["config"], _flat(record["summary"])
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


def _flat(values: Json, above: str = "") -> Json:
    """{"a/b": value} of nested dictionaries."""
    flat = {}
    for name, value in values.items():
        flat |= _flat(value, f"{above}{name}/") if isinstance(value, dict) else {above + name: value}
    return flat


def maxtext(paths: list[str]) -> list[Json]:
    """MaxText's metrics files (metrics_file=PATH, or gcs_metrics=True): a JSON object for each step, by run_name.

    n_tokens is the sum of learning/total_weights, the tokens of each step that counted in its loss; loss is the last
    eval/avg_loss, measured after training. Parameters and experts are not in these files.
    """
    runs: dict[str, Json] = {}
    tokens: dict[str, dict[float, float]] = collections.defaultdict(dict)  # a step that was trained again counts once
    for line in (line for path in paths for line in _json_lines(path)):
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
    above = os.path.commonpath(folders)
    for folder in folders:
        events = EventAccumulator(folder, size_guidance={"scalars": 0, "tensors": 0}).Reload()
        tags = events.Tags()
        last = {tag: (events.Scalars(tag)[-1].step, events.Scalars(tag)[-1].value) for tag in tags["scalars"]}
        for tag in tags["tensors"]:  # scalars as TensorFlow 2 and PyTorch's newer writers put them
            event = events.Tensors(tag)[-1]
            if (value := make_ndarray(event.tensor_proto)).size == 1 and value.dtype.kind == "f":
                last[tag] = event.step, float(value.item())
        run = os.path.relpath(folder, above) if len(folders) > 1 else os.path.basename(folder)
        row = {"run": run, "step": max((step for step, _ in last.values()), default=0)}
        yield row | {tag: value for tag, (_, value) in last.items()}


def wandb(paths: list[str]) -> Iterator[Json]:
    """A table of runs as Weights & Biases exports it (on the project's page choose the table of runs, then Export): CSV
    or Parquet, a row for each run with its config and last values. Its columns Name and State become run and state, and
    row is where a run stands in the file."""
    ours = {"Name": "run", "State": "state"}
    for table in map(read, paths):
        names = [ours.get(name, name) for name in table.columns]
        for row, *values in zip(table.rows, *table.columns.values(), strict=True):
            yield dict(zip(names, values, strict=True)) | {"row": row}


def _json(path: str) -> Json:
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
    return "finished" if finished else "unfinished"


# The function of each tool, and its files; SOURCE is one of them, or a folder that holds them at any depth.
TOOLS = {
    "huggingface": (huggingface, "trainer_state.json"),
    "levanter": (levanter, "tracker_metrics.jsonl"),
    "tensorboard": (tensorboard, "events.out.tfevents.*"),
    "wandb": (wandb, "*.csv", "*.parquet"),
    "maxtext": (maxtext, "*.txt", "*.jsonl"),
}


def runs(source: str, tool: str | None = None) -> tuple[str, list[Json]]:
    """(the tool, a dictionary of each run) of a file or folder. Raises UserError where it holds none."""
    if not os.path.exists(source):
        raise UserError(f"{source}: no such file or folder")
    for name in [tool] if tool else TOOLS:
        of_tool, *files = TOOLS[name]
        if os.path.isfile(source):
            paths = [source] if tool or any(fnmatch.fnmatch(os.path.basename(source), p) for p in files) else []
        else:
            paths = sorted(path for p in files for path in glob.glob(f"{source}/**/{p}", recursive=True))
        if paths:
            break
    else:
        wanted = files if tool else [f"{' or '.join(p)} ({name})" for name, (_, *p) in TOOLS.items()]
        raise UserError(f"{source}: found no file of a known tool, expected {', '.join(wanted)}")
    try:
        return name, list(of_tool(paths))
    except (KeyError, TypeError, ValueError, AttributeError, OSError) as e:
        raise UserError(f"{paths[0]}: is not as {name} writes it: {type(e).__name__} {e}") from e


def table(
    source: str,
    rows: list[Json],
    columns: Mapping[str, str],
    constants: Mapping[str, str],
    sizes: str | None,
    units: Mapping[str, str] | None = None,
) -> Table:
    """The rows as a table that `fit law` reads. columns: {ours: theirs}; constants: {ours: value of every run}; sizes:
    a table with the column run, and others for it; units: {ours: unit}, from which these columns are converted. Raises
    UserError for what is missing or no number."""
    more = read(sizes).columns if sizes else {}
    if sizes and "run" not in more:
        raise UserError(f"{sizes}: column run is missing; columns found: {', '.join(more)}")
    known = {str(run): i for i, run in enumerate(more.get("run", []))}
    has = dict.fromkeys(name for row in rows for name in row)
    for ours, theirs in columns.items():
        if theirs not in has:
            raise UserError(
                f"--columns={ours}:{theirs}: {source} has no column {theirs}; columns found: {', '.join(has)}"
            )
    for row in rows:
        run = str(row.get("run"))
        if sizes and run not in known:
            raise UserError(f"{sizes}, column run: has no {shown(run)}; runs found: {', '.join(known)}")
        row |= {name: values[known[run]] for name, values in more.items()} | dict(constants)
        row |= {ours: row.get(theirs) for ours, theirs in columns.items()}
    names = list(dict.fromkeys(name for row in rows for name in row))
    if missing := [name for name in ("n_active", "n_tokens", "n_experts", "loss") if name not in names]:
        raise UserError(
            f"{source}: does not say {missing[0]}: give --columns={missing[0]}:COLUMN for one of its columns, "
            f"--set={missing[0]}=NUMBER for all runs, or --sizes=TABLE with the columns run and {missing[0]}; "
            f"columns found: {', '.join(names)}"
        )
    kept = [name for name in names if name in KEPT or name in more or name in constants]
    places = [row.get("row", i) for i, row in enumerate(rows, 1)]
    made = Table(source, {name: [row.get(name) for row in rows] for name in kept}, places)
    made.units = checked_units(units)
    read_columns = {name: made.numbers(name) for name in set(BOUNDS) & set(kept)}
    made.columns |= {name: read_columns[name].tolist() for name in made.units if name in read_columns}
    return made


def products(source: str, rows: list[Json], given: Mapping[str, str]) -> dict[str, str]:
    """Adds to the rows the columns of `given` that are products of other columns and numbers, n_tokens=step*batch*1024;
    returns the other ones, which are the same for all runs. Raises UserError for a factor that is neither a column nor
    a number, or a run without a number in one."""
    constants = {}
    has = dict.fromkeys(name for row in rows for name in row)
    for name, value in given.items():
        factors = [factor.strip() for factor in str(value).split("*")]
        if len(factors) == 1 or value in has:
            constants[name] = value
            continue
        for row in rows:
            row[name] = 1.0
            for factor in factors:
                row[name] *= _factor(source, f"--set={name}={value}", row, factor, has)
    return constants


def _factor(source: str, flag: str, row: Json, factor: str, has: Iterable[str]) -> float:
    """A factor's number, or that of the column of this name in a row."""
    written = row.get(factor) if factor in has else factor
    try:
        number = float(str(written))
    except ValueError:
        if factor in has:
            raise UserError(f"{flag}: {source}: run {row.get('run')} has {shown(written)} as {factor}") from None
        raise UserError(
            f"{flag}: {source} has no column {factor}, nor is it a number; columns found: {', '.join(has)}"
        ) from None
    return number


def count_tokens(source: str, rows: list[Json], tokens_per_step: float) -> None:
    """Adds n_tokens to rows that have steps. Raises UserError for one that has none."""
    for row in rows:
        step = next((row[name] for name in STEPS if row.get(name) not in (None, "")), None)
        try:
            row["n_tokens"] = float(str(step)) * tokens_per_step
        except ValueError:
            raise UserError(f"--tokens_per_step: {source}: run {row.get('run')} has no number as its step") from None


def where(rows: list[Json], conditions: Mapping[str, str]) -> tuple[list[Json], dict[str, int]]:
    """(the rows that meet all conditions, {condition that failed, in words: how many}). A condition is {column: value},
    or {column!: value} for all others; upper and lower case are one. Raises UserError for a column that no row has."""
    kept, dropped = [], collections.Counter()
    names = {name.lower(): name for row in rows for name in row}
    for row in rows:
        for column, value in conditions.items():
            key = column.removesuffix("!").lower()
            if key not in names:
                raise UserError(f"--where={column}={value}: no such column; columns found: {', '.join(names.values())}")
            has = str(row.get(names[key], ""))
            if (has.lower() == value.lower()) == column.endswith("!"):
                dropped[f"{names[key]} {has or 'empty'}"] += 1
                break
        else:
            kept.append(row)
    return kept, dropped
