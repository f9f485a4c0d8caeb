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

from etils import epath

from jmoe.cli import UserError

SUFFIXES = (".txt", ".jsonl", ".parquet")
PIECE_BYTES = 2**22  # what a process reads at a time, and what a kill costs it
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
        try:
            _tfds(pattern)
        except UserError as error:
            raise UserError(f"config.data.{name}: {error}") from None
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
    _, info, split = _tfds(path)
    files = [epath.Path(file).stat() for file in split.filepaths]
    return [f"{path} {info.full_name}"] + [f"{stat.length} {stat.mtime}" for stat in files]


def _pieces(path: str, field: str):
    """Cuts a source where documents end."""
    if path.startswith("tfds:"):
        source, info, split = _tfds(path)
        if field not in info.features:
            raise UserError(
                f"config.data.text_field={field!r} is no feature of {path}; it has {', '.join(info.features)}"
            )
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
    """(data source, info of the dataset, info of the split) of tfds:NAME/CONFIG:SPLIT, which must be prepared already.

    TFDS looks in $TFDS_DATA_DIR, else in ~/tensorflow_datasets.
    """
    import tensorflow_datasets as tfds

    parts = TFDS.fullmatch(path)
    if not parts:
        raise UserError(f"{path!r} is not of the form tfds:NAME:SPLIT or tfds:NAME/CONFIG:SPLIT")
    try:
        info = tfds.builder(parts["name"]).info
        if not info.splits:
            raise UserError(
                f"{path!r} is not prepared in {info.data_dir}; prepare it by "
                f"`tfds build {parts['name']} --file_format=array_record`, or set TFDS_DATA_DIR"
            )
        source = tfds.data_source(parts["name"], split=parts["split"], download=False)
        return source, info, info.splits[parts["split"]]
    except tfds.core.DatasetNotFoundError:
        raise UserError(f"{path!r} is not found in {tfds.core.constants.DATA_DIR}; set TFDS_DATA_DIR") from None
    except (ValueError, KeyError, NotImplementedError) as error:
        raise UserError(f"{path!r}: {' '.join(str(error).split())[:300]}") from None


def _records(piece: Piece, field: str):
    source, _, _ = _tfds(piece.path)
    for start in range(piece.start, piece.stop, 1000):
        indices = range(start, min(start + 1000, piece.stop))
        try:
            records = source.__getitems__(indices)
        except Exception as error:  # noqa: BLE001  ArrayRecord and protobuf raise what they like
            raise UserError(f"{piece.path}, records {start} to {indices[-1]}: cannot be read: {error}") from None
        for record in records:
            if not isinstance(record[field], str | bytes):
                raise UserError(
                    f"config.data.text_field={field!r} of {piece.path} holds {type(record[field]).__name__}, not text"
                )
            yield record[field].encode() if isinstance(record[field], str) else record[field]
