"""The Kubernetes API server that the kubeconfig's current context names, asked through the official client; and what it
says of a job: what its pods printed, why they do not run, and what else Kubernetes and Kueue know of them.

A refusal raises a UserError that quotes the server; a user who may not read Workloads, pods or events is told less.
Expired credentials are read again, once for each call. A pod's log is deleted with the pod, and a restart makes new
pods. So each pod, when its trainer has ended, copies the trainer's log to logs/TIME-rankK.txt in the job's folder.
Ranks are jax's: slice by slice, machine by machine.
"""

import contextlib
import functools
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

from jmoe.errors import Unavailable, UserError
from jmoe.storage.files import write_whole
from launch import output
from launch.backend import Sweep
from launch.jobs import Job
from launch.manifest import AGAIN, FOR_GOOD, SWEEP
from launch.printable import printable

CORE, CUSTOM = "CoreV1Api", "CustomObjectsApi"
# To connect, and to the next piece of an answer: a server may hang without a word. Each is tried twice, so that a
# command says so within a minute. A log that is followed may pause for longer.
SECONDS_TO_ANSWER, SECONDS_BETWEEN_LINES = (5, 20), 60
AWAY = (429, 500, 502, 503, 504)  # HTTP codes of a server that starts, stops or has too much to do
SECONDS_BETWEEN_LOOKS = 5.0
GOES_ON = "the same command goes on when it answers"
QUEUES, QUEUE_VERSIONS = "kueue.x-k8s.io", ("v1beta2", "v1beta1")
JOB_UID = "kueue.x-k8s.io/job-uid"  # label of a Workload: the JobSet that it stands for
JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"  # label of a pod
SAYS_NOTHING = ("ContainerCreating", "PodInitializing")
HIDDEN = (403, 404)  # what the user may not read, or the cluster does not serve
INDEX_OF_SLICE, INDEX_OF_MACHINE = "jobset.sigs.k8s.io/job-index", "batch.kubernetes.io/job-completion-index"


# The methods that this process had an answer to. A server that starts knows no JobSets for a moment, and says of them
# "404 page not found": that is no refusal where it served them before, or was away.
_served: set[str] = set()


def ask(api: str, method: str, *args: Any, unless: tuple[int, ...] = (), **kwargs: Any) -> Any:
    """Calls `method` of the client's class `api`, CORE or CUSTOM; returns the answer, None for a status in `unless`.
    UserError where no cluster is known or it refuses, Unavailable where it cannot be reached or gives no answer."""
    _client()  # raises UserError if the client library or the kubeconfig is missing
    import kubernetes
    import urllib3

    kwargs = {"_request_timeout": SECONDS_TO_ANSWER} | kwargs
    for credentials in ("kept", "read anew"):
        try:
            call = getattr(getattr(kubernetes.client, api)(_client()), method)
            answer = _checked(method, call(*args, **kwargs))
            _served.add(method)
            return answer
        except kubernetes.client.ApiException as error:
            if error.status in unless:
                return None
            if error.status == 401 and credentials == "kept":
                _client.cache_clear()
                continue
            known = "; gcloud auth login, or what the kubeconfig names, makes new credentials" * (error.status == 401)
            said = str(error.body or "").strip()[:500]
            with contextlib.suppress(ValueError, LookupError, TypeError):  # as a rule the answer is a Kubernetes Status
                said = str(json.loads(error.body or "")["message"])
            said = printable(f"{error.status} {error.reason}: {said}")
            unserved = error.status == 404 and not str(error.body or "").startswith("{")
            if error.status in AWAY or unserved and _served & {method, "was away"}:
                raise Unavailable(f"the cluster gives no answer: {said}; {GOES_ON}") from None
            raise UserError(f"the cluster refuses: {said}{known}") from None
        except urllib3.exceptions.HTTPError as error:
            _served.add("was away")
            raise Unavailable(f"the cluster cannot be reached: {printable(str(error))}; {GOES_ON}") from None
        except (ValueError, TypeError, AttributeError) as error:  # the client makes no object of what it got
            why = printable(str(error))[:300]
            raise Unavailable(f"what answers is no API server of Kubernetes ({why}); {GOES_ON}") from None


def _checked(method: str, answer: Any) -> Any:
    """The answer; ValueError where it is none of an API server, as the page of a proxy is."""
    if answer is None and method.startswith("list_"):
        raise ValueError("it says nothing")
    if method.endswith("_custom_object"):
        if not isinstance(answer, dict):
            raise ValueError(f"it says {str(answer)[:60]!r}")
        if method.startswith("list_") and not isinstance(answer.get("items"), list):
            raise ValueError(f"it lists nothing: {str(answer)[:60]!r}")
    return answer


def serves(group: str, version: str, resource: str) -> bool:
    """Whether the server serves objects of this kind."""
    listed = ask(CUSTOM, "get_api_resources", group, version, unless=(404,))
    return listed is not None and any(found.name == resource for found in listed.resources)


def holding(item: dict) -> dict[str, dict]:
    """The conditions of an object that are true, by type."""
    return {c["type"]: c for c in item.get("status", {}).get("conditions", []) if c["status"] == "True"}


@functools.cache
def _client() -> Any:
    """One client for the process: it keeps its connection, and runs a credential program of the kubeconfig once."""
    try:
        import kubernetes
        import yaml
    except ImportError:
        raise UserError("--backend=gke needs the kubernetes client: pip install -e '.[gke]'") from None
    import urllib3

    try:
        client = kubernetes.config.new_client_from_config()
        # by default it tries four times, for minutes where the server hangs
        client.configuration.retries = urllib3.Retry(total=1, status=0, raise_on_status=False)
        return kubernetes.client.ApiClient(client.configuration)
    except (kubernetes.config.ConfigException, yaml.YAMLError, OSError) as error:
        words = " ".join(str(error).split())
        raise UserError(
            f"--backend=gke finds no cluster: {words}; gcloud container clusters get-credentials makes one known"
        ) from None


def keep(job: Job, rank: int) -> None:
    """Copies the log of the try that ended on this pod to the job's folder."""
    text = output.log(job, -1).decode(errors="replace")
    path = job.folder / "logs" / f"{output.now()}-rank{rank}.txt"
    with contextlib.suppress(Unavailable):  # a log that cannot be stored is no reason for another try
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)


def logs(sweep: Sweep, job: Job, item: dict | None, rank: int | None, attempt: int | None) -> bytes:
    """What process `rank`, or the first, printed in its pod of the JobSet `item`; and, without a rank, the JobSet's
    conditions and events. Of an `attempt`: its kept log; the newest is that of the pod that runs, if one does."""
    pod = _pod(sweep, item, rank or 0) if item else None
    if attempt is not None:
        kept = sorted((job.folder / "logs").glob(f"*-rank{rank or 0}.txt"))
        runs = pod and pod.status.phase in ("Pending", "Running")
        tries = [path.read_bytes for path in kept] + [lambda: _log(sweep, pod)] * bool(runs)
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
        over = {"Completed", "Failed"} & holding(item).keys()
        pod = _pod(sweep, item, rank)
        if pod and pod.status.phase != "Pending" and (uid := pod.metadata.uid) not in ended:
            if shown and uid not in shown:
                yield f"==> {pod.metadata.name} <==\n".encode()
            shown.setdefault(uid, 0)
            for text in _stream(sweep, pod, shown[uid]):
                shown[uid] += len(text)
                yield text
            ended |= {uid} if pod.status.phase != "Running" else set()
        if over:
            return
        time.sleep(SECONDS_BETWEEN_LOOKS)


def _stream(sweep: Sweep, pod: Any, skip: int) -> Iterator[bytes]:
    """Yields what the pod prints after its first `skip` bytes until it, or the connection, ends."""
    import urllib3

    place = "read_namespaced_pod_log", pod.metadata.name, sweep.options["namespace"]
    timeout = SECONDS_TO_ANSWER[0], SECONDS_BETWEEN_LINES
    log = ask(CORE, *place, container="trainer", follow=True, _preload_content=False, _request_timeout=timeout)
    with contextlib.closing(log), contextlib.suppress(urllib3.exceptions.HTTPError):
        for text in log.stream(4096, decode_content=True):
            if text[skip:]:
                yield text[skip:]
            skip = max(0, skip - len(text))


def _pod(sweep: Sweep, item: dict, rank: int) -> Any:
    """The newest pod of that rank, or None."""
    selector, namespace = f"{JOBSET_NAME}={item['metadata']['name']}", sweep.options["namespace"]
    pods = ask(CORE, "list_namespaced_pod", namespace, label_selector=selector).items
    n_hosts = item["spec"]["replicatedJobs"][0]["template"]["spec"]["parallelism"]
    index = lambda pod, label: int(pod.metadata.labels.get(label, 0))
    rank_of = lambda pod: index(pod, INDEX_OF_SLICE) * n_hosts + index(pod, INDEX_OF_MACHINE)
    of_rank = [pod for pod in pods if rank_of(pod) == rank]
    return max(of_rank, key=lambda pod: str(pod.metadata.creation_timestamp), default=None)


def _log(sweep: Sweep, pod: Any) -> bytes:
    """What the pod's trainer printed; b"" before it has started."""
    if pod.status.phase == "Pending":
        return b""
    place = "read_namespaced_pod_log", pod.metadata.name, sweep.options["namespace"]
    return ask(CORE, *place, container="trainer").encode()


def _said(sweep: Sweep, item: dict) -> list[str]:
    """The JobSet's conditions, and the events of all objects whose names contain the JobSet's, oldest first."""
    name = item["metadata"]["name"]
    lines = [f"==> JobSet {name} <=="]
    for c in item.get("status", {}).get("conditions", []):
        lines.append(f"{c['type']}={c['status']} {c.get('reason', '')}: {c.get('message', '')}")
    for event in _events(sweep, name):
        what = f"{event.involved_object.kind} {event.involved_object.name}"
        lines.append(f"{event.last_timestamp or event.event_time} {what}: {event.reason}: {event.message}")
    return [printable(line) for line in lines] if len(lines) > 1 else []


def _events(sweep: Sweep, name: str) -> list:
    """The events of all objects whose names contain `name`, oldest first; none if the user may not read events."""
    found = ask(CORE, "list_namespaced_event", sweep.options["namespace"], unless=HIDDEN)
    mine = [event for event in (found.items if found else []) if name in (event.involved_object.name or "")]
    return sorted(mine, key=lambda event: str(event.last_timestamp or event.event_time))


def reasons(sweep: Sweep, items: list[dict]) -> dict[str, str]:
    """By the uid of a JobSet: why its pods do not run, or how one failed; nothing of a JobSet of which all pods run."""
    items = [item for item in items if "Completed" not in holding(item)]
    queued = [item for item in items if item["spec"].get("suspend")]
    why = _queued(sweep, queued) | _admitted(sweep, [item for item in items if item not in queued])
    return {uid: printable(" ".join(words.split())) for uid, words in why.items() if words}


def _queued(sweep: Sweep, items: list[dict]) -> dict[str, str]:
    """What Kueue says of each of these JobSets, which it holds back."""
    for version in QUEUE_VERSIONS if items else ():
        place = "list_namespaced_custom_object", QUEUES, version, sweep.options["namespace"], "workloads"
        if (found := ask(CUSTOM, *place, unless=HIDDEN)) is not None:
            said = {item["metadata"].get("labels", {}).get(JOB_UID): _of_workload(item) for item in found["items"]}
            uids = [item["metadata"]["uid"] for item in items]
            return {uid: said.get(uid, "Kueue has made no Workload of it; does it manage JobSets?") for uid in uids}
    return {}


def _of_workload(item: dict) -> str:
    """Why Kueue does not admit a Workload, or took its admission back."""
    status, true = item.get("status", {}), holding(item)
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
    if not items or not (found := ask(CORE, *place, label_selector=selector, unless=HIDDEN)):
        return {}
    pods = {}
    for pod in sorted(found.items, key=lambda pod: pod.metadata.name):
        if not pod.metadata.deletion_timestamp:
            pods.setdefault(pod.metadata.labels.get(JOBSET_NAME), []).append(pod)
    recent = functools.cache(lambda: _events(sweep, sweep.id))  # asked for only where no pod tells
    return {item["metadata"]["uid"]: _of_pods(item, pods.get(item["metadata"]["name"], []), recent) for item in items}


def _of_pods(item: dict, pods: list, recent: Callable[[], list]) -> str:
    ended = [f"pod {pod.metadata.name}: {words}" for pod in pods if (words := _end(pod))][:1]
    if "Failed" in holding(item):
        return "".join(ended)
    (slices,) = item["spec"]["replicatedJobs"]
    needed = slices["replicas"] * slices["template"]["spec"]["parallelism"]
    waiting = [pod for pod in pods if pod.status.phase == "Pending"]
    if len(pods) - len(waiting) >= needed:
        return ""
    said = [f"pod {pod.metadata.name}: {words}" for pod in waiting if (words := _waits(pod))][:1] or ended
    if not said:
        name = item["metadata"]["name"]
        warnings = [event for event in recent() if event.type == "Warning" and name in event.involved_object.name]
        said = [_both(event.reason, event.message) for event in warnings[-1:]]
    return "; ".join([f"{len(pods) - len(waiting)} of {needed} pods run" if pods else "no pod yet", *said])


def _containers(pod: Any, kind: str) -> list:
    """The containers' states that are of this kind."""
    every = [*(pod.status.init_container_statuses or ()), *(pod.status.container_statuses or ())]
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
