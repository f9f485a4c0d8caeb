"""The record of a run, which its checkpoints and results hold: config, corpus, versions, CPU threads, and the checksums
of a checkpoint's arrays. The check when it resumes. How record and arrays are read, and what then proves damage."""

import contextlib
import os
import re

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from jmoe import __version__, cli
from jmoe.config.schema import differences, record_of
from jmoe.errors import Damaged, UserError
from jmoe.storage import durable
from jmoe.storage import files as storage

VERSIONS = {"jmoe": __version__, "jax": jax.__version__, "orbax": ocp.__version__}
# What a completed read raises where a file is missing or is not in its format ...
DAMAGE = (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError, LookupError, TypeError, AttributeError)
# ... and the words that TensorStore begins such an error with.
FAULTY = ("DATA_LOSS", "FAILED_PRECONDITION", "INVALID_ARGUMENT", "NOT_FOUND", "OUT_OF_RANGE")
ANSWERS = ("404", "416")  # HTTP codes of a store that has no such object, or fewer bytes of it


def make_record(config, fingerprint: str) -> dict:
    """The record of a run of `config` on the corpus of that fingerprint, in JSON types."""
    return {"config": record_of(config), "corpus_fingerprint": fingerprint} | VERSIONS


def cpu_threads() -> int:
    """Threads that XLA's CPU client computes with, by its own rule: PJRT_NPROC, else NPROC, else one for each core that
    this process may use. Their number changes how sums are split, and so the last bits."""
    for variable in ("PJRT_NPROC", "NPROC"):
        with contextlib.suppress(ValueError):
            return max(1, int(os.environ.get(variable, "")))
    return len(cli.cores())


def check_record(written: dict, present: dict, where: str) -> None:
    """Raises UserError naming each field in which two records describe different mathematics."""
    changed = differences(written["config"], present["config"])
    if written["corpus_fingerprint"] != present["corpus_fingerprint"]:
        was = written["corpus_fingerprint"]
        changed.append(
            f"the corpus was {was}, is {present['corpus_fingerprint']} (--config.data.fingerprint={was} takes the one "
            "before, where the cache still holds it)"
        )
    if changed:
        raise UserError(
            f"{where} belongs to another run: {'; '.join(changed)}. Take another --workdir or the values it began with"
        )


def version_warning(written: dict, present: dict) -> str:
    """A warning where the packages, or the number of CPU threads, are not those that wrote the record, else nothing."""
    both = [name for name in (*VERSIONS, "cpu_threads") if name in written and name in present]
    changed = [f"{name} {written[name]}, now {present[name]}" for name in both if written[name] != present[name]]
    return f"; WARNING: it was written by {'; '.join(changed)}: the last bits may differ from there" if changed else ""


def checksums(tree) -> tuple[dict[str, str], bool]:
    """64 bits, in hex, for each array by its path, and whether every number is finite.

    The bits depend on every value and its place, and not on the mesh; a single changed value always changes them. The
    call waits until the arrays are computed.
    """
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    # one after another: XLA's CPU backend can lock up when many programs with collectives run
    sums = [jax.device_get(_checksum(leaf)) for _, leaf in leaves]
    named = {
        jax.tree_util.keystr(path, simple=True, separator="/"): f"{a:08x}{b:08x}"
        for (path, _), (a, b, _) in zip(leaves, sums)
    }
    return named, all(finite for _, _, finite in sums)


@jax.jit
def _checksum(x):
    """Two sums modulo 2^32 over the elements of x, each mixed with its place; and whether x is finite.

    One reduction computes all three, so that the compiler makes one pass over x and no array of x's size.
    """
    place = jnp.uint32(x.ndim)
    for axis in range(x.ndim):
        place = _mix(place * jnp.uint32(31) + jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis))
    bits = jax.lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}").astype(jnp.uint32)
    first = _mix(bits ^ place)
    second = _mix(first ^ jnp.uint32(0x9E3779B9))
    combine = lambda one, other: (one[0] + other[0], one[1] + other[1], one[2] & other[2])
    return jax.lax.reduce(
        (first, second, jnp.isfinite(x)), (jnp.uint32(0), jnp.uint32(0), True), combine, range(x.ndim)
    )


def _mix(x):
    """MurmurHash3's finalizer: a bijection of uint32 in which every bit depends on every bit."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


def read_record(folder) -> dict:
    """The record of the checkpoint `folder`; Damaged where it is missing or altered."""
    read = lambda: ocp.JsonCheckpointHandler().restore(folder / "record", args=ocp.args.JsonRestore())
    record = _read(read, folder)
    if not isinstance(record, dict) or record != storage.sealed(record):
        raise Damaged("its record is altered or was written without checksums")
    if str(record["step"]) != folder.name:
        raise Damaged(f"it holds step {record['step']}")
    return record


def read_arrays(folder, record: dict, **trees) -> dict:
    """The trees of arrays called `params` and `opt_state` in the checkpoint `folder`, placed like the abstract ones.

    Damaged where arrays are missing or are not what was saved; UserError where the checkpoint is of other arrays than
    the abstract trees, which is no damage.
    """
    arguments = {name: ocp.args.StandardRestore(tree) for name, tree in trees.items()}
    read = lambda name: ocp.StandardCheckpointHandler().restore(folder / name, args=arguments[name])
    try:
        restored = {name: _read(lambda: read(name), folder) for name in trees}
        sums, _ = checksums(restored)
        if wrong := [name for name in sums if sums[name] != record["checksums"].get(name)]:
            raise Damaged(f"{len(wrong)} of {len(sums)} arrays are not what was saved, {wrong[0]} first")
    except Damaged:  # what does not fit cannot be read either
        _check_fit(folder, record, trees)
        raise
    return restored


def _check_fit(folder, record: dict, trees) -> None:
    """UserError naming the first few arrays in which the checkpoint `folder` differs from the abstract trees."""
    wrong = []
    for name, tree in trees.items():
        with contextlib.suppress(Damaged):  # then nothing is known of this tree
            saved = _read(lambda: ocp.StandardCheckpointHandler().metadata(folder / name).tree, folder)
            there, here = _kinds(saved, name), _kinds(tree, name)
            paths = [path for path in there | here if there.get(path) != here.get(path)]
            wrong += [
                f"{path} is {there.get(path, 'missing')} there and {here.get(path, 'missing')} here" for path in paths
            ]
    if wrong:
        more = f", and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise UserError(
            f"{folder} holds other arrays than this program trains: {'; '.join(wrong[:3])}{more}. It is left as it is: "
            f"use the program that wrote it (jmoe {record['jmoe']}), or another --workdir"
        )


def _kinds(tree, name: str) -> dict[str, str]:
    """Type and shape of each array of a tree by its path, as in the checksums; "empty" for a node without arrays."""
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda node: not jax.tree.leaves(node))
    kind = lambda leaf: f"{leaf.dtype}{list(leaf.shape)}" if hasattr(leaf, "shape") else "empty"
    return {f"{name}/{jax.tree_util.keystr(path, simple=True, separator='/')}": kind(leaf) for path, leaf in leaves}


def _read(read, folder):
    """`read()`. An error becomes Damaged only where it proves damage: the disk or the store answered that a file is
    missing, or it gave bytes that are not in the file's format."""

    def call():
        try:
            return read()
        except Exception as error:
            if type(error) is not Exception or error.__cause__ is None:
                raise
            raise error.__cause__ from None  # Orbax wraps the failed read of an array in a bare Exception

    try:
        with contextlib.nullcontext() if storage.is_remote(folder) else durable.named(folder):
            return storage.retried(call, folder)
    except Exception as error:  # noqa: BLE001  each layer of storage raises its own
        text = " ".join(str(error).split())
        word = re.match(r"([A-Z_]{5,}): ", text)  # TensorStore's
        code = re.search(r"http_response_code='(\d+)'", text)
        no_answer = word and word[1] not in FAULTY or code and code[1] not in ANSWERS or text.startswith("Bad Request")
        if no_answer or not isinstance(error, DAMAGE):
            raise
        raise Damaged(f"{type(error).__name__}: {text[:200]}") from None
