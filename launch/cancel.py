"""Stops a sweep, on any backend, or one job of it; trainers save first.

python -m launch.cancel --workdir=DIR [--job=NAME]

Starting launch.sweep again goes on with the sweep, cancelled jobs too; launch.retry goes on with one job, and
launch.accept gives it up.
"""

if __name__ == "__main__":
    from jmoe import startup

    startup.begin()

from absl import flags

from jmoe import cli
from jmoe.errors import UserError
from jmoe.storage import ownership
from launch import sweepfile, trainer
from launch.backend import Backend, Sweep
from launch.jobs import Job


def main(_: object) -> None:
    sweep = sweepfile.chosen()
    job, patience = flags.FLAGS.job, flags.FLAGS.patience_seconds
    print(sweep.engine.cancel(sweep, patience) if job is None else cancel_job(sweep, sweep.named(job), patience))


def cancel_job(sweep: Sweep, job: Job, patience: float) -> str:
    """Stops one job; returns what that did. The job is first marked as cancelled, so that nothing starts it again.
    UserError where it is neither running nor waiting for its turn, or the backend cannot cancel a single job."""
    state = sweep.engine.states(sweep).get(job.name, "")
    owner = ownership.owner(sweep.lock)
    waits = sweep.engine.ON_THIS_MACHINE and owner and not owner.has_ended() and not job.failure().get("for_good")
    if job.done() or not (waits or state and not state.startswith("failed")):
        raise UserError(f"job {job.name} is neither running nor queued: there is nothing to stop")
    if type(sweep.engine).cancel_job is not Backend.cancel_job:  # which refuses
        trainer.give_up(job, "cancelled by launch.cancel", "cancelled")
    return f"cancelled job {job.name}: {sweep.engine.cancel_job(sweep, job, patience)}"


if __name__ == "__main__":
    sweepfile.define_flags("Name of a single job to stop; its beginning is enough.")
    what = "Seconds that local processes have to save before they are killed."
    flags.DEFINE_float("patience_seconds", trainer.SECONDS_TO_SAVE, what, 0)
    cli.run(main)
