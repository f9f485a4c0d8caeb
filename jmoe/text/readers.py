"""Documents out of files and TFDS datasets, a piece at a time; errors name a bad document by file and row.

Rows and lines count from 1, records of TFDS from 0.
"""

import contextlib
import dataclasses
import functools
import itertools
import json
import re

from jmoe import packages
from jmoe.errors import UserError

TFDS = re.compile(r"tfds:(?P<name>[^:\[\]]+(:\d+\.\d+\.\d+)?):(?P<split>[^:].*)")
BUFFER = 2**20  # bytes


@dataclasses.dataclass(frozen=True)
class Piece:
    """Documents [start, stop) of a source, counted in bytes of .jsonl, row groups of .parquet, records of TFDS."""

    path: str
    size: int  # bytes, about
    start: int = 0
    stop: int = 0


def documents(piece: Piece, field: str, skip: bool = False):
    """Yields the documents of a piece as bytes: a whole file, or `field` of each line, row or record.

    A bad document is not text: not UTF-8 (also half of a surrogate pair), not a string, null, or a line that is no JSON
    object. With `skip` it yields None; otherwise a UserError names its file and row.
    """
    if piece.path.startswith("tfds:"):
        yield from _records(piece, field, skip)
    elif piece.path.endswith(".jsonl"):
        yield from _lines(piece, field, skip)
    elif piece.path.endswith(".parquet"):
        yield from _rows(piece, field, skip)
    else:
        with _open(piece.path) as file:
            document = file.read()
        if piece.path.endswith(".py"):  # this machine's Python source; files that are not UTF-8 are taken as they are
            yield document
        else:
            yield _checked(document, skip, lambda: piece.path)


def _checked(document: bytes | str | None, skip: bool, place) -> bytes | None:
    """The document as bytes, which must be UTF-8; `place()` names where it comes from."""
    if document is None:
        return _bad(skip, lambda: f"{place()}: null and not a string")
    if isinstance(document, str):  # JSON can spell half of a surrogate pair, which is no character
        document = document.encode("utf-8", "surrogatepass")
    try:
        document.decode()
    except UnicodeDecodeError as error:
        at = error.start
        return _bad(skip, lambda: f"{place()}: not UTF-8 at byte {at} of the text")
    return document


def _bad(skip: bool, sentence) -> None:
    if not skip:
        raise UserError(f"{sentence()}; --config.data.on_bad_document=skip leaves out such documents and counts them")


@contextlib.contextmanager
def _open(path: str):
    try:
        with open(path, "rb") as file:
            yield file
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None


@contextlib.contextmanager
def parquet(path: str, field: str):
    """Yields the open ParquetFile; a UserError names it if it can't be read or has no text column `field`."""
    pyarrow = packages.needed("pyarrow", path)
    library = packages.needed("pyarrow.parquet", path)
    try:
        with library.ParquetFile(path) as table:
            schema = table.schema_arrow
            if field not in schema.names:
                raise UserError(f"{path}: no column {field!r}; it has {', '.join(schema.names)}")
            kind = schema.field(field).type
            kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
            if str(kind) not in ("string", "large_string", "string_view", "binary", "large_binary", "binary_view"):
                raise UserError(f"{path}: the column {field!r} holds {kind}, not text")
            yield table
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise UserError(f"{path}: not a Parquet file, or damaged: {' '.join(str(error).split())[:300]}") from None


def _rows(piece: Piece, field: str, skip: bool):
    with parquet(piece.path, field) as table:
        before = sum(table.metadata.row_group(i).num_rows for i in range(piece.start))
        rows = itertools.count(before + 1)
        for batch in table.iter_batches(row_groups=range(piece.start, piece.stop), columns=[field]):
            column = batch.column(0)
            if hasattr(column, "dictionary_decode"):
                column = column.dictionary_decode()
            # as bytes: pyarrow would decode strings itself, and its errors name no row
            for row, document in zip(rows, column.cast("large_binary").to_pylist()):
                yield _checked(document, skip, lambda: f"{piece.path}, row {row}, column {field!r}")


def _lines(piece: Piece, field: str, skip: bool):
    """The lines that begin within the piece."""
    with _open(piece.path) as file:
        at = max(piece.start - 1, 0)
        file.seek(at)
        if piece.start:
            at += len(file.readline())
        while at < piece.stop and (line := file.readline()):
            place = lambda: f"{piece.path}, line {_line_number(piece.path, at)}"
            if line.strip():
                try:
                    text = json.loads(line)[field]
                except (ValueError, KeyError, TypeError, RecursionError):
                    text = None
                if isinstance(text, str):
                    yield _checked(text, skip, place)
                else:
                    yield _bad(skip, lambda: f"{place()}: not a JSON object with a string field {field!r}")
            at += len(line)


def _line_number(path: str, at: int) -> int:
    """The number, from 1 on, of the line that begins at byte `at`."""
    number = 1
    with _open(path) as file:
        while at > 0 and (part := file.read(min(at, BUFFER))):
            number += part.count(b"\n")
            at -= len(part)
    return number


@functools.lru_cache
def tfds(path: str):
    """(data source, info of the dataset, info of the split) of tfds:NAME/CONFIG:SPLIT, which must be built already, in
    $TFDS_DATA_DIR or else ~/tensorflow_datasets."""
    library = packages.needed("tensorflow_datasets", path)
    parts = TFDS.fullmatch(path)
    if not parts:
        raise UserError(f"{path!r} is not of the form tfds:NAME:SPLIT or tfds:NAME/CONFIG:SPLIT")
    try:
        info = library.builder(parts["name"]).info
        if not info.splits:
            raise UserError(
                f"{path!r} is not prepared in {info.data_dir}; prepare it by "
                f"`tfds build {parts['name']} --file_format=array_record`, or set TFDS_DATA_DIR"
            )
        packages.needed("array_record", path)
        source = library.data_source(parts["name"], split=parts["split"], download=False)
        return source, info, info.splits[parts["split"]]
    except library.core.DatasetNotFoundError:
        raise UserError(f"{path!r} is not found in {library.core.constants.DATA_DIR}; set TFDS_DATA_DIR") from None
    except (ValueError, KeyError, NotImplementedError) as error:
        raise UserError(f"{path!r}: {' '.join(str(error).split())[:300]}") from None


def _records(piece: Piece, field: str, skip: bool):
    source, _, _ = tfds(piece.path)
    for start in range(piece.start, piece.stop, 1000):
        indices = range(start, min(start + 1000, piece.stop))
        try:
            records = source.__getitems__(indices)
        except Exception as error:  # noqa: BLE001  ArrayRecord and protobuf raise what they like
            raise UserError(f"{piece.path}, records {start} to {indices[-1]}: cannot be read: {error}") from None
        for i, record in zip(indices, records):
            document = record[field]
            if not isinstance(document, str | bytes):
                raise UserError(
                    f"config.data.text_field={field!r} of {piece.path} holds {type(document).__name__}, not text"
                )
            yield _checked(document, skip, lambda: f"{piece.path}, record {i}")
