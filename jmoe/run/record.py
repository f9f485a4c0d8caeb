"""The record of a run, which its checkpoints and results hold: config, corpus, versions, CPU threads, and the checksums
of a checkpoint's arrays. The check when it resumes."""

import contextlib
import os

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from jmoe import __version__, cli
from jmoe.config.fields import differences, record_of
from jmoe.errors import UserError

VERSIONS = {"jmoe": __version__, "jax": jax.__version__, "orbax": ocp.__version__}


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
