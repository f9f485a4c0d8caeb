"""What the pods of a job printed, and what Kubernetes says of them.

A pod's log is deleted with the pod, and a restart makes new pods. So each pod, when its trainer has ended, copies the
trainer's log to logs/TIME-rankK.txt in the job's folder. Ranks are jax's: slice by slice, machine by machine.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from jmoe.errors import Unavailable, UserError
from jmoe.storage.files import write_whole
from launch import cluster, output
from launch.backend import Sweep
from launch.jobs import Job
from launch.manifest import REPLICATED_JOB

SECONDS_BETWEEN_LOOKS = 5.0
INDEX_OF_SLICE, INDEX_OF_MACHINE = "jobset.sigs.k8s.io/job-index", "batch.kubernetes.io/job-completion-index"


def keep(job: Job, rank: int) -> None:
    """Copies the log of the try that ended on this pod to the job's folder."""
    text = output.log(job, -1).decode(errors="replace")
    path = job.folder / "logs" / f"{output.now()}-rank{rank}.txt"
    with contextlib.suppress(Unavailable):  # a log that cannot be stored is no reason for another try
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)


def logs(sweep: Sweep, job: Job, item: dict | None, rank: int | None, attempt: int | None) -> bytes:
    """What process `rank` (by default the first) printed in its pod of the JobSet `item`, and, if no rank is given, the
    JobSet's conditions and events. Of an `attempt`: its kept log; the newest attempt is the pod that runs, if one does.
    UserError where there is no JobSet, no pod or no such attempt."""
    pod = item and _pod(sweep, item, rank or 0)
    if attempt is not None:
        kept = sorted((job.folder / "logs").glob(f"*-rank{rank or 0}.txt"))
        running = pod and _phase(pod) in ("Pending", "Running")
        tries = [path.read_bytes for path in kept] + [lambda: _log(sweep, pod)] * bool(running)
        return output.one_try(tries, attempt, job)()
    if item is None:
        raise UserError(f"job {job.name} has no JobSet in namespace {sweep.options['namespace']}")
    text = _log(sweep, pod) if pod else b""
    said = _said(sweep, item) if rank is None else []
    if not text and not said:
        raise UserError(f"job {job.name} has no pod in namespace {sweep.options['namespace']}")
    return text + "".join(f"{line}\n" for line in said).encode()


def follow(sweep: Sweep, look: Callable[[], dict | None], rank: int) -> Iterator[bytes]:
    """Yields what process `rank` prints, pod after pod, until the JobSet that look() returns has ended or is gone."""
    shown, ended = {}, set()  # bytes shown of each pod; pods that print no more
    while item := look():
        over = {"Completed", "Failed"} & cluster.holding(item).keys()
        pod = _pod(sweep, item, rank)
        if pod and _phase(pod) != "Pending" and (uid := pod.metadata.uid) not in ended:
            if shown and uid not in shown:
                yield f"==> {pod.metadata.name} <==\n".encode()
            shown.setdefault(uid, 0)
            for text in _stream(sweep, pod, shown[uid]):
                shown[uid] += len(text)
                yield text
            ended |= {uid} if _phase(pod) != "Running" else set()
        if over:
            return
        time.sleep(SECONDS_BETWEEN_LOOKS)


def _stream(sweep: Sweep, pod: Any, skip: int) -> Iterator[bytes]:
    """Yields what the pod prints after its first `skip` bytes until it, or the connection, ends."""
    import urllib3

    place = "read_namespaced_pod_log", pod.metadata.name, sweep.options["namespace"]
    log = cluster.ask(cluster.CORE, *place, container="trainer", follow=True, _preload_content=False)
    with contextlib.closing(log), contextlib.suppress(urllib3.exceptions.HTTPError):
        for text in log.stream(4096, decode_content=True):
            if text[skip:]:
                yield text[skip:]
            skip = max(0, skip - len(text))


def _pod(sweep: Sweep, item: dict, rank: int) -> Any:
    """The newest pod of that rank, or None."""
    selector = f"jobset.sigs.k8s.io/jobset-name={item['metadata']['name']}"
    namespace = sweep.options["namespace"]
    pods = cluster.ask(cluster.CORE, "list_namespaced_pod", namespace, label_selector=selector).items
    jobs = {job["name"]: job["template"]["spec"] for job in item["spec"]["replicatedJobs"]}
    n_hosts = jobs[REPLICATED_JOB]["parallelism"]
    index = lambda pod, label: int((pod.metadata.labels or {}).get(label, 0))
    rank_of = lambda pod: index(pod, INDEX_OF_SLICE) * n_hosts + index(pod, INDEX_OF_MACHINE)
    of_rank = [pod for pod in pods if rank_of(pod) == rank]
    return max(of_rank, key=lambda pod: str(pod.metadata.creation_timestamp), default=None)


def _phase(pod: Any) -> str:
    return (pod.status and pod.status.phase) or "Running"


def _log(sweep: Sweep, pod: Any) -> bytes:
    """What the pod's trainer printed; b"" before it has started."""
    if _phase(pod) == "Pending":
        return b""
    place = "read_namespaced_pod_log", pod.metadata.name, sweep.options["namespace"]
    return cluster.ask(cluster.CORE, *place, container="trainer").encode()


def _said(sweep: Sweep, item: dict) -> list[str]:
    """The JobSet's conditions, and the events of all objects whose names contain the JobSet's, oldest first."""
    name = item["metadata"]["name"]
    lines = [f"==> JobSet {name} <=="]
    for c in item.get("status", {}).get("conditions", []):
        lines.append(f"{c['type']}={c['status']} {c.get('reason', '')}: {c.get('message', '')}")
    for event in events(sweep, name):
        what = f"{event.involved_object.kind} {event.involved_object.name}"
        lines.append(f"{event.last_timestamp or event.event_time} {what}: {event.reason}: {event.message}")
    return lines if len(lines) > 1 else []


def events(sweep: Sweep, name: str) -> list:
    """The events of all objects whose names contain `name`, oldest first; none if the user may not read events."""
    found = cluster.ask(cluster.CORE, "list_namespaced_event", sweep.options["namespace"], unless=(403, 404))
    mine = [event for event in (found.items if found else []) if name in (event.involved_object.name or "")]
    return sorted(mine, key=lambda event: str(event.last_timestamp or event.event_time))
