"""Marks a job's failure as known: the job is trained no further, and its runs no longer count as missing.

python -m launch.accept --workdir=DIR --job=NAME

A model that diverges does so on every try. Once its failure is marked, a sweep that is otherwise done no longer ends
with exit code 2. The job's finished runs stay in runs.csv. launch.retry takes the mark back.
"""

if __name__ == "__main__":
    from jmoe import startup

    startup.begin()

from absl import flags

from jmoe import cli
from jmoe.errors import UserError
from launch import sweepfile, trainer


def main(_: object) -> None:
    sweep = sweepfile.chosen()
    job = sweep.named(flags.FLAGS.job)
    if job.done():
        raise UserError(f"job {job.name} is done: there is no failure to accept")
    failure, state = job.failure(), sweep.engine.states(sweep).get(job.name, "")
    cause = failure.get("cause") or state.removeprefix("failed").strip(" ()") * state.startswith("failed")
    cause = cause or sweep.engine.reason(sweep, job)
    if not cause or not (failure.get("for_good") or state.startswith("failed") or not state):
        raise UserError(f"job {job.name} has not failed for good: it is {state or 'waiting'}; launch.cancel stops it")
    trainer.give_up(job, cause, "accepted")
    print(f"job {job.name} is given up: {cause}")


if __name__ == "__main__":
    sweepfile.define_flags("Name of the job; its beginning is enough.", required=True)
    cli.run(main)
