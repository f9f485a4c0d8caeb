"""Tables as files: CSV, JSONL and Parquet, read strictly and written.

Every reader returns the values as the file holds them (text, of a CSV) and the row number of each record as an editor
shows it: the header of a CSV is row 1. `fit.table.table` makes numbers of them.

pandas reads none of these files, because it accepts what has to be an error. It fills up short lines of a CSV and does
not name the line of a record; it keeps the last value of a duplicate key in a line of JSON; it hides
the columns of a Parquet file that a frame was saved with as its index.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from fit.errors import UserError
from fit.messages.printable import is_printable
from fit.table import spelled
from fit.table.files import replacing
from fit.table.formulas import quoted, unquoted

if TYPE_CHECKING:
    import pyarrow

# The most that a Parquet file may hold: a few packed megabytes can be hundreds of millions of rows.
MOST_ROWS = 5_000_000
MOST_BYTES = 4_000_000_000
DELIMITERS = (",", ";", "\t", "|")  # between the columns of a CSV file


@dataclasses.dataclass(frozen=True)
class Contents:
    """The contents of a file: columns {name: values [n_rows]}, and the row number of each record, [n_rows].

    arrow: the table as pyarrow read it, of a Parquet file. It keeps the types of columns that are written again.
    """

    columns: dict[str, list]
    rows: list[int]
    arrow: pyarrow.Table | None = None


def read_file(path: str) -> Contents:
    """Reads a table in the format that the ending of `path` names.

    Raises:
      UserError: for an unknown ending, a file that cannot be read, or the first record that is not well formed.
    """
    ending = os.path.splitext(path)[1].lower()
    readers = {".csv": _read_csv, ".jsonl": _read_jsonl, ".parquet": _read_parquet}
    if ending not in readers:
        raise UserError(
            f"{path}: the ending says which format it is, found {ending or 'none'!r}, expected .csv, .jsonl or .parquet"
        )
    try:
        contents = readers[ending](path)
    except OSError as e:
        raise UserError(f"{path}: cannot be read: {e.strerror or e}") from e
    except UnicodeDecodeError as e:
        raise UserError(f"{path}: is not UTF-8 text (byte {e.start})") from e
    if not contents.rows:
        raise UserError(f"{path}: has no runs")
    return contents


def _read_csv(path: str) -> Contents:
    """Reads a CSV file; all values are text without spaces around it, with decimal points.

    Columns may be separated by commas, semicolons, tabs or bars: the header says by which.
    """
    records = []
    rows = []
    with open(path, newline="", encoding="utf-8-sig") as f:
        delimiter = _delimiter(f.readline())
        f.seek(0)
        reader = csv.reader(f, strict=True, delimiter=delimiter)
        try:
            header = [name.strip() for name in next(reader, ())]
            if not header:
                raise UserError(f"{path}, row 1: expected a header of column names, found nothing")
            _check_names(f"{path}, row 1", header)
            for record in reader:
                if not record:  # an empty line
                    continue
                if len(record) != len(header):
                    raise UserError(
                        f"{path}, row {reader.line_num}: found {len(record)} values, expected {len(header)} "
                        f"(columns {', '.join(header)})"
                    )
                records.append([unquoted(cell.strip()) for cell in record])
                rows.append(reader.line_num)
        except csv.Error as e:
            raise UserError(f"{path}, row {reader.line_num}: is not CSV: {e}") from e
    columns = {name: [record[i].strip() for record in records] for i, name in enumerate(header)}
    return Contents(spelled.with_decimal_points(columns, delimiter), rows)


def _delimiter(header: str) -> str:
    """The delimiter of a CSV file, by its first line."""
    if "," in header:
        return ","
    return max(DELIMITERS, key=header.count)


def _read_jsonl(path: str) -> Contents:
    """Reads a file with a JSON object on each line; empty lines are skipped."""
    records = []
    rows = []
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
    columns = columns_of(records)
    _check_names(path, columns)
    return Contents(columns, rows)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object of these pairs; ValueError on a duplicate key."""
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("a key appears twice")
    return dict(pairs)


def columns_of(records: Sequence[dict]) -> dict[str, list]:
    """The columns of a list of dictionaries, None where one of them lacks a value."""
    names = dict.fromkeys(name for record in records for name in record)
    return {str(name): [record.get(name) for record in records] for name in names}


def _check_names(where: str, names: Iterable[str]) -> None:
    """Raises UserError where two columns have one name, or a name holds a control character: errors list the names."""
    seen = set()
    for name in names:
        if not is_printable(name):
            raise UserError(f"{where}: the name of column {shown(name)} holds a control character")
        if name in seen:
            raise UserError(f"{where}: column {name or '(no name)'} appears twice")
        seen.add(name)


def _read_parquet(path: str) -> Contents:
    """Reads a Parquet file; its rows are counted from 1."""
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
        _check_size(path, file.metadata)
        table = file.read()
    except pyarrow.ArrowException as e:
        raise UserError(f"{path}: is not Parquet: {str(e).splitlines()[0]}") from e
    names = table.column_names
    _check_names(path, names)
    columns = {name: _arrow_values(column, pyarrow) for name, column in zip(names, table.columns, strict=True)}
    return Contents(columns, list(range(1, table.num_rows + 1)), table)


def _check_size(path: str, metadata: pyarrow.parquet.FileMetaData) -> None:
    """Raises UserError where a Parquet file holds more than a table of runs can."""
    n_bytes = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    if metadata.num_rows > MOST_ROWS or n_bytes > MOST_BYTES:
        raise UserError(
            f"{path}: holds {metadata.num_rows:,} rows and {n_bytes / 1e9:.1f} GB unpacked; a table of runs has at "
            f"most {MOST_ROWS:,} rows and {MOST_BYTES / 1e9:g} GB"
        )


def _arrow_values(column: pyarrow.ChunkedArray, pyarrow: ModuleType) -> list:
    """A Parquet column as Python values. Times are text: Python cannot hold each time that Parquet can."""
    if not pyarrow.types.is_temporal(column.type):
        return column.to_pylist()
    try:
        return column.cast(pyarrow.string()).to_pylist()
    except pyarrow.ArrowException:  # durations, or a time zone that this machine does not know
        integers = column.cast(pyarrow.int64()).to_pylist()
        return [None if value is None else f"{value} {column.type}" for value in integers]


def write_file(path: str, columns: Mapping[str, list], source: str, arrow: pyarrow.Table | None = None) -> None:
    """Writes columns in the format that the ending of `path` names.

    Args:
      path: a .csv, .jsonl or .parquet file.
      columns: values by name, all of one length.
      source: where the columns come from, for errors.
      arrow: the table of a Parquet file, whose columns are written again with their types.

    Raises:
      UserError: for another ending, or where the file cannot be written or the format cannot hold the values.
    """
    ending = os.path.splitext(path)[1].lower()
    if ending == ".parquet":
        _write_parquet(path, columns, source, arrow)
    elif ending == ".jsonl":
        _write_jsonl(path, columns)
    elif ending == ".csv":
        _write_csv(path, columns)
    else:
        raise UserError(f"--out={path}: found ending {ending or 'none'!r}, expected .csv, .jsonl or .parquet")


def _write_parquet(path: str, columns: Mapping[str, list], source: str, arrow: pyarrow.Table | None) -> None:
    import pyarrow.parquet

    read = {} if arrow is None else dict(zip(arrow.column_names, arrow.columns, strict=True))
    arrays = {}
    for name, values in columns.items():
        arrays[name] = read[name] if name in read else _arrow_array(name, values, source, pyarrow)
    with replacing(path) as temporary:
        pyarrow.parquet.write_table(pyarrow.table(arrays), temporary)


def _write_jsonl(path: str, columns: Mapping[str, list]) -> None:
    with replacing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as f:
        for row in zip(*columns.values(), strict=True):
            record = dict(zip(columns, row, strict=True))
            f.write(json.dumps(plain(record)) + "\n")


def _write_csv(path: str, columns: Mapping[str, list]) -> None:
    with replacing(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as f:
        writer = csv.writer(f)
        writer.writerow(map(quoted, columns))
        for row in zip(*columns.values(), strict=True):
            writer.writerow([quoted(value if type(value) in (str, float, int) else plain(value)) for value in row])


def _arrow_array(name: str, values: list, source: str, pyarrow: ModuleType) -> pyarrow.Array:
    try:
        return pyarrow.array(values)
    except (pyarrow.ArrowException, OverflowError) as e:
        kinds = sorted({type(value).__name__ for value in values})
        raise UserError(
            f"{source}, column {name}: Parquet cannot hold its values ({', '.join(kinds)}) in one column: write "
            f".csv or .jsonl instead ({str(e).splitlines()[0]})"
        ) from e


def plain(value: object) -> object:
    """A value as JSON and CSV can hold it: NaN and infinity are None; bytes and all other types are text."""
    if isinstance(value, float) and not np.isfinite(value):
        return None
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    return str(value)


def shown(value: object) -> str:
    """A value as a sentence shows it: at most 60 letters, "nothing" for an empty one."""
    if value is None:
        return "nothing"
    if isinstance(value, str) and not value:
        return "nothing"
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."
