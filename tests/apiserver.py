"""A Kubernetes API server for a test: etcd, and the server that tests/apiserver_build.py builds, over TLS.

It has the CRDs of JobSet and Kueue: those in the folder JMOE_CRDS (YAML files, as the projects publish them), else the
ones made here. It has no controllers: a test does by hand what they would do.
"""

import contextlib
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import threading
import time

import apiserver_build
import helpers
import yaml
from kubernetes import client, config

ADMIN = "admin"
JOBSETS = "jobset.x-k8s.io", "v1alpha2", "default", "jobsets"
QUEUES = "kueue.x-k8s.io", "v1beta1", "default", "localqueues"


def missing() -> str:
    """Why no server can be started here, or nothing."""
    if not shutil.which("etcd"):
        return "etcd not found: apt-get install etcd-server"
    built = apiserver_build.path().exists()
    return "" if built else "the API server is not built: python tests/apiserver_build.py does it, in some minutes"


class Cluster:
    """Starts in the constructor, with the LocalQueue `team`; KUBECONFIG is to be `kubeconfig`, whose credentials are
    those of the user `token`. stop() ends its processes."""

    def __init__(self, folder: pathlib.Path):
        self.folder, self.kubeconfig, self._stopped = folder, folder / "kubeconfig", threading.Event()
        self.pods = folder / "pods"
        self.pods.mkdir()
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
            f"--pods={self.pods}",
        )  # fmt: skip
        self.users = {ADMIN: {"expires": 4e9}}
        self.be("user")
        self.start()
        self._write_kubeconfig()
        loaded = client.Configuration()
        loaded.host, loaded.ssl_ca_cert = f"https://127.0.0.1:{self.port}", f"{folder}/tls/apiserver.crt"
        loaded.api_key = {"BearerToken": f"Bearer {ADMIN}"}
        self.api = client.CustomObjectsApi(client.ApiClient(loaded))
        for crd in crds():
            self.define(crd)
        self.api.create_namespaced_custom_object(
            *QUEUES, _object(QUEUES, "LocalQueue", {"name": "team"}, {"clusterQueue": "gpus"})
        )
        self._collector = threading.Thread(target=self._collect_garbage, daemon=True)
        self._collector.start()

    def start(self) -> None:
        """The server, which kill() ended."""
        self._server = self._start(*self._command)
        helpers.wait_until(lambda: _listens(self.port), [self._server], 60)
        assert _listens(self.port), (self.folder / "apiserver.out").read_text()[-2000:]

    def kill(self) -> None:
        self._server.kill()
        self._server.wait()

    def stop(self) -> None:
        self._stopped.set()
        self._collector.join()
        for process in (self._server, self._etcd):
            process.kill()
            process.wait()

    def be(self, token: str, **rights) -> None:
        """The kubeconfig's credentials are `token` from now on, which is good for an hour unless `rights` say else."""
        self.users[token] = {"expires": time.time() + 3600} | rights
        (self.folder / "users.json").write_text(json.dumps(self.users))
        credential = {"apiVersion": "client.authentication.k8s.io/v1beta1", "kind": "ExecCredential"}
        (self.folder / "credential.json").write_text(json.dumps(credential | {"status": {"token": token}}))

    def _write_kubeconfig(self) -> None:
        """As GKE's: a program prints the token."""
        plugin = {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "cat"}
        plugin |= {"args": [str(self.folder / "credential.json")], "interactiveMode": "Never"}
        server = {"server": f"https://127.0.0.1:{self.port}", "certificate-authority": f"{self.folder}/tls/apiserver.crt"}
        self.kubeconfig.write_text(
            yaml.safe_dump(
                {
                    "current-context": "c",
                    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                    "clusters": [{"name": "c", "cluster": server}],
                    "users": [{"name": "u", "user": {"exec": plugin}}],
                }
            )
        )

    def define(self, crd: dict) -> None:
        """Its objects can be made when this returns."""
        extensions = client.ApiextensionsV1Api(self.api.api_client)
        extensions.create_custom_resource_definition(crd)
        name, served = crd["metadata"]["name"], [v["name"] for v in crd["spec"]["versions"] if v["served"]]
        helpers.wait_until(lambda: self._has(crd["spec"]["group"], served[0], name.split(".")[0]), [self._server], 60)

    def _has(self, group, version, resource) -> bool:
        try:
            self.api.list_cluster_custom_object(group, version, resource)
            return True
        except client.ApiException:
            return False

    def jobsets(self) -> dict[str, dict]:
        """By the name of their job, or of the first of them."""
        items = self.api.list_namespaced_custom_object(*JOBSETS)["items"]
        return {item["metadata"]["labels"]["jmoe/job"]: item for item in items}

    def admit(self, job: str) -> None:
        """As Kueue does, and JobSet after it."""
        name = self.jobsets()[job]["metadata"]["name"]
        self.api.patch_namespaced_custom_object(*JOBSETS, name, {"spec": {"suspend": False}})
        self.tell(job, "Suspended", "ResumeJobs", "jobset is resumed", "False")

    def tell(self, job: str, kind: str, reason: str, message: str, truth: str = "True", restarts: int = 0) -> None:
        """A condition, as JobSet's controller sets it."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        condition = {"type": kind, "status": truth, "reason": reason, "message": message, "lastTransitionTime": now}
        status = {"conditions": [condition], "restarts": restarts}
        self.api.patch_namespaced_custom_object_status(
            *JOBSETS, self.jobsets()[job]["metadata"]["name"], {"status": status}
        )

    def hold(self, job: str, finalizers: list[str]) -> None:
        name = self.jobsets()[job]["metadata"]["name"]
        self.api.patch_namespaced_custom_object(*JOBSETS, name, {"metadata": {"finalizers": finalizers}})

    def _collect_garbage(self) -> None:
        """As the controller of that name: what is deleted in the foreground goes when it has no dependents; none here
        have any."""
        while not self._stopped.wait(0.3):
            with contextlib.suppress(Exception):  # the server may be dead for now
                for item in self.api.list_namespaced_custom_object(*JOBSETS)["items"]:
                    held = item["metadata"].get("finalizers", [])
                    if "deletionTimestamp" in item["metadata"] and "foregroundDeletion" in held:
                        held = [name for name in held if name != "foregroundDeletion"]
                        patch = {"metadata": {"finalizers": held, "resourceVersion": item["metadata"]["resourceVersion"]}}
                        self.api.patch_namespaced_custom_object(*JOBSETS, item["metadata"]["name"], patch)

    def run_pod(self, job: str) -> int:
        """Runs the first pod of a job's JobSet as a process, as its manifest says; returns its exit code."""
        item = self.jobsets()[job]
        (replicated,) = item["spec"]["replicatedJobs"]
        (container,) = replicated["template"]["spec"]["template"]["spec"]["containers"]
        told = {variable["name"]: variable["value"] for variable in container["env"] if "value" in variable}
        name, place = f"{item['metadata']['name']}-slice-0-0-abcde", {"JOB_COMPLETION_INDEX": "0"}
        labels = {"jobset.sigs.k8s.io/jobset-name": item["metadata"]["name"]}
        pod = {"metadata": {"name": name, "namespace": "default", "labels": labels}}
        (self.pods / f"{name}.json").write_text(json.dumps(pod))
        program, *arguments = (argument.replace("$$", "$") for argument in container["command"])
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


def _object(kind, name, metadata, spec) -> dict:
    group, version, namespace, _ = kind
    return {"apiVersion": f"{group}/{version}", "kind": name, "metadata": metadata, "spec": spec}


def crds() -> list[dict]:
    if folder := os.environ.get("JMOE_CRDS"):
        files = sorted(pathlib.Path(folder).glob("*.yaml"))
        return [crd for file in files for crd in yaml.safe_load_all(file.read_text()) if crd]
    return [
        crd("jobset.x-k8s.io", "v1alpha2", "JobSet", jobset_spec(), jobset_status()),
        crd("kueue.x-k8s.io", "v1beta1", "LocalQueue", record(clusterQueue=TEXT, stopPolicy=TEXT), CONDITIONS),
    ]


# Structural schemas of the published fields: JobSet's and Kueue's documentation of their APIs; those of batch/v1 and
# core/v1 as the kubernetes client has them.
TEXT, NUMBER, TRUTH = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}


def record(required=(), **fields) -> dict:
    return {"type": "object", "properties": fields} | ({"required": list(required)} if required else {})


def many(item: dict) -> dict:
    return {"type": "array", "items": item}


def choice(*values) -> dict:
    return TEXT | {"enum": list(values)}


def fixed(schema: dict) -> dict:
    return schema | {"x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "Value is immutable"}]}


CONDITION = record(
    ("lastTransitionTime", "message", "reason", "status", "type"),
    lastTransitionTime=TEXT | {"format": "date-time"}, message=TEXT, observedGeneration=NUMBER,
    reason=TEXT | {"minLength": 1}, status=choice("True", "False", "Unknown"), type=TEXT,
)  # fmt: skip
CONDITIONS = record(conditions=many(CONDITION), pendingWorkloads=NUMBER)


def jobset_spec() -> dict:
    rule = record(
        ("action", "name"), name=TEXT, action=choice("FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"),
        onJobFailureReasons=many(TEXT), targetReplicatedJobs=many(TEXT),
    )  # fmt: skip
    policy = record(maxRestarts=NUMBER, restartStrategy=choice("Recreate", "BlockingRecreate"), rules=many(rule))
    job = record(("name", "template"), name=TEXT, groupName=TEXT, replicas=NUMBER, template=model("V1JobTemplateSpec"))
    network = record(enableDNSHostnames=TRUTH, subdomain=TEXT, publishNotReadyAddresses=TRUTH)
    success = record(("operator",), operator=choice("All", "Any"), targetReplicatedJobs=many(TEXT))
    return record(
        replicatedJobs=many(job), network=fixed(network), successPolicy=fixed(success), failurePolicy=fixed(policy),
        suspend=TRUTH, managedBy=TEXT, ttlSecondsAfterFinished=NUMBER | {"minimum": 0},
    )  # fmt: skip


def jobset_status() -> dict:
    counts = dict.fromkeys(("ready", "succeeded", "failed", "active", "suspended"), NUMBER)
    return record(
        conditions=many(CONDITION), restarts=NUMBER, restartsCountTowardsMax=NUMBER, terminalState=TEXT,
        replicatedJobsStatus=many(record(("name", *counts), name=TEXT, **counts)),
    )  # fmt: skip


def model(kind: str) -> dict:
    """The schema of a type of the kubernetes client, whose models are made from what Kubernetes publishes."""
    if inner := re.fullmatch(r"List\[(.*)\]", kind):
        return many(model(inner[1]))
    if inner := re.fullmatch(r"Dict\[str, (.*)\]", kind):
        return {"type": "object", "additionalProperties": model(inner[1])}
    if not hasattr(client, kind):
        known = {"str": TEXT, "int": NUMBER, "bool": TRUTH, "datetime": TEXT | {"format": "date-time"}}
        return known.get(kind, {"x-kubernetes-preserve-unknown-fields": True})
    of = getattr(client, kind)
    fields = {of.attribute_map[name]: model(of.openapi_types[name]) for name in of.openapi_types}
    return record([of.attribute_map[name] for name, field in of.model_fields.items() if field.is_required()], **fields)


def crd(group: str, version: str, kind: str, spec: dict, status: dict) -> dict:
    plural = f"{kind.lower()}s"
    schema = record(apiVersion=TEXT, kind=TEXT, metadata={"type": "object"}, spec=spec, status=status)
    served = {"name": version, "served": True, "storage": True, "subresources": {"status": {}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        # the names under k8s.io are protected: their owners approve what they define
        "metadata": {"name": f"{plural}.{group}", "annotations": {"api-approved.kubernetes.io": "unapproved, a test"}},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
            "versions": [served | {"schema": {"openAPIV3Schema": schema}}],
        },
    }
