"""A proxy before the served bucket that fails for a while: busy, unauthorised, connections reset, bodies cut short.

It runs in threads of the test, which says what goes wrong and when, and sees each request that was made.
"""

import collections
import contextlib
import http.client
import http.server
import json
import os
import socket
import struct
import threading
import time
import urllib.parse

SECONDS = 100 if os.environ.get("JMOE_SOAK") else 1  # that an outage takes
FAULTS = ("503", "401", "reset", "cut")


class Proxy:
    """Passes requests on to the server on `port`; `url` is its own address."""

    def __init__(self, port: int):
        self._port, self._lock = port, threading.Lock()
        self._plan = []  # outages to come: (request that begins it, the requests that it hits, fault, seconds)
        self._fault, self._until, self._hit = None, 0.0, ""
        self.failed = collections.Counter()  # requests that went wrong, by fault
        self.deleted = []  # objects that were deleted

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            proxy = self
            do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = lambda handler: self._answer(handler)
            log_message = lambda *_: None

        class Server(http.server.ThreadingHTTPServer):
            handle_error = lambda *_: None  # a client that hangs up

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def fail(self, fault: str, seconds: float, at: str = "", only: str = "") -> None:
        """Requests "METHOD PATH" that hold `only`, from the first that holds `at`, after what was planned before."""
        with self._lock:
            self._plan.append((at, only, fault, seconds))

    def end(self) -> None:
        """Of every outage; nothing has failed or been deleted so far."""
        with self._lock:
            self._plan, self._until = [], 0.0
            self.failed.clear()
            self.deleted.clear()

    def over(self) -> bool:
        """Whether every planned outage has been and is over."""
        with self._lock:
            return not self._plan and time.monotonic() >= self._until

    def _fault_of(self, request: str) -> str | None:
        with self._lock:
            if time.monotonic() >= self._until and self._plan and self._plan[0][0] in request:
                _, self._hit, self._fault, seconds = self._plan.pop(0)
                self._until = time.monotonic() + seconds
            if time.monotonic() >= self._until or self._hit not in request:
                return None
            self.failed[self._fault] += 1
            return self._fault

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
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
            connection.request(handler.command, handler.path, body, dict(handler.headers))
            answer = connection.getresponse()
            content = answer.read()
            connection.close()
            if handler.command == "DELETE":
                self.deleted.append(urllib.parse.unquote(handler.path))
            _send(handler, answer.status, dict(answer.getheaders()), content, cut=fault == "cut")

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
    """An answer; `cut` short, the connection is closed before all that was announced is sent, or anything at all."""
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
    """A Proxy before the server at `url`, http://127.0.0.1:PORT."""
    served = Proxy(int(url.rpartition(":")[2]))
    try:
        yield served
    finally:
        served.close()
