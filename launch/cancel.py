"""Stop a sweep, on any backend, or one job of it. Trainers save first.

python -m launch.cancel --workdir=DIR [--job=NAME]

launch.sweep, given again, continues the sweep, cancelled jobs included. launch.retry continues one job, and
launch.accept gives it up.
"""

if __name__ == "__main__":
    from jmoe import startup

    startup.begin()

from absl import flags

from jmoe import cli
from jmoe.errors import UserError
from jmoe.storage import ownership
from jmoe.storage.files import of_each
from launch import sweepfile, trainer
from launch.backend import Backend, Sweep
from launch.jobs import Job, files_of

CAUSE = "cancelled by launch.cancel"


def main(_: object) -> None:
    """Stops --job, or without it the whole sweep."""
    sweep = sweepfile.chosen()
    patience = flags.FLAGS.patience_seconds
    if flags.FLAGS.job is None:
        print(cancel_all(sweep, patience))
    else:
        print(cancel_job(sweep, sweep.named(flags.FLAGS.job), patience))


def cancel_all(sweep: Sweep, patience: float) -> str:
    """Stops the whole sweep, and then marks each job as cancelled that is neither done nor had failed for good.

    Args:
      sweep: The sweep to stop.
      patience: Seconds until a local trainer that does not stop is killed.

    Returns:
      What was done, in words.

    Raises:
      UserError: The backend cannot stop it; no job is marked then.
    """
    report = sweep.engine.cancel(sweep, patience)
    files = files_of(sweep.workdir)

    def mark(job: Job) -> None:
        if not job.over(files) and not job.failure(files).get("for_good"):
            trainer.give_up(job, CAUSE, "cancelled")

    of_each(mark, sweep.trained, sweep.workdir)
    return report


def cancel_job(sweep: Sweep, job: Job, patience: float) -> str:
    """Stops one job, after marking it as cancelled so that nothing starts it again.

    Args:
      sweep: The sweep that the job belongs to.
      job: The job to stop.
      patience: Seconds until a local trainer that does not stop is killed.

    Returns:
      What was done, in words.

    Raises:
      UserError: The job is neither running nor waiting for its turn, or the backend cannot cancel a single job.
    """
    state = sweep.engine.states(sweep).get(job.name, "")
    is_active = bool(state) and not state.startswith("failed")
    if job.done() or not (is_active or _waits_for_its_turn(sweep, job)):
        raise UserError(f"job {job.name} is neither running nor queued: there is nothing to stop")
    if type(sweep.engine).cancel_job is not Backend.cancel_job:  # which refuses
        trainer.give_up(job, CAUSE, "cancelled")
    return f"cancelled job {job.name}: {sweep.engine.cancel_job(sweep, job, patience)}"


def _waits_for_its_turn(sweep: Sweep, job: Job) -> bool:
    """Whether a launch.sweep at work on this sweep will start the job."""
    owner = ownership.owner(sweep.lock)
    at_work = owner is not None and not owner.has_ended()
    return sweep.engine.ON_THIS_MACHINE and at_work and not job.failure().get("for_good")


if __name__ == "__main__":
    sweepfile.define_flags("Name of a single job to stop. Its beginning is enough.")
    what = "Seconds that local processes have to save before they are killed."
    flags.DEFINE_float("patience_seconds", trainer.SECONDS_TO_SAVE, what, 0)
    cli.run(main)
