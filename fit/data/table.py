"""Tables read strictly, and written.

A table is CSV, JSONL or Parquet by its ending. Each bad value is named by file, row and column; rows are counted as an
editor shows them (a CSV's header is row 1).
"""

from __future__ import annotations

import csv
import dataclasses
import json
import os
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from fit.aliases import Array, Numbers
from fit.data.files import replacing
from fit.errors import UserError

if TYPE_CHECKING:
    import pyarrow

# What a run may be: outside these bounds a number is a slip of units, not a run.
BOUNDS = {
    "n_active": (1, 1e16),
    "n_total": (1, 1e18),
    "n_tokens": (1, 1e18),
    "n_experts": (1, 1e6),
    "loss": (1e-6, 1e3),
}


# Columns that follow from others: {name: (the columns needed, a function of their values and of Table._or)}
DERIVED = {
    "sparsity": (("n_experts",), lambda e, get: 1 - get("top_k", 1.0) / e),
    "granularity": (("d_expert", "d_model"), lambda width, d, get: get("d_ff", 3 * d) / width),
    "shared_share": (("top_k",), lambda k, get: get("n_shared_experts", 0.0) / (k + get("n_shared_experts", 0.0))),
}


@dataclasses.dataclass(repr=False)
class Table:
    """Columns of equal length by name, values as read; rows[i] is the row number in the file of the i-th value.

    names: {"loss": "val_loss"}, what the file calls a column that is asked for by another name. arrow: the table as
    Parquet holds it, where it came from a Parquet file.
    """

    path: str
    columns: dict[str, list]
    rows: list[int]
    names: dict[str, str] = dataclasses.field(default_factory=dict)
    arrow: pyarrow.Table | None = None

    def __repr__(self) -> str:
        return f"<{len(self)} runs of {self.path}: {', '.join(self.columns)}>"

    def __len__(self) -> int:
        return len(self.rows)

    def __contains__(self, name: str) -> bool:
        return self.names.get(name, name) in self.columns

    def column(self, name: str) -> list:
        theirs = self.names.get(name, name)
        if name == theirs and name in DERIVED and name not in self.columns:
            needs, of = DERIVED[name]
            if all(other in self for other in needs):
                return of(*(self.numbers(other) for other in needs), self._or).tolist()
        if theirs not in self.columns:
            raise UserError(
                f"{self.path}: column {theirs} is missing; columns found: {', '.join(self.columns) or 'none'}"
                + ("" if self.names else "; --columns=loss:val_loss,... says what the file calls them")
                * (name in BOUNDS)
            )
        return self.columns[theirs]

    def _or(self, name: str, default: Numbers) -> Numbers:
        """Column `name` as numbers, or `default` where the table has no such column."""
        return self.numbers(name, (0, 1e18)) if name in self else default

    def numbers(self, name: str, bounds: tuple[float, float] | None = None) -> Array:
        """Column `name` as float64 [n_rows]; UserError names the first value that is no finite number within bounds."""
        low, high = bounds or BOUNDS.get(name, (-np.inf, np.inf))
        values, integer = self.column(name), name == "n_experts"
        numbers = np.array([_number(v) for v in values])
        bad = ~(np.isfinite(numbers) & (numbers >= low) & (numbers <= high))
        if integer:
            bad |= numbers != np.floor(numbers)
        if bad.any():
            i = int(np.argmax(bad))
            span = f" from {low:g} to {high:g}" if np.isfinite(high) else ""
            raise UserError(
                f"{self.path}, row {self.rows[i]}, column {self.names.get(name, name)}: found {shown(values[i])}, "
                f"expected {'a whole number' if integer else 'a number'}{span}"
            )
        return numbers


def _number(value: Any) -> float:
    """A value as read, as a float; NaN for what is no plain number (true, 1_000, digits of other scripts)."""
    if type(value) not in (str, int, float) or (type(value) is str and ("_" in value or not value.isascii())):
        return np.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return np.nan


def shown(value: object) -> str:
    """A value as a sentence shows it, however long it is."""
    text = "nothing" if value is None or (isinstance(value, str) and not value) else " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def read(path: str, names: Mapping[str, str] | None = None) -> Table:
    """Reads a table; UserError if it cannot be read in the format of its ending, or lacks a column that `names` asks
    for."""
    ending = os.path.splitext(path)[1].lower()
    readers = {".csv": _read_csv, ".jsonl": _read_jsonl, ".parquet": _read_parquet}
    if ending not in readers:
        raise UserError(
            f"{path}: the ending says which format it is, found {ending or 'none'!r}, expected .csv, .jsonl or .parquet"
        )
    try:
        table = readers[ending](path)
    except OSError as e:
        raise UserError(f"{path}: cannot be read: {e.strerror or e}") from e
    except UnicodeDecodeError as e:
        raise UserError(f"{path}: is not UTF-8 text (byte {e.start})") from e
    if not len(table):
        raise UserError(f"{path}: has no runs")
    table.names = dict(names or {})
    for ours, theirs in table.names.items():
        if theirs not in table.columns:
            raise UserError(
                f"--columns={ours}:{theirs}: {path} has no column {theirs}; columns found: {', '.join(table.columns)}"
            )
    return table


def _read_csv(path: str) -> Table:
    with open(path, newline="", encoding="utf-8-sig") as f:
        reader = csv.reader(f, strict=True)
        try:
            header = next(reader, None)
            if not header:
                raise UserError(f"{path}, row 1: expected a header of column names, found nothing")
            header = [name.strip() for name in header]
            for name in header:
                if header.count(name) > 1:
                    raise UserError(f"{path}, row 1: column {name or '(no name)'} stands there twice")
            lines, rows = [], []
            for line in reader:
                if not line:
                    continue
                if len(line) != len(header):
                    raise UserError(
                        f"{path}, row {reader.line_num}: found {len(line)} values, expected {len(header)} "
                        f"(columns {', '.join(header)})"
                    )
                lines.append(line)
                rows.append(reader.line_num)
        except csv.Error as e:
            raise UserError(f"{path}, row {reader.line_num}: is not CSV: {e}") from e
    return Table(path, {name: [line[i].strip() for line in lines] for i, name in enumerate(header)}, rows)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({k for k, _ in pairs}) < len(pairs):
        raise ValueError("a key stands there twice")
    return dict(pairs)


def _read_jsonl(path: str) -> Table:
    records, rows = [], []
    with open(path, encoding="utf-8-sig") as f:
        for row, line in enumerate(f, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line, object_pairs_hook=_unique_keys)
            except (ValueError, RecursionError) as e:
                raise UserError(f"{path}, row {row}: is not a JSON object: {e}") from e
            if not isinstance(record, dict):
                raise UserError(f"{path}, row {row}: found {shown(record)}, expected a JSON object")
            records.append(record)
            rows.append(row)
    names = list(dict.fromkeys(name for record in records for name in record))
    return Table(path, {name: [record.get(name) for record in records] for name in names}, rows)


def _read_parquet(path: str) -> Table:
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.ParquetFile(path).read()
    except pyarrow.ArrowException as e:
        raise UserError(f"{path}: is not Parquet: {str(e).splitlines()[0]}") from e
    names = table.column_names
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{path}: column {name} stands there twice")
    columns = {name: _values(column, pyarrow) for name, column in zip(names, table.columns)}
    return Table(path, columns, list(range(1, table.num_rows + 1)), arrow=table)


def _values(column: pyarrow.ChunkedArray, pyarrow: ModuleType) -> list:
    """A Parquet column as Python values; times as text, for not every time that Parquet holds is one of Python's."""
    if not pyarrow.types.is_temporal(column.type):
        return column.to_pylist()
    try:
        return column.cast(pyarrow.string()).to_pylist()
    except pyarrow.ArrowException:  # durations, or a time zone that this machine does not know
        return [None if v is None else f"{v} {column.type}" for v in column.cast(pyarrow.int64()).to_pylist()]


def plain(value: object) -> object:
    """A value as JSON and CSV can hold it: NaN is None; bytes and all other types are text."""
    if isinstance(value, float) and not np.isfinite(value):
        return None
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)


def write(table: Table, path: str) -> None:
    """Writes a table in the format that the ending of `path` says; UserError if that cannot be done."""
    ending = os.path.splitext(path)[1].lower()
    names, length = list(table.columns), len(table)
    if ending == ".csv":
        with replacing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as f:
            writer = csv.writer(f)
            writer.writerow(names)
            for row in zip(*table.columns.values()):
                writer.writerow([v if type(v) in (str, float, int) else plain(v) for v in row])
    elif ending == ".jsonl":
        with replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as f:
            for i in range(length):
                f.write(json.dumps({name: plain(table.columns[name][i]) for name in names}) + "\n")
    elif ending == ".parquet":
        import pyarrow.parquet

        read = {} if table.arrow is None else dict(zip(table.arrow.column_names, table.arrow.columns))
        columns = {name: read[name] if name in read else _arrow(name, table, pyarrow) for name in names}
        with replacing(path) as temporary:
            pyarrow.parquet.write_table(pyarrow.table(columns), temporary)
    else:
        raise UserError(f"--out={path}: found ending {ending or 'none'!r}, expected .csv, .jsonl or .parquet")


def _arrow(name: str, table: Table, pyarrow: ModuleType) -> pyarrow.Array:
    try:
        return pyarrow.array(table.columns[name])
    except (pyarrow.ArrowException, OverflowError) as e:
        kinds = sorted({type(v).__name__ for v in table.columns[name]})
        raise UserError(
            f"{table.path}, column {name}: Parquet cannot hold its values ({', '.join(kinds)}) in one column: write "
            f".csv or .jsonl instead ({str(e).splitlines()[0]})"
        ) from e
