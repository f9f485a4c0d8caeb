"""A Kubernetes API server for a test: etcd, and the server that tests/support/apiserver_build.py builds, over TLS.

It has no controllers: a test does by hand what they would do.
"""

import contextlib
import copy
import json
import pathlib
import shutil
import signal
import socket
import subprocess
import threading
import time

import apiserver_build
import apiserver_crds
import helpers
import yaml
from kubernetes import client

ADMIN = "admin"
JOBSETS = "jobset.x-k8s.io", "v1alpha2", "default", "jobsets"
QUEUES = "kueue.x-k8s.io", "v1beta1", "default", "localqueues"
WORKLOADS = "kueue.x-k8s.io", "v1beta1", "default", "workloads"


def missing() -> str:
    """Why no server can be started here, or nothing."""
    if not shutil.which("etcd"):
        return "etcd not found: apt-get install etcd-server"
    built = apiserver_build.path().exists()
    return "" if built else "no API server is built: python tests/support/apiserver_build.py does it, in some minutes"


def write_kubeconfig(path: pathlib.Path, server: str, user: dict, certificate: str = "") -> None:
    """As GKE's, with what `user` proves to be itself with."""
    authority = {"certificate-authority": certificate} if certificate else {}
    known = {"clusters": [{"name": "c", "cluster": authority | {"server": server}}]}
    known |= {"users": [{"name": "u", "user": user}], "current-context": "c"}
    known |= {"contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]}
    path.write_text(yaml.safe_dump(known))


class Cluster:
    """Starts in the constructor, with the LocalQueue `team`; point KUBECONFIG at `kubeconfig`, whose credentials are
    those that be() was last given. stop() ends its processes."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.kubeconfig = folder / "kubeconfig"
        self._stopped = threading.Event()
        self._certificate = f"{folder}/tls/apiserver.crt"
        self.pods = folder / "core/pods"
        self.events = folder / "core/events"
        for place in (self.pods, self.events):
            place.mkdir(parents=True)
        self.port, etcd, peer = (helpers.free_port() for _ in range(3))
        self._etcd = self._start(
            "etcd", f"--data-dir={folder}/etcd", "--unsafe-no-fsync", "--name=only",
            f"--listen-client-urls=http://127.0.0.1:{etcd}", f"--advertise-client-urls=http://127.0.0.1:{etcd}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}", f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-cluster=only=http://127.0.0.1:{peer}",
        )  # fmt: skip
        helpers.wait_until(lambda: _listens(etcd), [self._etcd], 60)
        self._command = (
            str(apiserver_build.path()), f"--etcd-servers=http://127.0.0.1:{etcd}", "--bind-address=127.0.0.1",
            f"--secure-port={self.port}", f"--cert-dir={folder}/tls", f"--users={folder}/users.json",
            f"--core={folder}/core",
        )  # fmt: skip
        self.users = {ADMIN: {"expires": 4e9}}
        self.be("user")
        self._server = self._start(*self._command)
        helpers.wait_until(lambda: _listens(self.port), [self._server], 60)
        assert _listens(self.port), (folder / "apiserver.out").read_text()[-2000:]
        plugin = {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "cat"}
        plugin |= {"args": [str(self.folder / "credential.json")], "interactiveMode": "Never"}
        write_kubeconfig(self.kubeconfig, f"https://127.0.0.1:{self.port}", {"exec": plugin}, self._certificate)
        loaded = client.Configuration()
        loaded.host = f"https://127.0.0.1:{self.port}"
        loaded.ssl_ca_cert = self._certificate
        loaded.api_key = {"BearerToken": f"Bearer {ADMIN}"}
        self.api = client.CustomObjectsApi(client.ApiClient(loaded))
        for crd in apiserver_crds.crds():
            self.define(crd)
        self.api.create_namespaced_custom_object(
            *QUEUES, _object(QUEUES, "LocalQueue", {"name": "team"}, {"clusterQueue": "gpus"})
        )
        self._collector = threading.Thread(target=self._collect_garbage, daemon=True)
        self._collector.start()

    def start(self) -> None:
        """Starts the API server that kill() ended, and waits until it serves what was defined."""
        self._server = self._start(*self._command)
        helpers.wait_until(lambda: _listens(self.port) and self._has(*JOBSETS), [self._server], 60)

    def kill(self) -> None:
        self._server.kill()
        self._server.wait()

    @contextlib.contextmanager
    def halted(self):
        """Within the block, the server does nothing, and is there."""
        helpers.halt(self._server.pid)
        try:
            yield
        finally:
            self._server.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        self._stopped.set()
        self._collector.join()
        for process in (self._server, self._etcd):
            process.kill()
            process.wait()

    def be(self, token: str, **rights) -> None:
        """From now on, the kubeconfig's credential is `token`, valid for an hour unless `rights` say otherwise."""
        self.users[token] = {"expires": time.time() + 3600} | rights
        (self.folder / "users.json").write_text(json.dumps(self.users))
        credential = {"apiVersion": "client.authentication.k8s.io/v1beta1", "kind": "ExecCredential"}
        (self.folder / "credential.json").write_text(json.dumps(credential | {"status": {"token": token}}))

    def define(self, crd: dict) -> None:
        """Defines a resource; when this returns, its objects can be created."""
        extensions = client.ApiextensionsV1Api(self.api.api_client)
        extensions.create_custom_resource_definition(crd)
        spec, served = crd["spec"], [version["name"] for version in crd["spec"]["versions"] if version["served"]]
        kind = spec["group"], served[0], "default", spec["names"]["plural"]
        helpers.wait_until(lambda: self._has(*kind), [self._server], 60)

    @contextlib.contextmanager
    def changed(self, kind, change):
        """Within the block, and soon after it began, the server has the versions of this kind that `change` makes."""
        crd = f"{kind[3]}.{kind[0]}"
        extensions = client.ApiextensionsV1Api(self.api.api_client)
        text = extensions.api_client.sanitize_for_serialization(extensions.read_custom_resource_definition(crd))
        versions = text["spec"]["versions"]
        extensions.patch_custom_resource_definition(crd, {"spec": {"versions": change(copy.deepcopy(versions))}})
        try:
            yield
        finally:
            extensions.patch_custom_resource_definition(crd, {"spec": {"versions": versions}})

    def _has(self, *kind) -> bool:
        time.sleep(0.05)
        try:
            self.api.list_namespaced_custom_object(*kind)
            return True
        except client.ApiException:
            return False

    def jobsets(self) -> dict[str, dict]:
        """The JobSets, by the name of their job or of the first of their jobs."""
        items = self.api.list_namespaced_custom_object(*JOBSETS)["items"]
        return {item["metadata"]["labels"]["jmoe/job"]: item for item in items}

    def clear(self) -> None:
        for kind in (JOBSETS, WORKLOADS):
            self.api.delete_collection_namespaced_custom_object(*kind)
        for place in (self.pods, self.events):
            for file in place.iterdir():
                file.unlink()
        helpers.wait_until(lambda: not self.jobsets())

    def admit(self, job: str) -> None:
        """Starts a job's JobSet, as Kueue does, and as JobSet's controller does after it."""
        name = self.jobsets()[job]["metadata"]["name"]
        self.api.patch_namespaced_custom_object(*JOBSETS, name, {"spec": {"suspend": False}})
        self.tell(job, "Suspended", "ResumeJobs", "jobset is resumed", "False")

    def tell(self, job: str, kind: str, reason: str, message: str, truth: str = "True", restarts: int = 0) -> None:
        """Sets a condition and the number of restarts, as JobSet's controller does."""
        status = {"conditions": [_condition(kind, truth, reason, message)], "restarts": restarts}
        self.api.patch_namespaced_custom_object_status(
            *JOBSETS, self.jobsets()[job]["metadata"]["name"], {"status": status}
        )

    def queue(self, job: str, conditions: list[tuple], check: dict | None = None) -> None:
        """Makes or changes the Workload of a job's JobSet, as Kueue does; a condition is of type, truth, reason and
        message."""
        metadata = self.jobsets()[job]["metadata"]
        name = f"jobset-{metadata['name']}"
        kept = {item["metadata"]["name"] for item in self.api.list_namespaced_custom_object(*WORKLOADS)["items"]}
        if name not in kept:
            described = {"name": name, "labels": {"kueue.x-k8s.io/job-uid": metadata["uid"]}}
            (replicated,) = self.jobsets()[job]["spec"]["replicatedJobs"]
            pods = {"name": "slice", "count": 1, "template": replicated["template"]["spec"]["template"]}
            workload = _object(WORKLOADS, "Workload", described, {"queueName": "team", "podSets": [pods]})
            self.api.create_namespaced_custom_object(*WORKLOADS, workload)
        checks = [check | {"lastTransitionTime": _now()}] if check else []
        status = {"conditions": [_condition(*condition) for condition in conditions], "admissionChecks": checks}
        self.api.patch_namespaced_custom_object_status(*WORKLOADS, name, {"status": status})

    def pod(self, job: str, status: dict, index: int = 0) -> str:
        """Makes or changes the pod `index` of a job's JobSet, as the controllers and the kubelet do; returns its
        name."""
        item = self.jobsets()[job]
        name = f"{item['metadata']['name']}-slice-0-{index}-abcde"
        labels = item["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["metadata"]["labels"]
        labels |= {"jobset.sigs.k8s.io/jobset-name": item["metadata"]["name"], "jobset.sigs.k8s.io/job-index": "0"}
        labels |= {"batch.kubernetes.io/job-completion-index": str(index)}
        pod = {"metadata": {"name": name, "namespace": "default", "labels": labels}, "status": status}
        (self.pods / f"{name}.json").write_text(json.dumps(pod))
        return name

    def warn(self, job: str, reason: str, message: str) -> None:
        """Puts a warning about the Job of a job's JobSet among the events, as the job controller does."""
        about = {"kind": "Job", "name": f"{self.jobsets()[job]['metadata']['name']}-slice-0", "namespace": "default"}
        event = {"metadata": {"name": f"{about['name']}.1", "namespace": "default"}, "involvedObject": about}
        event |= {"type": "Warning", "reason": reason, "message": message, "lastTimestamp": _now()}
        (self.events / f"{about['name']}.json").write_text(json.dumps(event))

    def hold(self, job: str, finalizers: list[str]) -> None:
        name = self.jobsets()[job]["metadata"]["name"]
        self.api.patch_namespaced_custom_object(*JOBSETS, name, {"metadata": {"finalizers": finalizers}})

    def _collect_garbage(self) -> None:
        """As the controller of that name, removes what is deleted in the foreground once it has no dependents; none
        here have any."""
        while not self._stopped.wait(0.3):
            with contextlib.suppress(Exception):  # the server may be dead for now
                for item in self.api.list_namespaced_custom_object(*JOBSETS)["items"]:
                    held = item["metadata"].get("finalizers", [])
                    if "deletionTimestamp" in item["metadata"] and "foregroundDeletion" in held:
                        held = [name for name in held if name != "foregroundDeletion"]
                        patch = {
                            "metadata": {"finalizers": held, "resourceVersion": item["metadata"]["resourceVersion"]}
                        }
                        self.api.patch_namespaced_custom_object(*JOBSETS, item["metadata"]["name"], patch)

    def run_pod(self, job: str) -> int:
        """Runs the first pod of a job's JobSet as a process, as its manifest says; returns its exit code."""
        item = self.jobsets()[job]
        (replicated,) = item["spec"]["replicatedJobs"]
        (container,) = replicated["template"]["spec"]["template"]["spec"]["containers"]
        told = {variable["name"]: variable["value"] for variable in container["env"] if "value" in variable}
        name = self.pod(job, {"phase": "Running"})
        place = {"JOB_COMPLETION_INDEX": "0"}
        program, *arguments = (argument.replace("$$", "$") for argument in container["command"] + container["args"])
        assert program == "python"
        command = [helpers.sys.executable, *arguments]
        with open(self.pods / f"{name}.log", "wb") as log:
            environment = helpers.environment() | told | place | {"JMOE_CACHE": str(self.folder / "cache")}
            environment["JAX_COMPILATION_CACHE_DIR"] = helpers.environment()["JAX_COMPILATION_CACHE_DIR"]
            return subprocess.run(command, env=environment, stdout=log, stderr=log, timeout=300).returncode

    def _start(self, *command) -> subprocess.Popen:
        with open(self.folder / f"{pathlib.Path(command[0]).name}.out", "ab") as out:
            return subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, cwd=self.folder)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _condition(kind: str, truth: str, reason: str, message: str) -> dict:
    return {"type": kind, "status": truth, "reason": reason, "message": message, "lastTransitionTime": _now()}


def _object(kind, name, metadata, spec) -> dict:
    group, version, namespace, _ = kind
    return {"apiVersion": f"{group}/{version}", "kind": name, "metadata": metadata, "spec": spec}
