"""The files between text and shards, written and read here alone: one of each unit, and one of each part's documents.

    NNNNNN.npz             a unit: its tokens, and its documents
    documents-NNNNN.npz    a part of several machines: the documents of its units, in their order

They are NumPy's .npz, in a folder or on gs://. Checksums of the format show whether a kill or a disk damaged a file.

Axis legend: N documents of a unit; T tokens of a unit; U units of a part.
"""

import dataclasses
import errno
import io
import os
import pathlib
from collections.abc import Sequence
from typing import IO

import numpy as np
from etils import epath
from jaxtyping import Shaped, UInt

from jmoe.errors import Damaged
from jmoe.storage import durable
from jmoe.storage.files import is_remote, read_bytes

DOCUMENTS = np.dtype([("sha256", "S32"), ("tokens", "<i8"), ("bytes", "<i8")])
DocumentTable = Shaped[np.ndarray, " N"]  # of DOCUMENTS
AnyPath = pathlib.Path | epath.Path  # of a file, or of an object on gs://


@dataclasses.dataclass(frozen=True)
class Documents:
    """The documents of one unit, or of several.

    Attributes:
      tables: Of each unit, the hash, tokens and bytes of each document that was kept.
      n_skipped: How many bad documents were left out, of all units.
    """

    tables: list[DocumentTable]
    n_skipped: int

    @classmethod
    def joined(cls, parts: Sequence["Documents"]) -> "Documents":
        """Those of all parts, one after another."""
        return cls([table for part in parts for table in part.tables], sum(part.n_skipped for part in parts))


def write_unit(path: AnyPath, tokens: UInt[np.ndarray, " T"], documents: DocumentTable, n_skipped: int) -> None:
    """Writes the file of a unit."""
    _write(path, tokens=tokens, documents=documents, n_skipped=np.array(n_skipped))


def read_tokens(path: AnyPath) -> UInt[np.ndarray, " T"]:
    """The tokens of a unit.

    Raises:
      Damaged: The file is not what `write_unit` wrote.
      FileNotFoundError: There is none.
    """
    (tokens,) = _read(path, "tokens")
    return tokens


def read_unit_documents(path: AnyPath) -> Documents:
    """The documents of a unit; raises as `read_tokens`."""
    documents, n_skipped = _read(path, "documents", "n_skipped")
    return Documents([documents], int(n_skipped))


def write_part(path: AnyPath, documents: Documents) -> None:
    """Writes the file of a part."""
    _write(
        path,
        documents=np.concatenate([np.empty(0, DOCUMENTS), *documents.tables]),
        lengths=np.array([len(table) for table in documents.tables], np.int64),
        n_skipped=np.array(documents.n_skipped),
    )


def read_part_documents(path: AnyPath) -> Documents:
    """The documents of a part; raises as `read_tokens`."""
    documents, lengths, n_skipped = _read(path, "documents", "lengths", "n_skipped")
    return Documents(np.split(documents, np.cumsum(lengths))[:-1], int(n_skipped))


def _write(path: AnyPath, **arrays: Shaped[np.ndarray, "..."]) -> None:
    """Writes a .npz file, which is there as a whole or not at all."""
    if is_remote(path):
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **arrays)
        path.write_bytes(buffer.getvalue())
        return
    temporary = pathlib.Path(path).with_suffix(f".{os.getpid()}.tmp")
    with durable.named(temporary), open(temporary, "wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
        file.flush()
        os.fsync(file.fileno())
    durable.replace(temporary, path)


def _read(path: AnyPath, *names: str) -> list[Shaped[np.ndarray, "..."]]:
    """Arrays of a .npz file; others of it are not read, except on gs://, where a file is read as a whole."""
    if is_remote(path):
        return _read_open(io.BytesIO(read_bytes(path)), path, names)
    with durable.named(path), open(path, "rb") as file:
        return _read_open(file, path, names)


def _read_open(file: IO[bytes], path: AnyPath, names: Sequence[str]) -> list[Shaped[np.ndarray, "..."]]:
    try:
        with np.load(file, allow_pickle=False) as arrays:
            return [arrays[name] for name in names]
    except OSError as error:
        if error.errno not in (None, errno.EINVAL):  # EINVAL: damage made an offset negative
            raise
        fault: Exception = error
    except Exception as error:  # noqa: BLE001  zip, zlib and NumPy each have errors of their own
        fault = error
    reason = " ".join(str(fault).split()) or type(fault).__name__
    if isinstance(fault, ValueError) and "pickle" in reason:  # NumPy's message for any content that is no array
        reason = "its content is no array"
    raise Damaged(f"{path} is damaged ({reason})")
