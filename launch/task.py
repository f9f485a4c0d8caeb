"""What a scheduler runs for one job: python -m launch.task --workdir=DIR --job=NAME | --array=FILE.

--array is for schedulers that start one command many times: the backend's `job_of_task` picks the job from FILE. All
else is read from DIR/sweep.json, and the backend's `run_task` trains the job. Exit codes are those of jmoe.train; 2
means that another try would not help.
"""

if __name__ == "__main__":
    from jmoe import startup

    startup.begin()

import signal
import sys

from absl import flags

from jmoe import cli
from launch import sweepfile


def main(_: object) -> None:
    sweep = sweepfile.chosen()
    job = sweep.job(flags.FLAGS.job or sweep.engine.job_of_task(flags.FLAGS.array))
    signal.signal(signal.SIGTERM, lambda *_: None)  # the scheduler asks the trainer itself; this process waits for it
    sys.exit(sweep.engine.run_task(sweep, job))


if __name__ == "__main__":
    sweepfile.define_flags()
    flags.DEFINE_string("job", None, "Name of the job.")
    flags.DEFINE_string("array", None, "File of jobs, from which the backend picks this task's.")
    flags.mark_flags_as_mutual_exclusive(["job", "array"], required=True)
    cli.run(main)
