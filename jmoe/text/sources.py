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

from etils import epath

from jmoe.errors import UserError, needed_package

SUFFIXES = (".txt", ".jsonl", ".parquet")
INSTALLED = {"site-packages", "dist-packages"}  # folders of packages within the standard library's
PIECE_BYTES = 2**22  # what a process reads at a time, and has to read again after a kill


@dataclasses.dataclass(frozen=True)
class Piece:
    """Documents [start, stop) of a source, counted in bytes of .jsonl, row groups of .parquet, records of TFDS."""

    path: str
    size: int  # bytes, about
    start: int = 0
    stop: int = 0


@dataclasses.dataclass(frozen=True)
class Text:
    """What to train on and what to hold out: paths of files or a tfds: name, and the field that holds the text."""

    train: list[str]
    held_out: list[str]  # empty: documents are held out by hash
    field: str

    def stamps(self) -> list[str]:
        """A line for each source, which changes when the source does."""
        lines = [("train", path) for path in self.train] + [("held out", path) for path in self.held_out]
        return [self.field] + [f"{kind} {line}" for kind, path in lines for line in _stamp(path)]

    def units(self) -> list[tuple[str, list[Piece]]]:
        """(split, pieces) of about PIECE_BYTES each, in the order of the documents, held-out ones first."""
        units = []
        for split, paths in (("validation", self.held_out), ("train", self.train)):
            room = -1
            for piece in itertools.chain.from_iterable(_pieces(path, self.field) for path in paths):
                if piece.size > room:
                    units.append((split, []))
                    room = PIECE_BYTES
                units[-1][1].append(piece)
                room -= piece.size
        return units


def find(data) -> Text:
    """The text that `config.data` names; UserError where nothing matches, a file is of no known kind, or a TFDS dataset
    can't be opened."""
    held_out = _find(data.validation_path, "validation_path") if data.validation_path else []
    return Text(_find(data.path, "path"), held_out, data.text_field)


def _find(pattern: str, name: str) -> list[str]:
    if pattern.startswith("tfds:"):
        try:
            tfds(pattern)
        except UserError as error:
            raise UserError(f"config.data.{name}: {error}") from None
        return [pattern]
    if not pattern:  # what is installed later must not change it
        root = pathlib.Path(sysconfig.get_path("stdlib"))
        found = [path for path in root.rglob("*.py") if not INSTALLED & set(path.relative_to(root).parts)]
        return sorted(str(path) for path in found if path.is_file())
    expanded = os.path.expanduser(pattern)
    if os.path.isdir(expanded):
        raise UserError(
            f"config.data.{name}={pattern!r} is a folder without a manifest.json, so not made by jmoe.prepare; "
            f"name its files, as in '{pattern.rstrip('/')}/*.txt'"
        )
    paths = [path for path in sorted(map(pathlib.Path, glob.glob(expanded, recursive=True))) if path.is_file()]
    if not paths:
        raise UserError(f"config.data.{name}={pattern!r} matches no file")
    if others := [str(path) for path in paths if path.suffix not in SUFFIXES]:
        known = ", ".join(SUFFIXES)
        raise UserError(f"config.data.{name}={pattern!r} matches {others[0]!r}, which is none of {known}")
    return list(map(str, paths))


def _stamp(path: str):
    if not path.startswith("tfds:"):
        stat = os.stat(path)
        return [f"{path} {stat.st_size} {stat.st_mtime_ns}"]
    _, info, split = tfds(path)
    files = [epath.Path(file).stat() for file in split.filepaths]
    return [f"{path} {info.full_name}"] + [f"{stat.length} {stat.mtime}" for stat in files]


def _pieces(path: str, field: str):
    """The pieces of a source; each begins and ends with a document."""
    if path.startswith("tfds:"):
        source, info, split = tfds(path)
        if field not in info.features:
            known = ", ".join(info.features)
            raise UserError(f"config.data.text_field={field!r} is no feature of {path}; it has {known}")
        n = len(source)
        size = max(1, split.num_bytes // max(n, 1))
        step = max(1, PIECE_BYTES // size)
        for start in range(0, n, step):
            stop = min(n, start + step)
            yield Piece(path, (stop - start) * size, start, stop)
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


def documents(piece: Piece, field: str, skip: bool = False):
    """Yields the documents of a piece as bytes: a whole file, or `field` of each line, row or record.

    A bad document is not text: not UTF-8 (also half of a surrogate pair), not a string, null, or a line that is no JSON
    object. With `skip` it yields None; otherwise a UserError names its file and row.
    """
    missing = "null and not a string"
    if piece.path.startswith("tfds:"):
        found = _records(piece, field)
    elif piece.path.endswith(".jsonl"):
        found, missing = _lines(piece, field), f"not a JSON object with a string field {field!r}"
    elif piece.path.endswith(".parquet"):
        found = _rows(piece, field)
    else:
        with _open(piece.path) as file:
            found = [(file.read(), lambda: piece.path)]
    for document, place in found:
        if isinstance(document, str):  # JSON can spell half of a surrogate pair, which is no character
            document = document.encode("utf-8", "surrogatepass")
        bad = missing if document is None else ""
        if document and not piece.path.endswith(".py"):  # this machine's Python source is taken as it is
            try:
                document.decode()
            except UnicodeDecodeError as error:
                bad = f"not UTF-8 at byte {error.start} of the text"
        if bad and not skip:
            hint = "--config.data.on_bad_document=skip leaves out such documents and counts them"
            raise UserError(f"{place()}: {bad}; {hint}")
        yield None if bad else document


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
    pyarrow = needed_package("pyarrow", path)
    library = needed_package("pyarrow.parquet", path)
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


def _rows(piece: Piece, field: str):
    with parquet(piece.path, field) as table:
        before = sum(table.metadata.row_group(i).num_rows for i in range(piece.start))
        rows = itertools.count(before + 1)
        for batch in table.iter_batches(row_groups=range(piece.start, piece.stop), columns=[field]):
            column = batch.column(0)
            if hasattr(column, "dictionary_decode"):
                column = column.dictionary_decode()
            # as bytes: pyarrow would decode strings itself, and its errors name no row
            for row, document in zip(rows, column.cast("large_binary").to_pylist()):
                yield document, lambda: f"{piece.path}, row {row}, column {field!r}"


def _lines(piece: Piece, field: str):
    """The lines that begin within the piece."""
    with _open(piece.path) as file:
        file.seek(max(piece.start - 1, 0))
        if piece.start:
            file.readline()
        while (at := file.tell()) < piece.stop and (line := file.readline()):
            if line.strip():
                try:
                    text = json.loads(line)[field]
                except (ValueError, KeyError, TypeError, RecursionError):
                    text = None
                place = lambda: f"{piece.path}, line {_line_number(piece.path, at)}"
                yield text if isinstance(text, str) else None, place


def _line_number(path: str, at: int) -> int:
    """The number, from 1 on, of the line that begins at byte `at`."""
    number = 1
    with _open(path) as file:
        while file.tell() < at and file.readline():
            number += 1
    return number


@functools.lru_cache
def tfds(path: str):
    """(data source, info of the dataset, info of the split) of tfds:NAME/CONFIG:SPLIT, which must be built already, in
    $TFDS_DATA_DIR or else ~/tensorflow_datasets."""
    library = needed_package("tensorflow_datasets", path)
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
        return source, info, info.splits[parts["split"]]
    except library.core.DatasetNotFoundError:
        raise UserError(f"{path!r} is not found in {library.core.constants.DATA_DIR}; set TFDS_DATA_DIR") from None
    except (ValueError, KeyError, NotImplementedError) as error:
        raise UserError(f"{path!r}: {' '.join(str(error).split())[:300]}") from None


def _records(piece: Piece, field: str):
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
                kind = type(document).__name__
                raise UserError(f"config.data.text_field={field!r} of {piece.path} holds {kind}, not text")
            yield document, lambda: f"{piece.path}, record {i}"
