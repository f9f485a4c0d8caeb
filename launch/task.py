"""Run one job for a scheduler: python -m launch.task --workdir=DIR --job=NAME | --array=FILE --config=FILE.

--array is for schedulers that start one command many times: the backend's `job_of_task` picks the job from FILE. The
programs that the job runs, its config file and the command of --on_failure, are flags, since others may write into DIR.
All else is read from DIR/sweep.json, and the backend's `run_task` trains the job. Exit codes are those of jmoe.train.
Exit code 2 means that another try would not help.
"""

if __name__ == "__main__":
    from jmoe import startup

    startup.begin()

import signal
import sys

from absl import flags

from jmoe import cli
from launch import hooks, sweepfile


def main(_: object) -> None:
    """Trains the job of --job or --array; exits with the backend's exit code."""
    config = flags.FLAGS.config
    sweep = sweepfile.chosen_to_run() if config is None else sweepfile.chosen()
    job = sweep.job(flags.FLAGS.job or sweep.engine.job_of_task(flags.FLAGS.array))
    if config is not None:
        job.config_file = config
        sweep.options["on_failure"] = hooks.words("on_failure")
    # the scheduler signals the trainer itself, and this process waits for it
    signal.signal(signal.SIGTERM, lambda *_: None)
    sys.exit(sweep.engine.run_task(sweep, job))


if __name__ == "__main__":
    sweepfile.define_flags()
    flags.DEFINE_string("job", None, "Name of the job.")
    flags.DEFINE_string("array", None, "File of jobs, from which the backend picks the job of this task.")
    flags.DEFINE_string(
        "config", None, "Config file of the job. Default: that of sweep.json, if a start of yours wrote it."
    )
    flags.DEFINE_string("on_failure", None, "Command to run if the job fails for good. It needs --config.")
    sweepfile.define_trust()
    flags.mark_flags_as_mutual_exclusive(["job", "array"], required=True)
    cli.run(main)
