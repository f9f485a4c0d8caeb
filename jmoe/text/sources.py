"""The text that `config.data` names and its documents: of files, a TFDS dataset, or Python's standard library.

Text is cut into pieces (a file, or a range of its lines, row groups or records) that several processes read at once.
Errors name a bad document by file and row: rows and lines count from 1, records of TFDS from 0.
"""

import contextlib
import dataclasses
import functools
import glob
import itertools
import json
import os
import pathlib
import re
import sysconfig
from collections.abc import Callable, Generator, Iterator
from typing import Any, BinaryIO, NamedTuple

from etils import epath
from ml_collections import ConfigDict

from jmoe.errors import UserError, first_few, needed_package

SUFFIXES = (".txt", ".jsonl", ".parquet")
INSTALLED = {"site-packages", "dist-packages"}  # folders of packages within the standard library's
PIECE_BYTES = 2**22  # what a process reads at a time, and has to read again after a kill
RECORDS_AT_ONCE = 1000  # records of TFDS that are read together
PARQUET_TEXT_TYPES = ("string", "large_string", "string_view", "binary", "large_binary", "binary_view")

# A document, None where the row holds no text, and a function that names its place. Finding a place may take a while,
# so only errors call it.
PlacedDocument = tuple[bytes | str | None, Callable[[], str]]


@dataclasses.dataclass(frozen=True)
class Piece:
    """Documents [start, stop) of a source, counted in bytes of .jsonl, row groups of .parquet, records of TFDS."""

    path: str
    size: int  # bytes, about
    start: int = 0
    stop: int = 0


@dataclasses.dataclass(frozen=True)
class Text:
    """The text to train on and the text to hold out: paths of files or a tfds: name."""

    train: list[str]
    held_out: list[str]  # empty: documents are held out by hash
    field: str  # holds the text in .jsonl, .parquet and TFDS

    def stamps(self) -> list[str]:
        """A line for each source, which changes when the source does."""
        lines = [self.field]
        for kind, paths in (("train", self.train), ("held out", self.held_out)):
            for path in paths:
                lines += [f"{kind} {line}" for line in _stamp(path)]
        return lines

    def units(self) -> list[tuple[str, list[Piece]]]:
        """(split, pieces) of about PIECE_BYTES each, in the order of the documents, held-out ones first."""
        units = []
        for split, paths in (("validation", self.held_out), ("train", self.train)):
            bytes_left = -1
            for piece in itertools.chain.from_iterable(_pieces(path, self.field) for path in paths):
                if piece.size > bytes_left:
                    units.append((split, []))
                    bytes_left = PIECE_BYTES
                units[-1][1].append(piece)
                bytes_left -= piece.size
        return units


class TfdsSplit(NamedTuple):
    """A split of a TFDS dataset: its records, and what TFDS says of dataset and split."""

    source: Any  # a random-access data source
    info: Any  # tfds.core.DatasetInfo
    split: Any  # tfds.core.SplitInfo


def find(data: ConfigDict) -> Text:
    """Finds the text that `config.data` names.

    Raises:
      UserError: Nothing matches, a file is of no known kind, or a TFDS dataset can't be opened.
    """
    held_out = _find(data.validation_path, "validation_path") if data.validation_path else []
    return Text(_find(data.path, "path"), held_out, data.text_field)


def _find(pattern: str, field: str) -> list[str]:
    """Paths of the sources that config.data.`field`=`pattern` names."""
    if pattern.startswith("tfds:"):
        try:
            tfds(pattern)
        except UserError as error:
            raise UserError(f"config.data.{field}: {error}") from None
        return [pattern]
    if not pattern:
        return _standard_library()
    expanded = os.path.expanduser(pattern)
    if os.path.isdir(expanded):
        raise UserError(
            f"config.data.{field}={pattern!r} is a folder without a manifest.json, so not made by jmoe.prepare; "
            f"name its files, as in '{pattern.rstrip('/')}/*.txt'"
        )
    paths = [path for path in sorted(map(pathlib.Path, glob.glob(expanded, recursive=True))) if path.is_file()]
    if not paths:
        raise UserError(f"config.data.{field}={pattern!r} matches no file")
    others = [str(path) for path in paths if path.suffix not in SUFFIXES]
    if others:
        known = ", ".join(SUFFIXES)
        raise UserError(f"config.data.{field}={pattern!r} matches {others[0]!r}, which is none of {known}")
    return [str(path) for path in paths]


def _standard_library() -> list[str]:
    """Python files of the standard library, without packages that are installed into its folder later."""
    root = pathlib.Path(sysconfig.get_path("stdlib"))
    paths = [path for path in root.rglob("*.py") if not INSTALLED & set(path.relative_to(root).parts)]
    return sorted(str(path) for path in paths if path.is_file())


def _stamp(path: str) -> list[str]:
    """Lines that change when the source does: names, sizes and times."""
    if not path.startswith("tfds:"):
        stat = os.stat(path)
        return [f"{path} {stat.st_size} {stat.st_mtime_ns}"]
    _, info, split = tfds(path)
    files = [epath.Path(file).stat() for file in split.filepaths]
    return [f"{path} {info.full_name}"] + [f"{stat.length} {stat.mtime}" for stat in files]


def _pieces(path: str, field: str) -> Iterator[Piece]:
    """The pieces of a source; each begins and ends with a document."""
    if path.startswith("tfds:"):
        yield from _tfds_pieces(path, field)
        return
    size = os.path.getsize(path)
    if path.endswith(".jsonl"):
        for start in range(0, max(size, 1), PIECE_BYTES):
            stop = min(size, start + PIECE_BYTES)
            yield Piece(path, stop - start, start, stop)
    elif path.endswith(".parquet"):
        with parquet(path, field) as table:
            for i in range(table.num_row_groups):
                yield Piece(path, table.metadata.row_group(i).total_byte_size, i, i + 1)
    else:
        yield Piece(path, size)


def _tfds_pieces(path: str, field: str) -> Iterator[Piece]:
    source, info, split = tfds(path)
    if field not in info.features:
        known = first_few(info.features)
        raise UserError(f"config.data.text_field={field!r} is no feature of {path}; it has {known}")
    n_records = len(source)
    record_bytes = max(1, split.num_bytes // max(n_records, 1))
    step = max(1, PIECE_BYTES // record_bytes)
    for start in range(0, n_records, step):
        stop = min(n_records, start + step)
        yield Piece(path, (stop - start) * record_bytes, start, stop)


def documents(piece: Piece, field: str, skip: bool = False) -> Iterator[bytes | None]:
    """Yields the documents of a piece as bytes: a whole file, or `field` of each line, row or record.

    A bad document is not text: not UTF-8 (also half of a surrogate pair), not a string, null, or a line that is no JSON
    object.

    Args:
      piece: What to read.
      field: Holds the text in .jsonl, .parquet and TFDS.
      skip: Yield None for a bad document instead of raising.

    Raises:
      UserError: A document is bad; the error names its file and row.
    """
    missing = "null and not a string"
    if piece.path.endswith(".jsonl") and not piece.path.startswith("tfds:"):
        missing = f"not a JSON object with a string field {field!r}"
    for document, place in _placed_documents(piece, field):
        if isinstance(document, str):  # JSON can spell half of a surrogate pair, which is no character
            document = document.encode("utf-8", "surrogatepass")
        fault = missing if document is None else ""
        if document and not piece.path.endswith(".py"):  # Python's own sources are used as they are
            try:
                document.decode()
            except UnicodeDecodeError as error:
                fault = f"not UTF-8 at byte {error.start} of the text"
        if fault and not skip:
            hint = "--config.data.on_bad_document=skip leaves out such documents and counts them"
            raise UserError(f"{place()}: {fault}; {hint}")
        yield None if fault else document


def _placed_documents(piece: Piece, field: str) -> Iterator[PlacedDocument]:
    """The documents of a piece, good and bad."""
    if piece.path.startswith("tfds:"):
        yield from _records(piece, field)
    elif piece.path.endswith(".jsonl"):
        yield from _lines(piece, field)
    elif piece.path.endswith(".parquet"):
        yield from _rows(piece, field)
    else:
        with _open(piece.path) as file:
            content = file.read()
        yield content, lambda: piece.path


@contextlib.contextmanager
def _open(path: str) -> Generator[BinaryIO]:
    """Opens a file for reading; a UserError names it if that fails."""
    try:
        with open(path, "rb") as file:
            yield file
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None


@contextlib.contextmanager
def parquet(path: str, field: str) -> Generator[Any]:
    """Yields the open pyarrow.parquet.ParquetFile.

    Raises:
      UserError: The file can't be read or has no text column `field`.
    """
    pyarrow: Any = needed_package("pyarrow", path)
    library: Any = needed_package("pyarrow.parquet", path)
    try:
        with library.ParquetFile(path) as table:
            schema = table.schema_arrow
            if field not in schema.names:
                raise UserError(f"{path}: no column {field!r}; it has {first_few(schema.names)}")
            kind = schema.field(field).type
            kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
            if str(kind) not in PARQUET_TEXT_TYPES:
                raise UserError(f"{path}: the column {field!r} holds {kind}, not text")
            yield table
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise UserError(f"{path}: not a Parquet file, or damaged: {' '.join(str(error).split())[:300]}") from None


def _rows(piece: Piece, field: str) -> Iterator[PlacedDocument]:
    """The documents of row groups of a Parquet file."""

    def place(row: int) -> str:
        return f"{piece.path}, row {row}, column {field!r}"

    with parquet(piece.path, field) as table:
        n_rows_before = sum(table.metadata.row_group(i).num_rows for i in range(piece.start))
        row = n_rows_before
        for batch in table.iter_batches(row_groups=range(piece.start, piece.stop), columns=[field]):
            column = batch.column(0)
            if hasattr(column, "dictionary_decode"):
                column = column.dictionary_decode()
            # as bytes: pyarrow would decode strings itself, and its errors name no row
            for document in column.cast("large_binary").to_pylist():
                row += 1
                yield document, functools.partial(place, row)


def _lines(piece: Piece, field: str) -> Iterator[PlacedDocument]:
    """The documents of the lines that begin within a piece of a JSONL file."""

    def place(position: int) -> str:
        return f"{piece.path}, line {_line_number(piece.path, position)}"

    with _open(piece.path) as file:
        file.seek(max(piece.start - 1, 0))
        if piece.start:
            file.readline()
        position = file.tell()
        while position < piece.stop:
            line = file.readline()
            if not line:
                return
            if line.strip():
                try:
                    text = json.loads(line)[field]
                except (ValueError, KeyError, TypeError, RecursionError):
                    text = None
                yield text if isinstance(text, str) else None, functools.partial(place, position)
            position = file.tell()


def _line_number(path: str, position: int) -> int:
    """The number, from 1 on, of the line that begins at the byte `position`."""
    number = 1
    with _open(path) as file:
        while file.tell() < position and file.readline():
            number += 1
    return number


@functools.lru_cache
def tfds(path: str) -> TfdsSplit:
    """Opens tfds:NAME/CONFIG:SPLIT, prepared in $TFDS_DATA_DIR or else ~/tensorflow_datasets.

    Raises:
      UserError: The name has another form, or the dataset is not there.
    """
    library: Any = needed_package("tensorflow_datasets", path)
    parts = re.fullmatch(r"tfds:(?P<name>[^:\[\]]+(:\d+\.\d+\.\d+)?):(?P<split>[^:].*)", path)
    if not parts:
        raise UserError(f"{path!r} is not of the form tfds:NAME:SPLIT or tfds:NAME/CONFIG:SPLIT")
    try:
        info = library.builder(parts["name"]).info
        if not info.splits:
            raise UserError(
                f"{path!r} is not prepared in {info.data_dir}; prepare it by "
                f"`tfds build {parts['name']} --file_format=array_record`, or set TFDS_DATA_DIR"
            )
        needed_package("array_record", path)
        source = library.data_source(parts["name"], split=parts["split"], download=False)
        return TfdsSplit(source, info, info.splits[parts["split"]])
    except library.core.DatasetNotFoundError:
        raise UserError(f"{path!r} is not found in {library.core.constants.DATA_DIR}; set TFDS_DATA_DIR") from None
    except (ValueError, KeyError, NotImplementedError) as error:
        raise UserError(f"{path!r}: {' '.join(str(error).split())[:300]}") from None


def _records(piece: Piece, field: str) -> Iterator[PlacedDocument]:
    """The documents of records of a TFDS dataset."""

    def place(record: int) -> str:
        return f"{piece.path}, record {record}"

    source = tfds(piece.path)[0]
    for start in range(piece.start, piece.stop, RECORDS_AT_ONCE):
        indices = range(start, min(start + RECORDS_AT_ONCE, piece.stop))
        try:
            records = source.__getitems__(indices)
        except Exception as error:  # noqa: BLE001  ArrayRecord and protobuf raise what they like
            raise UserError(f"{piece.path}, records {start} to {indices[-1]}: cannot be read: {error}") from None
        for i, record in zip(indices, records, strict=True):
            document = record[field]
            if not isinstance(document, str | bytes):
                kind = type(document).__name__
                raise UserError(f"config.data.text_field={field!r} of {piece.path} holds {kind}, not text")
            yield document, functools.partial(place, i)
