"""The Kubernetes API server that the kubeconfig's current context names, asked through the official client.

A refusal raises a UserError that quotes the server. Expired credentials are read again, once for each call.
"""

import contextlib
import functools
import json
from typing import Any

from jmoe.errors import UserError

CORE, CUSTOM = "CoreV1Api", "CustomObjectsApi"
SECONDS_TO_ANSWER = (10, 60)  # to connect, and between two pieces of an answer: a server may hang without a word


def ask(api: str, method: str, *args: Any, unless: tuple[int, ...] = (), **kwargs: Any) -> Any:
    """Calls `method` of the client's class `api`, CORE or CUSTOM; returns the answer, None for a status in `unless`.
    UserError where no cluster is known, it cannot be reached, or it refuses."""
    _client()  # raises UserError if the client library or the kubeconfig is missing
    import kubernetes
    import urllib3

    for credentials in ("kept", "read anew"):
        try:
            call = getattr(getattr(kubernetes.client, api)(_client()), method)
            return call(*args, _request_timeout=SECONDS_TO_ANSWER, **kwargs)
        except kubernetes.client.ApiException as error:
            if error.status in unless:
                return None
            if error.status == 401 and credentials == "kept":
                _client.cache_clear()
                continue
            known = "; gcloud auth login, or what the kubeconfig names, makes new credentials" * (error.status == 401)
            said = (error.body or "").strip()[:500]
            with contextlib.suppress(ValueError, LookupError, TypeError):  # as a rule the answer is a Kubernetes Status
                said = json.loads(error.body or "")["message"]
            raise UserError(f"the cluster refuses: {error.status} {error.reason}: {said}{known}") from None
        except urllib3.exceptions.HTTPError as error:
            raise UserError(f"the cluster cannot be reached: {error}; the same command goes on when it can") from None


def serves(group: str, version: str, resource: str) -> bool:
    """Whether the server serves objects of this kind."""
    listed = ask(CUSTOM, "get_api_resources", group, version, unless=(404,))
    return listed is not None and any(found.name == resource for found in listed.resources)


def holding(item: dict) -> dict[str, dict]:
    """The conditions of an object that are true, by type."""
    return {c["type"]: c for c in item.get("status", {}).get("conditions", []) if c["status"] == "True"}


@functools.cache
def _client() -> Any:
    """One client for the process: it keeps its connection, and runs a credential program of the kubeconfig once."""
    try:
        import kubernetes
        import yaml
    except ImportError:
        raise UserError("--backend=gke needs the kubernetes client: pip install -e '.[gke]'") from None
    try:
        return kubernetes.config.new_client_from_config()
    except (kubernetes.config.ConfigException, yaml.YAMLError, OSError) as error:
        words = " ".join(str(error).split())
        raise UserError(
            f"--backend=gke finds no cluster: {words}; gcloud container clusters get-credentials makes one known"
        ) from None
