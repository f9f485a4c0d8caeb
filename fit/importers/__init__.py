"""Runs of other tools, each read by a function of tools.py, as a table of runs."""

import collections
import fnmatch
import glob
import os
from collections.abc import Mapping

from fit.aliases import Json
from fit.data.table import BOUNDS, Table, read, shown
from fit.errors import UserError
from fit.importers import tools

# The files of each tool; SOURCE is one of them, or a folder that holds them at any depth.
TOOLS = {
    "huggingface": ("trainer_state.json",),
    "levanter": ("tracker_metrics.jsonl",),
    "tensorboard": ("events.out.tfevents.*",),
    "wandb": ("*.csv", "*.parquet"),
    "maxtext": ("*.txt", "*.jsonl"),
}
# columns of a table of runs that fit reads
KEPT = (*BOUNDS, "peak_learning_rate", "batch_tokens", "epochs", "corpus_fingerprint", "run", "seed")


def runs(source: str, tool: str | None = None) -> tuple[str, list[Json]]:
    """(the tool, a dictionary of each run) of a file or folder. Raises UserError where it holds none."""
    if not os.path.exists(source):
        raise UserError(f"{source}: no such file or folder")
    for name in [tool] if tool else TOOLS:
        if os.path.isfile(source):
            paths = [source] if tool or any(fnmatch.fnmatch(os.path.basename(source), p) for p in TOOLS[name]) else []
        else:
            paths = sorted(p for ending in TOOLS[name] for p in glob.glob(f"{source}/**/{ending}", recursive=True))
        if paths:
            break
    else:
        wanted = TOOLS[tool] if tool else [f"{' or '.join(p)} ({name})" for name, p in TOOLS.items()]
        raise UserError(f"{source}: found no file of a known tool, expected {', '.join(wanted)}")
    try:
        return name, list(getattr(tools, name)(paths))
    except (KeyError, TypeError, ValueError, AttributeError, OSError) as e:
        raise UserError(f"{paths[0]}: is not as {name} writes it: {type(e).__name__} {e}") from e


def table(
    source: str, rows: list[Json], columns: Mapping[str, str], constants: Mapping[str, str], sizes: str | None
) -> Table:
    """The rows as a table that `fit law` reads. columns: {ours: theirs}; constants: {ours: value of every run}; sizes:
    a table with the column run, and others for it. Raises UserError for what is missing or no number."""
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
    for name in set(BOUNDS) & set(kept):
        made.numbers(name)
    return made


def count_tokens(source: str, rows: list[Json], tokens_per_step: float) -> None:
    """Adds n_tokens to rows that have steps. Raises UserError for one that has none."""
    for row in rows:
        try:
            row["n_tokens"] = float(row["step"]) * tokens_per_step
        except (KeyError, TypeError, ValueError):
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
