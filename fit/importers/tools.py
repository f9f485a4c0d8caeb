"""Runs of other tools as a table: which tool wrote a file, which of its runs are selected, and columns by our names.

trackers.py reads the files of each tool.
"""

import collections
import dataclasses
import fnmatch
import glob
import os
from collections.abc import Callable, Collection, Iterable, Mapping

from fit.aliases import Json
from fit.data.table import BOUNDS, Table, checked_units, read, shown
from fit.errors import UserError
from fit.importers import trackers

STEPS = ("step", "_step", "global_step", "trainer/global_step")  # what tools call a run's last step
# columns of a table of runs that fit reads
KEPT = (
    *BOUNDS,
    "top_k",
    "d_expert",
    "n_shared_experts",
    "granularity",
    "d_model",
    "n_blocks",
    "vocab_size",
    "peak_learning_rate",
    "batch_tokens",
    "epochs",
    "corpus_fingerprint",
    "run",
    "seed",
)


@dataclasses.dataclass(frozen=True)
class Tool:
    """A tool whose runs can be imported.

    Attributes:
      read: from paths of its files to a dictionary for each run.
      patterns: of the names of its files.
    """

    read: Callable[[list[str]], Iterable[Json]]
    patterns: tuple[str, ...]

    def files(self, source: str) -> list[str]:
        """The tool's files: `source` itself, or those at any depth of a folder."""
        if os.path.isfile(source):
            is_one = any(fnmatch.fnmatch(os.path.basename(source), pattern) for pattern in self.patterns)
            return [source] if is_one else []
        paths = []
        for pattern in self.patterns:
            paths += glob.glob(f"{source}/**/{pattern}", recursive=True)
        return sorted(paths)


TOOLS = {
    "huggingface": Tool(trackers.huggingface, ("trainer_state.json",)),
    "levanter": Tool(trackers.levanter, ("tracker_metrics.jsonl",)),
    "tensorboard": Tool(trackers.tensorboard, ("events.out.tfevents.*",)),
    "wandb": Tool(trackers.wandb, ("*.csv", "*.parquet")),
    "maxtext": Tool(trackers.maxtext, ("*.txt", "*.jsonl")),
}


def runs(source: str, tool: str | None = None) -> tuple[str, list[Json]]:
    """The runs of a file or folder.

    Args:
      tool: whose files these are; by default their names say it.

    Returns:
      The tool, and a dictionary for each run.

    Raises:
      UserError: where there are no runs, or a file is not as the tool writes it.
    """
    if not os.path.exists(source):
        raise UserError(f"{source}: no such file or folder")
    name, paths = _files_of(source, tool)
    try:
        return name, list(TOOLS[name].read(paths))
    except (KeyError, TypeError, ValueError, AttributeError, OSError) as e:
        raise UserError(f"{paths[0]}: is not as {name} writes it: {type(e).__name__} {e}") from e


def _files_of(source: str, tool: str | None) -> tuple[str, list[str]]:
    """The tool that has files in `source`, and these files."""
    if tool and os.path.isfile(source):
        return tool, [source]
    for name in [tool] if tool else TOOLS:
        paths = TOOLS[name].files(source)
        if paths:
            return name, paths
    wanted = TOOLS[tool].patterns if tool else [f"{' or '.join(t.patterns)} ({name})" for name, t in TOOLS.items()]
    raise UserError(f"{source}: found no file of a known tool, expected {', '.join(wanted)}")


def table(
    source: str,
    rows: list[Json],
    columns: Mapping[str, str],
    constants: Mapping[str, str],
    sizes: str | None,
    units: Mapping[str, str] | None = None,
) -> Table:
    """The rows as a table that `fit law` reads.

    Args:
      source: the file or folder that they come from, for errors.
      rows: a dictionary for each run; gets the columns added.
      columns: {our name: the tool's name}.
      constants: {our name: value of every run}.
      sizes: a table with the column run, and others for these runs.
      units: {our name: unit}, from which these columns are converted.

    Raises:
      UserError: for a column that is missing, or a value that is not a number.
    """
    size_columns = read(sizes).columns if sizes else {}
    if sizes and "run" not in size_columns:
        raise UserError(f"{sizes}: column run is missing; columns found: {', '.join(size_columns)}")
    place_of_run = {str(run): i for i, run in enumerate(size_columns.get("run", []))}
    names = _names(rows)
    for ours, theirs in columns.items():
        if theirs not in names:
            raise UserError(
                f"--columns={ours}:{theirs}: {source} has no column {theirs}; columns found: {', '.join(names)}"
            )
    for row in rows:
        run = str(row.get("run"))
        if sizes and run not in place_of_run:
            raise UserError(f"{sizes}, column run: has no {shown(run)}; runs found: {', '.join(place_of_run)}")
        row |= {name: values[place_of_run[run]] for name, values in size_columns.items()} | dict(constants)
        row |= {ours: row.get(theirs) for ours, theirs in columns.items()}
    names = _names(rows)
    for name in ("n_active", "n_tokens", "n_experts", "loss"):
        if name not in names:
            raise UserError(
                f"{source}: does not say {name}: give --columns={name}:COLUMN for one of its columns, "
                f"--set={name}=NUMBER for all runs, or --sizes=TABLE with the columns run and {name}; "
                f"columns found: {', '.join(names)}"
            )
    selected = [name for name in names if name in KEPT or name in size_columns or name in constants]
    row_numbers = [row.get("row", i) for i, row in enumerate(rows, 1)]
    result = Table(source, {name: [row.get(name) for row in rows] for name in selected}, row_numbers)
    result.units = checked_units(units)
    numbers = {name: result.numbers(name) for name in set(BOUNDS) & set(selected)}
    for name in result.units:
        if name in numbers:
            result.columns[name] = numbers[name].tolist()
    return result


def _names(rows: list[Json]) -> list[str]:
    """The names of all columns of the rows, in the order in which they first stand there."""
    return list(dict.fromkeys(name for row in rows for name in row))


def products(source: str, rows: list[Json], values: Mapping[str, str]) -> dict[str, str]:
    """Adds the columns to the rows that are products of other columns and numbers: n_tokens=step*batch*1024.

    Args:
      source: the file or folder that the rows come from, for errors.
      values: {name: product, or value of every run}.

    Returns:
      Those of `values` that are the same for all runs.

    Raises:
      UserError: for a factor that is neither a column nor a number, or a run without a number in one.
    """
    constants = {}
    names = _names(rows)
    for name, value in values.items():
        factors = [factor.strip() for factor in str(value).split("*")]
        if len(factors) == 1 or value in names:
            constants[name] = value
            continue
        for row in rows:
            row[name] = 1.0
            for factor in factors:
                row[name] *= _factor(source, f"--set={name}={value}", row, factor, names)
    return constants


def _factor(source: str, flag: str, row: Json, factor: str, names: Collection[str]) -> float:
    """A factor's number, or that of the column of this name in a row."""
    value = row.get(factor) if factor in names else factor
    try:
        return float(str(value))
    except ValueError:
        if factor in names:
            raise UserError(f"{flag}: {source}: run {row.get('run')} has {shown(value)} as {factor}") from None
        raise UserError(
            f"{flag}: {source} has no column {factor}, nor is it a number; columns found: {', '.join(names)}"
        ) from None


def count_tokens(source: str, rows: list[Json], tokens_per_step: float) -> None:
    """Adds n_tokens to rows that have steps.

    Raises:
      UserError: for a row that has none.
    """
    for row in rows:
        step = next((row[name] for name in STEPS if row.get(name) not in (None, "")), None)
        try:
            row["n_tokens"] = float(str(step)) * tokens_per_step
        except ValueError:
            raise UserError(f"--tokens_per_step: {source}: run {row.get('run')} has no number as its step") from None


def where(rows: list[Json], conditions: Mapping[str, str]) -> tuple[list[Json], dict[str, int]]:
    """Selects rows by the values of columns.

    Args:
      conditions: {column: value}, or {column!: value} for all other values; upper and lower case are one.

    Returns:
      The rows that meet all conditions, and {condition that failed, in words: how many rows failed it}.

    Raises:
      UserError: for a column that no row has.
    """
    selected = []
    dropped = collections.Counter()
    names = {name.lower(): name for row in rows for name in row}
    for row in rows:
        for column, value in conditions.items():
            key = column.removesuffix("!").lower()
            if key not in names:
                raise UserError(f"--where={column}={value}: no such column; columns found: {', '.join(names.values())}")
            row_value = str(row.get(names[key], ""))
            is_equal = row_value.lower() == value.lower()
            is_excluded = is_equal if column.endswith("!") else not is_equal
            if is_excluded:
                dropped[f"{names[key]} {row_value or 'empty'}"] += 1
                break
        else:
            selected.append(row)
    return selected, dropped
