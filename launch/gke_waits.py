"""Why a JobSet's pods do not run: what Kueue says of one in its queue, and Kubernetes of pods that wait or failed.

A user who may not read Workloads, pods or events is told less.
"""

import functools
from collections.abc import Callable
from typing import Any

from launch import cluster, gke_logs
from launch.backend import Sweep
from launch.manifest import AGAIN, FOR_GOOD, SWEEP

QUEUES, QUEUE_VERSIONS = "kueue.x-k8s.io", ("v1beta2", "v1beta1")
JOB_UID = "kueue.x-k8s.io/job-uid"  # label of a Workload: the JobSet that it stands for
JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"  # label of a pod
SAYS_NOTHING = ("ContainerCreating", "PodInitializing")
HIDDEN = (403, 404)  # what the user may not read, or the cluster does not serve


def reasons(sweep: Sweep, items: list[dict]) -> dict[str, str]:
    """By the uid of a JobSet: why its pods do not run, or how one failed; nothing of a JobSet of which all pods run."""
    items = [item for item in items if "Completed" not in cluster.holding(item)]
    queued = [item for item in items if item["spec"].get("suspend")]
    why = _queued(sweep, queued) | _admitted(sweep, [item for item in items if item not in queued])
    return {uid: " ".join(words.split()) for uid, words in why.items() if words}


def _queued(sweep: Sweep, items: list[dict]) -> dict[str, str]:
    """What Kueue says of each of these JobSets, which it holds back."""
    for version in QUEUE_VERSIONS if items else ():
        place = "list_namespaced_custom_object", QUEUES, version, sweep.options["namespace"], "workloads"
        if (found := cluster.ask(cluster.CUSTOM, *place, unless=HIDDEN)) is not None:
            said = {item["metadata"].get("labels", {}).get(JOB_UID): _of_workload(item) for item in found["items"]}
            uids = [item["metadata"]["uid"] for item in items]
            return {uid: said.get(uid, "Kueue has made no Workload of it; does it manage JobSets?") for uid in uids}
    return {}


def _of_workload(item: dict) -> str:
    """Why Kueue does not admit a Workload, or took its admission back."""
    status, true = item.get("status", {}), cluster.holding(item)
    message = {c["type"]: c.get("message") or c.get("reason", "") for c in status.get("conditions", [])}
    said = [f"evicted: {message['Evicted']}"] if "Evicted" in true else []
    if "QuotaReserved" not in true:
        said.append(message.get("QuotaReserved", "not looked at yet"))
    elif "Admitted" not in true:
        waits = [check for check in status.get("admissionChecks", []) if check["state"] != "Ready"]
        said += [_both(f"admission check {check['name']} is {check['state']}", check.get("message")) for check in waits]
    return f"Kueue: {'; '.join(said) or 'admitted, about to start'}"


def _admitted(sweep: Sweep, items: list[dict]) -> dict[str, str]:
    """Why each of these JobSets has fewer pods at work than it needs, or how one of its pods failed if it has."""
    place = "list_namespaced_pod", sweep.options["namespace"]
    selector = f"{SWEEP}={sweep.id}"
    if not items or not (found := cluster.ask(cluster.CORE, *place, label_selector=selector, unless=HIDDEN)):
        return {}
    pods = {}
    for pod in sorted(found.items, key=lambda pod: pod.metadata.name):
        if not pod.metadata.deletion_timestamp:
            pods.setdefault((pod.metadata.labels or {}).get(JOBSET_NAME), []).append(pod)
    events = functools.cache(lambda: gke_logs.events(sweep, sweep.id))  # asked for only where no pod tells
    return {item["metadata"]["uid"]: _of_pods(item, pods.get(item["metadata"]["name"], []), events) for item in items}


def _of_pods(item: dict, pods: list, events: Callable[[], list]) -> str:
    ended = [f"pod {pod.metadata.name}: {words}" for pod in pods if (words := _end(pod))][:1]
    if "Failed" in cluster.holding(item):
        return "".join(ended)
    replicas = lambda job: job.get("replicas", 1) * job["template"]["spec"]["parallelism"]
    needed = sum(map(replicas, item["spec"]["replicatedJobs"]))
    waiting = [pod for pod in pods if pod.status and pod.status.phase == "Pending"]
    if len(pods) - len(waiting) >= needed:
        return ""
    said = [f"pod {pod.metadata.name}: {words}" for pod in waiting if (words := _waits(pod))][:1] or ended
    if not said:
        name = item["metadata"]["name"]
        warnings = [event for event in events() if event.type == "Warning" and name in event.involved_object.name]
        said = [_both(event.reason, event.message) for event in warnings[-1:]]
    return "; ".join([f"{len(pods) - len(waiting)} of {needed} pods run" if pods else "no pod yet", *said])


def _containers(pod: Any, kind: str) -> list:
    """The containers' states that are of this kind."""
    status = pod.status
    every = [*(status.init_container_statuses or ()), *(status.container_statuses or ())] if status else []
    return [found for container in every if container.state and (found := getattr(container.state, kind))]


def _waits(pod: Any) -> str:
    """Why a pod that waits does so; "" where that is not said."""
    held = [waiting for waiting in _containers(pod, "waiting") if waiting.reason not in (None, *SAYS_NOTHING)]
    unmet = [c for c in pod.status.conditions or () if (c.type, c.status) == ("PodScheduled", "False")]
    return "".join(_both(why.reason, why.message) for why in (held + unmet)[:1])


def _end(pod: Any) -> str:
    """How a container ended of which launch.task has not said why; "" if none did."""
    ends = [end for end in _containers(pod, "terminated") if end.exit_code not in (0, FOR_GOOD, *AGAIN)]
    return "".join(_both(f"exit code {end.exit_code}, {end.reason or 'Error'}", end.message) for end in ends[:1])


def _both(reason: str, message: str | None) -> str:
    return f"{reason}: {message}" if message else reason
