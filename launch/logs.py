"""Prints what the trainer of one job printed, and what the backend has to add (on Slurm, what the job's task printed).

python -m launch.logs --workdir=DIR --job=NAME
"""

import sys

from absl import flags

from jmoe import cli
from jmoe.errors import UserError
from jmoe.storage import files as storage
from launch import sweepfile

WORKDIR = flags.DEFINE_string("workdir", None, "Directory of the sweep, a folder or gs://...", required=True)
JOB = flags.DEFINE_string(
    "job", None, "Name of the job, as launch.status prints it; its beginning is enough.", required=True
)


def main(_):
    sweep = sweepfile.read(storage.absolute(WORKDIR.value))
    jobs = [job for job in sweep.jobs if job.name.startswith(JOB.value)]
    if len(jobs) != 1:
        names = ", ".join(job.name for job in (jobs or sweep.jobs)[:10])
        raise UserError(f"--job={JOB.value} names {len(jobs)} jobs; there are {names}{', ...' * (len(jobs) > 10)}")
    sys.stdout.buffer.write(sweep.engine.logs(sweep, jobs[0]))


if __name__ == "__main__":
    cli.run(main)
