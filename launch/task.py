"""What a scheduler runs for one job: python -m launch.task --workdir=DIR --job=NAME | --array=FILE --config=FILE.

--array is for schedulers that start one command many times: the backend's `job_of_task` picks the job from FILE. The
programs that the job runs, its config file and the command of --on_failure, are flags, since DIR may belong to many.
All else is read from DIR/sweep.json, and the backend's `run_task` trains the job. Exit codes are those of jmoe.train; 2
means that another try would not help.
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
    config = flags.FLAGS.config
    sweep = sweepfile.chosen_to_run() if config is None else sweepfile.chosen()
    job = sweep.job(flags.FLAGS.job or sweep.engine.job_of_task(flags.FLAGS.array))
    if config is not None:
        job.config_file = config
        sweep.options["on_failure"] = hooks.words("on_failure")
    signal.signal(signal.SIGTERM, lambda *_: None)  # the scheduler asks the trainer itself; this process waits for it
    sys.exit(sweep.engine.run_task(sweep, job))


if __name__ == "__main__":
    sweepfile.define_flags()
    flags.DEFINE_string("job", None, "Name of the job.")
    flags.DEFINE_string("array", None, "File of jobs, from which the backend picks this task's.")
    flags.DEFINE_string("config", None, "Config file of the job. Default: sweep.json's, if your own start wrote that.")
    flags.DEFINE_string("on_failure", None, "With --config: command to run if the job fails for good.")
    sweepfile.define_trust()
    flags.mark_flags_as_mutual_exclusive(["job", "array"], required=True)
    cli.run(main)
