"""The GKE backend: a JobSet for each job, queued by Kueue, on TPU slices or GPUs.

launch/manifest.py writes the JobSets. A pod that ends with exit code 2 fails its JobSet. A preempted machine, and the
exit codes by which `run_task` asks for another try, restart it as often as they occur: `run_task` decides what counts
as a failed try. Anything else ended before `run_task` could decide, and restarts the JobSet --retries times.
"""

import dataclasses
import os
import signal
import sys
import time
import uuid
from collections.abc import Iterator
from typing import Any

from absl import flags

from jmoe.errors import UNAVAILABLE, UserError
from jmoe.storage.files import is_remote
from launch import accelerators, cluster, manifest, trainer
from launch.backend import Backend, Sweep
from launch.cluster import QUEUE_VERSIONS, QUEUES
from launch.jobs import Job, files_of
from launch.manifest import API_GROUP, JOB, PLURAL, SWEEP, VERSION, jobset
from launch.printable import printable

SECONDS_FOR_THE_FIRST = 20.0  # that other pods of a job give the first one to count a failed try
SECONDS_TO_DELETE = 120.0 + manifest.SECONDS_TO_SAVE

flags.adopt_module_key_flags(manifest)


class Gke(Backend):
    """A JobSet for each job."""

    options = staticmethod(manifest.options)

    def check(self, sweep: Sweep) -> None:
        manifest.check(sweep.options)
        if sweep.options.get("workers"):
            raise UserError(
                "--workers is for local and slurm: on GKE the quota of Kueue's queue caps what runs at once"
            )
        if not is_remote(sweep.workdir):
            raise UserError(f"--backend=gke needs a --workdir on gs://, not {sweep.workdir}: pods share no disk")

    def devices(self, sweep: Sweep, accelerator: str | None) -> tuple[int | None, float | None]:
        return accelerators.devices(accelerator, sweep.options["n_slices"])

    def ready(self, sweep: Sweep) -> None:
        namespace, queue = sweep.options["namespace"], sweep.options["queue"]
        if not cluster.serves(API_GROUP, VERSION, PLURAL):
            raise UserError(f"--backend=gke: the cluster has no {PLURAL} of {API_GROUP}/{VERSION}, which JobSet brings")
        version = next((version for version in QUEUE_VERSIONS if cluster.serves(QUEUES, version, "localqueues")), None)
        if not version:
            raise UserError(f"--queue={queue}: the cluster has no localqueues of {QUEUES}, which Kueue brings")
        place = cluster.CUSTOM, "list_namespaced_custom_object", QUEUES, version, namespace, "localqueues"
        if (found := cluster.ask(*place, unless=(403,))) is not None:  # who may not list queues may still submit
            queues = {item["metadata"]["name"]: item for item in found["items"]}
            if queue not in queues:
                names = ", ".join(sorted(queues)) or "none"
                raise UserError(f"--queue={queue}: namespace {namespace} has no such LocalQueue; it has {names}")
            for condition in queues[queue].get("status", {}).get("conditions", []):
                if (condition["type"], condition["status"]) == ("Active", "False"):
                    message = printable(str(condition.get("message")))
                    print(f"--queue={queue} starts nothing now: {message}", file=sys.stderr)
        # a dry run: the server checks the first JobSet and stores nothing; 409 is fine: a JobSet of this name exists
        first = jobset(sweep, sweep.trained[0])
        try:
            _call(sweep, "create", first, dry_run="All", field_validation="Strict", unless=(409,))
        except UserError as error:
            newer = "; JobSet 0.10 or newer has it" * ("onJobFailureMessagePatterns" in str(error))
            raise UserError(f"{error}{newer}") from None

    def submit(self, sweep: Sweep) -> str:
        """Creates a JobSet for each job that is not finished and has none at work. A failed one cannot be started
        again: it is first deleted with all that belongs to it, so that the new one takes nothing over from it."""
        known = self.states(sweep)
        files = files_of(sweep.workdir)  # listed after the states, so that they include what completed jobs wrote
        # a job that completed but lacks results has lost them since: it is trained again
        ended = lambda job: known.get(job.name, "failed").startswith(("failed", "stopping", "completed"))
        todo = [job for job in sweep.trained if ended(job) and not job.over(files)]
        for job in todo:
            trainer.forget_cause(job, files)
        if again := {job.name for job in todo} & known.keys():
            _delete(sweep, again)
        for job in todo:
            _call(sweep, "create", jobset(sweep, job), field_validation="Strict")
        done = "; all runs are done" if not todo and all(job.done(files) for job in sweep.trained) else ""
        where = f"in namespace {sweep.options['namespace']}"
        return f"created {len(todo)} JobSets {where}; {len(known)} were there before{done}"

    def states(self, sweep: Sweep) -> dict[str, str]:
        """The jobs that have a JobSet, each with the JobSet's state, and why it waits or how it failed."""
        items = _list(sweep)
        why = cluster.reasons(sweep, list(items.values()))
        return {job: _state(item, why.get(item["metadata"]["uid"])) for job, item in items.items()}

    def logs(self, sweep: Sweep, job: Job, rank: int | None = None, attempt: int | None = None) -> bytes:
        return cluster.logs(sweep, job, _list(sweep).get(job.name), rank, attempt)

    def cancel(self, sweep: Sweep, patience: float) -> str:
        """Deletes the sweep's JobSets; running trainers get SIGTERM and the grace period to save."""
        return _delete(sweep)

    def cancel_job(self, sweep: Sweep, job: Job, patience: float) -> str:
        return _delete(sweep, {job.name})

    def follow(self, sweep: Sweep, job: Job, rank: int | None) -> Iterator[bytes]:
        return cluster.follow(sweep, lambda: _list(sweep).get(job.name), rank or 0)

    def preview(self, sweep: Sweep) -> str:
        """Every manifest of the sweep as YAML, to read or to give to kubectl."""
        import yaml

        # they differ only in the names of their jobs: one that is written for all makes 10,000 in a second
        name = f"d-{uuid.uuid4().hex}-e"
        text = yaml.safe_dump(jobset(sweep, dataclasses.replace(sweep.trained[0], name=name)), sort_keys=False)
        return "---\n".join(text.replace(name, job.name) for job in sweep.trained)

    def run_task(self, sweep: Sweep, job: Job) -> int:
        """Runs this pod's trainer once, and copies what it prints to the pod's log; returns 0, or one of the exit codes
        by which the manifest knows what is to be done: FOR_GOOD or one of AGAIN."""
        if job.stands_still():
            return 0 if job.over() else manifest.FOR_GOOD
        place, before = _process_environment(), job.failure()
        started, code = trainer.start_when_free(job, sweep.stall_minutes, env=place), None
        signal.signal(signal.SIGTERM, lambda *_: started.process.terminate())
        with open(job.log, "rb") as log:
            while code is None:
                time.sleep(0.5)
                code = started.poll()
                sys.stdout.buffer.write(log.read())
                sys.stdout.flush()
        if code == -signal.SIGTERM:  # asked before it could listen: it has nothing to save, and has not failed
            code = 128 + signal.SIGTERM
        rank = int(place.get("JAX_PROCESS_ID", "0"))
        if code != UNAVAILABLE:
            cluster.keep(job, rank)
        if code in (0, UNAVAILABLE) or code in trainer.STOPPED and not started.stalled:
            return code
        if not trainer.explained(code, started.cause(code)) and _counted(job, before, rank):
            return UNAVAILABLE
        failure = trainer.failed(started, code, sweep.retries)
        return manifest.FOR_GOOD if failure.get("for_good") else UNAVAILABLE


def _state(item: dict, why: str | None) -> str:
    """The state of a JobSet, in words."""
    if "deletionTimestamp" in item["metadata"]:
        return "stopping"
    ended, restarts, message = cluster.holding(item), item.get("status", {}).get("restarts"), None
    if "Completed" in ended:
        kind, why = "completed", None
    elif "Failed" in ended:
        kind, message = "failed", ended["Failed"].get("message") or ended["Failed"].get("reason")
    # not from the condition: Kueue sets and clears `suspend`, and the condition follows; a new JobSet has none yet
    elif item["spec"].get("suspend"):
        kind = "queued"
    else:
        kind = "starting" if why else "running"
    said = printable("; ".join(filter(None, [restarts and f"{restarts} restarts", message, why])))
    return f"{kind} ({said})" if said else kind


def _delete(sweep: Sweep, jobs: set[str] | None = None) -> str:
    """Deletes the JobSets of these jobs, by default all, and waits until they and their pods are deleted (a deletion in
    the foreground); returns that in words."""
    items = [item["metadata"] for job, item in _list(sweep).items() if jobs is None or job in jobs]
    for item in items:
        _call(sweep, "delete", item["name"], propagation_policy="Foreground", unless=(404,))
    deadline, uids = time.monotonic() + SECONDS_TO_DELETE, {item["uid"] for item in items}
    while left := [item["metadata"] for item in _list(sweep).values() if item["metadata"]["uid"] in uids]:
        if time.monotonic() > deadline:
            held = ", ".join(left[0].get("finalizers", ["nothing"]))
            raise UserError(
                f"{len(left)} JobSets still exist {SECONDS_TO_DELETE:.0f} s after they were deleted: {left[0]['name']} "
                f"is held by {held}; kubectl describe tells more, and the same command goes on from here"
            )
        time.sleep(1)
    return f"deleted {len(items)} JobSets"


def _counted(job: Job, before: dict, rank: int) -> bool:
    """Whether another of the job's pods has counted this failed try; the first, which fails too as a rule, does so. The
    others wait for it, one longer than the other: once a pod has ended, the rest are killed, counted or not."""
    deadline = time.monotonic() + (SECONDS_FOR_THE_FIRST + rank if rank else 0)
    while not (counted := job.failure() != before) and time.monotonic() < deadline:
        time.sleep(1)
    return counted


def _process_environment() -> dict[str, str]:
    """jax's coordinates of this pod among the job's pods, from the variables of its manifest; {} for a single pod."""
    n_hosts, n_slices = int(os.environ["JMOE_HOSTS"]), int(os.environ["JMOE_SLICES"])
    if n_hosts * n_slices == 1:
        return {}
    place = int(os.environ["JMOE_SLICE_INDEX"]) * n_hosts + int(os.environ["JOB_COMPLETION_INDEX"])
    return {"JAX_NUM_PROCESSES": str(n_hosts * n_slices), "JAX_PROCESS_ID": str(place)}


def _list(sweep: Sweep) -> dict[str, dict]:
    """The sweep's JobSets by the names of their jobs."""
    items = _call(sweep, "list", label_selector=f"{SWEEP}={sweep.id}")["items"]
    return {item["metadata"]["labels"][JOB]: item for item in items}


def _call(sweep: Sweep, verb: str, *args: Any, **kwargs: Any) -> Any:
    """Creates, deletes or lists JobSets in the sweep's namespace."""
    place = API_GROUP, VERSION, sweep.options["namespace"], PLURAL
    return cluster.ask(cluster.CUSTOM, f"{verb}_namespaced_custom_object", *place, *args, **kwargs)
