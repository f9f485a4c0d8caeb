"""The record of a run, which its checkpoints and results hold: config, corpus, versions, CPU threads. The check when it
resumes."""

import contextlib
import os

import jax
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
