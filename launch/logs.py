"""Prints what the trainers of one job printed, and what its scheduler has to say.

python -m launch.logs --workdir=DIR --job=NAME [--follow] [--rank=K] [--attempt=N]

The scheduler's part is what Slurm and the job's task printed, or the events of a JobSet and its pods. --rank and
--attempt leave it out.
"""

if __name__ == "__main__":
    from jmoe import startup

    startup.begin()

import inspect
import sys

from absl import flags

from jmoe import cli
from jmoe.errors import UserError
from launch import sweepfile


def main(_: object) -> None:
    sweep = sweepfile.chosen()
    asked = flags.FLAGS
    job, engine = sweep.named(asked.job), sweep.engine
    if asked.follow:
        if asked.attempt is not None:
            raise UserError("--follow and --attempt exclude each other: what is followed is the newest try")
        for text in engine.follow(sweep, job, asked.rank):
            sys.stdout.buffer.write(text)
            sys.stdout.flush()
        return
    chosen = {name: asked[name].value for name in ("rank", "attempt") if asked[name].value is not None}
    if unknown := chosen.keys() - inspect.signature(engine.logs).parameters.keys():
        raise UserError(f"--backend={sweep.backend} knows no --{min(unknown)}")
    sys.stdout.buffer.write(engine.logs(sweep, job, **chosen))


if __name__ == "__main__":
    sweepfile.define_flags("Name of the job, as launch.status prints it; its beginning is enough.", required=True)
    flags.DEFINE_bool("follow", False, "Keep printing new lines until the job is over.")
    flags.DEFINE_integer("rank", None, "Print only what this process of the job printed; 0 is the first.", 0)
    flags.DEFINE_integer("attempt", None, "Print only this try: 1 the first, -1 the newest, -2 the one before.")
    cli.run(main)
