"""A server that answers the GraphQL query for a project's runs as Weights & Biases does, from a file of its pages.

It knows one key, one entity and one project.
"""

import base64
import contextlib
import http.server
import json
import pathlib
import threading
from collections.abc import Iterator

PAGES = pathlib.Path(__file__).parents[1] / "data" / "foreign" / "wandb_api" / "sweep.json"
KEY = "0123456789abcdef0123456789abcdef01234567"
PROJECT = {"entity": "ada", "project": "sweep"}


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers POST /graphql."""

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        credentials = base64.b64encode(f"api:{KEY}".encode()).decode()
        if self.path != "/graphql":
            self._answer(404, {})
        elif self.headers.get("Authorization") != f"Basic {credentials}":
            self._answer(401, {"errors": [{"message": "user is not logged in"}]})
        else:
            self._answer(200, self._page(request["query"], request["variables"]))

    def _page(self, query: str, variables: dict) -> dict:
        """The page of runs behind a cursor, with the fields that the query names."""
        if variables["entity"] == "broken":
            return {"data": None, "errors": [{"message": "permission denied", "path": ["project"]}]}
        if {name: variables[name] for name in PROJECT} != PROJECT:
            return {"data": {"project": None}}
        pages = json.loads(PAGES.read_text(encoding="utf-8"))
        cursors = [None]
        for page in pages:
            runs = page["data"]["project"]["runs"]
            cursors.append(runs["pageInfo"]["endCursor"])
            for edge in runs["edges"]:
                edge["node"] = {name: value for name, value in edge["node"].items() if name in query.split()}
        return pages[cursors.index(variables["cursor"])]

    def _answer(self, status: int, body: dict) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Prints nothing."""


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """The address of a server that runs until the end of the `with`."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
