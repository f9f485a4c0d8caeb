"""What the commands on a begun sweep share: the flags that choose it. They are defined where a command is run, so that
the commands can be imported together."""

from typing import Any

from absl import flags

from jmoe.storage import files as storage
from launch import sweepfile
from launch.backend import Sweep

flags.disclaim_key_flags()  # --help lists them as the command's own


def define_flags(job: str = "", **options: Any) -> None:
    """Defines --workdir and --backend, and --job, described by `job`, where the command takes one."""
    flags.DEFINE_string("workdir", None, "Directory of the sweep, a folder or gs://...", required=True)
    flags.DEFINE_string("backend", None, "The sweep's backend if that is a Python file, which runs only if named here.")
    if job:
        flags.DEFINE_string("job", None, job, **options)


def sweep() -> Sweep:
    """The sweep of --workdir; UserError if there is none."""
    return sweepfile.read(storage.absolute(flags.FLAGS.workdir))
