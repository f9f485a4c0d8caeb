"""The GKE backend: a JobSet for each job, queued by Kueue, on TPU slices or GPUs.

launch/manifest.py writes the JobSets. A pod that ends with exit code 2 fails its JobSet. A preempted machine restarts
the JobSet as often as that occurs, and so do the exit codes by which `run_task` requests another try: `run_task`
decides what counts as a failed try. Anything else ended before `run_task` could decide, and restarts the JobSet
--retries times.
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

from jmoe.errors import UNAVAILABLE, Unavailable, UserError
from jmoe.printable import printable
from jmoe.storage import ownership
from jmoe.storage.files import is_remote
from launch import accelerators, cluster, manifest, trainer
from launch.backend import Backend, Sweep
from launch.cluster import QUEUE_VERSIONS, QUEUES
from launch.jobs import Job, files_of
from launch.manifest import API_GROUP, JOB, PLURAL, SWEEP, VERSION, jobset

SECONDS_FOR_FIRST_POD = 20.0  # that the other pods of a job give the first one to count a failed try
NO_JOBSET = "no JobSet in namespace {namespace}: deleted, or never created; launch.sweep or launch.retry creates one"
SECONDS_TO_DELETE = 120.0 + manifest.SECONDS_TO_SAVE

flags.adopt_module_key_flags(manifest)


class Gke(Backend):
    """Creates a JobSet for each job, which Kueue queues."""

    options = staticmethod(manifest.options)

    def __init__(self) -> None:
        self._states: dict[str, str] | None = None  # what `states` returned last
        self._trouble = ""  # why `reason` got no answer from the cluster

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
        if not cluster.serves(API_GROUP, VERSION, PLURAL):
            raise UserError(f"--backend=gke: the cluster has no {PLURAL} of {API_GROUP}/{VERSION}, which JobSet brings")
        _check_queue(sweep)
        # a dry run: the server checks the first JobSet and stores nothing; 409 is fine: a JobSet of this name exists
        first = jobset(sweep, sweep.trained[0])
        try:
            _call(sweep, "create", first, dry_run="All", field_validation="Strict", unless=(409,))
        except UserError as error:
            hint = "; JobSet 0.10 or newer has it" if "onJobFailureMessagePatterns" in str(error) else ""
            raise UserError(f"{error}{hint}") from None

    def submit(self, sweep: Sweep) -> str:
        """Creates a JobSet for each job that is not finished and has none at work.

        A failed JobSet cannot be started again. It is first deleted with all that belongs to it, so that the new one
        takes nothing over from it.
        """
        states = self.states(sweep)
        files = files_of(sweep.workdir)  # listed after the states, so that they include what completed jobs wrote
        # a job that completed but lacks results has lost them since: it is trained again
        ended = ("failed", "stopping", "completed")
        idle = [job for job in sweep.trained if states.get(job.name, "failed").startswith(ended)]
        todo = [job for job in idle if not job.over(files)]
        for job in todo:
            trainer.forget_cause(job, files)
        again = {job.name for job in todo} & states.keys()
        if again:
            _delete(sweep, again)
        for job in todo:
            _call(sweep, "create", jobset(sweep, job), field_validation="Strict")
        done = "; all runs are done" if not todo and all(job.done(files) for job in sweep.trained) else ""
        where = f"in namespace {sweep.options['namespace']}"
        return f"created {len(todo)} JobSets {where}; {len(states)} were there before{done}"

    def states(self, sweep: Sweep) -> dict[str, str]:
        """The state of each job that has a JobSet, by name, and why it waits or how it failed."""
        items = _list(sweep)
        why = cluster.reasons(sweep, list(items.values()))
        self._states = {job: _state(item, why.get(item["metadata"]["uid"])) for job, item in items.items()}
        return self._states

    def reason(self, sweep: Sweep, job: Job) -> str:
        """Why the job did not run: how its JobSet failed, that it has none, or why the cluster cannot say.

        It uses what `states` returned last, and calls it once if it was not called yet. Returns "" if the JobSet is at
        work, or a launch.sweep may be creating it.
        """
        if self._states is None:
            self._states = {}
            try:
                self.states(sweep)
            except (UserError, Unavailable) as error:
                self._trouble = f"not finished, and the cluster does not tell why: {error}"
        if self._trouble:
            return self._trouble
        state = self._states.get(job.name)
        if state is not None:
            return state.removeprefix("failed").strip(" ()") if state.startswith("failed") else ""
        owner = ownership.owner(sweep.lock)
        if owner is not None and not owner.has_ended():
            return ""
        return NO_JOBSET.format(namespace=sweep.options["namespace"])

    def logs(self, sweep: Sweep, job: Job, rank: int | None = None, attempt: int | None = None) -> bytes:
        return cluster.logs(sweep, job, _list(sweep).get(job.name), rank, attempt)

    def cancel(self, sweep: Sweep, patience: float) -> str:
        """Deletes the sweep's JobSets. Running trainers get SIGTERM, and the grace period to save."""
        return _delete(sweep)

    def cancel_job(self, sweep: Sweep, job: Job, patience: float) -> str:
        return _delete(sweep, {job.name})

    def follow(self, sweep: Sweep, job: Job, rank: int | None) -> Iterator[bytes]:
        return cluster.follow(sweep, lambda: _list(sweep).get(job.name), rank or 0)

    def preview(self, sweep: Sweep) -> str:
        """Every manifest of the sweep as YAML, to read or to give to kubectl."""
        import yaml

        # manifests differ only in the names of their jobs: rendering one for all writes 10,000 in a second
        name = f"d-{uuid.uuid4().hex}-e"
        text = yaml.safe_dump(jobset(sweep, dataclasses.replace(sweep.trained[0], name=name)), sort_keys=False)
        return "---\n".join(text.replace(name, job.name) for job in sweep.trained)

    def run_task(self, sweep: Sweep, job: Job) -> int:
        """Runs this pod's trainer once, and copies what it prints to the pod's log.

        Returns:
          The exit code that tells the manifest what to do next: 0, trainer.FAILED_FOR_GOOD, or one of manifest.AGAIN.
        """
        if job.has_ended():
            return 0 if job.over() else trainer.FAILED_FOR_GOOD
        environment = _process_environment()
        failure_before = job.failure()
        running = trainer.start_when_free(job, sweep.stall_minutes, env=environment)
        signal.signal(signal.SIGTERM, lambda *_: running.process.terminate())
        code = _wait_and_copy_output(running)
        if code == -signal.SIGTERM:  # stopped before it could listen: it has nothing to save, and has not failed
            code = 128 + signal.SIGTERM
        rank = int(environment.get("JAX_PROCESS_ID", "0"))
        if code != UNAVAILABLE:
            cluster.copy_log(job, rank)
        stopped = code in trainer.STOPPED and not running.stalled
        if code in (0, UNAVAILABLE) or stopped:
            return code
        fails_again = trainer.would_fail_again(code, running.cause(code))
        if not fails_again and _is_counted(job, failure_before, rank):
            return UNAVAILABLE
        failure = trainer.record_failure(running, code, sweep.retries)
        return trainer.FAILED_FOR_GOOD if failure.get("for_good") else UNAVAILABLE


def _check_queue(sweep: Sweep) -> None:
    """Raises UserError if the cluster has no such LocalQueue; prints a warning if the queue starts nothing now."""
    namespace = sweep.options["namespace"]
    queue = sweep.options["queue"]
    version = next((version for version in QUEUE_VERSIONS if cluster.serves(QUEUES, version, "localqueues")), None)
    if version is None:
        raise UserError(f"--queue={queue}: the cluster has no localqueues of {QUEUES}, which Kueue brings")
    method = "list_namespaced_custom_object"
    answer = cluster.ask(cluster.CUSTOM, method, QUEUES, version, namespace, "localqueues", unless=(403,))
    if answer is None:  # who may not list queues may still submit
        return
    queues = {item["metadata"]["name"]: item for item in answer["items"]}
    if queue not in queues:
        names = ", ".join(sorted(queues)) or "none"
        raise UserError(f"--queue={queue}: namespace {namespace} has no such LocalQueue; it has {names}")
    for condition in queues[queue].get("status", {}).get("conditions", []):
        if (condition["type"], condition["status"]) == ("Active", "False"):
            message = printable(str(condition.get("message")))
            print(f"--queue={queue} starts nothing now: {message}", file=sys.stderr)


def _wait_and_copy_output(running: trainer.Trainer) -> int:
    """Copies the trainer's log to this process's output until the trainer ends; returns its exit code."""
    with open(running.job.log, "rb") as log:
        while True:
            time.sleep(0.5)
            code = running.poll()
            sys.stdout.buffer.write(log.read())
            sys.stdout.flush()
            if code is not None:
                return code


def _state(item: dict, why: str | None) -> str:
    """The state of a JobSet in words; `why` says why its pods do not run, or how one failed."""
    if "deletionTimestamp" in item["metadata"]:
        return "stopping"
    conditions = cluster.true_conditions(item)
    message = None
    if "Completed" in conditions:
        kind = "completed"
        why = None
    elif "Failed" in conditions:
        kind = "failed"
        message = conditions["Failed"].get("message") or conditions["Failed"].get("reason")
    # not from the condition: Kueue sets and clears `suspend`, and the condition follows; a new JobSet has none yet
    elif item["spec"].get("suspend"):
        kind = "queued"
    else:
        kind = "starting" if why else "running"
    n_restarts = item.get("status", {}).get("restarts")
    restarts = f"{n_restarts} restarts" if n_restarts else None
    details = printable("; ".join(filter(None, [restarts, message, why])))
    return f"{kind} ({details})" if details else kind


def _delete(sweep: Sweep, jobs: set[str] | None = None) -> str:
    """Deletes the JobSets of these jobs, by default all; returns what it did, in words.

    Waits until they and their pods are deleted (a deletion in the foreground).

    Raises:
      UserError: JobSets still exist after SECONDS_TO_DELETE.
    """
    items = [item["metadata"] for job, item in _list(sweep).items() if jobs is None or job in jobs]
    for item in items:
        _call(sweep, "delete", item["name"], propagation_policy="Foreground", unless=(404,))
    uids = {item["uid"] for item in items}
    deadline = time.monotonic() + SECONDS_TO_DELETE
    while left := [item["metadata"] for item in _list(sweep).values() if item["metadata"]["uid"] in uids]:
        if time.monotonic() > deadline:
            finalizers = ", ".join(left[0].get("finalizers", ["nothing"]))
            raise UserError(
                f"{len(left)} JobSets still exist {SECONDS_TO_DELETE:.0f} s after they were deleted: {left[0]['name']} "
                f"is held by {finalizers}; kubectl describe tells more, and the same command continues from here"
            )
        time.sleep(1)
    return f"deleted {len(items)} JobSets"


def _is_counted(job: Job, failure_before: dict, rank: int) -> bool:
    """Whether another of the job's pods has counted this failed try.

    The first pod, which as a rule fails too, counts it at once. The others wait for it, each longer than the pod
    before: once a pod has ended, the rest are killed, counted or not.
    """
    patience = SECONDS_FOR_FIRST_POD + rank if rank else 0
    deadline = time.monotonic() + patience
    while job.failure() == failure_before:
        if time.monotonic() >= deadline:
            return False
        time.sleep(1)
    return True


def _process_environment() -> dict[str, str]:
    """The coordinates of this pod among the job's pods, as variables that jax reads; {} for a single pod."""
    n_hosts = int(os.environ["JMOE_HOSTS"])
    n_slices = int(os.environ["JMOE_SLICES"])
    if n_hosts * n_slices == 1:
        return {}
    rank = int(os.environ["JMOE_SLICE_INDEX"]) * n_hosts + int(os.environ["JOB_COMPLETION_INDEX"])
    return {"JAX_NUM_PROCESSES": str(n_hosts * n_slices), "JAX_PROCESS_ID": str(rank)}


def _list(sweep: Sweep) -> dict[str, dict]:
    """The sweep's JobSets by the names of their jobs."""
    items = _call(sweep, "list", label_selector=f"{SWEEP}={sweep.id}")["items"]
    return {item["metadata"]["labels"][JOB]: item for item in items}


def _call(sweep: Sweep, verb: str, *args: Any, **kwargs: Any) -> Any:
    """Creates, deletes or lists JobSets in the sweep's namespace."""
    method = f"{verb}_namespaced_custom_object"
    namespace = sweep.options["namespace"]
    return cluster.ask(cluster.CUSTOM, method, API_GROUP, VERSION, namespace, PLURAL, *args, **kwargs)
