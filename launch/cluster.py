"""The Kubernetes API server that the kubeconfig's current context names, and what it knows of a job.

`ask` calls it through the official client. The other functions return what a job's pods printed, why they do not run,
and what else Kubernetes and Kueue report of them.

A refusal raises a UserError that quotes the server. Who may not read Workloads, pods or events gets fewer reasons.
Expired credentials are read again, once for each call. A pod's log is deleted with the pod, and a restart creates new
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
from jmoe.printable import printable
from jmoe.storage.files import write_whole
from launch import output, trainer
from launch.backend import Sweep
from launch.jobs import Job
from launch.manifest import AGAIN, SWEEP

BATCH = "BatchV1Api"
CORE = "CoreV1Api"
CUSTOM = "CustomObjectsApi"
# To connect, and to the next piece of an answer: a server may hang. The client tries twice, so that a command reports
# it within a minute. A log that is followed may pause for longer.
SECONDS_TO_ANSWER = (5, 20)
SECONDS_BETWEEN_LINES = 60
AWAY = (429, 500, 502, 503, 504)  # HTTP codes of a server that starts, stops or has too much to do
SECONDS_BETWEEN_LOOKS = 5.0
CONTINUES = "the same command continues when it answers"
QUEUES = "kueue.x-k8s.io"
QUEUE_VERSIONS = ("v1beta2", "v1beta1")
JOB_UID = "kueue.x-k8s.io/job-uid"  # label of a Workload: its JobSet
JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"  # label of a pod
UNINFORMATIVE = ("ContainerCreating", "PodInitializing")  # reasons of a container that starts as it should
HIDDEN = (403, 404)  # what the user may not read, or the cluster does not serve
# reasons of the condition and of the event of a Job that failed
JOB_FAILURES = (
    "PodFailurePolicy",
    "BackoffLimitExceeded",
    "DeadlineExceeded",
    "MaxFailedIndexesExceeded",
    "FailedIndexes",
)
INDEX_OF_SLICE = "jobset.sigs.k8s.io/job-index"
INDEX_OF_MACHINE = "batch.kubernetes.io/job-completion-index"


# The methods that the server has answered in this process. A server that starts knows no JobSets for a moment, and
# says of them "404 page not found". That is no refusal if it served them before, or was away.
_served: set[str] = set()


def ask(api: str, method: str, *args: Any, unless: tuple[int, ...] = (), **kwargs: Any) -> Any:
    """Calls a method of the Kubernetes client.

    Args:
      api: The client's class, CORE or CUSTOM.
      method: The name of the method.
      *args: Its arguments.
      unless: HTTP codes for which None is returned.
      **kwargs: Its keyword arguments.

    Returns:
      The server's answer; None if its HTTP code is one of `unless`.

    Raises:
      UserError: No cluster is known, or it refuses.
      Unavailable: The cluster cannot be reached, or gives no answer.
    """
    _client()  # raises UserError if the client library or the kubeconfig is missing
    import kubernetes
    import urllib3

    kwargs = {"_request_timeout": SECONDS_TO_ANSWER} | kwargs
    for credentials in ("cached", "read again"):
        try:
            call = getattr(getattr(kubernetes.client, api)(_client()), method)
            answer = _checked(method, call(*args, **kwargs))
            _served.add(method)
            return answer
        except kubernetes.client.ApiException as error:
            if error.status in unless:
                return None
            if error.status == 401 and credentials == "cached":
                _client.cache_clear()
                continue
            raise _refusal(method, error) from None
        except urllib3.exceptions.HTTPError as error:
            _served.add("was away")
            raise Unavailable(f"the cluster cannot be reached: {printable(str(error))}; {CONTINUES}") from None
        except (ValueError, TypeError, AttributeError) as error:  # the client cannot parse the answer
            why = printable(str(error))[:300]
            raise Unavailable(f"what answers is no API server of Kubernetes ({why}); {CONTINUES}") from None


def _refusal(method: str, error: Any) -> UserError | Unavailable:
    """The error for an ApiException: Unavailable if the server is away for a while, else UserError."""
    body = str(error.body or "")
    message = body.strip()[:500]
    with contextlib.suppress(ValueError, LookupError, TypeError):  # as a rule the answer is a Kubernetes Status
        message = str(json.loads(error.body or "")["message"])
    message = printable(f"{error.status} {error.reason}: {message}")
    is_unserved = error.status == 404 and not body.startswith("{")
    served_before = bool(_served & {method, "was away"})
    is_away = is_unserved and served_before
    if error.status in AWAY or is_away:
        return Unavailable(f"the cluster gives no answer: {message}; {CONTINUES}")
    hint = "; gcloud auth login, or what the kubeconfig names, makes new credentials" if error.status == 401 else ""
    return UserError(f"the cluster refuses: {message}{hint}")


def _checked(method: str, answer: Any) -> Any:
    """The answer; ValueError if no API server gives such a one, but a proxy, say, with a page of its own."""
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
    return listed is not None and any(kind.name == resource for kind in listed.resources)


def true_conditions(item: dict) -> dict[str, dict]:
    """The conditions of an object that are true, by type."""
    return {c["type"]: c for c in item.get("status", {}).get("conditions", []) if c["status"] == "True"}


@functools.cache
def _client() -> Any:
    """The process's client, which keeps its connection and runs the kubeconfig's credential program once."""
    try:
        import kubernetes
        import yaml
    except ImportError:
        raise UserError("--backend=gke needs the kubernetes client: pip install -e '.[gke]'") from None
    import urllib3

    try:
        client = kubernetes.config.new_client_from_config()
        # by default the client tries four times, which takes minutes if the server hangs
        client.configuration.retries = urllib3.Retry(total=1, status=0, raise_on_status=False)
        return kubernetes.client.ApiClient(client.configuration)
    except (kubernetes.config.ConfigException, yaml.YAMLError, OSError) as error:
        words = " ".join(str(error).split())
        raise UserError(
            f"--backend=gke finds no cluster: {words}; gcloud container clusters get-credentials makes one known"
        ) from None


def copy_log(job: Job, rank: int) -> None:
    """Copies the log of the try that ended on this pod to the job's folder."""
    job.refuse_links()
    text = output.log(job, -1).decode(errors="replace")
    path = job.folder / "logs" / f"{output.now()}-rank{rank}.txt"
    with contextlib.suppress(Unavailable):  # a log that cannot be stored is no reason for another try
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)


def logs(sweep: Sweep, job: Job, item: dict | None, rank: int | None, attempt: int | None) -> bytes:
    """The output of a process of the job, and what Kubernetes reports of its JobSet.

    Args:
      sweep: The sweep that the job belongs to.
      job: The job.
      item: Its JobSet, if it has one.
      rank: Only what this process printed. None: what the first one printed, and the JobSet's conditions and events.
      attempt: Only this try, from its copied log. The newest try is that of the pod that runs, if one does.

    Raises:
      UserError: There is no JobSet, no pod or no such try.
    """
    pod = _pod(sweep, item, rank or 0) if item else None
    if attempt is not None:
        copies = sorted((job.folder / "logs").glob(f"*-rank{rank or 0}.txt"))
        readers: list[Callable[[], bytes]] = [path.read_bytes for path in copies]
        if pod and pod.status.phase in ("Pending", "Running"):
            readers.append(lambda: _log(sweep, pod))
        read = output.one_try(readers, attempt, job)
        return read()
    if item is None:
        raise UserError(f"job {job.name} has no JobSet in namespace {sweep.options['namespace']}")
    text = _log(sweep, pod) if pod else b""
    report = _conditions_and_events(sweep, item) if rank is None else []
    if not text and not report:
        raise UserError(f"job {job.name} has no pod in namespace {sweep.options['namespace']}")
    return text + "".join(f"{line}\n" for line in report).encode()


def follow(sweep: Sweep, look: Callable[[], dict | None], rank: int) -> Iterator[bytes]:
    """Yields what process `rank` prints, pod after pod, until the JobSet that look() returns has ended or is gone."""
    n_shown: dict[str, int] = {}  # bytes shown of each pod, by uid
    ended = set()  # pods that print no more, by uid
    while item := look():
        is_over = bool({"Completed", "Failed"} & true_conditions(item).keys())
        pod = _pod(sweep, item, rank)
        if pod and pod.status.phase != "Pending" and pod.metadata.uid not in ended:
            uid = pod.metadata.uid
            if n_shown and uid not in n_shown:
                yield f"==> {pod.metadata.name} <==\n".encode()
            n_shown.setdefault(uid, 0)
            for text in _stream(sweep, pod, n_shown[uid]):
                n_shown[uid] += len(text)
                yield text
            if pod.status.phase != "Running":
                ended.add(uid)
        if is_over:
            return
        time.sleep(SECONDS_BETWEEN_LOOKS)


def _stream(sweep: Sweep, pod: Any, skip: int) -> Iterator[bytes]:
    """Yields what the pod prints after its first `skip` bytes until the pod, or the connection, ends."""
    import urllib3

    log = ask(
        CORE,
        "read_namespaced_pod_log",
        pod.metadata.name,
        sweep.options["namespace"],
        container="trainer",
        follow=True,
        _preload_content=False,
        _request_timeout=(SECONDS_TO_ANSWER[0], SECONDS_BETWEEN_LINES),
    )
    with contextlib.closing(log), contextlib.suppress(urllib3.exceptions.HTTPError):
        for text in log.stream(4096, decode_content=True):
            if text[skip:]:
                yield text[skip:]
            skip = max(0, skip - len(text))


def _pod(sweep: Sweep, item: dict, rank: int) -> Any:
    """The newest pod of that rank, or None."""
    selector = f"{JOBSET_NAME}={item['metadata']['name']}"
    pods = ask(CORE, "list_namespaced_pod", sweep.options["namespace"], label_selector=selector).items
    n_hosts = item["spec"]["replicatedJobs"][0]["template"]["spec"]["parallelism"]
    pods_of_rank = [pod for pod in pods if _rank_of(pod, n_hosts) == rank]
    return max(pods_of_rank, key=lambda pod: str(pod.metadata.creation_timestamp), default=None)


def _rank_of(pod: Any, n_hosts: int) -> int:
    """The rank of a pod's process in a job whose slices have `n_hosts` machines."""
    index_of_slice = int(pod.metadata.labels.get(INDEX_OF_SLICE, 0))
    index_of_machine = int(pod.metadata.labels.get(INDEX_OF_MACHINE, 0))
    return index_of_slice * n_hosts + index_of_machine


def _log(sweep: Sweep, pod: Any) -> bytes:
    """The output of the pod's trainer; b"" before it has started."""
    if pod.status.phase == "Pending":
        return b""
    namespace = sweep.options["namespace"]
    return ask(CORE, "read_namespaced_pod_log", pod.metadata.name, namespace, container="trainer").encode()


def _conditions_and_events(sweep: Sweep, item: dict) -> list[str]:
    """The JobSet's conditions, how its Jobs failed, and the events of all objects whose names contain its name.

    The events come last, the oldest of them first.
    """
    name = item["metadata"]["name"]
    lines = [f"==> JobSet {name} <=="]
    for c in item.get("status", {}).get("conditions", []):
        lines.append(f"{c['type']}={c['status']} {c.get('reason', '')}: {c.get('message', '')}")
    for job, condition in _failed_jobs(sweep, name):
        lines.append(f"Job {job} failed: {_with_message(condition.reason, condition.message)}")
    for event in _events(sweep, name):
        what = f"{event.involved_object.kind} {event.involved_object.name}"
        lines.append(f"{event.last_timestamp or event.event_time} {what}: {event.reason}: {event.message}")
    return [printable(line) for line in lines] if len(lines) > 1 else []


def _events(sweep: Sweep, name: str) -> list:
    """The events of all objects whose names contain `name`, oldest first; [] if the user may not read them."""
    answer = ask(CORE, "list_namespaced_event", sweep.options["namespace"], unless=HIDDEN)
    if not answer:
        return []
    events = [event for event in answer.items if name in (event.involved_object.name or "")]
    return sorted(events, key=lambda event: str(event.last_timestamp or event.event_time))


def _failed_jobs(sweep: Sweep, jobset: str | None = None) -> list[tuple[str, Any]]:
    """The name and the condition of each Job that failed, of one JobSet or of all in the namespace.

    Returns [] if the user may not read Jobs.
    """
    selector = JOBSET_NAME if jobset is None else f"{JOBSET_NAME}={jobset}"
    namespace = sweep.options["namespace"]
    answer = ask(BATCH, "list_namespaced_job", namespace, label_selector=selector, unless=HIDDEN)
    failed = []
    for job in answer.items if answer else ():
        for condition in job.status.conditions or ():
            if (condition.type, condition.status) == ("Failed", "True"):
                failed.append((job.metadata.name, condition))
    return sorted(failed, key=lambda job_and_condition: str(job_and_condition[1].last_transition_time))


def reasons(sweep: Sweep, items: list[dict]) -> dict[str, str]:
    """By the uid of a JobSet, why its pods do not run or how it failed; nothing if all of its pods run."""
    items = [item for item in items if "Completed" not in true_conditions(item)]
    queued = [item for item in items if item["spec"].get("suspend")]
    admitted = [item for item in items if item not in queued]
    why = _reasons_of_queued(sweep, queued) | _reasons_of_admitted(sweep, admitted)
    return {uid: printable(" ".join(words.split())) for uid, words in why.items() if words}


def _reasons_of_queued(sweep: Sweep, items: list[dict]) -> dict[str, str]:
    """By uid, what Kueue reports of each of these JobSets, which it holds back."""
    if not items:
        return {}
    namespace = sweep.options["namespace"]
    for version in QUEUE_VERSIONS:
        answer = ask(CUSTOM, "list_namespaced_custom_object", QUEUES, version, namespace, "workloads", unless=HIDDEN)
        if answer is None:
            continue
        why = {item["metadata"].get("labels", {}).get(JOB_UID): _why_not_admitted(item) for item in answer["items"]}
        uids = [item["metadata"]["uid"] for item in items]
        return {uid: why.get(uid, "Kueue has made no Workload of it; does it manage JobSets?") for uid in uids}
    return {}


def _why_not_admitted(item: dict) -> str:
    """Why Kueue does not admit a Workload, or took its admission back."""
    status = item.get("status", {})
    conditions = true_conditions(item)
    message = {c["type"]: c.get("message") or c.get("reason", "") for c in status.get("conditions", [])}
    reasons = []
    if "Evicted" in conditions:
        reasons.append(f"evicted: {message['Evicted']}")
    if "QuotaReserved" not in conditions:
        reasons.append(message.get("QuotaReserved", "not looked at yet"))
    elif "Admitted" not in conditions:
        for check in status.get("admissionChecks", []):
            if check["state"] != "Ready":
                summary = f"admission check {check['name']} is {check['state']}"
                reasons.append(_with_message(summary, check.get("message")))
    return f"Kueue: {'; '.join(reasons) or 'admitted, about to start'}"


def _reasons_of_admitted(sweep: Sweep, items: list[dict]) -> dict[str, str]:
    """By uid, why each of these JobSets has too few running pods, or how its Job or one of its pods failed."""
    if not items:
        return {}
    selector = f"{SWEEP}={sweep.id}"
    answer = ask(CORE, "list_namespaced_pod", sweep.options["namespace"], label_selector=selector, unless=HIDDEN)
    if not answer:
        return {}
    pods_of = {}  # by the name of the JobSet
    for pod in sorted(answer.items, key=lambda pod: pod.metadata.name):
        if not pod.metadata.deletion_timestamp:
            pods_of.setdefault(pod.metadata.labels.get(JOBSET_NAME), []).append(pod)

    @functools.cache
    def events() -> list:
        """The sweep's events, requested only if no pod says why it waits."""
        return _events(sweep, sweep.id)

    @functools.cache
    def failed_jobs() -> list[tuple[str, Any]]:
        """The Jobs that failed, requested only if a JobSet failed."""
        return _failed_jobs(sweep)

    reasons = {}
    for item in items:
        name = item["metadata"]["name"]
        pods = pods_of.get(name, [])
        if "Failed" in true_conditions(item):
            how = [*_how_jobs_failed(name, failed_jobs(), events), *_first_reason(pods, _end)]
            reasons[item["metadata"]["uid"]] = "; ".join(how)
        else:
            reasons[item["metadata"]["uid"]] = _why_pods_do_not_run(item, pods, events)
    return reasons


def _how_jobs_failed(jobset: str, failed_jobs: list[tuple[str, Any]], events: Callable[[], list]) -> list[str]:
    """How the first Job of a JobSet failed, as a list of one sentence; [] if Kubernetes does not say.

    The Job's condition says so or, once the Job is deleted, its event.
    """
    for name, condition in failed_jobs:
        if name.startswith(f"{jobset}-"):
            return [f"job {name}: {_with_message(condition.reason, condition.message)}"]
    for event in events():
        name = event.involved_object.name or ""
        is_of_job = event.involved_object.kind == "Job" and name.startswith(f"{jobset}-")
        if is_of_job and event.reason in JOB_FAILURES:
            return [f"job {name}: {_with_message(event.reason, event.message)}"]
    return []


def _why_pods_do_not_run(item: dict, pods: list, events: Callable[[], list]) -> str:
    """Why a JobSet that has not failed has fewer running pods than it needs; "" if all run."""
    ends = _first_reason(pods, _end)
    (slices,) = item["spec"]["replicatedJobs"]
    n_needed = slices["replicas"] * slices["template"]["spec"]["parallelism"]
    waiting = [pod for pod in pods if pod.status.phase == "Pending"]
    n_running = len(pods) - len(waiting)
    if n_running >= n_needed:
        return ""
    reasons = _first_reason(waiting, _why_waiting) or ends
    if not reasons:
        name = item["metadata"]["name"]
        warnings = [event for event in events() if event.type == "Warning" and name in event.involved_object.name]
        reasons = [_with_message(event.reason, event.message) for event in warnings[-1:]]
    summary = f"{n_running} of {n_needed} pods run" if pods else "no pod yet"
    return "; ".join([summary, *reasons])


def _first_reason(pods: list, reason_of: Callable[[Any], str]) -> list[str]:
    """The name and the reason of the first pod that has one, as a list of one sentence; [] if none has."""
    for pod in pods:
        reason = reason_of(pod)
        if reason:
            return [f"pod {pod.metadata.name}: {reason}"]
    return []


def _container_states(pod: Any, kind: str) -> list:
    """The states of the pod's containers that are of this kind: "waiting" or "terminated"."""
    containers = [*(pod.status.init_container_statuses or ()), *(pod.status.container_statuses or ())]
    states = [getattr(container.state, kind) for container in containers if container.state]
    return [state for state in states if state]


def _why_waiting(pod: Any) -> str:
    """Why a waiting pod does not start; "" if Kubernetes does not say."""
    waiting = [state for state in _container_states(pod, "waiting") if state.reason not in (None, *UNINFORMATIVE)]
    unscheduled = [c for c in pod.status.conditions or () if (c.type, c.status) == ("PodScheduled", "False")]
    for cause in [*waiting, *unscheduled]:
        return _with_message(cause.reason, cause.message)
    return ""


def _end(pod: Any) -> str:
    """How a container ended for which launch.task has recorded no cause; "" if none did."""
    for end in _container_states(pod, "terminated"):
        if end.exit_code not in (0, trainer.FAILED_FOR_GOOD, *AGAIN):
            return _with_message(f"exit code {end.exit_code}, {end.reason or 'Error'}", end.message)
    return ""


def _with_message(reason: str, message: str | None) -> str:
    return f"{reason}: {message}" if message else reason
