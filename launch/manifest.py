"""The manifest of a JobSet: what --backend=gke creates for each job.

launch/jobset.yaml is the template; this module fills in the values that differ between sweeps and jobs. A pod reads its
job and the job's flags from sweep.json in the workdir: the manifest holds only the job's name. What most pods need has
a flag here. Anything else (volumes, tolerations, an account's files) belongs in a YAML file, which --pod_patch merges
over the pod.
"""

import json
import os
import pathlib
import re
import string
from typing import Any

from absl import flags

from jmoe.errors import UNAVAILABLE, UserError
from jmoe.printable import printable
from launch import accelerators, trainer
from launch.backend import Sweep
from launch.jobs import Job

TEMPLATE = pathlib.Path(__file__).with_name("jobset.yaml")
API_GROUP = "jobset.x-k8s.io"
VERSION = "v1alpha2"
PLURAL = "jobsets"
COORDINATOR_PORT = 8482  # jax's default for a coordinator on Cloud TPU
SPOT_SECONDS_TO_SAVE = 25  # the most that GKE gives a pod of a spot machine when it is preempted
SECONDS_TO_SAVE = int(trainer.SECONDS_TO_SAVE) + 30  # on other machines, with time to copy the log
AGAIN = (UNAVAILABLE, *trainer.STOPPED)  # exit codes of launch.task that request another try
SWEEP = "jmoe/sweep"  # label
JOB = "jmoe/job"  # label
RESERVED_LABELS = (SWEEP, JOB, "kueue.x-k8s.io/queue-name")
RESERVED_VARIABLES = (
    "JAX_COMPILATION_CACHE_DIR",
    "JMOE_HOSTS",
    "JMOE_SLICES",
    "JMOE_SLICE_INDEX",
    "JAX_COORDINATOR_ADDRESS",
    "JAX_NUM_PROCESSES",
    "JAX_PROCESS_ID",
)
LISTS = {"containers", "initContainers", "volumes", "tolerations", "imagePullSecrets", "hostAliases"}  # of a pod's spec
SAVED_FLAGS = (
    "image",
    "queue",
    "namespace",
    "service_account",
    "accelerator",
    "n_slices",
    "reservation",
    "flex_start",
    "priority_class",
    "ttl_hours",
    "secret",
    "pull_secret",
)
GKE = "cloud.google.com/gke-"  # how GKE's own labels and taints begin

flags.DEFINE_string("image", None, "gke: Container image with this repository as its working directory.")
flags.DEFINE_string("queue", None, "gke: Name of Kueue's LocalQueue.")
flags.DEFINE_string("namespace", "default", "gke: Kubernetes namespace.")
flags.DEFINE_string("service_account", None, "gke: Kubernetes account that may write --workdir (by Workload Identity).")
flags.DEFINE_integer("n_slices", 1, "gke: Number of slices for each job.", 1)
flags.DEFINE_bool("spot", True, "gke: Use spot machines. Default: yes, unless --reservation or --flex_start is given.")
flags.DEFINE_string("reservation", None, "gke: Reservation to run in: NAME, or PROJECT/NAME if it is shared.")
flags.DEFINE_bool("flex_start", False, "gke: Start a job when all of its machines can (Dynamic Workload Scheduler).")
flags.DEFINE_string("priority_class", None, "gke: PriorityClass of the pods. Kueue uses it too.")
flags.DEFINE_float("ttl_hours", None, "gke: Hours until a finished JobSet is deleted. Default: it stays.", 0, 5e5)
flags.DEFINE_multi_string("env", [], "gke: Environment variable of the trainer: NAME=VALUE.")
flags.DEFINE_multi_string("secret", [], "gke: Secret whose entries become environment variables of the trainer.")
flags.DEFINE_multi_string("pull_secret", [], "gke: Secret to pull the image with.")
flags.DEFINE_multi_string("label", [], "gke: Label of JobSets and pods: NAME=VALUE.")
flags.DEFINE_multi_string("annotation", [], "gke: Annotation of JobSets and pods: NAME=VALUE.")
flags.DEFINE_multi_string(
    "pod_patch", [], "gke: YAML file with metadata, spec or both, to merge over those of each pod."
)


def options() -> dict:
    """The values of the flags that sweep.json keeps; of --pod_patch, the contents of the files.

    Raises:
      UserError: No manifest can be made from a flag's value, or from a file.
    """
    values = {name: flags.FLAGS[name].value for name in SAVED_FLAGS}
    other_machines = bool(values["reservation"] or values["flex_start"])
    spot_by_default = flags.FLAGS["spot"].using_default_value
    values["spot"] = flags.FLAGS.spot and not (other_machines and spot_by_default)
    for name in ("env", "label", "annotation"):
        values[name] = _pairs(name)
    values["pod_patch"] = [_patch(path) for path in flags.FLAGS.pod_patch]
    return values


def check(options: dict) -> None:
    """Raises UserError for options that contradict each other or name no machines."""
    for name in ("image", "accelerator", "queue"):
        if not options[name]:
            raise UserError(f"--backend=gke needs --{name}")
    for name in ("namespace", "queue", "service_account", "priority_class", "secret", "pull_secret"):
        values = options.get(name) or []
        for value in [values] if isinstance(values, str) else values:
            if not re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", value, re.ASCII):
                raise UserError(f"--{name}={value}: a name in Kubernetes has at most 253 of a-z, 0-9, '-' and '.'")
    accelerators.parse(options["accelerator"], options["n_slices"])
    kinds = [f"--{name}" for name in ("spot", "reservation", "flex_start") if options.get(name)]
    if len(kinds) > 1:
        raise UserError(f"{' and '.join(kinds)} exclude each other: a machine is of one kind")


def _pairs(flag: str) -> dict[str, str]:
    """The NAME=VALUE pairs of a flag; UserError if Kubernetes would not take one, or the sweep sets it."""
    is_env = flag == "env"
    reserved = RESERVED_VARIABLES if is_env else RESERVED_LABELS
    pairs = {}
    form = r"[A-Za-z_]\w*" if is_env else r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-\w.]*[A-Za-z0-9])?"
    for text in flags.FLAGS[flag].value or ():
        name, equals, value = text.partition("=")
        if not equals or not re.fullmatch(form, name, re.ASCII):
            raise UserError(f"--{flag}={text}: give it as NAME=VALUE, with a name that Kubernetes takes")
        if name in reserved:
            raise UserError(f"--{flag}={text}: the sweep itself sets {name}")
        if flag == "label" and not re.fullmatch(r"([A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?)?", value, re.ASCII):
            raise UserError(f"--label={text}: a label's value has at most 63 letters, digits, '-', '_' and '.'")
        pairs[name] = value
    return pairs


def _patch(path: str) -> dict:
    """The contents of a file of --pod_patch; UserError if it cannot be read or is no part of a pod."""
    patch = _read_yaml(path)
    _check_pod(path, patch)
    _check_is_json(path, patch)
    return patch


def _read_yaml(path: str) -> Any:
    import yaml

    try:
        with open(path, encoding="utf-8") as file:
            return yaml.safe_load(file)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"--pod_patch={path} cannot be read: {' '.join(str(error).split())}") from None


def _check_pod(path: str, patch: Any) -> None:
    """Raises UserError if the patch is not metadata and spec of a pod, in form."""
    if not isinstance(patch, dict) or not patch or not patch.keys() <= {"metadata", "spec"}:
        content = ", ".join(map(str, patch)) if isinstance(patch, dict) else type(patch).__name__
        raise UserError(f"--pod_patch={path} must hold metadata, spec or both, as a pod has them, not {content}")
    for part, value in patch.items():
        if not isinstance(value, dict):
            content = printable(json.dumps(value, default=str)[:60])
            raise UserError(f"--pod_patch={path}: {part} must hold fields, as that of a pod does, not {content}")
    for name in LISTS & patch.get("spec", {}).keys():
        value = patch["spec"][name]
        is_list = isinstance(value, list) and all(isinstance(item, dict) for item in value)
        if not is_list and (value is not None or name == "containers"):
            content = printable(json.dumps(value, default=str)[:60])
            raise UserError(
                f"--pod_patch={path}: spec.{name} must be a list of objects, as a pod has it, not {content}"
            )


def _check_is_json(path: str, patch: dict) -> None:
    """Raises UserError if the patch holds what JSON cannot: sweep.json keeps it, and the cluster takes nothing else."""

    def refused(value: Any) -> None:
        raise UserError(f"--pod_patch={path}: {value} is a {type(value).__name__} in YAML: for a text put it in quotes")

    try:
        json.dumps(patch, default=refused, allow_nan=False)
    except (ValueError, RecursionError, TypeError) as error:  # NaN, infinity; a part of itself; a name that is no text
        raise UserError(
            f"--pod_patch={path}: {error}: a manifest holds text, finite numbers, lists and fields"
        ) from None


def merged(base: Any, patch: Any) -> Any:
    """`patch` merged over `base`, both parts of a manifest, much as `kubectl patch` does it.

    Objects are merged field by field, and null removes a field. Lists of objects are joined: an item of the patch is
    merged into the base's item with the same mountPath, or else the same name. It is appended if there is none. For
    anything else, a list of words such as a command included, the patch's value counts. Neither argument is changed.
    """
    if isinstance(patch, dict):
        base = base if isinstance(base, dict) else {}
        both = base | {name: merged(base.get(name), value) for name, value in patch.items()}
        return {name: value for name, value in both.items() if value is not None}
    if not isinstance(patch, list) or not all(isinstance(item, dict) for item in patch):
        return patch
    by_key: dict[object, Any] = {_key(item) or i: item for i, item in enumerate(base if isinstance(base, list) else ())}
    for item in patch:
        key = _key(item) or len(by_key)
        by_key[key] = merged(by_key.get(key), item)
    return list(by_key.values())


def _key(item: Any) -> tuple | None:
    """The (field, value) that identifies an item of a list; None if it has no such field."""
    if not isinstance(item, dict):
        return None
    for field in ("mountPath", "name"):
        if field in item:
            return field, item[field]
    return None


def jobset(sweep: Sweep, job: Job) -> dict:
    """The manifest for one job of the sweep: launch/jobset.yaml with its values, patched."""
    import yaml

    hardware = accelerators.parse(sweep.options["accelerator"], sweep.options["n_slices"])
    values = {key: json.dumps(value) for key, value in _template_values(sweep, job, hardware).items()}
    text = string.Template(TEMPLATE.read_text()).substitute(values)
    manifest = merged({}, yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    slice_spec = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]
    for patch in [_pod_of_flags(sweep, job, hardware), *sweep.options.get("pod_patch", [])]:
        slice_spec["template"] = merged(slice_spec["template"], patch)
    return manifest


def _template_values(sweep: Sweep, job: Job, hardware: accelerators.Slice) -> dict[str, Any]:
    """The value of each $name in launch/jobset.yaml."""
    options = sweep.options
    resource = "google.com/tpu" if hardware.topology else "nvidia.com/gpu"
    node, tolerations = _node_selector_and_tolerations(options, hardware)
    labels = options.get("label", {}) | {SWEEP: sweep.id, JOB: job.name}
    annotations = dict(options.get("annotation", {}))
    if hardware.topology and hardware.n_hosts > 1:  # a slice of several hosts has a node pool to itself
        annotations["alpha.jobset.sigs.k8s.io/exclusive-topology"] = f"{GKE}nodepool"
    ttl_hours = options.get("ttl_hours")
    return {
        "name": _jobset_name(sweep, job),
        "namespace": options["namespace"],
        "labels": labels | {"kueue.x-k8s.io/queue-name": options["queue"]},
        "annotations": annotations or None,
        "ttl_seconds": None if ttl_hours is None else int(ttl_hours * 3600),
        "retries": sweep.retries,
        "for_good": trainer.FAILED_FOR_GOOD,
        "n_slices": hardware.n_slices,
        "n_hosts": hardware.n_hosts,
        "known_codes": [trainer.FAILED_FOR_GOOD, *AGAIN],
        "pod_labels": labels,
        "seconds_to_save": SPOT_SECONDS_TO_SAVE if options.get("spot") else SECONDS_TO_SAVE,
        "service_account": options.get("service_account"),
        "priority_class": options.get("priority_class"),
        "pull_secrets": [{"name": secret} for secret in options.get("pull_secret") or ()] or None,
        "node": node,
        "tolerations": [{"key": resource, "operator": "Exists", "effect": "NoSchedule"}, *tolerations],
        "image": options["image"],
        "args": [
            literal(f"--workdir={os.fspath(sweep.workdir)}"),
            f"--job={job.name}",
            *map(literal, sweep.programs(job)),
        ],
        "compiled": literal(os.fspath(sweep.workdir / "compiled")),
        "secrets": [{"secretRef": {"name": secret}} for secret in options.get("secret") or ()] or None,
        "chips": {resource: str(hardware.chips_per_host)},  # a quantity
    }


def _jobset_name(sweep: Sweep, job: Job) -> str:
    return f"{sweep.id}-{job.name}"


def _pod_of_flags(sweep: Sweep, job: Job, hardware: accelerators.Slice) -> dict:
    """The part of a pod by --annotation and --env, with the coordinator's address if the job has several pods."""
    env = {}
    if hardware.n_hosts * hardware.n_slices > 1:
        name = _jobset_name(sweep, job)
        env["JAX_COORDINATOR_ADDRESS"] = f"{name}-slice-0-0.{name}:{COORDINATOR_PORT}"
    env |= sweep.options.get("env", {})
    variables = [{"name": key, "value": literal(value)} for key, value in env.items()]
    return {
        "metadata": {"annotations": sweep.options.get("annotation", {})},
        "spec": {"containers": [{"name": "trainer", "env": variables}]},
    }


def _node_selector_and_tolerations(
    options: dict, hardware: accelerators.Slice
) -> tuple[dict[str, str], list[dict[str, str]]]:
    """The node selector for the machines that the options name, and the tolerations of these nodes' taints.

    Source: GKE's documentation of spot VMs, of consuming reservations, of flex-start and of Arm nodes.
    """
    prefix = f"{GKE}tpu-" if hardware.topology else GKE
    node = {f"{prefix}accelerator": accelerators.GKE[hardware.kind]}
    if hardware.topology:
        node[f"{GKE}tpu-topology"] = hardware.topology
    tolerations = []
    if options.get("spot"):
        node[f"{GKE}spot"] = "true"
        tolerations.append(_toleration(f"{GKE}spot", "true"))
    reservation = options.get("reservation")
    if reservation:
        project, _, name = reservation.rpartition("/")
        node["cloud.google.com/reservation-name"] = name
        node["cloud.google.com/reservation-affinity"] = "specific"
        if project:
            node["cloud.google.com/reservation-project"] = project
    if options.get("flex_start"):
        node[f"{GKE}flex-start"] = "true"
        tolerations.append(_toleration(f"{GKE}flex-start", "true"))
        # for queued provisioning
        tolerations.append({"key": f"{GKE}queued", "operator": "Exists", "effect": "NoSchedule"})
    if hardware.kind in accelerators.ARM:
        tolerations.append(_toleration("kubernetes.io/arch", "arm64"))
    return node, tolerations


def _toleration(key: str, value: str) -> dict[str, str]:
    """A toleration of the taint key=value:NoSchedule."""
    return {"key": key, "operator": "Equal", "value": value, "effect": "NoSchedule"}


def literal(argument: str) -> str:
    """The argument, escaped: Kubernetes expands $(NAME) in commands, and writes $ as $$."""
    return argument.replace("$", "$$")
