"""Prints what the trainer of one job printed, and on Slurm what its task said.

python -m launch.logs --workdir=DIR --job=NAME
"""

import sys

from absl import flags

from jmoe import cli
from jmoe.errors import UserError
from jmoe.storage import files as storage
from launch import record

WORKDIR = flags.DEFINE_string("workdir", None, "Directory of the sweep, a folder or gs://...")
JOB = flags.DEFINE_string("job", None, "Name of the job, as launch.status prints it; its beginning is enough.")


def main(_):
    sweep = record.read(storage.absolute(WORKDIR.value))
    jobs = [job for job in sweep.jobs if job.name.startswith(JOB.value)]
    if len(jobs) != 1:
        names = ", ".join(job.name for job in (jobs or sweep.jobs)[:10])
        raise UserError(f"--job={JOB.value} names {len(jobs)} jobs; there are {names}{', ...' * (len(jobs) > 10)}")
    if sweep.backend == "gke":
        from launch import gke

        print(gke.log(sweep, jobs[0]))
        return
    scheduler = sweep.engine.output(sweep, jobs[0]) if sweep.backend == "slurm" else ""
    if not jobs[0].log.exists() and not scheduler:
        raise UserError(f"job {jobs[0].name} has not started on this machine: there is no {jobs[0].log}")
    if jobs[0].log.exists():
        with open(jobs[0].log, "rb") as log:
            for line in log:
                sys.stdout.buffer.write(line)
    sys.stdout.buffer.write(scheduler.encode())


def run():
    flags.mark_flags_as_required(["workdir", "job"])
    cli.run(main)


if __name__ == "__main__":
    run()
