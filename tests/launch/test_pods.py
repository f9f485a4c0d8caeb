"""Logs, states and outages on GKE: kubernetes' own client and a server that answers for pods as its API does."""

import http.server
import json
import re
import threading
import urllib.parse
import uuid

import apiserver
import kubernetes
import pytest
import sweeps
from etils import epath

from jmoe.errors import Unavailable, UserError
from launch import cluster, gke, status, sweepfile
from launch import jobs as jobs_lib
from launch.backend import Sweep
from tests.launch.test_gke import OPTIONS

GKE = gke.Gke()
JOBS = "d32-e1-00000001", "d32-e1-00000002", "d32-e4-00000003"


def sweep_of(folder) -> Sweep:
    """Three jobs on two machines each."""
    workdir = epath.Path(folder)
    jobs = [
        jobs_lib.Job(name, workdir / "jobs" / name, "c.py", {}, 32, 1, 1, 2, {"branch-8": 8}, {}, code=["c"])
        for name in JOBS
    ]
    return Sweep(workdir, "sweep.py", "gke", 1, [], OPTIONS | {"accelerator": "H100:2x8"}, jobs)


def pod(jobset: str, index: int, uid: str, created: str, phase="Running") -> dict:
    labels = {
        "jobset.sigs.k8s.io/jobset-name": jobset,
        "jobset.sigs.k8s.io/job-index": "0",
        "batch.kubernetes.io/job-completion-index": str(index),
    }
    name = f"{jobset}-slice-0-{index}-{uid}"
    metadata = {"name": name, "uid": uid, "labels": labels, "creationTimestamp": created}
    return {"metadata": metadata, "status": {"phase": phase}}


class Server(http.server.ThreadingHTTPServer):
    """Custom objects by name, and pods, their logs, events and Jobs, which a test puts there."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.jobsets = {}
        self.pods = []
        self.logs = {}
        self.events = []
        self.jobs = []
        self.always = None  # (status, text) of each answer, as of a proxy that is in the way


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body["metadata"]["uid"] = uuid.uuid4().hex
        self.server.jobsets[body["metadata"]["name"]] = body
        self._answer(201, body)

    def do_DELETE(self):
        self._answer(200, self.server.jobsets.pop(self.path.split("?")[0].rsplit("/", 1)[1]))

    def do_GET(self):
        if self.server.always:
            return self._answer(*self.server.always, "text/plain")
        path, _, query = self.path.partition("?")
        if path.endswith("/jobsets"):
            return self._answer(200, {"items": list(self.server.jobsets.values())})
        if path.endswith("/workloads"):
            return self._answer(200, {"items": []})
        if path.endswith("/events"):
            return self._answer(200, {"items": self.server.events})
        if path == "/apis/batch/v1/namespaces/default/jobs":
            label, _, name = urllib.parse.parse_qs(query)["labelSelector"][0].partition("=")
            jobs = [job for job in self.server.jobs if name in ("", job["metadata"]["labels"][label])]
            return self._answer(200, {"items": jobs})
        if path.endswith("/pods"):
            label, name = urllib.parse.parse_qs(query)["labelSelector"][0].split("=")
            if label == gke.SWEEP:
                return self._answer(200, {"items": []})
            return self._answer(200, {"items": [p for p in self.server.pods if p["metadata"]["labels"][label] == name]})
        assert "container=trainer" in query  # a pod with a sidecar has several
        name = re.fullmatch(r"/api/v1/namespaces/default/pods/(.*)/log", path)[1]
        self._answer(200, self.server.logs[name], "text/plain")

    def _answer(self, code, body, kind="application/json"):
        data = (body if kind == "text/plain" else json.dumps(body)).encode()
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture
def api(tmp_path, monkeypatch):
    server = Server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    path = tmp_path / "kubeconfig"
    apiserver.write_kubeconfig(path, f"http://127.0.0.1:{server.server_port}", {})
    monkeypatch.setattr(kubernetes.config.kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(path))
    cluster._client.cache_clear()
    monkeypatch.setattr(cluster, "SECONDS_BETWEEN_LOOKS", 0.01)
    yield server
    server.shutdown()
    server.server_close()
    cluster._client.cache_clear()


def test_logs_are_of_the_newest_pod_of_a_rank_with_the_clusters_words(api, tmp_path):
    sweep = sweep_of(tmp_path)
    GKE.submit(sweep)
    name = f"{sweep.id}-{JOBS[0]}"
    job = sweep.jobs[0]
    with pytest.raises(UserError, match="has no pod"):
        GKE.logs(sweep, job)
    api.jobsets[name]["status"] = {
        "conditions": [{"type": "Suspended", "status": "True", "reason": "Queued", "message": "no quota"}]
    }
    reason = {"involvedObject": {"kind": "Pod", "name": f"{name}-slice-0-0-b"}, "lastTimestamp": "2026-01-02T00:00:00Z"}
    other = {"involvedObject": {"kind": "Pod", "name": "elsewhere"}, "lastTimestamp": "2026-01-01T00:00:00Z"}
    about = {"reason": "FailedScheduling", "metadata": {}}
    api.events += [reason | about | {"message": "0/3 nodes"}, other | about | {"message": "not ours"}]
    output = GKE.logs(sweep, job).decode()
    assert "Suspended=True Queued: no quota" in output
    assert "FailedScheduling: 0/3 nodes" in output and "not ours" not in output

    days = [f"2026-01-0{day}T00:00:00Z" for day in (1, 2, 3)]
    api.pods += [pod(name, 0, "a", days[0], "Failed"), pod(name, 0, "b", days[1]), pod(name, 1, "c", days[2])]
    api.logs |= {p["metadata"]["name"]: f"printed by {p['metadata']['uid']}\n" for p in api.pods}
    assert GKE.logs(sweep, job).startswith(b"printed by b\n==> JobSet")
    assert GKE.logs(sweep, job, rank=0) == b"printed by b\n" and GKE.logs(sweep, job, rank=1) == b"printed by c\n"

    for rank, text in ((0, "first"), (1, "other")):  # what the pod of an earlier try left behind
        job.log.parent.mkdir(parents=True, exist_ok=True)
        job.log.write_text(f"==> 2026-01-01T00:00:00Z, a trainer on x <==\n{text}\n")
        cluster.copy_log(job, rank)
    assert GKE.logs(sweep, job, attempt=1).endswith(b"first\n") and GKE.logs(sweep, job, attempt=2) == b"printed by b\n"
    assert GKE.logs(sweep, job, rank=1, attempt=-2).endswith(b"other\n")
    with pytest.raises(UserError, match="has 2 tries"):
        GKE.logs(sweep, job, attempt=3)


def test_what_is_followed_goes_on_in_the_next_pod_until_the_jobset_is_over(api, tmp_path):
    sweep = sweep_of(tmp_path)
    GKE.submit(sweep)
    name = f"{sweep.id}-{JOBS[2]}"
    job = sweep.jobs[2]
    api.pods.append(pod(name, 0, "a", "2026-01-01T00:00:00Z"))
    api.logs |= {f"{name}-slice-0-0-a": "one\n", f"{name}-slice-0-0-b": "two\n"}
    lines = GKE.follow(sweep, job, None)
    assert next(lines) == b"one\n"
    api.pods.append(pod(name, 0, "b", "2026-01-02T00:00:00Z"))
    assert next(lines) == f"==> {name}-slice-0-0-b <==\n".encode() and next(lines) == b"two\n"
    api.jobsets[name]["status"] = {"conditions": [{"type": "Completed", "status": "True"}]}
    assert list(lines) == []


def failed_job(jobset: str, reason: str, message: str, when: str) -> dict:
    """A Job of a JobSet that has failed, as the job controller leaves it."""
    condition = {"type": "Failed", "status": "True", "reason": reason, "message": message, "lastTransitionTime": when}
    metadata = {"name": f"{jobset}-slice-{when[-2]}", "labels": {"jobset.sigs.k8s.io/jobset-name": jobset}}
    return {
        "metadata": metadata,
        "spec": {"template": {"spec": {"containers": []}}},
        "status": {"conditions": [condition]},
    }


def test_how_the_jobs_of_a_jobset_failed_is_told(api, tmp_path):
    """By the condition of the first Job that failed: the JobSet's own says only that one did."""
    sweep = sweep_of(tmp_path)
    GKE.submit(sweep)
    jobset = f"{sweep.id}-{JOBS[0]}"
    policy = "Container trainer for pod default/x failed with exit code 2 matching FailJob rule at index 0"
    limit = "Job has reached the specified backoff limit"
    api.jobs += [
        failed_job(jobset, "BackoffLimitExceeded", limit, "2026-01-01T00:00:02Z"),
        failed_job(jobset, "PodFailurePolicy", policy, "2026-01-01T00:00:01Z"),
        failed_job(f"{sweep.id}-{JOBS[1]}", "BackoffLimitExceeded", limit, "2026-01-01T00:00:00Z"),
    ]
    message = "jobset failed due to one or more job failures"
    for job in sweep.jobs[:2]:
        condition = {"type": "Failed", "status": "True", "reason": "FailedJobs", "message": message}
        item = api.jobsets[f"{sweep.id}-{job.name}"]
        item["status"] = {"conditions": [condition]}
        item["spec"]["suspend"] = False
    first = f"{message}; job {jobset}-slice-1: PodFailurePolicy: {policy}"
    states = GKE.states(sweep)
    assert states[JOBS[0]] == f"failed ({first})"
    assert states[JOBS[1]].endswith(f"-slice-0: BackoffLimitExceeded: {limit})")
    assert states[JOBS[2]].startswith("queued")
    assert [GKE.reason(sweep, job) for job in sweep.jobs[::2]] == [first, ""]
    assert f"Job {jobset}-slice-1 failed: PodFailurePolicy: {policy}\n".encode() in GKE.logs(sweep, sweep.jobs[0])


@pytest.fixture
def seen(tmp_path):
    """A function that tells what launch.status sees of a sweep on GKE."""
    path = sweeps.write_sweep(tmp_path, "configs/quickstart.py", [{"seed": 1}])
    (tmp_path / "run").mkdir()
    sweep = sweeps.begin(path, tmp_path / "run", "gke", **OPTIONS)
    return lambda: status.see(sweep.workdir)


@pytest.mark.parametrize(
    "code, text, words",
    [
        (200, "<html>sign in</html>", "no API server"),
        (200, "null", "no API server"),
        (200, '{"items": 3}', "no API server"),
        (429, "try again", "429"),
        (500, "try again", "500"),
    ],
)
def test_an_answer_that_is_none_of_an_api_server_is_an_outage(api, seen, code, text, words):
    api.always = code, text
    result = seen()
    assert result["away"] and words in result["trouble"] and "0 of 1 runs done" in status.in_words(result)
    with pytest.raises(Unavailable, match=words):
        cluster.ask(cluster.CORE, "list_namespaced_pod", "default")


def test_what_a_cluster_says_forges_no_line(api, seen):
    message = "no\nd16-e1-01234567   1/1 done\x1b[2J"
    api.always = 403, json.dumps({"kind": "Status", "message": message})
    result = seen()
    assert not result["away"] and r"no\nd16-e1-01234567   1/1 done\x1b[2J" in result["trouble"]
    failed = {"conditions": [{"type": "Failed", "status": "True", "message": message}]}
    assert "\n" not in gke._state({"metadata": {}, "spec": {}, "status": failed}, None)
    states = {job["name"]: f"failed ({message})" for job in result["jobs"]}
    lines = status.in_words(status.look(sweepfile.read(epath.Path(result["workdir"])), states)).splitlines()
    assert len(lines) == 2 and "\x1b" not in lines[0]
