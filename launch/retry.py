"""Try one job again: one that failed for good, was cancelled, or whose failure launch.accept accepted.

python -m launch.retry --workdir=DIR --job=NAME

The job continues from its last checkpoint. If a launch.sweep runs on this machine, it trains the job next. Otherwise
a local job is trained now, and a slurm or gke job is submitted, alone.

What it runs (the config file, the commands of --on_failure and --on_done, the options of a submission) is in
DIR/sweep.json. It refuses a file that your own launch.sweep on this machine did not write; --trust=HASH accepts it.
"""

if __name__ == "__main__":
    from jmoe import startup

    startup.begin()

import dataclasses
import sys

from absl import flags

from jmoe import cli
from jmoe.errors import UserError
from jmoe.storage import ownership
from launch import collect, sweepfile
from launch.backend import SECONDS_TO_SUBMIT


def main(_: object) -> None:
    """Trains or submits --job again; UserError if it is done, still active, or fails again."""
    sweep = sweepfile.chosen_to_run()
    job = sweep.named(flags.FLAGS.job)
    if job.done() or job.kept:
        how = "no longer in the sweep" if job.kept else "done"
        raise UserError(f"job {job.name} is {how}: there is nothing to try")
    sweep.engine.check(sweep)
    state = sweep.engine.states(sweep).get(job.name, "")
    if state and not state.startswith("failed"):
        raise UserError(f"job {job.name} is {state} now; launch.cancel --job={job.name} would stop it first")
    job.refuse_links()
    (job.folder / "failure.json").unlink(missing_ok=True)  # of an accepted failure too
    patience = 0.0 if sweep.engine.ON_THIS_MACHINE else SECONDS_TO_SUBMIT
    try:
        with ownership.hold(sweep.lock, "launch.retry", patience):
            report = sweep.engine.submit(dataclasses.replace(sweep, jobs=[job]))
            if sweep.engine.ON_THIS_MACHINE:
                report, _ = collect.write(sweep)
                if not job.done():
                    raise UserError(f"job {job.name} failed again: {job.failure().get('cause')}")
            print(report)
    except ownership.Taken as error:
        if not sweep.engine.ON_THIS_MACHINE:
            raise
        print(f"{error.owner} runs the sweep and trains job {job.name} next", file=sys.stderr)


if __name__ == "__main__":
    sweepfile.define_flags("Name of the job. Its beginning is enough.", required=True)
    sweepfile.define_trust()
    cli.run(main)
