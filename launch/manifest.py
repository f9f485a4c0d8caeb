"""The manifest of a JobSet: what --backend=gke creates for each job.

launch/jobset.yaml is the manifest; this module gives the values that differ between sweeps and jobs. A pod reads its
job and the job's flags from sweep.json in the workdir: the manifest holds only the job's name. What most pods need has
a flag here; all else (volumes, tolerations, an account's files) goes into a YAML file that --pod_patch merges over the
pod.
"""

import json
import os
import pathlib
import re
import string
from typing import Any

from absl import flags

from jmoe.errors import UNAVAILABLE, UserError
from launch import accelerators, trainer
from launch.backend import Sweep
from launch.jobs import Job
from launch.printable import printable

TEMPLATE = pathlib.Path(__file__).with_name("jobset.yaml")
API_GROUP, VERSION, PLURAL = "jobset.x-k8s.io", "v1alpha2", "jobsets"
COORDINATOR_PORT = 8482  # jax's own for a coordinator on Cloud TPU
SPOT_SECONDS_TO_SAVE = 25  # the most that GKE gives a pod of a spot machine when it is preempted
SECONDS_TO_SAVE = int(trainer.SECONDS_TO_SAVE) + 30  # on other machines, with time to copy the log
FOR_GOOD, AGAIN = 2, (UNAVAILABLE, *trainer.STOPPED)  # how launch.task ends when it knows what is to be done
SWEEP, JOB = "jmoe/sweep", "jmoe/job"  # labels
OURS = (SWEEP, JOB, "kueue.x-k8s.io/queue-name")
OUR_VARIABLES = ("JAX_COMPILATION_CACHE_DIR", "JMOE_HOSTS", "JMOE_SLICES", "JMOE_SLICE_INDEX")
OUR_VARIABLES += ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
LISTS = {"containers", "initContainers", "volumes", "tolerations", "imagePullSecrets", "hostAliases"}  # of a pod's spec
GKE = "cloud.google.com/gke-"  # how GKE's own labels and taints begin

flags.DEFINE_string("image", None, "gke: container image with this repository as its working directory.")
flags.DEFINE_string("queue", None, "gke: name of Kueue's LocalQueue.")
flags.DEFINE_string("namespace", "default", "gke: Kubernetes namespace.")
flags.DEFINE_string("service_account", None, "gke: Kubernetes account that may write --workdir (by Workload Identity).")
flags.DEFINE_integer("n_slices", 1, "gke: slices for each job.", 1)
flags.DEFINE_bool("spot", True, "gke: spot machines, unless --reservation or --flex_start is given.")
flags.DEFINE_string("reservation", None, "gke: reservation to run in: NAME, or PROJECT/NAME if it is shared.")
flags.DEFINE_bool("flex_start", False, "gke: start once all of a job's machines can (Dynamic Workload Scheduler).")
flags.DEFINE_string("priority_class", None, "gke: PriorityClass of the pods; Kueue uses it too.")
flags.DEFINE_float("ttl_hours", None, "gke: hours until a finished JobSet is deleted. Default: it stays.", 0, 5e5)
flags.DEFINE_multi_string("env", [], "gke: NAME=VALUE, an environment variable of the trainer.")
flags.DEFINE_multi_string("secret", [], "gke: Secret whose entries become environment variables of the trainer.")
flags.DEFINE_multi_string("pull_secret", [], "gke: Secret to pull the image with.")
flags.DEFINE_multi_string("label", [], "gke: NAME=VALUE, a label of JobSets and pods.")
flags.DEFINE_multi_string("annotation", [], "gke: NAME=VALUE, an annotation of JobSets and pods.")
flags.DEFINE_multi_string("pod_patch", [], "gke: YAML file with metadata, spec or both, merged over those of each pod.")


def options() -> dict:
    """The values of the flags that sweep.json keeps; of --pod_patch, the contents of the files. UserError where no
    manifest can be made from a flag's value, or from a file."""
    names = ("image", "queue", "namespace", "service_account", "accelerator", "n_slices", "reservation", "flex_start")
    names += ("priority_class", "ttl_hours", "secret", "pull_secret")
    chosen = {name: flags.FLAGS[name].value for name in names}
    elsewhere = bool(chosen["reservation"] or chosen["flex_start"])
    chosen["spot"] = flags.FLAGS.spot and not (elsewhere and flags.FLAGS["spot"].using_default_value)
    chosen |= {name: _pairs(name) for name in ("env", "label", "annotation")}
    return chosen | {"pod_patch": [_patch(path) for path in flags.FLAGS.pod_patch]}


def check(options: dict) -> None:
    """Raises UserError for options that contradict each other or name no machines."""
    for name in ("image", "accelerator", "queue"):
        if not options[name]:
            raise UserError(f"--backend=gke needs --{name}")
    for name in ("namespace", "queue", "service_account", "priority_class", "secret", "pull_secret"):
        given = options.get(name) or []
        for value in [given] if isinstance(given, str) else given:
            if not re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", value, re.ASCII):
                raise UserError(f"--{name}={value}: a name in Kubernetes has at most 253 of a-z, 0-9, '-' and '.'")
    accelerators.parse(options["accelerator"], options["n_slices"])
    if len(kinds := [f"--{name}" for name in ("spot", "reservation", "flex_start") if options.get(name)]) > 1:
        raise UserError(f"{' and '.join(kinds)} exclude each other: a machine is of one kind")


def _pairs(flag: str) -> dict[str, str]:
    """The NAME=VALUE pairs of a flag."""
    pairs, is_env = {}, flag == "env"
    form = r"[A-Za-z_]\w*" if is_env else r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-\w.]*[A-Za-z0-9])?"
    for text in flags.FLAGS[flag].value or ():
        name, equals, value = text.partition("=")
        if not equals or not re.fullmatch(form, name, re.ASCII):
            raise UserError(f"--{flag}={text}: give it as NAME=VALUE, with a name that Kubernetes takes")
        if name in (OUR_VARIABLES if is_env else OURS):
            raise UserError(f"--{flag}={text}: the sweep itself sets {name}")
        if flag == "label" and not re.fullmatch(r"([A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?)?", value, re.ASCII):
            raise UserError(f"--label={text}: a label's value has at most 63 letters, digits, '-', '_' and '.'")
        pairs[name] = value
    return pairs


def _patch(path: str) -> dict:
    """What a file of --pod_patch holds."""
    import yaml

    try:
        with open(path, encoding="utf-8") as file:
            patch = yaml.safe_load(file)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"--pod_patch={path} cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(patch, dict) or not patch or not patch.keys() <= {"metadata", "spec"}:
        found = ", ".join(map(str, patch)) if isinstance(patch, dict) else type(patch).__name__
        raise UserError(f"--pod_patch={path} must hold metadata, spec or both, as a pod has them, not {found}")

    for part, value in patch.items():
        if not isinstance(value, dict):
            found = printable(json.dumps(value, default=str)[:60])
            raise UserError(f"--pod_patch={path}: {part} must hold fields, as that of a pod does, not {found}")

    for name in LISTS & patch.get("spec", {}).keys():
        value = patch["spec"][name]
        is_list = isinstance(value, list) and all(isinstance(item, dict) for item in value)
        if not is_list and (value is not None or name == "containers"):
            found = printable(json.dumps(value, default=str)[:60])
            raise UserError(f"--pod_patch={path}: spec.{name} must be a list of objects, as a pod has it, not {found}")

    def refused(value: Any) -> None:
        raise UserError(f"--pod_patch={path}: {value} is a {type(value).__name__} in YAML: for a text put it in quotes")

    try:  # sweep.json keeps it, and the cluster takes nothing else
        json.dumps(patch, default=refused, allow_nan=False)
    except (ValueError, RecursionError, TypeError) as error:  # NaN, infinity; a part of itself; a name that is no text
        raise UserError(
            f"--pod_patch={path}: {error}: a manifest holds text, finite numbers, lists and fields"
        ) from None
    return patch


def merged(base: Any, patch: Any) -> Any:
    """`patch` merged over `base`, both parts of a manifest, much as `kubectl patch` does it; neither is changed.
    Objects are merged field by field, and null removes a field. Lists of objects are joined: an item of the patch is
    merged into the base's item with the same mountPath, or else the same name, and appended where there is none. Of
    anything else, including lists of words such as a command, the patch's value is taken."""
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


def _key(item: dict) -> tuple | None:
    """The field, with its value, that tells an item of a list from the others; or None."""
    return next(((k, item[k]) for k in ("mountPath", "name") if k in item), None) if isinstance(item, dict) else None


def jobset(sweep: Sweep, job: Job) -> dict:
    """The manifest for one job of the sweep: launch/jobset.yaml with its values, patched."""
    import yaml

    options, name = sweep.options, f"{sweep.id}-{job.name}"
    place = accelerators.parse(options["accelerator"], options["n_slices"])
    resource = "google.com/tpu" if place.topology else "nvidia.com/gpu"
    node, tolerations = _machine(options, place)
    labels = options.get("label", {}) | {SWEEP: sweep.id, JOB: job.name}
    annotations = options.get("annotation", {})
    # a slice of several hosts has a node pool of its own; the others share one
    exclusive = {"alpha.jobset.sigs.k8s.io/exclusive-topology": f"{GKE}nodepool"}
    ttl = options.get("ttl_hours")
    values = {
        "name": name,
        "namespace": options["namespace"],
        "labels": labels | {"kueue.x-k8s.io/queue-name": options["queue"]},
        "annotations": annotations | (exclusive if place.topology and place.n_hosts > 1 else {}) or None,
        "ttl_seconds": None if ttl is None else int(ttl * 3600),
        "retries": sweep.retries,
        "for_good": FOR_GOOD,
        "n_slices": place.n_slices,
        "n_hosts": place.n_hosts,
        "known_codes": [FOR_GOOD, *AGAIN],
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
        "chips": {resource: str(place.chips_per_host)},  # a quantity
    }
    text = string.Template(TEMPLATE.read_text()).substitute({key: json.dumps(value) for key, value in values.items()})
    made = merged({}, yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    template = made["spec"]["replicatedJobs"][0]["template"]["spec"]
    several = place.n_hosts * place.n_slices > 1
    env = {"JAX_COORDINATOR_ADDRESS": f"{name}-slice-0-0.{name}:{COORDINATOR_PORT}"} if several else {}
    env = [{"name": key, "value": literal(value)} for key, value in (env | options.get("env", {})).items()]
    own = {"metadata": {"annotations": annotations}, "spec": {"containers": [{"name": "trainer", "env": env}]}}
    for patch in [own, *options.get("pod_patch", [])]:
        template["template"] = merged(template["template"], patch)
    return made


def _machine(options: dict, place: accelerators.Slice) -> tuple[dict[str, str], list[dict]]:
    """The node selector of the machines that the options name, and the tolerations that these nodes' taints require, by
    GKE's documentation of spot VMs, of consuming reservations, of flex-start and of Arm nodes."""
    taint = lambda key, value: {"key": key, "operator": "Equal", "value": value, "effect": "NoSchedule"}
    node = {f"{GKE}{'tpu-' if place.topology else ''}accelerator": accelerators.GKE[place.kind]}
    node |= {f"{GKE}tpu-topology": place.topology} if place.topology else {}
    tolerations = []
    if options.get("spot"):
        node[f"{GKE}spot"] = "true"
        tolerations.append(taint(f"{GKE}spot", "true"))
    if reservation := options.get("reservation"):
        project, _, name = reservation.rpartition("/")
        node |= {"cloud.google.com/reservation-name": name, "cloud.google.com/reservation-affinity": "specific"}
        node |= {"cloud.google.com/reservation-project": project} if project else {}
    if options.get("flex_start"):
        node[f"{GKE}flex-start"] = "true"
        queued = {"key": f"{GKE}queued", "operator": "Exists", "effect": "NoSchedule"}  # for queued provisioning
        tolerations += [taint(f"{GKE}flex-start", "true"), queued]
    if place.kind in accelerators.ARM:
        tolerations.append(taint("kubernetes.io/arch", "arm64"))
    return node, tolerations


def literal(argument: str) -> str:
    """The argument, escaped: Kubernetes expands $(NAME) in commands, and $$ is how it writes $."""
    return argument.replace("$", "$$")
