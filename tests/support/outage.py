"""A proxy in front of the served bucket that fails for a while, or at random: busy, unauthorised, connections reset,
answers cut short, or answers lost after the request was carried out; requests held back,
or answered late.

It runs in threads of the test's process. The test says what goes wrong and when, and sees each request.
"""

import collections
import contextlib
import http.client
import http.server
import json
import os
import random
import socket
import struct
import threading
import time
import urllib.parse

SECONDS = 100 if os.environ.get("JMOE_SOAK") else 1  # the length of an outage
FAULTS = ("503", "401", "reset", "cut", "lost")


class Proxy:
    """Passes requests on to the server on `port`; `url` is its own address."""

    def __init__(self, port: int):
        self._port = port
        self._lock = threading.Lock()
        self._plan = []  # outages to come: (request that begins it, the requests that it hits, fault, seconds)
        self._fault = None
        self._until = 0.0
        self._hit = ""
        self.failed = collections.Counter()  # requests that went wrong, by fault
        self.deleted = []  # objects that were deleted
        self.requests = []  # all of them, "METHOD PATH"
        self._share = 0.0
        self._kinds = ()
        self._chance = None  # for requests that fail at random

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            proxy = self

            def do_GET(handler):
                self._answer(handler)

            do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = do_GET

            def log_message(*_):
                return None

        class Server(http.server.ThreadingHTTPServer):
            def handle_error(*_):
                return None  # a client that hangs up

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def fail(self, fault: str, seconds: float, at: str = "", only: str = "") -> None:
        """Plans an outage, after those planned before: it begins with the first request "METHOD PATH" that contains
        `at`, and hits requests that contain `only`."""
        with self._lock:
            self._plan.append((at, only, fault, seconds))

    def fail_at_random(self, kinds=FAULTS, share: float = 1 / 20, seed: int = 0) -> None:
        """Makes that share of the requests outside of outages fail, each with one of the faults `kinds`."""
        with self._lock:
            self._share = share
            self._kinds = kinds
            self._chance = random.Random(seed)

    def end(self) -> None:
        """Ends every outage and the random faults, and clears the records of requests, failures and deletions."""
        with self._lock:
            self._plan = []
            self._until = 0.0
            self._share = 0.0
            for record in (self.failed, self.deleted, self.requests):
                record.clear()

    def over(self) -> bool:
        """Whether every planned outage has happened and is over."""
        with self._lock:
            return not self._plan and time.monotonic() >= self._until

    def _fault_of(self, request: str) -> str | None:
        with self._lock:
            self.requests.append(request)
            if time.monotonic() >= self._until and self._plan and self._plan[0][0] in request:
                _, self._hit, self._fault, seconds = self._plan.pop(0)
                self._until = time.monotonic() + seconds
            fault = self._fault if time.monotonic() < self._until and self._hit in request else None
            if fault is None and self._share and self._chance.random() < self._share:
                fault = self._chance.choice(self._kinds)
            if fault:
                self.failed[fault] += 1
            return fault

    def _answer(self, handler) -> None:
        body = self._body_of(handler)
        fault = self._fault_of(f"{handler.command} {urllib.parse.unquote(handler.path)}")
        if fault == "reset":
            handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            handler.close_connection = True
            handler.connection.close()
        elif fault in ("503", "401", "403"):
            error = {"error": {"code": int(fault), "message": f"the proxy says {fault}"}}
            _send(handler, int(fault), {"Content-Type": "application/json"}, json.dumps(error).encode())
        else:
            if fault == "held":
                self._wait()
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
            connection.request(handler.command, handler.path, body, dict(handler.headers))
            answer = connection.getresponse()
            content = answer.read()
            connection.close()
            if handler.command == "DELETE":
                self.deleted.append(urllib.parse.unquote(handler.path))
            if fault == "late":
                self._wait()
            if fault == "lost":
                handler.close_connection = True
            else:
                _send(handler, answer.status, dict(answer.getheaders()), content, cut=fault == "cut")

    def _wait(self) -> None:
        """Until the outage is over."""
        time.sleep(max(0.0, self._until - time.monotonic()))

    def _body_of(self, handler) -> bytes:
        if handler.headers.get("Transfer-Encoding", "") == "chunked":
            body = b""
            while size := int(handler.rfile.readline().split(b";")[0], 16):
                body += handler.rfile.read(size)
                handler.rfile.readline()
            handler.rfile.readline()
            del handler.headers["Transfer-Encoding"]
            return body
        return handler.rfile.read(int(handler.headers.get("Content-Length", 0)))


def _send(handler, status: int, headers: dict, content: bytes, cut: bool = False) -> None:
    """Sends an answer; with `cut`, closes the connection after half of the content, or before sending anything."""
    handler.close_connection |= cut
    if cut and not content:
        return
    handler.send_response_only(status)
    for name, value in headers.items():
        if name.lower() not in ("content-length", "transfer-encoding", "connection"):
            handler.send_header(name, value)
    if status != 204:
        handler.send_header("Content-Length", str(len(content)))
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(content[: len(content) // 2] if cut else content)
    handler.wfile.flush()


@contextlib.contextmanager
def proxy(url: str):
    """A Proxy in front of the server at `url`, http://127.0.0.1:PORT."""
    served = Proxy(int(url.rpartition(":")[2]))
    try:
        yield served
    finally:
        served.close()
