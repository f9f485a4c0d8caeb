"""What a scheduler runs for one job: python -m launch.task --workdir=DIR --job=NAME | --array=FILE.

Several jobs, --job=NAME --job=NAME, are trained together.

Everything else it reads from DIR/sweep.json. On Slurm it starts the trainer on the job's nodes through srun, tries
again after a failure, and requeues the job when the trainer was asked to stop; in a JobSet's pod it runs the trainer
once and leaves restarts to Kubernetes. Exit codes are those of jmoe.train, with 2 for what another try would not mend.
"""

import json
import os
import signal
import sys
import threading
import time

from absl import flags

from jmoe import cli
from jmoe.errors import UNAVAILABLE
from jmoe.storage import files as storage
from jmoe.storage.files import epath
from launch import gke, record, slurm, trainer

WORKDIR = flags.DEFINE_string("workdir", None, "Directory of the sweep, a folder or gs://...")
JOB = flags.DEFINE_multi_string("job", None, "Name of the job; may be given again.")
ARRAY = flags.DEFINE_string("array", None, "JSON list of lists of job names; SLURM_ARRAY_TASK_ID picks a list.")


def main(_):
    sweep = record.read(storage.absolute(WORKDIR.value))
    names = JOB.value or json.loads(epath.Path(ARRAY.value).read_text())[int(os.environ["SLURM_ARRAY_TASK_ID"])]
    group = sweep.group(names)
    signal.signal(signal.SIGTERM, lambda *_: None)  # the scheduler asks the trainer itself; here it only ends the wait
    sys.exit(in_pod(sweep, group) if sweep.backend == "gke" else in_allocation(sweep, group))


def in_allocation(sweep, group) -> int:
    """Tries until every job is done or has failed for good, or the allocation is being taken away."""
    while not group.done():
        started = _start(group, prefix=slurm.STEP)
        code = trainer.Watch(started, sweep.stall_minutes).wait()
        if code == 0:
            break
        if code < 0:  # srun itself was killed
            slurm.end_step()
        if code in trainer.STOPPED and not started.stalled:
            slurm.requeue()
            return code
        if slurm.ending():  # killed with its allocation: no failure of its own
            return code
        if code == UNAVAILABLE:  # nothing is wrong with the job
            print(f"{group.name}: {started.cause(code)}; trying again", flush=True)
            continue
        failures = trainer.failed(started, code, sweep.retries)
        for job, failure in failures.items():
            print(f"{job}: {failure['cause']}", flush=True)
        if all(failure["for_good"] for failure in failures.values()):
            return 2
    for job in group.jobs:
        trainer.forget_cause(job)
    return 0


def in_pod(sweep, group) -> int:
    """Runs the trainer once, as this pod's share of it, and copies what it prints to the pod's log."""
    if group.done():
        return 0
    place = gke.process_environment()
    started = _start(group, env=place)
    signal.signal(signal.SIGTERM, lambda *_: started.process.terminate())
    copy = threading.Thread(target=_copy, args=(group.log, started))
    copy.start()
    code = trainer.Watch(started, sweep.stall_minutes).wait()
    copy.join()
    if code in (0, UNAVAILABLE, *trainer.STOPPED) and not started.stalled:
        return code
    if place.get("JAX_PROCESS_ID", "0") != "0" and not trainer.explained(code, started.cause(code)):
        return 1  # the first pod fails with it and counts the try
    return 2 if all(failure["for_good"] for failure in trainer.failed(started, code, sweep.retries).values()) else 1


def _start(group, **options):
    while not (started := trainer.start(group, **options)):
        time.sleep(1)  # an earlier trainer is still saving
    return started


def _copy(path, started) -> None:
    with open(path, "rb") as log:
        while True:
            over = started.process.poll() is not None
            sys.stdout.buffer.write(log.read())
            sys.stdout.flush()
            if over:
                return
            time.sleep(0.5)


def run():
    flags.mark_flags_as_required(["workdir"])
    flags.mark_flags_as_mutual_exclusive(["job", "array"], required=True)
    cli.run(main)


if __name__ == "__main__":
    run()
