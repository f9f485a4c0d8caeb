"""The definitions of JobSets and LocalQueues that a test's API server holds objects to.

Those in the folder JMOE_CRDS, YAML files as JobSet and Kueue publish them, where it is set. Else the ones made here, of
the fields that their documentation lists; the fields of batch/v1 and core/v1 are those of the kubernetes client.
"""

import os
import pathlib
import re

import yaml
from kubernetes import client


def crds() -> list[dict]:
    if folder := os.environ.get("JMOE_CRDS"):
        files = sorted(pathlib.Path(folder).glob("*.yaml"))
        return [crd for file in files for crd in yaml.safe_load_all(file.read_text()) if crd]
    return [
        crd("jobset.x-k8s.io", "v1alpha2", "JobSet", jobset_spec(), jobset_status()),
        crd("kueue.x-k8s.io", "v1beta1", "LocalQueue", record(clusterQueue=TEXT, stopPolicy=TEXT), CONDITIONS),
        crd("kueue.x-k8s.io", "v1beta1", "Workload", workload_spec(), workload_status()),
    ]


TEXT = {"type": "string"}
NUMBER = {"type": "integer"}
TRUTH = {"type": "boolean"}


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
        ("action", "name"), name=TEXT, onJobFailureReasons=many(TEXT), targetReplicatedJobs=many(TEXT),
        onJobFailureMessagePatterns=many(TEXT),
        action=choice("FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"),
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


def workload_spec() -> dict:
    pods = record(("name", "count", "template"), name=TEXT, count=NUMBER, template=model("V1PodTemplateSpec"))
    return record(("podSets",), queueName=TEXT, active=TRUTH, podSets=many(pods))


def workload_status() -> dict:
    check = record(
        ("name", "state", "message", "lastTransitionTime"), name=TEXT, message=TEXT,
        state=choice("Pending", "Ready", "Retry", "Rejected"), lastTransitionTime=TEXT | {"format": "date-time"},
    )  # fmt: skip
    return record(conditions=many(CONDITION), admissionChecks=many(check))


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
