"""What flags and patches make of a JobSet, against manifests written by hand from GKE's and Kueue's pages."""

import copy
import json
import pathlib

import helpers
import pytest
import yaml
from absl import flags

from jmoe.errors import UserError
from launch import accelerators, gke, manifest, trainer
from tests.launch import test_gke as gke_tests

NAMES = [flag.name for flag in flags.FLAGS.get_key_flags_for_module(manifest)]
OPTIONS = gke_tests.OPTIONS | {"accelerator": "A100:1"}
EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
PROFILE = "/usr/local/nvidia/lib64/nccl-env-profile.sh"
GIB = "/usr/local/gib/scripts/set_nccl_env.sh"
PATCH = """
metadata:
  annotations: {gke-gcsfuse/volumes: "true"}
spec:
  tolerations:
  - {key: team, operator: Equal, value: ml, effect: NoExecute}
  terminationGracePeriodSeconds: null
  containers:
  - name: trainer
    volumeMounts:
    - {name: data, mountPath: /data, readOnly: true}
    - {name: fast, mountPath: /dev/shm}
    resources: {limits: {memory: 64Gi}}
  - {name: watcher, image: watch:1}
  volumes:
  - {name: shm, emptyDir: {sizeLimit: 8Gi}}
  - {name: data, persistentVolumeClaim: {claimName: corpus}}
"""


@pytest.fixture
def parsed():
    """Parses flags as launch.sweep would, and forgets them after."""
    own = "accelerator" not in flags.FLAGS  # which launch.sweep defines
    if own:
        flags.DEFINE_string("accelerator", None, "")

    def options(*arguments):
        flags.FLAGS.unparse_flags()
        for name in NAMES:
            flags.FLAGS[name].unparse()
        flags.FLAGS(["launch.sweep", *arguments])
        return manifest.options()

    yield options
    options()
    flags.FLAGS.unparse_flags()
    if own:
        delattr(flags.FLAGS, "accelerator")


def pod_of(jobset) -> dict:
    return jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]


def test_each_flag_has_its_place(parsed, tmp_path):
    """Together with a patch; beside gpu.yaml, the manifest without them, the golden file shows what differs."""
    (tmp_path / "pod.yaml").write_text(PATCH)
    chosen = parsed(
        "--image=registry/jmoe:1", "--queue=team", "--accelerator=A100:1", "--reservation=owner/block-7",
        "--service_account=writer", "--priority_class=urgent", "--ttl_hours=1.5", "--env=WANDB_MODE=offline",
        "--env=ODD=a=$(PATH) b", "--secret=wandb", "--secret=hub", "--pull_secret=registry", "--label=team=moe",
        "--annotation=provreq.kueue.x-k8s.io/maxRunDurationSeconds=86400", f"--pod_patch={tmp_path}/pod.yaml",
    )  # fmt: skip
    assert json.loads(json.dumps(chosen)) == chosen  # sweep.json holds it
    assert gke_tests.manifest(**chosen) == yaml.safe_load((gke_tests.GOLDEN / "flags_and_patch.yaml").read_text())


def test_a_pod_has_the_time_to_save_that_a_trainer_gets_elsewhere(parsed):
    """Less on a spot machine: GKE gives a pod 25 seconds at most when it is preempted."""
    needed = "--image=i", "--queue=q", "--accelerator=v5e:4x4"

    def seconds(*more):
        return pod_of(gke_tests.manifest(**parsed(*needed, *more)))["spec"]["terminationGracePeriodSeconds"]

    assert seconds() == 25
    for kind in ("--nospot", "--reservation=r", "--flex_start"):
        assert trainer.SECONDS_TO_SAVE < seconds(kind) < gke.SECONDS_TO_DELETE
        assert seconds(kind) < 2 * trainer.SECONDS_TO_SAVE  # for which the next pod waits for this one


def test_a_machine_is_of_one_kind(parsed):
    needed = "--image=i", "--queue=q", "--accelerator=v5e:4x4"
    assert parsed(*needed)["spot"] and not parsed(*needed, "--flex_start")["spot"]
    flex = pod_of(gke_tests.manifest(**parsed(*needed, "--flex_start")))["spec"]
    assert flex["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "4x4",
        "cloud.google.com/gke-flex-start": "true",
    }
    assert [taint["key"] for taint in flex["tolerations"]] == [
        "google.com/tpu", "cloud.google.com/gke-flex-start", "cloud.google.com/gke-queued",
    ]  # fmt: skip
    for both in (["--spot", "--flex_start"], ["--flex_start", "--reservation=r"], ["--spot", "--reservation=r"]):
        with pytest.raises(UserError, match="exclude each other"):
            manifest.check(parsed(*needed, *both))


@pytest.mark.parametrize("flag", ["--namespace=../x", "--queue=Team", "--secret=a/b", f"--priority_class={'a' * 300}"])
def test_what_no_object_of_kubernetes_is_called_is_refused(parsed, flag):
    needed = "--image=i", "--queue=q", "--accelerator=v5e:4x4"
    with pytest.raises(UserError, match=f"{flag}: a name in Kubernetes has"):
        manifest.check(parsed(*needed, flag))


@pytest.mark.parametrize(
    "flag, words",
    [
        ("--env=TOKEN", "NAME=VALUE"),
        ("--env=1X=2", "NAME=VALUE"),
        ("--env=JAX_PROCESS_ID=0", "the sweep itself sets JAX_PROCESS_ID"),
        ("--label=jmoe/sweep=x", "the sweep itself sets jmoe/sweep"),
        ("--label=team=a b", "at most 63 letters"),
        ("--annotation=-=x", "NAME=VALUE"),
        ("--pod_patch=nowhere.yaml", "cannot be read"),
        ("--pod_patch=setup.cfg", "cannot be read"),
        ("--pod_patch=tests/data/gke/gpu.yaml", "must hold metadata, spec or both, as a pod has them, not apiVersion"),
    ],
)
def test_what_no_pod_can_have_is_refused(parsed, flag, words):
    with pytest.raises(UserError) as refused:
        parsed(flag)
    assert words in str(refused.value) and flag.split("=")[0] in str(refused.value)


@pytest.mark.parametrize(
    "text, words",
    [
        ("metadata: {annotations: {until: 2026-01-01}}", "2026-01-01 is a date in YAML: for a text put it in quotes"),
        ("spec: [1]", "spec must hold fields"),
        ("spec: {priority: [{a: -.inf}]}", "finite numbers"),
        ("spec: {containers: 5}", "spec.containers must be a list of objects"),
        ("spec: {? [a, b] : 1}", "cannot be read"),
        ("spec: &all {own: *all}", "Circular reference"),
        ('spec: {tolerations: "\\e[2J"}', r'not "\u001b[2J"'),
    ],
)
def test_a_patch_that_is_no_part_of_a_pod_is_refused(parsed, tmp_path, text, words):
    (tmp_path / "patch.yaml").write_text(text)
    with pytest.raises(UserError) as refused:
        parsed(f"--pod_patch={tmp_path}/patch.yaml")
    assert words in str(refused.value) and "patch.yaml" in str(refused.value)


def test_a_patch_merges_and_changes_neither_side():
    base = {"a": {"x": 1, "y": [1, 2]}, "env": [{"name": "N", "value": "1"}, {"name": "M", "value": "2"}], "gone": 1}
    patch = {"a": {"y": [3]}, "env": [{"name": "M", "value": None, "valueFrom": {"f": 1}}, {"name": "O"}], "gone": None}
    kept = copy.deepcopy((base, patch))
    assert manifest.merged(base, patch) == {
        "a": {"x": 1, "y": [3]},
        "env": [{"name": "N", "value": "1"}, {"name": "M", "valueFrom": {"f": 1}}, {"name": "O"}],
    }
    assert (base, patch) == kept


# By machine type: its GPUs, networks and interfaces as GKE's pages list them.
@pytest.mark.parametrize(
    "accelerator, name, networks, daemon, script",
    [
        ("H100:2x8", "tcpx", ["vpc1", "vpc2", "vpc3", "vpc4"], "tcpx-daemon", None),
        ("H100-mega:2x8", "tcpxo", [f"vpc{i}" for i in range(1, 9)], "tcpxo-daemon", PROFILE),
        ("H200:2x8", "rdma", ["gvnic-1", *(f"rdma-{i}" for i in range(8))], None, GIB),
    ],
)  # fmt: skip
def test_the_example_of_a_fast_network_brings_networks_daemon_and_settings(
    parsed, accelerator, name, networks, daemon, script
):
    needed = "--image=i", "--queue=q", f"--accelerator={accelerator}"
    plain, fast = (
        gke_tests.manifest(**parsed(*needed, *patch))
        for patch in ([], [f"--pod_patch={EXAMPLES}/gpudirect_{name}.yaml"])
    )
    pod = pod_of(fast)
    spec = pod_of(fast)["spec"]
    annotations = pod["metadata"]["annotations"]
    interfaces = json.loads(annotations["networking.gke.io/interfaces"])
    assert interfaces == [
        {"interfaceName": f"eth{i}", "network": name} for i, name in enumerate(["default", *networks])
    ]
    assert annotations["networking.gke.io/default-interface"] == "eth0"
    sidecars = spec.get("initContainers", [])
    assert [container["name"] for container in sidecars] == [daemon] * bool(daemon)
    assert all(container["restartPolicy"] == "Always" for container in sidecars)  # else the pod would never end
    assert (f"devices.gke.io/container.{daemon}" in annotations) == bool(daemon)
    for container in spec["containers"] + sidecars:
        assert {mount["name"] for mount in container["volumeMounts"]} <= {volume["name"] for volume in spec["volumes"]}
    (trainer,), (own,) = spec["containers"], pod_of(plain)["spec"]["containers"]
    start = ["bash", "-c", f'. {script} && exec "$@"', "bash"] if script else []
    assert [gke_tests.expand(argument, {}) for argument in trainer["command"]] == start + own["command"]
    assert trainer["args"] == own["args"] and trainer["resources"] == own["resources"]
    assert [v for v in own["env"] if v not in trainer["env"]] == []


def test_the_newest_machines_are_in_the_table():
    """Labels, GPUs and chips of a machine: GKE's "GPU types" and "Plan TPUs in GKE"."""
    labels = {
        "B200:2x8": "nvidia-b200",
        "GB200:2x4": "nvidia-gb200",
        "H100-mega:1x8": "nvidia-h100-mega-80gb",
        "tpu7x:2x2x2": "tpu7x",
    }
    for accelerator, label in labels.items():
        spec = pod_of(gke_tests.manifest(accelerator=accelerator))["spec"]
        assert label in spec["nodeSelector"].values()
        arm = {"key": "kubernetes.io/arch", "operator": "Equal", "value": "arm64", "effect": "NoSchedule"}
        assert (arm in spec["tolerations"]) == accelerator.startswith("GB200")
    assert accelerators.parse("TPU7X:2x2x2") == accelerators.parse("tpu7x:2x2x2")
    assert accelerators.parse("tpu7x:2x2x2").n_devices == 16 and accelerators.n_chips("TPU7X:2x2x2", 16) == 8
    assert accelerators.chip("H100-mega:8") == accelerators.chip("h100-mega:8") == "H100"
    with pytest.raises(UserError, match="GB200:1 to GB200:4"):
        accelerators.parse("GB200:8")


def test_all_of_it_reaches_the_dry_run(tmp_path):
    (tmp_path / "pod.yaml").write_text(PATCH)
    start = ("launch.sweep", "--sweep=configs/sweeps/quickstart.py", "--backend=gke", "--dry_run")
    flags_ = [
        "--workdir=gs://b/x",
        "--image=i",
        "--queue=q",
        "--accelerator=H100:2x8",
        f"--pod_patch={EXAMPLES}/gpudirect_tcpx.yaml",
    ]
    flags_ += ["--secret=hub", f"--pod_patch={tmp_path}/pod.yaml", "--dollars_per_hour=1"]
    done = helpers.run(*start, *flags_)
    assert done.returncode == 2 and "do not divide over 16 devices" in done.stderr, done.stderr  # shown all the same
    documents = list(yaml.safe_load_all(done.stdout))
    assert len(documents) == 12 and all(document["kind"] == "JobSet" for document in documents)
    assert "H100-hours" in done.stdout
    for words in ("tcpx-daemon", "claimName: corpus", "secretRef", "gke-gcsfuse/volumes"):
        assert done.stdout.count(words) in (12, 24)  # in every JobSet once, or in two places of a sidecar
