"""The text that `config.data` names: files, a TFDS dataset, or the source of Python's standard library.

Text is cut into pieces (a file, or a range of its lines, row groups or records) that several processes read at once.
"""

import dataclasses
import glob
import itertools
import os
import pathlib
import sysconfig

from etils import epath

from jmoe.errors import UserError
from jmoe.text import readers
from jmoe.text.readers import Piece

SUFFIXES = (".txt", ".jsonl", ".parquet")
INSTALLED = {"site-packages", "dist-packages"}  # folders of packages within the standard library's
PIECE_BYTES = 2**22  # what a process reads at a time, and has to read again after a kill


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
            readers.tfds(pattern)
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
    paths = sorted(pathlib.Path(path) for path in glob.glob(expanded, recursive=True))
    paths = [path for path in paths if path.is_file()]
    if not paths:
        raise UserError(f"config.data.{name}={pattern!r} matches no file")
    for path in paths:
        if path.suffix not in SUFFIXES:
            known = ", ".join(SUFFIXES)
            raise UserError(f"config.data.{name}={pattern!r} matches {str(path)!r}, which is none of {known}")
    return list(map(str, paths))


def _stamp(path: str):
    if not path.startswith("tfds:"):
        stat = os.stat(path)
        return [f"{path} {stat.st_size} {stat.st_mtime_ns}"]
    _, info, split = readers.tfds(path)
    files = [epath.Path(file).stat() for file in split.filepaths]
    return [f"{path} {info.full_name}"] + [f"{stat.length} {stat.mtime}" for stat in files]


def _pieces(path: str, field: str):
    """The pieces of a source; each begins and ends with a document."""
    if path.startswith("tfds:"):
        source, info, split = readers.tfds(path)
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
        with readers.parquet(path, field) as table:
            for i in range(table.num_row_groups):
                yield Piece(path, table.metadata.row_group(i).total_byte_size, i, i + 1)
    else:
        yield Piece(path, size)
