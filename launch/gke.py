"""The GKE backend: a JobSet for each job, or bundle of jobs trained together, queued by Kueue, on TPU slices or GPUs.

Fields are those of jobset.x-k8s.io/v1alpha2, batch/v1 and core/v1. A pod that ends with exit code 2 fails its JobSet;
anything else, a preempted spot machine above all, restarts it, and `run_task` decides what counts as a failed try. The
job and its flags are read from sweep.json in the workdir: nothing of them stands in a manifest but the job's name.
"""

import os
import signal
import sys
import time

from absl import flags

from jmoe.errors import UNAVAILABLE, UserError
from jmoe.storage.files import is_remote
from launch import accelerators, cluster, trainer
from launch.jobs import jobs_of

ON_THIS_MACHINE = False
API_GROUP, VERSION, PLURAL = "jobset.x-k8s.io", "v1alpha2", "jobsets"
QUEUES, QUEUE_VERSIONS = "kueue.x-k8s.io", ("v1beta2", "v1beta1")
REPLICATED_JOB = "slice"
COORDINATOR_PORT = 8482  # jax's own for a coordinator on Cloud TPU
SECONDS_TO_SAVE = 25  # of the 30 that GKE gives a spot machine
SECONDS_TO_DELETE = 120.0
MAX_RESTARTS = 100  # for whatever never gets as far as launch.task's own count
SWEEP, JOB = "jmoe/sweep", "jmoe/job"  # labels
JOBS = "jmoe/jobs"  # annotation: the names of all jobs of the JobSet

flags.DEFINE_string("image", None, "gke: container image with this repository as its working directory.")
flags.DEFINE_string("queue", None, "gke: Kueue's LocalQueue.")
flags.DEFINE_string("namespace", "default", "gke: namespace.")
flags.DEFINE_string("service_account", None, "gke: Kubernetes account that may write --workdir.")
flags.DEFINE_integer("n_slices", 1, "gke: slices for each job.", 1)
flags.DEFINE_bool("spot", True, "gke: spot machines.")


def options() -> dict:
    names = ("image", "queue", "namespace", "service_account", "accelerator", "n_slices", "spot")
    return {name: flags.FLAGS[name].value for name in names}


def check(sweep) -> None:
    """Raises UserError for options that no JobSet can be made from."""
    for name in ("image", "accelerator", "queue"):
        if not sweep.options[name]:
            raise UserError(f"--backend=gke needs --{name}")
    accelerators.parse(sweep.options["accelerator"], sweep.options["n_slices"])
    if not is_remote(sweep.workdir):
        raise UserError(f"--backend=gke needs a --workdir on gs://, not {os.fspath(sweep.workdir)}: pods share no disk")


def ready(sweep) -> None:
    """Raises UserError where the cluster takes no such JobSet, or has no queue that would start it."""
    namespace, queue = sweep.options["namespace"], sweep.options["queue"]
    if not cluster.serves(API_GROUP, VERSION, PLURAL):
        raise UserError(f"--backend=gke: the cluster has no {PLURAL} of {API_GROUP}/{VERSION}, which JobSet brings")
    version = next((version for version in QUEUE_VERSIONS if cluster.serves(QUEUES, version, "localqueues")), None)
    if not version:
        raise UserError(f"--queue={queue}: the cluster has no localqueues of {QUEUES}, which Kueue brings")
    place = cluster.custom_objects, "list_namespaced_custom_object", QUEUES, version, namespace, "localqueues"
    if (found := cluster.ask(*place, unless=(403,))) is not None:  # who may not look may submit all the same
        queues = {item["metadata"]["name"]: item for item in found["items"]}
        if queue not in queues:
            names = ", ".join(sorted(queues)) or "none"
            raise UserError(f"--queue={queue}: namespace {namespace} has no such LocalQueue; it has {names}")
        for condition in queues[queue].get("status", {}).get("conditions", []):
            if (condition["type"], condition["status"]) == ("Active", "False"):
                print(f"--queue={queue} starts nothing now: {condition['message']}", file=sys.stderr)
    # the server checks one JobSet and keeps it not; that it has one of the name already is no objection
    first = jobset(sweep, sweep.bundles()[0])
    _call(sweep, "create", first, dry_run="All", field_validation="Strict", unless=(409,))


def devices(sweep, accelerator: str) -> tuple[int | None, float | None]:
    """Of a job, and the bytes of memory of each."""
    return accelerators.devices(accelerator, sweep.options["n_slices"])


def submit(sweep) -> str:
    """Creates the JobSet of each bundle that is neither finished nor has one; returns what it did.

    A JobSet that failed cannot be started twice: it is deleted first with all that belongs to it, so that the new one,
    of the same name, takes nothing over from it.

    Raises:
      UserError: no cluster can be reached, or it refuses.
    """
    known = states(sweep)
    # what completed without its results has lost them since
    over = lambda job: known.get(job.name, "failed").startswith(("failed", "stopping", "completed"))
    todo = [bundle for bundle in sweep.bundles() if all(map(over, bundle.jobs)) and not bundle.done()]
    for job in jobs_of(todo):
        trainer.forget_cause(job)
    if again := {job.name for job in jobs_of(todo)} & known.keys():
        _delete(sweep, [item for item in _list(sweep) if again & set(_jobs_in(item))])
    for bundle in todo:
        _call(sweep, "create", jobset(sweep, bundle), field_validation="Strict")
    done = "; all runs are done" if not todo and all(job.done() for job in sweep.trained) else ""
    return (
        f"created {len(todo)} JobSets in namespace {sweep.options['namespace']}; {len(known)} were there before{done}"
    )


def states(sweep) -> dict[str, str]:
    """Jobs that have a JobSet, with its state."""
    return {job: _state(item) for item in _list(sweep) for job in _jobs_in(item)}


def _state(item) -> str:
    """What becomes of a JobSet, in words."""
    if "deletionTimestamp" in item["metadata"]:
        return "stopping"
    status = item.get("status", {})
    ended = {c["type"]: c for c in status.get("conditions", []) if c["status"] == "True"}
    number = status.get("restarts", 0)
    restarts = f", {number} restarts" if number else ""
    if "Completed" in ended:
        return "completed" + restarts
    if "Failed" in ended:
        why = ended["Failed"].get("message") or ended["Failed"].get("reason", "")
        return f"failed ({'; '.join([f'{number} restarts'] * bool(number) + [why])})"
    # Kueue sets `suspend` and takes it back; the condition follows, and a new JobSet has none yet
    return ("queued" if item["spec"].get("suspend") else "running") + restarts


def cancel(sweep, patience: float) -> str:
    """Deletes the sweep's JobSets; running trainers get SIGTERM and the grace period to save."""
    items = _list(sweep)
    _delete(sweep, items)
    return f"deleted {len(items)} JobSets"


def _delete(sweep, items) -> None:
    """Deletes JobSets, and waits until they, their jobs and their pods are deleted (a deletion in the foreground)."""
    for item in items:
        _call(sweep, "delete", item["metadata"]["name"], propagation_policy="Foreground", unless=(404,))
    deadline, uids = time.monotonic() + SECONDS_TO_DELETE, {item["metadata"]["uid"] for item in items}
    while left := [item["metadata"] for item in _list(sweep) if item["metadata"]["uid"] in uids]:
        if time.monotonic() > deadline:
            held = ", ".join(left[0].get("finalizers", ["nothing"]))
            raise UserError(
                f"{len(left)} JobSets still exist {SECONDS_TO_DELETE:.0f} s after they were deleted: {left[0]['name']} "
                f"is held by {held}; kubectl describe tells more, and the same command goes on from here"
            )
        time.sleep(1)


def logs(sweep, job) -> bytes:
    """What the first pod of the job's JobSet printed."""
    name = next((item["metadata"]["name"] for item in _list(sweep) if job.name in _jobs_in(item)), None)
    if name is None:
        raise UserError(f"job {job.name} has no JobSet in namespace {sweep.options['namespace']}")
    namespace, selector = sweep.options["namespace"], f"jobset.sigs.k8s.io/jobset-name={name}"
    pods = cluster.ask(cluster.core, "list_namespaced_pod", namespace, label_selector=selector)
    names = sorted(pod.metadata.name for pod in pods.items)
    if not names:
        raise UserError(f"job {job.name} has no pod in namespace {namespace}")
    return cluster.ask(cluster.core, "read_namespaced_pod_log", names[0], namespace).encode()


def run_task(sweep, bundle) -> int:
    """Runs this pod's trainer once, and copies what it prints to the pod's log; Kubernetes starts it again unless the
    exit code is 2."""
    if bundle.done():
        return 0
    place = _process_environment()
    started, code = trainer.start_when_free(bundle, sweep.stall_minutes, env=place), None
    signal.signal(signal.SIGTERM, lambda *_: started.process.terminate())
    with open(bundle.log, "rb") as log:
        while code is None:
            time.sleep(0.5)
            code = started.poll()
            sys.stdout.buffer.write(log.read())
            sys.stdout.flush()
    if code in (0, UNAVAILABLE) or code in trainer.STOPPED and not started.stalled:
        return code
    if place.get("JAX_PROCESS_ID", "0") != "0" and not trainer.explained(code, started.cause(code)):
        return 1  # the first pod fails with it and counts the try
    return 2 if all(failure["for_good"] for failure in trainer.failed(started, code, sweep.retries).values()) else 1


def _process_environment() -> dict[str, str]:
    """jax's coordinates of this pod among the job's pods, from the variables of _environment; {} for a single pod."""
    n_hosts, n_slices = int(os.environ["JMOE_HOSTS"]), int(os.environ["JMOE_SLICES"])
    if n_hosts * n_slices == 1:
        return {}
    place = int(os.environ["JMOE_SLICE_INDEX"]) * n_hosts + int(os.environ["JOB_COMPLETION_INDEX"])
    return {"JAX_NUM_PROCESSES": str(n_hosts * n_slices), "JAX_PROCESS_ID": str(place)}


def preview(sweep) -> str:
    """Every manifest of the sweep, for kubectl and for reading."""
    import yaml

    return yaml.safe_dump_all([jobset(sweep, bundle) for bundle in sweep.bundles()], sort_keys=False)


def jobset(sweep, bundle) -> dict:
    """The manifest for one bundle of jobs."""
    options, name = sweep.options, f"{sweep.id}-{bundle.name}"
    place = accelerators.parse(options["accelerator"], options["n_slices"])
    labels = {SWEEP: sweep.id, JOB: bundle.name}
    for_good = {"containerName": "trainer", "operator": "In", "values": [2]}
    job = {
        "parallelism": place.n_hosts,
        "completions": place.n_hosts,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": for_good}]},
        "template": {"metadata": {"labels": labels}, "spec": _pod(sweep, bundle, name, place)},
    }
    annotations = {JOBS: ",".join(trained.name for trained in bundle.jobs)}
    if place.is_tpu and place.n_hosts > 1:  # such a slice is a node pool of its own; those of one host share one
        annotations["alpha.jobset.sigs.k8s.io/exclusive-topology"] = "cloud.google.com/gke-nodepool"
    return {
        "apiVersion": f"{API_GROUP}/{VERSION}",
        "kind": "JobSet",
        "metadata": {
            "name": name,
            "namespace": options["namespace"],
            "labels": labels | {"kueue.x-k8s.io/queue-name": options["queue"]},
            "annotations": annotations,
        },
        "spec": {
            "suspend": True,  # until Kueue admits all of its pods at once
            "network": {"enableDNSHostnames": True},
            "failurePolicy": {
                "maxRestarts": MAX_RESTARTS,
                "rules": [{"name": "for_good", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}],
            },
            "replicatedJobs": [{"name": REPLICATED_JOB, "replicas": place.n_slices, "template": {"spec": job}}],
        },
    }


def _pod(sweep, bundle, name: str, place) -> dict:
    """The spec of each pod of the JobSet `name`."""
    command = ["python", "-m", "launch.task", f"--workdir={os.fspath(sweep.workdir)}"]
    command += [f"--job={job.name}" for job in bundle.jobs]
    resource = "google.com/tpu" if place.is_tpu else "nvidia.com/gpu"
    chips = {resource: str(place.chips_per_host)}  # a quantity
    container = {
        "name": "trainer",
        "image": sweep.options["image"],
        "command": [literal(argument) for argument in command],
        "env": _environment(sweep, name, place),
        "resources": {"requests": chips, "limits": dict(chips)},
    }
    gke = "cloud.google.com/gke-"
    node = {f"{gke}{'tpu-' if place.is_tpu else ''}accelerator": accelerators.GKE[place.kind]}
    node |= {f"{gke}tpu-topology": place.topology} if place.is_tpu else {}
    tolerations = [{"key": resource, "operator": "Exists", "effect": "NoSchedule"}]
    if sweep.options["spot"]:
        node[f"{gke}spot"] = "true"
        tolerations.append({"key": f"{gke}spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"})
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": SECONDS_TO_SAVE,
        "nodeSelector": node,
        "tolerations": tolerations,
        "containers": [container],
    }
    return pod | ({"serviceAccountName": account} if (account := sweep.options["service_account"]) else {})


def literal(argument: str) -> str:
    """An argument that Kubernetes hands on as it stands: it would expand $(NAME) in commands, and $$ is its escape."""
    return argument.replace("$", "$$")


def _environment(sweep, name: str, place) -> list[dict]:
    slice_index = {"fieldRef": {"fieldPath": "metadata.labels['jobset.sigs.k8s.io/job-index']"}}
    env = [
        {"name": "JAX_COMPILATION_CACHE_DIR", "value": literal(os.fspath(sweep.workdir / "compiled"))},
        {"name": "JMOE_HOSTS", "value": str(place.n_hosts)},
        {"name": "JMOE_SLICES", "value": str(place.n_slices)},
        {"name": "JMOE_SLICE_INDEX", "valueFrom": slice_index},
    ]
    if place.n_hosts * place.n_slices > 1:
        address = f"{name}-{REPLICATED_JOB}-0-0.{name}:{COORDINATOR_PORT}"
        env.append({"name": "JAX_COORDINATOR_ADDRESS", "value": address})
    return env


def _jobs_in(item) -> list[str]:
    """The jobs that a JobSet trains."""
    return item["metadata"]["annotations"][JOBS].split(",")


def _list(sweep) -> list[dict]:
    return _call(sweep, "list", label_selector=f"{SWEEP}={sweep.id}")["items"]


def _call(sweep, verb: str, *args, **kwargs):
    """Creates, deletes or lists JobSets in the sweep's namespace."""
    place = API_GROUP, VERSION, sweep.options["namespace"], PLURAL
    return cluster.ask(cluster.custom_objects, f"{verb}_namespaced_custom_object", *place, *args, **kwargs)
