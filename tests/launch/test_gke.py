"""Manifests against the published fields and golden files; tests/launch/test_apiserver.py shows them to a server."""

import pathlib
import re

import pytest
import yaml
from etils import epath

from jmoe.cost.chips import CHIPS
from jmoe.errors import UserError
from launch import accelerators, gke
from launch import jobs as jobs_lib
from launch.backend import Sweep

GOLDEN = pathlib.Path(__file__).parents[1] / "data" / "gke"
OPTIONS = dict(image="registry/jmoe:1", queue="team", namespace="default", service_account=None, spot=True, n_slices=1)
CASES = {
    "tpu_slice": dict(accelerator="v5e:4x4"),
    "tpu_multislice": dict(accelerator="v5p:2x2x2", n_slices=2, service_account="trainer"),
    "gpu_machines": dict(accelerator="H100:2x8", spot=False),
    "gpu": dict(accelerator="A100:1"),
}


def manifest(workdir="gs://bucket/sweep", **options) -> dict:
    folder = epath.Path(workdir)
    job = jobs_lib.Job("d32-e4-01234567", folder / "jobs/d32-e4-01234567", "c.py", {}, 32, 4, 1, 2, {}, {})
    sweep = Sweep(folder, "sweep.py", "gke", 1, [], OPTIONS | options, [job])
    return gke.jobset(sweep, job)


@pytest.mark.parametrize("case", CASES)
def test_manifest_is_the_golden_one(case):
    """The files under tests/data/gke were read by people."""
    assert manifest(**CASES[case]) == yaml.safe_load((GOLDEN / f"{case}.yaml").read_text())


FREE = "restarted, as often as it occurs"
COUNTED = "restarted, --retries times"
OVER = "failed at once"


@pytest.mark.parametrize(
    "code, disrupted, becomes",
    [
        (2, False, OVER),  # launch.task: another try would end the same way
        (75, False, FREE),  # launch.task: a failed try that it has counted, or a store that did not answer
        (143, False, FREE),  # saved and stopped, with another pod that was preempted
        (1, False, COUNTED),  # Python before launch.task: a package or a file is missing in the image
        (137, False, COUNTED),  # out of the machine's memory
        (137, True, FREE),  # preempted: no time to save
        (2, True, OVER),
    ],
)
def test_what_becomes_of_a_pod_that_ends(code, disrupted, becomes):
    """By the rules of batch/v1 (podFailurePolicy) and of JobSet (failurePolicy), as their documentation states them."""
    spec = manifest(**CASES["gpu"])["spec"]
    job = spec["replicatedJobs"][0]["template"]["spec"]
    policy = spec["failurePolicy"]
    reason = "BackoffLimitExceeded"
    message = "Job has reached the specified backoff limit"
    assert job["backoffLimit"] == 0
    for index, rule in enumerate(job["podFailurePolicy"]["rules"]):
        assert rule.keys() <= {"action", "onExitCodes", "onPodConditions"} and rule["action"] == "FailJob"
        on_codes = rule.get("onExitCodes")
        on_conditions = rule.get("onPodConditions", [])
        if on_codes and on_codes["operator"] == "In" and code in on_codes["values"]:
            what = f"Container trainer for pod default/p failed with exit code {code}"
        elif disrupted and {"type": "DisruptionTarget", "status": "True"} in on_conditions:
            what = "Pod default/p has condition DisruptionTarget"
        else:
            continue
        reason = "PodFailurePolicy"
        message = f"{what} matching FailJob rule at index {index}"
        break
    action = "RestartJobSet"
    for rule in policy["rules"]:
        patterns = rule.get("onJobFailureMessagePatterns", [""])
        if reason in rule["onJobFailureReasons"] and any(re.search(pattern, message) for pattern in patterns):
            action = rule["action"]
            break
    words = {"FailJobSet": OVER, "RestartJobSet": COUNTED, "RestartJobSetAndIgnoreMaxRestarts": FREE}
    assert words[action] == becomes
    assert policy["maxRestarts"] == 1  # --retries of the sweep


@pytest.mark.parametrize(
    "accelerator, n_slices, n_hosts, chips",
    [
        ("v5e:2x4", 1, 1, 8),
        ("v5e:2x4/4", 1, 2, 4),
        ("v4:16x16x16", 1, 1024, 4),  # the largest
        ("v6e:16x16", 3, 64, 4),
        ("tpu7x:2x2x2", 1, 2, 4),
        ("H100:8", 1, 1, 8),
        ("H100:2x8", 1, 2, 8),
    ],
)
def test_machines_of_a_slice(accelerator, n_slices, n_hosts, chips):
    jobset = manifest(accelerator=accelerator, n_slices=n_slices)
    (spec,) = jobset["spec"]["replicatedJobs"]
    job = spec["template"]["spec"]
    assert (spec["replicas"], job["parallelism"], job["completions"]) == (n_slices, n_hosts, n_hosts)
    (container,) = job["template"]["spec"]["containers"]
    assert list(container["resources"]["limits"].values()) == [str(chips)]
    names = [variable["name"] for variable in container["env"]]
    assert ("JAX_COORDINATOR_ADDRESS" in names) == (n_slices * n_hosts > 1)
    # slices of one machine share a node pool; asking for it alone would let one of them run there at a time
    is_alone = "alpha.jobset.sigs.k8s.io/exclusive-topology" in jobset["metadata"].get("annotations", {})
    assert is_alone == (n_hosts > 1 and not accelerator.startswith("H100"))


@pytest.mark.parametrize(
    "accelerator, words",
    [
        ("v5e:3x5", "v5e:4x8"),
        ("v5e:16x8", "v5e:8x16"),
        ("v4:4x4", "v4:2x2x1"),
        ("v4:3x3x3", "multiples of 4"),
        ("v4:16x16x20", "4,096 chips"),
        ("v5p:8x4x4", "A <= B <= C"),
        ("v6e:4x4/8", "v6e:2x4/4"),
        ("H100:16", "H100:2x8"),
        ("H100:0", "H100:1"),
        ("v5e:4by4", "v5e:4x4"),
    ],
)
def test_slices_that_do_not_exist_are_refused_with_those_that_do(accelerator, words):
    with pytest.raises(UserError, match=f"--accelerator={accelerator}: there is no such") as refused:
        accelerators.parse(accelerator)
    assert words in str(refused.value)


def test_every_kind_of_chip_can_be_priced_and_sent():
    assert {accelerators.chip(kind) for kind in accelerators.GKE} <= CHIPS.keys()
    assert accelerators.chip("v5e:4x4") == "v5e"


def test_arguments_reach_the_container_unharmed():
    """Kubernetes expands $(NAME) in a command, makes $$ one $, and leaves all else alone."""
    odd = 'gs://bucket/it\'s $(PATH) $$(HOME) $x "here"\n; touch pwned'
    (container,) = manifest(workdir=odd, **CASES["gpu"])["spec"]["replicatedJobs"][0]["template"]["spec"]["template"][
        "spec"
    ]["containers"]
    seen = [
        expand(argument, {"PATH": "pwned", "HOME": "pwned"}) for argument in container["command"] + container["args"]
    ]
    assert seen == ["python", "-m", "launch.task", f"--workdir={odd}", "--job=d32-e4-01234567", "--config=c.py"]
    (cache,) = [v["value"] for v in container["env"] if v["name"] == "JAX_COMPILATION_CACHE_DIR"]
    assert expand(cache, {"PATH": "pwned"}) == f"{odd}/compiled"


def expand(text: str, environment: dict) -> str:
    """Kubernetes' rules of expansion, as its documentation of `command` gives them."""

    def value(m):
        return "$" if m[0] == "$$" else environment.get(m[1], m[0])

    return re.sub(r"\$\$|\$\(([A-Za-z_][\w.-]*)\)", value, text)
