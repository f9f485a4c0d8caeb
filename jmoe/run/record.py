"""The record of a run (config, corpus, versions), which its checkpoints and results hold; the check when it resumes."""

import jax
import orbax.checkpoint as ocp

from jmoe import __version__
from jmoe.config.fields import differences, record_of
from jmoe.errors import UserError

VERSIONS = {"jmoe": __version__, "jax": jax.__version__, "orbax": ocp.__version__}


def make_record(config, fingerprint: str) -> dict:
    """The record of a run of `config` on the corpus of that fingerprint, in JSON types."""
    return {"config": record_of(config), "corpus_fingerprint": fingerprint} | VERSIONS


def check_record(written: dict, present: dict, where: str) -> None:
    """Raises UserError naming each field in which two records describe different mathematics."""
    changed = differences(written["config"], present["config"])
    if written["corpus_fingerprint"] != present["corpus_fingerprint"]:
        changed.append(f"the corpus was {written['corpus_fingerprint']}, is {present['corpus_fingerprint']}")
    if changed:
        raise UserError(
            f"{where} belongs to another run: {'; '.join(changed)}. Take another --workdir or the values it began with"
        )


def version_warning(written: dict, present: dict) -> str:
    """A warning where the packages are not those that wrote the record, else nothing."""
    changed = [f"{name} {written[name]}, now {present[name]}" for name in VERSIONS if written[name] != present[name]]
    return f"; WARNING: it was written by {'; '.join(changed)}: the last bits may differ from there" if changed else ""
