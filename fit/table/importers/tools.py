"""Runs of other tools as a table: which tool wrote a file, and columns by our names.

trackers.py reads the files of each tool.
"""

import collections
import dataclasses
import fnmatch
import glob
import os
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping

import numpy as np

from fit.aliases import Json
from fit.errors import UserError
from fit.table import histories, mixed_columns, selection, spelled, validate
from fit.table.column_guesses import snake_case
from fit.table.importers import questions, trackers, trackio
from fit.table.known_columns import ACCURACY_PREFIXES, STATES
from fit.table.table import BOUNDS, Table, read, shown, to_numbers
from fit.table.validate_losses import DONE, UNFINISHED

WANDB = "wandb:"  # what a source on a server of Weights & Biases begins with
ROW = "row"  # the number of a row in its file, which is no column
REQUIRED = ("n_active", "n_tokens", "n_experts", "loss")  # columns of every imported table
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
      is_its: whether a file of such a name is the tool's, by its contents; None where the name is enough.
      columns: {our name: the tool's} of columns that keep the tool's name, because that speaks of their unit.
    """

    read: Callable[[list[str]], Iterable[Json]]
    patterns: tuple[str, ...]
    is_its: Callable[[str], bool] | None = None
    columns: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def files(self, source: str) -> list[str]:
        """The tool's files: `source` itself, or those at any depth of a folder."""
        if os.path.isfile(source):
            has_name = any(fnmatch.fnmatch(os.path.basename(source), pattern) for pattern in self.patterns)
            paths = [source] if has_name else []
        else:
            paths = []
            for pattern in self.patterns:
                paths += glob.glob(f"{glob.escape(source)}/**/{pattern}", recursive=True)
        if self.is_its is not None:
            paths = [path for path in paths if self.is_its(path)]
        return sorted(paths)


TOOLS = {
    "huggingface": Tool(trackers.huggingface, ("trainer_state.json",)),
    "levanter": Tool(trackers.levanter, ("tracker_metrics.jsonl",)),
    "tensorboard": Tool(trackers.tensorboard, ("events.out.tfevents.*",)),
    "trackio": Tool(trackio.trackio, ("*.db", "*.parquet"), trackio.is_project),
    "nanochat": Tool(trackers.nanochat, ("*.csv",), trackers.is_nanochat, {"loss": "val_bpb"}),
    "wandb": Tool(trackers.wandb, ("*.csv", "*.parquet")),
    "maxtext": Tool(trackers.maxtext, ("*.txt", "*.jsonl")),
}


def runs(source: str, tool: str | None = None) -> tuple[str, list[Json]]:
    """The runs of a file or folder, or of a project of Weights & Biases.

    Args:
      source: its path, or wandb:ENTITY/PROJECT.
      tool: whose files these are; by default their names say it.

    Returns:
      The tool, and a dictionary for each run.

    Raises:
      UserError: where there are no runs, or a file is not as the tool writes it.
    """
    if source.startswith(WANDB):
        from fit.table.importers import wandb_api  # imports HTTP and TLS

        try:
            return "wandb", wandb_api.runs(source)
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise UserError(f"{source}: the answer is not as the server's: {type(e).__name__} {e}") from e
    if not os.path.exists(source):
        raise UserError(f"{source}: no such file or folder")
    try:
        name, paths = _files_of(source, tool)
    except OSError as e:
        raise UserError(f"{e.filename}: cannot be read: {e.strerror or e}") from e
    try:
        return name, list(TOOLS[name].read(paths))
    except (KeyError, TypeError, ValueError, AttributeError, OSError, sqlite3.Error) as e:
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


def as_table(source: str, rows: list[Json], columns: Mapping[str, str], tool: str | None = None) -> Table:
    """The rows as a table with all columns of the source.

    Args:
      source: the file or folder that they come from, for errors.
      rows: a dictionary for each run.
      columns: {our name: the tool's name}.
      tool: whose runs these are.

    Raises:
      UserError: for names of columns that are not there.
    """
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if name != ROW]
    unknown = {ours: theirs for ours, theirs in columns.items() if theirs not in names}
    if unknown:
        flag = ",".join(f"{ours}:{theirs}" for ours, theirs in unknown.items())
        raise UserError(
            f"--columns={flag}: {source} has no column {', '.join(unknown.values())}; columns found: {', '.join(names)}"
        )
    names_of_tool = TOOLS[tool].columns if tool else {}
    columns = {ours: theirs for ours, theirs in names_of_tool.items() if ours not in names} | dict(columns)
    row_numbers = [row.get(ROW, i) for i, row in enumerate(rows, 1)]
    values = {name: [row.get(name) for row in rows] for name in names}
    return Table(source, values, row_numbers, columns)


def with_sizes(runs: Table, path: str | None) -> Table:
    """The runs with the columns that the table of sizes at `path` has for each of them.

    Raises:
      UserError: for a run that it has not.
    """
    size_columns = _sizes(path)
    if not size_columns:
        return runs
    place_of_run = {str(run): i for i, run in enumerate(size_columns["run"])}
    names = [str(name) for name in runs.columns.get("run", [None] * len(runs))]
    for name in names:
        if name not in place_of_run:
            raise UserError(f"{path}, column run: has no {shown(name)}; runs found: {', '.join(place_of_run)}")
    places = [place_of_run[name] for name in names]
    sizes = {name: [values[place] for place in places] for name, values in size_columns.items()}
    return dataclasses.replace(runs, columns=runs.columns | sizes)


def with_tokens(runs: Table, tokens_per_step: float) -> Table:
    """The runs with n_tokens, by the tokens of a batch; None where a run says no step.

    Raises:
      UserError: for a step that is no number, or where no run has one.
    """
    steps: list = [None] * len(runs)
    for name in reversed(selection.steps_of(runs)):
        for place, value in enumerate(runs.columns[name]):
            if value not in (None, ""):
                steps[place] = value
    numbers = to_numbers(steps)
    is_bad = ~np.isfinite(numbers)
    if not is_bad.all():
        is_bad &= np.array([step is not None for step in steps])
    if is_bad.any():
        place = int(np.argmax(is_bad))
        run = runs.columns["run"][place] if "run" in runs.columns else None
        raise UserError(f"--tokens_per_step: {runs.path}: run {run} has no number as its step")
    tokens = [float(step) * tokens_per_step if np.isfinite(step) else None for step in numbers]
    names = {ours: theirs for ours, theirs in runs.names.items() if ours != "n_tokens"}
    return dataclasses.replace(runs, columns=runs.columns | {"n_tokens": tokens}, names=names)


def _sizes(path: str | None) -> dict[str, list]:
    """The columns of a table of sizes; none without one.

    Raises:
      UserError: where it has no column run, or two rows are of one run.
    """
    if path is None:
        return {}
    columns = read(path).columns
    if "run" not in columns:
        raise UserError(f"{path}: column run is missing; columns found: {', '.join(columns)}")
    run, count = collections.Counter(map(str, columns["run"])).most_common(1)[0]
    if count > 1:
        raise UserError(f"{path}, column run: {shown(run)} appears {count} times, expected one row for each run")
    return columns


def table(runs: Table, others: Collection[str] = (), sizes: str | None = None) -> Table:
    """The columns that `fit law` reads, in nats and plain numbers.

    Args:
      runs: those of a source, with sizes, tokens and units.
      others: further columns to keep.
      sizes: the table of sizes that the user gave.

    Raises:
      TableError: names all columns that are missing, values that are no numbers, and units that are doubtful.
    """
    wanted = {*KEPT, *others, *_sizes(sizes), *_differing(runs)}
    selected = [name for name in _our_names(runs) if name in wanted or name.startswith(ACCURACY_PREFIXES)]
    if not set(REQUIRED) <= set(selected):
        raise questions.error_of_source(runs, validate.problems(runs, REQUIRED), sizes)
    columns = {name: list(runs.column(name)) for name in selected}
    for name in selected:
        if name in BOUNDS:
            try:
                numbers = runs.numbers(name)
            except UserError as error:
                problems = validate.problems(runs, REQUIRED)
                if not problems:
                    raise
                raise questions.error_of_source(runs, problems, sizes) from error
            if name in runs.units or not spelled.are_plain(columns[name]):
                columns[name] = numbers.tolist()
    return Table(runs.path, columns, runs.rows)


def _differing(runs: Table) -> list[str]:
    """Columns that fit does not read, but by which it sees that runs do not compare."""
    columns = histories.columns_of_repeated_names(runs)
    for column, values in runs.columns.items():
        is_state = snake_case(column) in (*STATES, *DONE, *UNFINISHED) and len(set(map(selection.text_of, values))) > 1
        if is_state or mixed_columns.differs_in_recipe(runs, column):
            columns.append(column)
    return columns


def _our_names(runs: Table) -> list[str]:
    """The columns of a table, and those that have another name there."""
    return list(dict.fromkeys([*runs.columns, *runs.names]))
