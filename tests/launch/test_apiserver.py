"""--backend=gke against a real Kubernetes API server: what it takes, what becomes of a JobSet, and what goes wrong.

The controllers (JobSet's, Kueue's, the garbage collector) are played by support/apiserver.py; pods run as processes.
"""

import concurrent.futures
import re
import time

import apiserver
import helpers
import pytest
import sweeps
import yaml
from etils import epath
from kubernetes import client

from jmoe.errors import UNAVAILABLE, Unavailable, UserError
from jmoe.storage import ownership
from launch import cancel, collect, gke, status, sweepfile, trainer
from launch import cluster as cluster_lib
from tests.launch import test_gke

GKE = gke.Gke()
pytestmark = pytest.mark.skipif(bool(apiserver.missing()), reason=f"without an API server: {apiserver.missing()}")
OPTIONS = test_gke.OPTIONS | {"queue": "team", "accelerator": "v5e:1x1"}
READ_AT_IMPORT = "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION"  # $KUBECONFIG
UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes (no TPU)"}
FLAGS = ["--backend=gke", "--image=registry/jmoe:1", "--queue=team", "--accelerator=v5e:1x1"]
PATCHES = {path.stem: yaml.safe_load(path.read_text()) for path in (helpers.ROOT / "examples").glob("gpudirect_*.yaml")}
MANIFESTS = test_gke.CASES | {name: dict(accelerator="H100:2x8", pod_patch=[patch]) for name, patch in PATCHES.items()}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        started = apiserver.Cluster(tmp_path_factory.mktemp("cluster"))
        patch.setenv("KUBECONFIG", str(started.kubeconfig))
        patch.setattr(READ_AT_IMPORT, str(started.kubeconfig))
        try:
            yield started
        finally:
            started.stop()


@pytest.fixture(autouse=True)
def first_call():
    cluster_lib._client.cache_clear()


@pytest.fixture
def begun(cluster, tmp_path, text_glob):
    """A function from what varies to a sweep with no JobSet yet; at the end its JobSets are deleted."""
    config = helpers.write_config(tmp_path, text_glob)
    made = []
    cluster.clear()  # what a test that failed left

    def begin(varied, **options):
        path = sweeps.write_sweep(tmp_path, config, varied)
        made.append(sweeps.begin(path, tmp_path / "run", "gke", **OPTIONS | options))
        return made[-1]

    yield begin
    cluster.be("user")
    for sweep in made:
        GKE.cancel(sweep, 0)


@pytest.mark.parametrize("case", MANIFESTS)
def test_every_field_is_taken_and_kept(cluster, case):
    manifest = test_gke.manifest(**MANIFESTS[case])

    def create():
        return cluster.api.create_namespaced_custom_object(
            *apiserver.JOBSETS, manifest, dry_run="All", field_validation="Strict"
        )

    assert holds(create(), manifest)
    pod = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    pod["containers"][0]["cmd"] = []
    with pytest.raises(client.ApiException, match="unknown field .*containers.0..cmd"):
        create()
    pod["containers"] = [{"image": "i"}]
    with pytest.raises(client.ApiException, match="containers.*name: Required value"):
        create()


def holds(whole, part) -> bool:
    """Whether `whole` is `part`, and perhaps defaults that the server added."""
    if isinstance(part, dict):
        return all(key in whole and holds(whole[key], value) for key, value in part.items())
    if isinstance(part, list):
        return len(whole) == len(part) and all(map(holds, whole, part))
    return whole == part


def test_a_sweep_from_its_submission_to_its_rows(cluster, bucket, tmp_path, text_glob):
    cluster.clear()
    workdir = f"{bucket}/applied"
    config = helpers.write_config(tmp_path, text_glob)
    sweep = sweeps.write_sweep(tmp_path, config, {"n_tokens": ((8_192,),), "model.n_experts": (1, 4)})
    start = ("launch.sweep", f"--sweep={sweep}", f"--workdir={workdir}", *FLAGS)

    def tell():
        return helpers.run("launch.status", f"--workdir={workdir}").stdout

    output = sweeps.started_twice_at_once(helpers.run, *start)
    assert "created 0 JobSets" in output[0] and "2 were there before" in output[0] and "created 2 JobSets" in output[1]
    unseen = "Kueue has made no Workload of it; does it manage JobSets\\?"
    assert re.search(rf"e1-\w+ +0/1 queued +{unseen}\n.*e4-\w+ +0/1 queued +{unseen}\n.*2 queued", tell())
    one, other = sorted(cluster.jobsets())
    cluster.admit(one)
    cluster.pod(one, {"phase": "Running"})
    cluster.tell(
        other, "Failed", "ReachedMaxRestarts", "jobset failed due to reaching max number of restarts", restarts=3
    )
    assert re.search(r"e1-\w+ +0/1 running\n.*e4-\w+ +0/1 failed +3 restarts; jobset failed due to reaching", tell())
    assert cluster.run_pod(one) == 0
    cluster.tell(one, "Completed", "AllJobsCompleted", "jobset completed successfully")
    log = helpers.run("launch.logs", f"--workdir={workdir}", f"--job={one}").stdout
    assert "validation loss" in log
    kept, replaced = (cluster.jobsets()[job]["metadata"]["uid"] for job in (one, other))
    again = helpers.run(*start)  # the failed one anew, once the deletion is through
    assert "created 1 JobSets" in again.stdout and "2 were there before" in again.stdout, again
    uids = {job: item["metadata"]["uid"] for job, item in cluster.jobsets().items()}
    assert uids[one] == kept and uids[other] != replaced
    assert re.search(rf"e1-\w+ +1/1 done\n.*e4-\w+ +0/1 queued +{unseen}", tell())
    collected = helpers.run("launch.collect", f"--workdir={workdir}").stdout
    assert "1 of 2 runs are missing" in collected and f"jobs/{other}/branch-8192: not finished" in collected
    assert [row["run"] for row in sweeps.rows(workdir)] == [f"jobs/{one}/branch-8192"]
    assert "deleted 2 JobSets" in helpers.run("launch.cancel", f"--workdir={workdir}").stdout
    assert not cluster.jobsets()


ENDS = [
    ("Completed", "AllJobsCompleted", "jobset completed successfully", "completed"),
    ("Failed", "FailedJobs", "jobset failed due to one or more job failures", "failed (jobset failed due to one or"),
    ("Failed", "FailJobSetFailurePolicyAction", "", "failed (FailJobSetFailurePolicyAction)"),
]


def test_each_state_in_words(cluster, begun):
    sweep = begun([{"seed": seed} for seed in range(len(ENDS))])
    GKE.submit(sweep)
    jobs = [job.name for job in sweep.jobs]
    cluster.queue(jobs[0], [])
    assert GKE.states(sweep)[jobs[0]] == "queued (Kueue: not looked at yet)"  # with no condition yet
    for job in jobs:
        cluster.admit(job)
        cluster.pod(job, {"phase": "Running"})
    assert GKE.states(sweep) == dict.fromkeys(jobs, "running")
    cluster.tell(jobs[0], "Suspended", "ResumeJobs", "jobset is resumed", "False", restarts=2)
    assert GKE.states(sweep)[jobs[0]] == "running (2 restarts)"
    name = cluster.jobsets()[jobs[0]]["metadata"]["name"]  # preempted in the queue
    cluster.api.patch_namespaced_custom_object(*apiserver.JOBSETS, name, {"spec": {"suspend": True}})
    assert GKE.states(sweep)[jobs[0]] == "queued (2 restarts; Kueue: not looked at yet)"
    for job, (kind, reason, message, words) in zip(jobs, ENDS, strict=True):
        cluster.tell(job, kind, reason, message)
        assert GKE.states(sweep)[job].startswith(words)
    before = {item["metadata"]["uid"] for item in cluster.jobsets().values()}
    assert "created 3 JobSets" in GKE.submit(sweep)  # the completed one too: it has no results
    assert {state.split()[0] for state in GKE.states(sweep).values()} == {"queued"}
    assert not before & {item["metadata"]["uid"] for item in cluster.jobsets().values()}


def seen(sweep) -> tuple[str, str]:
    """State of the first job and what else is said of it, as launch.status --json has them."""
    job = status.look(sweep, GKE.states(sweep))["jobs"][0]
    return job["state"], job["more"]


def test_why_kueue_holds_a_job_back(cluster, begun):
    sweep = begun([{"seed": 0}, {"seed": 1}])
    GKE.submit(sweep)
    job = sweep.jobs[0].name
    assert seen(sweep) == ("queued", "Kueue has made no Workload of it; does it manage JobSets?")
    no_quota = "couldn't assign flavors to pod set slice: insufficient unused quota for google.com/tpu in flavor v5e"
    waits = ("QuotaReserved", "False", "Pending", no_quota)
    cluster.queue(job, [waits])
    assert seen(sweep) == ("queued", f"Kueue: {no_quota}")
    cluster.queue(job, [("Evicted", "True", "Preempted", "Preempted to accommodate a workload (UID: 1)"), waits])
    assert seen(sweep) == ("queued", f"Kueue: evicted: Preempted to accommodate a workload (UID: 1); {no_quota}")
    reserved = ("QuotaReserved", "True", "QuotaReserved", "Quota reserved in ClusterQueue gpus")
    cluster.queue(job, [reserved], {"name": "flex", "state": "Pending", "message": "no machines before 9:00"})
    assert seen(sweep) == ("queued", "Kueue: admission check flex is Pending: no machines before 9:00")
    cluster.queue(job, [reserved, ("Admitted", "True", "Admitted", "The workload is admitted")])
    assert seen(sweep) == ("queued", "Kueue: admitted, about to start")
    cluster.be("few", forbidden=["workloads"])
    cluster_lib._client.cache_clear()
    assert seen(sweep) == ("queued", "")  # who may not look is told no less than before


def test_why_the_pods_of_an_admitted_job_do_not_run(cluster, begun):
    sweep = begun([{"seed": 0}], accelerator="H100:2x8")
    GKE.submit(sweep)
    job = sweep.jobs[0].name
    cluster.admit(job)
    assert seen(sweep) == ("starting", "no pod yet")
    refused = 'pods "x" is forbidden: error looking up service account default/trainer'
    cluster.warn(job, "FailedCreate", refused)
    assert seen(sweep) == ("starting", f"no pod yet; FailedCreate: {refused}")
    first = cluster.pod(job, {"phase": "Pending", "conditions": [UNSCHEDULABLE]})
    second = cluster.pod(job, {"phase": "Pending", "conditions": [UNSCHEDULABLE]}, 1)
    assert seen(sweep) == ("starting", f"0 of 2 pods run; pod {first}: Unschedulable: 0/3 nodes (no TPU)")
    cluster.pod(job, {"phase": "Running"})
    no_image = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "registry/jmoe:1"'}
    cluster.pod(job, {"phase": "Pending", "containerStatuses": [container("trainer", waiting=no_image)]}, 1)
    assert seen(sweep) == (
        "starting",
        f'1 of 2 pods run; pod {second}: ImagePullBackOff: Back-off pulling image "registry/jmoe:1"',
    )
    creating = container("trainer", waiting={"reason": "PodInitializing"})
    sidecar = container("tcpx-daemon", waiting={"reason": "ErrImagePull", "message": "403 Forbidden"})
    cluster.pod(job, {"phase": "Pending", "initContainerStatuses": [sidecar], "containerStatuses": [creating]}, 1)
    assert seen(sweep) == ("starting", f"1 of 2 pods run; pod {second}: ErrImagePull: 403 Forbidden")
    cluster.pod(job, {"phase": "Running"}, 1)
    assert seen(sweep) == ("running", "")
    cluster.tell(job, "Failed", "ReachedMaxRestarts", "reached max number of restarts (first: slice-0)", restarts=1)
    broken = {"exitCode": 128, "reason": "StartError", "message": 'exec: "python": executable file not found in $PATH'}
    cluster.pod(job, {"phase": "Failed", "containerStatuses": [container("trainer", terminated=broken)]}, 1)
    assert seen(sweep) == (
        "failed",
        "1 restarts; reached max number of restarts (first: slice-0); "
        f"pod {second}: exit code 128, StartError: {broken['message']}",
    )
    known = {"exitCode": 2, "reason": "Error"}  # of which failure.json says more
    cluster.pod(job, {"phase": "Failed", "containerStatuses": [container("trainer", terminated=known)]}, 1)
    assert seen(sweep) == ("failed", "1 restarts; reached max number of restarts (first: slice-0)")


def container(name: str, **state) -> dict:
    return {"name": name, "image": "i", "imageID": "", "ready": False, "restartCount": 0, "state": state}


def test_deleted_behind_our_back(cluster, begun):
    sweep = begun([{"seed": 0}, {"seed": 1}])
    GKE.submit(sweep)
    gone, left = [job.name for job in sweep.jobs]
    name = cluster.jobsets()[gone]["metadata"]["name"]
    cluster.api.delete_namespaced_custom_object(*apiserver.JOBSETS, name)
    assert GKE.states(sweep).keys() == {left}
    missing = "no JobSet in namespace default: deleted, or never created; launch.sweep or launch.retry creates one"
    shown = status.in_words(status.look(sweep, GKE.states(sweep)))
    assert re.search(rf"{gone} +0/2 failed +{missing}\n.*{left} +0/2 queued", shown), shown
    why = collect.rows_of(sweep)[1]
    assert [reason for run, reason in why.items() if gone in run] == [missing] * 2
    assert {reason for run, reason in why.items() if left in run} == {"not finished"}
    with ownership.hold(sweep.lock, "launch.sweep"):  # which may be about to create it
        assert status.look(sweep, GKE.states(sweep))["jobs"][0]["state"] == "waiting"
    accepted = helpers.run("launch.accept", f"--workdir={sweep.workdir}", f"--job={gone}")
    assert f"job {gone} is given up: {missing}" in accepted.stdout, accepted
    (sweep.jobs[0].folder / "failure.json").unlink()
    with pytest.raises(UserError, match=f"job {gone} has no JobSet"):
        GKE.logs(sweep, sweep.jobs[0])
    assert "created 1 JobSets" in GKE.submit(sweep)
    assert GKE.states(sweep).keys() == {gone, left}


def test_a_cancelled_sweep_is_not_waiting(cluster, begun):
    """Its JobSets are gone and nothing starts its jobs, until it is started again."""
    sweep = begun([{"seed": 0}, {"seed": 1}, {"seed": 2}])
    done, failed, _ = sweep.jobs
    GKE.submit(sweep)
    sweeps.train(done)
    trainer.write_failure(failed, "the loss is NaN", True, 0)
    assert cancel.cancel_all(sweep, 0) == "deleted 3 JobSets"
    seen = status.look(sweep, GKE.states(sweep))["jobs"]
    assert [job["state"] for job in seen] == ["done", "failed", "cancelled"]
    missing = collect.rows_of(sweep)[1]
    assert list(missing.values()) == ["the loss is NaN"] * 2 + [cancel.CAUSE] * 2
    assert "created 2 JobSets" in GKE.submit(sweep)
    assert [job["state"] for job in status.look(sweep, GKE.states(sweep))["jobs"]] == ["done", "queued", "queued"]


def test_how_a_job_of_a_jobset_failed_is_known_by_its_event(cluster, begun):
    """To who may not read Jobs, or once the Job is gone; to collect and accept as to status."""
    sweep = begun([{"seed": 0}])
    (job,) = sweep.jobs
    GKE.submit(sweep)
    cluster.admit(job.name)
    message = "jobset failed due to one or more job failures"
    cluster.tell(job.name, "Failed", "FailedJobs", message)
    assert seen(sweep) == ("failed", message)
    policy = "Container trainer for pod default/x failed with exit code 137 matching FailJob rule at index 1"
    cluster.warn(job.name, "PodFailurePolicy", policy)
    name = cluster.jobsets()[job.name]["metadata"]["name"]
    why = f"{message}; job {name}-slice-0: PodFailurePolicy: {policy}"
    assert seen(sweep) == ("failed", why)
    assert set(collect.rows_of(sweep)[1].values()) == {why}
    accepted = helpers.run("launch.accept", f"--workdir={sweep.workdir}", f"--job={job.name}")
    assert f"job {job.name} is given up: {why}" in accepted.stdout, accepted


def test_a_finalizer_holds_a_deletion(cluster, begun, monkeypatch):
    sweep = begun([{"seed": 0}])
    GKE.submit(sweep)
    job = sweep.jobs[0].name
    held = cluster.jobsets()[sweep.jobs[0].name]["metadata"]["uid"]
    cluster.hold(job, ["a.test/backup"])
    monkeypatch.setattr(gke, "SECONDS_TO_DELETE", 1)
    with pytest.raises(UserError, match="1 JobSets still exist 1 s after.*is held by a.test/backup"):
        GKE.cancel(sweep, 0)
    assert GKE.states(sweep) == {job: "stopping"}
    monkeypatch.undo()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:  # started again it waits, and takes nothing over
        again = pool.submit(GKE.submit, sweep)
        time.sleep(2)
        assert not again.done() and cluster.jobsets()[job]["metadata"]["uid"] == held
        cluster.hold(job, [])
        assert "created 1 JobSets" in again.result(60)
    assert cluster.jobsets()[job]["metadata"]["uid"] != held and GKE.states(sweep)[job].startswith("queued")


def test_a_token_that_expires(cluster, begun):
    sweep = begun([{"seed": 0}, {"seed": 1}])
    GKE.submit(sweep)
    cluster.be("next")
    cluster.users["user"]["expires"] = 1
    cluster.be("next")  # the client still has the other one
    assert len(GKE.states(sweep)) == 2
    cluster.be("next", expires=1)
    with pytest.raises(UserError, match="the cluster refuses: 401 Unauthorized: Unauthorized; gcloud auth login"):
        GKE.cancel(sweep, 0)
    cluster.be("next")
    assert "deleted 2 JobSets" in GKE.cancel(sweep, 0)


def test_a_server_that_dies_while_jobs_are_submitted(cluster, begun):
    sweep = begun([{"seed": seed} for seed in range(60)])
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        submitted = pool.submit(GKE.submit, sweep)
        helpers.wait_until(lambda: len(cluster.jobsets()) >= 3 or submitted.done(), seconds=60)
        cluster.kill()
        with pytest.raises(Unavailable, match="the cluster cannot be reached.*the same command continues"):
            submitted.result(60)
    with pytest.raises(Unavailable, match="cannot be reached"):
        GKE.states(sweep)
    shown = helpers.run("launch.status", f"--workdir={sweep.workdir}")
    assert shown.returncode == UNAVAILABLE and "0 of 120 runs done; 60 jobs on gke: 60 unknown" in shown.stdout, shown
    unknown = "not finished, and the cluster does not tell why: the cluster cannot be reached"
    assert all(why.startswith(unknown) for why in collect.rows_of(sweepfile.read(sweep.workdir))[1].values())
    assert "error: the cluster cannot be reached" in shown.stderr
    cluster.start()
    before = {job: item["metadata"]["uid"] for job, item in cluster.jobsets().items()}
    assert 3 <= len(before) < 60
    assert f"created {60 - len(before)} JobSets" in GKE.submit(sweep)
    after = {job: item["metadata"]["uid"] for job, item in cluster.jobsets().items()}
    assert after.keys() == {job.name for job in sweep.jobs} and before.items() <= after.items()


def test_what_the_cluster_lacks_is_said_before_anything_is_written(cluster, bucket, tmp_path, text_glob):
    config = helpers.write_config(tmp_path, text_glob)
    path = sweeps.write_sweep(tmp_path, config, [{}])
    start = ("launch.sweep", f"--sweep={path}", f"--workdir={bucket}/refused", *FLAGS)
    assert "--queue=tea: namespace default has no such LocalQueue; it has team" in helpers.fails(*start, "--queue=tea")
    assert not (epath.Path(bucket) / "refused").exists()


def test_the_queue_and_the_versions_are_looked_up(cluster, begun, capsys):
    def be(token, **rights):
        cluster.be(token, **rights)
        cluster_lib._client.cache_clear()

    sweep = begun([{"seed": 0}])
    assert GKE.ready(sweep) is None and not capsys.readouterr().err
    assert not cluster.jobsets()  # the one that was shown is not there
    GKE.submit(sweep)
    GKE.ready(sweep)  # it is now
    be("few", forbidden=["localqueues"])
    GKE.ready(sweep)  # who may not look may submit
    be("fewer", forbidden=["jobsets"])
    with pytest.raises(UserError, match="the cluster refuses: 403 Forbidden: jobsets.jobset.x-k8s.io .*forbidden"):
        GKE.ready(sweep)
    be("user")
    inactive = {"type": "Active", "status": "False", "reason": "ClusterQueueDoesNotExist"}
    inactive |= {"message": "no ClusterQueue gpus", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    place = (*apiserver.QUEUES, "team", {"status": {"conditions": [inactive]}})
    cluster.api.patch_namespaced_custom_object_status(*place)
    GKE.ready(sweep)
    assert "--queue=team starts nothing now: no ClusterQueue gpus" in capsys.readouterr().err


def none_of_use(versions: list[dict]) -> list[dict]:
    """The versions of a release that serves none of these."""
    return [version | {"served": False} for version in versions] + [versions[0] | {"name": "v9", "storage": False}]


def without_patterns(versions: list[dict]) -> list[dict]:
    """The versions of a release whose rules of failures have no patterns."""
    policy = versions[0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["failurePolicy"]
    del policy["properties"]["rules"]["items"]["properties"]["onJobFailureMessagePatterns"]
    return versions


@pytest.mark.parametrize(
    "kind, change, words",
    [
        (apiserver.QUEUES, none_of_use, "--queue=team: the cluster has no localqueues of kueue"),
        (apiserver.JOBSETS, none_of_use, "the cluster has no jobsets of jobset.x-k8s.io/v1alpha2"),
        (apiserver.JOBSETS, without_patterns, "unknown field .*; JobSet 0.10 or newer has it$"),
    ],
)
def test_a_cluster_that_lacks_jobset_or_kueue_or_has_an_old_one(cluster, begun, kind, change, words):
    sweep = begun([{"seed": 0}])

    def refusal() -> str:
        try:
            GKE.ready(sweep)
        except (UserError, Unavailable) as error:  # the latter for a moment, while the server changes
            return str(error)
        return ""

    with cluster.changed(kind, change):
        helpers.wait_until(lambda: re.search(words, refusal()))
        assert re.search(words, refusal())
    helpers.wait_until(lambda: not refusal())
    assert not refusal()


@pytest.mark.parametrize("text", [None, "clusters: [", "current-context: c\nclusters: []\ncontexts: []\nusers: []"])
def test_a_kubeconfig_that_names_no_cluster(text, tmp_path, monkeypatch):
    path = tmp_path / "kubeconfig"
    path.write_text(text) if text is not None else None
    monkeypatch.setattr(READ_AT_IMPORT, str(path))
    with pytest.raises(UserError, match="--backend=gke finds no cluster: .*get-credentials"):
        cluster_lib.serves("jobset.x-k8s.io", "v1alpha2", "jobsets")


def test_a_server_that_hangs_is_away(cluster, begun, monkeypatch):
    """Halted, it takes connections and answers none of them. Both tries are over before a minute is."""
    assert 2 * sum(cluster_lib.SECONDS_TO_ANSWER) < 55
    monkeypatch.setattr(cluster_lib, "SECONDS_TO_ANSWER", (1, 1))
    sweep = begun([{"seed": 1}])
    assert GKE.states(sweep) == {}
    with cluster.halted(), pytest.raises(Unavailable, match="cannot be reached"):
        GKE.states(sweep)
    assert GKE.states(sweep) == {}
