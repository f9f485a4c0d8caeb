"""Trains several jobs of a sweep in one compiled step: python -m launch.together --workdir=DIR --job=NAME --job=NAME.

launch.sweep --together=N starts it. Jobs that are done, or failed for good, keep their place in the step but are not
trained. If one fails now, the cause is written to its folder, the others go on, and the exit code is 2.
"""

import jax
from absl import flags

from jmoe import cli
from jmoe.errors import UserError
from jmoe.run import processes, saved, together
from jmoe.storage import files as storage
from launch import command, trainer
from launch import jobs as jobs_lib


def main(_):
    jobs = command.sweep().bundle(flags.FLAGS.job).jobs
    failed = {job.name: job.failure()["cause"] for job in jobs if job.failure().get("for_good")}

    def tell(m: int, error: Exception) -> None:
        failed[jobs[m].name] = str(error)
        if jax.process_index() == 0:
            print(f"{jobs[m].name}: {error}", flush=True)
            trainer.fail(jobs[m], error)

    saved.keep_threads(jobs[0].folder)
    with processes.joined(), processes.stop_signal() as stop_signal:
        configs = [None if job.done() or job.name in failed else jobs_lib.config_of(job) for job in jobs]
        if any(config is not None for config in configs):
            folders = [storage.make_workdir(str(job.folder)) for job in jobs]
            together.train(configs, folders, stop_signal, tell)
        if failed:
            name, cause = next(iter(failed.items()))
            raise UserError(f"{len(failed)} of {len(jobs)} jobs failed, {name} first: {cause}")


if __name__ == "__main__":
    command.define_flags()
    flags.DEFINE_multi_string("job", None, "Name of each job to train.", required=True)
    cli.run(main)
