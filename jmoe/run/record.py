"""The record of a run, which its checkpoints and results have, and the check of it when the run resumes.

It has config, corpus, versions, CPU threads, and the checksums of a checkpoint's arrays. This module also reads record
and arrays of a checkpoint, and tells damage from a store that gives no answer.
"""

import contextlib
import functools
import os
import re
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from etils import epath
from jaxtyping import Array, Bool, PyTree, Shaped, UInt32
from ml_collections import ConfigDict

from jmoe import __version__, cli
from jmoe.config.schema import differences, record_of
from jmoe.errors import Damaged, UserError, first_few
from jmoe.storage import durable, retries
from jmoe.storage import files as storage

VERSIONS = {"jmoe": __version__, "jax": jax.__version__, "orbax": ocp.__version__}
# What a completed read raises where a file is missing or is not in its format ...
DAMAGE = (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError, LookupError, TypeError, AttributeError)
# ... and the words that TensorStore begins such an error with.
FAULTY = ("DATA_LOSS", "FAILED_PRECONDITION", "INVALID_ARGUMENT", "NOT_FOUND", "OUT_OF_RANGE")
ANSWERS = ("404", "416")  # HTTP codes of a store that has no such object, or fewer bytes of it

_T = TypeVar("_T")


def make_record(config: ConfigDict, fingerprint: str) -> dict[str, Any]:
    """The record of a run of `config` on the corpus of that fingerprint, in JSON types."""
    return {"config": record_of(config), "corpus_fingerprint": fingerprint} | VERSIONS


def cpu_threads() -> int:
    """Threads that XLA's CPU client computes with. Their number changes how sums are split, and so the last bits.

    By XLA's own rule: PJRT_NPROC, else NPROC, else one for each core that this process may use.
    """
    for variable in ("PJRT_NPROC", "NPROC"):
        with contextlib.suppress(ValueError):
            return max(1, int(os.environ.get(variable, "")))
    return len(cli.cores())


def check_record(written: dict[str, Any], present: dict[str, Any], where: str) -> None:
    """Compares the record of a checkpoint or result with that of the present run.

    Args:
      written: The record that was read.
      present: The record of this run.
      where: Names the checkpoint or result in errors.

    Raises:
      UserError: They describe different mathematics; the error names each field that differs.
    """
    changes = differences(written["config"], present["config"])
    old_corpus = written["corpus_fingerprint"]
    new_corpus = present["corpus_fingerprint"]
    if old_corpus != new_corpus:
        changes.append(
            f"the corpus was {old_corpus}, is {new_corpus} (--config.data.fingerprint={old_corpus} takes the one "
            "before, where the cache still holds it)"
        )
    if changes:
        raise UserError(
            f"{where} belongs to another run: {'; '.join(changes)}. Take another --workdir or the values it began with"
        )


def version_warning(written: dict[str, Any], present: dict[str, Any]) -> str:
    """A warning if other packages, or another number of CPU threads, wrote the record, else ""."""
    in_both = [name for name in (*VERSIONS, "cpu_threads") if name in written and name in present]
    changes = [f"{name} {written[name]}, now {present[name]}" for name in in_both if written[name] != present[name]]
    if not changes:
        return ""
    return f"; WARNING: it was written by {'; '.join(changes)}: the last bits may differ from there"


def checksums(tree: PyTree[Array]) -> tuple[dict[str, str], bool]:
    """Checksums of arrays, which depend on every value and its place, and not on the mesh.

    A single changed value always changes them. The call waits until the arrays are computed.

    Returns:
      64 bits in hex for each array by its path; and whether every number is finite.
    """
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    # one after another: XLA's CPU backend can lock up when many programs with collectives run
    sums = [jax.device_get(_checksum(leaf)) for _, leaf in leaves]
    checksum_by_path = {
        jax.tree_util.keystr(path, simple=True, separator="/"): f"{first:08x}{second:08x}"
        for (path, _), (first, second, _) in zip(leaves, sums, strict=True)
    }
    return checksum_by_path, all(finite for _, _, finite in sums)


_Checksum = tuple[UInt32[Array, ""], UInt32[Array, ""], Bool[Array, ""]]


@jax.jit
def _checksum(x: Shaped[Array, "..."]) -> _Checksum:
    """Two sums modulo 2^32 over the elements of x, each mixed with its place; and whether x is finite.

    One reduction computes all three, so that the compiler makes one pass over x and no array of x's size.
    """
    place = jnp.uint32(x.ndim)
    for axis in range(x.ndim):
        place = _mix(place * jnp.uint32(31) + jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis))
    bits = jax.lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}").astype(jnp.uint32)
    first = _mix(bits ^ place)
    second = _mix(first ^ jnp.uint32(0x9E3779B9))
    initial = (jnp.uint32(0), jnp.uint32(0), True)
    return jax.lax.reduce((first, second, jnp.isfinite(x)), initial, _add_checksums, range(x.ndim))


def _add_checksums(a: _Checksum, b: _Checksum) -> _Checksum:
    return a[0] + b[0], a[1] + b[1], a[2] & b[2]


def _mix(x: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """MurmurHash3's finalizer: a bijection of uint32 in which every bit depends on every bit."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


def read_record(folder: epath.Path) -> dict[str, Any]:
    """Reads the record of a checkpoint.

    Args:
      folder: The checkpoint's folder, whose name is its step.

    Raises:
      Damaged: The record is missing or altered.
      Unavailable: The store gave no answer.
    """

    def read() -> Any:
        return ocp.JsonCheckpointHandler().restore(folder / "record", args=ocp.args.JsonRestore())

    record = _read(read, folder)
    if not isinstance(record, dict) or record != storage.sealed(record):
        raise Damaged("its record is altered or was written without checksums")
    if str(record["step"]) != folder.name:
        raise Damaged(f"it holds step {record['step']}")
    return record


def read_arrays(
    folder: epath.Path, record: dict[str, Any], **trees: PyTree[jax.ShapeDtypeStruct]
) -> dict[str, PyTree[Array]]:
    """Reads trees of arrays of a checkpoint.

    Args:
      folder: The checkpoint's folder.
      record: Its record.
      **trees: Abstract trees by name, `params` or `opt_state`; the arrays are placed like them.

    Raises:
      Damaged: Arrays are missing or are not what was saved.
      UserError: The checkpoint has other arrays than the abstract trees, which is no damage.
    """

    def read(name: str) -> PyTree[Array]:
        arguments = ocp.args.StandardRestore(trees[name])
        return ocp.StandardCheckpointHandler().restore(folder / name, args=arguments)

    try:
        restored = {name: _read(functools.partial(read, name), folder) for name in trees}
        sums, _ = checksums(restored)
        wrong = [name for name in sums if sums[name] != record["checksums"].get(name)]
        if wrong:
            raise Damaged(f"{len(wrong)} of {len(sums)} arrays are not what was saved, {wrong[0]} first")
    except Damaged:  # what does not fit cannot be read either
        _check_fit(folder, record, trees)
        raise
    return restored


def _check_fit(folder: epath.Path, record: dict[str, Any], trees: dict[str, PyTree[jax.ShapeDtypeStruct]]) -> None:
    """UserError naming the first few arrays in which the checkpoint `folder` differs from the abstract trees."""

    def read_metadata(name: str) -> PyTree:
        return ocp.StandardCheckpointHandler().metadata(folder / name).tree

    faults = []
    for name, tree in trees.items():
        with contextlib.suppress(Damaged):  # then nothing is known of this tree
            there = _kinds(_read(functools.partial(read_metadata, name), folder), name)
            here = _kinds(tree, name)
            faults += [
                f"{path} is {there.get(path, 'missing')} there and {here.get(path, 'missing')} here"
                for path in there | here
                if there.get(path) != here.get(path)
            ]
    if faults:
        raise UserError(
            f"{folder} holds other arrays than this program trains: {first_few(faults, 3, '; ')}. It is left as it "
            f"is: use the program that wrote it (jmoe {record['jmoe']}), or another --workdir"
        )


def _kinds(tree: PyTree, name: str) -> dict[str, str]:
    """Type and shape of each array of a tree by its path, as in the checksums; "empty" for a node without arrays."""
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda node: not jax.tree.leaves(node))
    kinds = {}
    for path, leaf in leaves:
        kind = f"{leaf.dtype}{list(leaf.shape)}" if hasattr(leaf, "shape") else "empty"
        kinds[f"{name}/{jax.tree_util.keystr(path, simple=True, separator='/')}"] = kind
    return kinds


def _read(read: Callable[[], _T], folder: epath.Path) -> _T:
    """Returns `read()`, retried while the store of `folder` gives no answer.

    Raises:
      Damaged: The error proves damage: the disk or the store answered that a file is missing, or it gave bytes that are
        not in the file's format.
      Exception: Any other error of `read()`.
    """

    def read_or_cause() -> _T:
        try:
            return read()
        except Exception as error:
            if type(error) is not Exception or error.__cause__ is None:
                raise
            raise error.__cause__ from None  # Orbax wraps the failed read of an array in a bare Exception

    try:
        with contextlib.nullcontext() if storage.is_remote(folder) else durable.named(folder):
            return retries.retried(read_or_cause, folder)
    except Exception as error:  # noqa: BLE001  each layer of storage raises its own
        text = " ".join(str(error).split())
        if _is_no_answer(text) or not isinstance(error, DAMAGE):
            raise
        raise Damaged(f"{type(error).__name__}: {text[:200]}") from None


def _is_no_answer(text: str) -> bool:
    """Whether the text of an error means that disk or store gave no answer about the file."""
    word = re.match(r"([A-Z_]{5,}): ", text)  # TensorStore's
    if word and word[1] not in FAULTY:
        return True
    code = re.search(r"http_response_code='(\d+)'", text)
    if code and code[1] not in ANSWERS:
        return True
    return text.startswith("Bad Request")
