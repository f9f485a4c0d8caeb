"""The runs of a project of Weights & Biases, by its public GraphQL API.

It asks one query over HTTP, page by page, so the package wandb is not needed.
"""

import base64
import collections
import json
import netrc
import os
import urllib.error
import urllib.parse
import urllib.request

from fit.aliases import Json
from fit.errors import UserError
from fit.table.importers.nested import flat

SCHEME = "wandb:"
DEFAULT_URL = "https://api.wandb.ai"
PAGE = 100  # runs of one answer
TIMEOUT = 60.0  # seconds
QUERY = """
query Runs($entity: String!, $project: String!, $cursor: String, $perPage: Int) {
  project(name: $project, entityName: $entity) {
    runs(after: $cursor, first: $perPage, order: "+created_at") {
      edges { node { name displayName state config summaryMetrics } }
      pageInfo { endCursor hasNextPage }
    }
  }
}
"""


def runs(source: str) -> list[Json]:
    """The runs of wandb:ENTITY/PROJECT on the server WANDB_BASE_URL, by default https://api.wandb.ai.

    The key is WANDB_API_KEY, or the one that `wandb login` wrote to ~/.netrc.

    Returns:
      A dictionary for each run, the oldest first: `run` (its display name, with the id where others have the same
      name), `id`, `state`, its config and its summary. Nested names are joined by dots.

    Raises:
      UserError: for another source, where there is no key or no such project, or the server does not answer.
    """
    entity, mark, project = source.removeprefix(SCHEME).partition("/")
    if not mark or not entity or not project or "/" in project:
        raise UserError(f"{source}: expected {SCHEME}ENTITY/PROJECT")
    url = os.environ.get("WANDB_BASE_URL", DEFAULT_URL).rstrip("/")
    if not url.startswith(("http://", "https://")):
        raise UserError(f"WANDB_BASE_URL={url}: expected the address of a server, such as {DEFAULT_URL}")
    key = _key(url)
    nodes: list[Json] = []
    cursor = None
    while True:
        variables = {"entity": entity, "project": project, "cursor": cursor, "perPage": PAGE}
        answer = _answer(source, url, key, variables)
        if answer.get("project") is None:
            raise UserError(f"{source}: {url} has no such project, or the key may not read it")
        page = answer["project"]["runs"]
        nodes += [edge["node"] for edge in page["edges"]]
        if not page["pageInfo"]["hasNextPage"]:
            break
        cursor = page["pageInfo"]["endCursor"]
    if not nodes:
        raise UserError(f"{source}: has no runs")
    n_of_name = collections.Counter(node["displayName"] for node in nodes)
    return [_row(node, n_of_name[node["displayName"]] > 1) for node in nodes]


def _row(node: Json, is_repeated: bool) -> Json:
    """The dictionary of a run.

    Args:
      node: the run as the server describes it.
      is_repeated: whether other runs have its display name.
    """
    run = node["displayName"]
    if is_repeated:
        run = f"{run} ({node['name']})"
    config = json.loads(node["config"] or "{}")
    settings = {}
    for name, entry in config.items():
        if name != "_wandb":
            settings[name] = entry["value"] if isinstance(entry, dict) and "value" in entry else entry
    summary = json.loads(node["summaryMetrics"] or "{}")
    summary.pop("_wandb", None)
    row = {"run": run, "id": node["name"], "state": node["state"]}
    return flat(settings, ".") | flat(summary, ".") | row


def _key(url: str) -> str:
    """The user's key for a server."""
    key = os.environ.get("WANDB_API_KEY")
    if key:
        return key
    host = urllib.parse.urlsplit(url).hostname or ""
    try:
        entry = netrc.netrc().authenticators(host)
    except (OSError, netrc.NetrcParseError):
        entry = None
    if entry is None or not entry[2]:
        raise UserError(
            f"WANDB_API_KEY is not set, and ~/.netrc has no key for {host}: copy yours from https://wandb.ai/authorize"
        )
    return entry[2]


def _answer(source: str, url: str, key: str, variables: Json) -> Json:
    """The data that the server answers to the query with these variables."""
    request = urllib.request.Request(
        f"{url}/graphql",
        json.dumps({"query": QUERY, "variables": variables}).encode(),
        {
            "Content-Type": "application/json",
            "Authorization": "Basic " + base64.b64encode(f"api:{key}".encode()).decode(),
        },
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:  # noqa: S310  the user names the server
            answer = json.load(response)
    except urllib.error.HTTPError as e:
        if e.code in (401, 403):
            raise UserError(f"{source}: {url} does not accept the key (HTTP {e.code}): is WANDB_API_KEY yours?") from e
        raise UserError(f"{source}: {url} answered HTTP {e.code} {e.reason}") from e
    except (OSError, ValueError) as e:  # no connection, or no answer in time; or not JSON
        raise UserError(f"{source}: {url}/graphql cannot be read: {getattr(e, 'reason', e)}") from e
    errors = answer.get("errors")
    if errors:
        raise UserError(f"{source}: {url} answered: {errors[0].get('message', errors[0])}")
    return answer["data"]
