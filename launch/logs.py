"""Print what the trainers of one job printed, and what its scheduler reports of it.

python -m launch.logs --workdir=DIR --job=NAME [--follow] [--rank=K] [--attempt=N]

The scheduler's part is what Slurm and the job's task printed, or the events of a JobSet and its pods. --rank and
--attempt leave it out. Control characters are escaped, so that no output can move the cursor of a terminal or
forge a line; log.txt in the job's folder has them as they were printed.
"""

if __name__ == "__main__":
    from jmoe import startup

    startup.begin()

import codecs
import inspect
import sys
from collections.abc import Iterable

from absl import flags

from jmoe import cli
from jmoe.errors import UserError
from jmoe.printable import printable, printable_output
from launch import sweepfile


def main(_: object) -> None:
    """Prints the log of --job, or with --follow what is added to it."""
    sweep = sweepfile.chosen()
    job = sweep.named(flags.FLAGS.job)
    if flags.FLAGS.follow:
        if flags.FLAGS.attempt is not None:
            raise UserError("--follow and --attempt exclude each other: --follow shows the newest try")
        _print(sweep.engine.follow(sweep, job, flags.FLAGS.rank))
        return
    logs = sweep.engine.logs
    options = {name: flags.FLAGS[name].value for name in ("rank", "attempt")}
    options = {name: value for name, value in options.items() if value is not None}
    unknown = options.keys() - inspect.signature(logs).parameters.keys()  # a backend takes those that it can tell
    if unknown:
        raise UserError(f"--backend={printable(sweep.backend)} knows no --{min(unknown)}")
    _print([logs(sweep, job, **options)])


def _print(outputs: Iterable[bytes]) -> None:
    """Prints pieces of output as they come; one may end within a character."""
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    for output in outputs:
        _write(decoder.decode(output))
    _write(decoder.decode(b"", final=True))


def _write(text: str) -> None:
    sys.stdout.buffer.write(printable_output(text).encode())
    sys.stdout.flush()


if __name__ == "__main__":
    sweepfile.define_flags("Name of the job, as launch.status prints it. Its beginning is enough.", required=True)
    flags.DEFINE_bool("follow", False, "Keep printing new lines until the job is over.")
    flags.DEFINE_integer("rank", None, "Print only what this process of the job printed. 0 is the first.", 0)
    flags.DEFINE_integer("attempt", None, "Print only this try: 1 is the first, -1 the newest, -2 the second newest.")
    cli.run(main)
