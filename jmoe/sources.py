"""Text, wherever `config.data.path` finds it, as documents: files, TFDS, or the Python source of this machine.

Text is cut into pieces (a file, a range of its lines, row groups or records) that processes read apart from each other.
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

from jmoe.cli import UserError

SUFFIXES = (".txt", ".jsonl", ".parquet")
PIECE_BYTES = 2**24  # what a process reads at a time, and what a kill can cost it
TFDS = re.compile(r"tfds:(?P<name>[^:\[\]]+(:\d+\.\d+\.\d+)?):(?P<split>[^:].*)")


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
    held_out: list[str]  # empty: by hash
    field: str

    def stamps(self) -> list[str]:
        """A line for each source, which changes when the source does."""
        return [self.field] + [
            f"{kind} {line}"
            for kind, paths in (("train", self.train), ("held out", self.held_out))
            for path in paths
            for line in _stamp(path)
        ]

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
    """The text that `config.data` names.

    Raises:
      UserError: nothing matches, a file is of no known kind, or a TFDS dataset can't be opened.
    """
    held_out = _find(data.validation_path, "validation_path") if data.validation_path else []
    return Text(_find(data.path, "path"), held_out, data.text_field)


def _find(pattern: str, name: str) -> list[str]:
    if pattern.startswith("tfds:"):
        _tfds(pattern)
        return [pattern]
    if not pattern:  # this Python's standard library and installed packages
        roots = dict.fromkeys(pathlib.Path(sysconfig.get_path(key)) for key in ("stdlib", "purelib", "platlib"))
        return list(map(str, sorted({path for root in roots for path in root.rglob("*.py") if path.is_file()})))
    expanded = os.path.expanduser(pattern)
    if os.path.isdir(expanded):
        raise UserError(
            f"config.data.{name}={pattern!r} is a folder without a manifest.json, so not made by jmoe.prepare; "
            f"name its files, as in '{pattern.rstrip('/')}/*.txt'"
        )
    paths = sorted(pathlib.Path(path) for path in glob.glob(expanded, recursive=True))
    paths = [path for path in paths if path.is_file()]
    if not paths:
        raise UserError(f"config.data.{name}={pattern!r} matches no file")
    if wrong := [path for path in paths if path.suffix not in SUFFIXES]:
        raise UserError(
            f"config.data.{name}={pattern!r} matches {str(wrong[0])!r}, which is none of {', '.join(SUFFIXES)}"
        )
    return list(map(str, paths))


def _stamp(path: str):
    if not path.startswith("tfds:"):
        stat = os.stat(path)
        return [f"{path} {stat.st_size} {stat.st_mtime_ns}"]
    builder, split = _tfds(path)
    files = [os.stat(file) for file in builder.info.splits[split].filepaths]
    return [f"{path} {builder.info.full_name}"] + [f"{stat.st_size} {stat.st_mtime_ns}" for stat in files]


def _pieces(path: str, field: str):
    """Cuts a source where documents end."""
    if path.startswith("tfds:"):
        builder, split = _tfds(path)
        if field not in builder.info.features:
            raise UserError(
                f"config.data.text_field={field!r} is no feature of {path}; it has {', '.join(builder.info.features)}"
            )
        info = builder.info.splits[split]
        n = info.num_examples
        size = max(1, info.num_bytes // n) if n else 1
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
        with _parquet(path, field) as table:
            for i in range(table.num_row_groups):
                yield Piece(path, table.metadata.row_group(i).total_byte_size, i, i + 1)
    else:
        yield Piece(path, size)


def documents(piece: Piece, field: str):
    """Yields the documents of a piece as bytes: a whole file, or `field` of each line, row or record.

    Raises:
      UserError: naming file and row.
    """
    if piece.path.startswith("tfds:"):
        yield from _records(piece, field)
    elif piece.path.endswith(".jsonl"):
        yield from _lines(piece, field)
    elif piece.path.endswith(".parquet"):
        with _parquet(piece.path, field) as table:
            for batch in table.iter_batches(row_groups=range(piece.start, piece.stop), columns=[field]):
                for text in batch.column(0).to_pylist():
                    if text is not None:
                        yield text.encode()
    else:
        with _open(piece.path) as file:
            yield file.read()


@contextlib.contextmanager
def _open(path: str):
    try:
        with open(path, "rb") as file:
            yield file
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None


@contextlib.contextmanager
def _parquet(path: str, field: str):
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as table:
            if field not in table.schema_arrow.names:
                raise UserError(f"{path}: no column {field!r}; it has {', '.join(table.schema_arrow.names)}")
            yield table
    except (pyarrow.ArrowException, AttributeError, OSError) as error:
        raise UserError(f"{path}: not a Parquet file with text: {error}") from None


def _lines(piece: Piece, field: str):
    """The lines that begin within the piece."""
    with _open(piece.path) as file:
        at = max(piece.start - 1, 0)
        file.seek(at)
        if piece.start:
            at += len(file.readline())
        while at < piece.stop and (line := file.readline()):
            if line.strip():
                try:
                    text = json.loads(line)[field]
                    if not isinstance(text, str):
                        raise TypeError
                except (ValueError, KeyError, TypeError):
                    number = 1 + pathlib.Path(piece.path).read_bytes()[:at].count(b"\n")
                    raise UserError(
                        f"{piece.path}, line {number}: not a JSON object with a string field {field!r}"
                    ) from None
                yield text.encode("utf-8", "surrogatepass")
            at += len(line)


@functools.lru_cache
def _tfds(path: str):
    """(builder, split) of tfds:NAME/CONFIG:SPLIT, prepared in $TFDS_DATA_DIR, else ~/tensorflow_datasets."""
    import tensorflow_datasets as tfds

    parts = TFDS.fullmatch(path)
    if not parts:
        raise UserError(f"config.data.path={path!r} is not of the form tfds:NAME:SPLIT or tfds:NAME/CONFIG:SPLIT")
    try:
        builder = tfds.builder(parts["name"])
        builder.info.splits[parts["split"]].num_examples
    except (ValueError, KeyError, AssertionError, tfds.core.DatasetNotFoundError) as error:
        raise UserError(f"config.data.path={path!r}: {_first_line(error)}") from None
    return builder, parts["split"]


def _records(piece: Piece, field: str):
    import tensorflow_datasets as tfds

    parts = TFDS.fullmatch(piece.path)
    try:
        source = tfds.data_source(parts["name"], split=parts["split"], download=False)
        for start in range(piece.start, piece.stop, 1000):
            for record in source.__getitems__(range(start, min(start + 1000, piece.stop))):
                text = record[field]
                if not isinstance(text, str | bytes):
                    raise UserError(f"config.data.text_field={field!r} of {piece.path} holds {type(text)}, not text")
                yield text.encode() if isinstance(text, str) else text
    except NotImplementedError as error:
        raise UserError(f"config.data.path={piece.path!r}: {_first_line(error)}") from None


def _first_line(error) -> str:
    return str(error).strip().splitlines()[0]
