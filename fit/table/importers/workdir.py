"""The finished runs of a workdir of jmoe.train: one result.json for each branch (docs/reference/runs-csv.md)."""

import glob
import hashlib
import json
import os
from collections.abc import Sequence
from typing import Any

from fit.aliases import Json
from fit.errors import UserError
from fit.table.table import Table

# columns that a result leaves out where they have these values, as launch.collect fills them in
NEUTRAL = dict(
    qk_norm="none",
    tied_embeddings=False,
    top_k=1,
    n_shared_experts=0,
    n_dense_blocks=0,
    scores="softmax",
    balance="loss",
    optimizer="adamw",
    parametrization="standard",
)


def is_workdir(path: str) -> bool:
    """Whether a folder is one of jmoe.train."""
    return bool(glob.glob(f"{glob.escape(path)}/branch-*")) or os.path.isdir(os.path.join(path, "trunk"))


def results(workdir: str) -> list[Json]:
    """The result of each finished branch of a workdir, the one of the fewest tokens first.

    Returns:
      For each what its result.json holds, with `run`, its folder, and `record`, which holds the config.

    Raises:
      UserError: where there is none, or one is damaged.
    """
    finished = []
    for path in glob.glob(f"{glob.escape(workdir)}/branch-*/result.json"):
        finished.append(_read(path) | dict(run=os.path.normpath(os.path.dirname(path))))
    if not finished:
        raise UserError(f"--run={workdir}: no branch of it is finished: it has no branch-*/result.json")
    return sorted(finished, key=lambda result: result["n_tokens"])


def _read(path: str) -> Json:
    """The values of a result.json.

    Raises:
      UserError: where its hash over all other values is wrong.
    """
    try:
        with open(path, encoding="utf-8") as file:
            values = json.load(file)
        recorded = values.pop("sha256")
        computed = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
        if recorded != computed or not {"n_active", "n_tokens", "loss", "record"} <= values.keys():
            raise ValueError("it is not what was written")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, AttributeError) as error:
        raise UserError(f"{path} is damaged: {error}; the trainer started again writes it anew") from error
    return values


def row_of(result: Json, fields: Sequence[str]) -> Json:
    """The row of a table of a result.

    Args:
      fields: of a config, those that the table's column overrides names; the row's overrides name them too.
    """
    row = {name: value for name, value in result.items() if name != "record"}
    config = result["record"]["config"]
    for name in ("n_heads", "d_ff"):
        value = config["model"].get(name)
        if value is not None and value != filled(row, name):
            row[name] = value
    overrides = []
    for field in fields:
        value = _of_config(config, field)
        if value is not None:
            overrides.append(f"{field}={value!r}")
    return row | dict(overrides=" ".join(overrides))


def _of_config(config: Json, field: str) -> Any:
    """A field of a record's config by its dotted name, lists as tuples; None where the record leaves it out."""
    value: Any = config
    for part in field.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return _as_tuples(value)


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


def filled(row: Json, name: str) -> Any:
    """A column of a run, with what it is where the run leaves it out; "" where nothing says it."""
    if row.get(name) not in (None, ""):
        return row[name]
    if name in NEUTRAL:
        return NEUTRAL[name]
    try:
        return _by_rule(row, name)
    except (KeyError, TypeError, ValueError):  # the table does not say the sizes either
        return ""


def _by_rule(row: Json, name: str) -> int | str:
    """A column that follows from others by the recipe's rules, "" for all other columns."""
    if name == "n_heads":
        return int(float(row["n_blocks"]))
    if name == "d_ff":
        return 3 * int(float(row["d_model"]))
    if name == "n_kv_heads":
        return int(float(filled(row, "n_heads")))
    if name == "head_dim":
        return int(float(row["d_model"])) // int(float(filled(row, "n_heads")))
    if name == "d_expert":
        return int(float(filled(row, "d_ff")))
    return ""


def rows_of(table: Table) -> list[Json]:
    """The runs of a table as dictionaries."""
    return [{name: values[i] for name, values in table.columns.items()} for i in range(len(table))]
