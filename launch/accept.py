"""Accept a job's failure: train the job no further, and stop counting its runs as missing.

python -m launch.accept --workdir=DIR --job=NAME

A model that diverges does so on every try. Once its failure is accepted, a sweep that is otherwise done no longer ends
with exit code 2. The job's finished runs stay in runs.csv. launch.retry takes the acceptance back.
"""

if __name__ == "__main__":
    from jmoe import startup

    startup.begin()

from absl import flags

from jmoe import cli
from jmoe.errors import UserError
from jmoe.printable import printable
from launch import sweepfile, trainer


def main(_: object) -> None:
    """Marks the failure of --job as accepted; UserError if the job has not failed for good."""
    sweep = sweepfile.chosen()
    job = sweep.named(flags.FLAGS.job)
    if job.done():
        raise UserError(f"job {job.name} is done: there is no failure to accept")
    failure = job.failure()
    state = sweep.engine.states(sweep).get(job.name, "")
    has_failed = state.startswith("failed")
    cause = failure.get("cause", "")
    if not cause and has_failed:
        cause = state.removeprefix("failed").strip(" ()")
    if not cause:
        cause = sweep.engine.reason(sweep, job)
    cause = printable(cause)
    if not cause or not (failure.get("for_good") or has_failed or not state):
        raise UserError(
            f"job {job.name} has not failed for good: it is {printable(state) or 'waiting'}; launch.cancel stops it"
        )
    trainer.give_up(job, cause, "accepted")
    print(f"job {job.name} is given up: {cause}")


if __name__ == "__main__":
    sweepfile.define_flags("Name of the job. Its beginning is enough.", required=True)
    cli.run(main)
