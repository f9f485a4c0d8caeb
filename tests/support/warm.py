"""Processes of jmoe's commands that begin with the imports done: a server that has imported them forks for each, which
spares 1.5 of the 4 seconds of processor time of a short run. To a test, a fork is `python -m MODULE FLAGS` in all but
its /proc/PID/cmdline.
"""

import atexit
import functools
import gc
import json
import os
import pathlib
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile

READ_LATER = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_COMPILATION_CACHE_DIR")
ROOT = pathlib.Path(__file__).parents[2]


def at_import(environment) -> dict[str, str]:
    """The variables that have their effect while Python starts and modules are imported."""
    names = (name for name in environment if name.startswith(("JAX_", "PYTHON")) and name not in READ_LATER)
    return {name: environment[name] for name in names}


class Process:
    """As subprocess.Popen, as far as tests use it; what is to be a pipe is a file."""

    def __init__(self, module: str, flags: list[str], environment: dict, stdout, stderr):
        self.args = [module, *flags]
        self.returncode = None
        self._said = [None, None]
        request = json.dumps([module, flags, environment, os.getcwd()]).encode()
        self._files = [tempfile.TemporaryFile() if to == subprocess.PIPE else None for to in (stdout, stderr)]
        with open(os.devnull, "wb") as nowhere:
            places = [
                made or (nowhere if to == subprocess.DEVNULL else to)
                for made, to in zip(self._files, (stdout, stderr), strict=True)
            ]
            self._exit, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with other:
                fds = [other.fileno(), *(place.fileno() for place in places)]
                socket.send_fds(_server(json.dumps(at_import(environment))), [request], fds)
        self.pid = int(self._exit.recv(99))

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._exit], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._exit], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout)
            self.returncode = int(self._exit.recv(99))
            self._exit.close()
            for i, file in enumerate(self._files):
                if file:
                    file.seek(0)
                    self._said[i] = file.read().decode()
                    file.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> list[str | None]:
        self.wait(timeout)
        return self._said

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, signum)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@functools.cache
def _server(variables: str) -> socket.socket:
    """Where to ask the server of these variables; it ends with this process."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**20)
    nothing = dict.fromkeys(("stdin", "stdout"), subprocess.DEVNULL)
    keep = {name: value for name, value in os.environ.items() if name not in at_import(os.environ)}
    environment = keep | json.loads(variables) | {"OPENBLAS_NUM_THREADS": "1"}  # a fork needs a single thread
    command = [sys.executable, __file__, str(its.fileno())]
    server = subprocess.Popen(command, cwd=ROOT, env=environment, pass_fds=[its.fileno()], **nothing)
    its.close()
    atexit.register(lambda: (ours.close(), server.wait()))
    return ours


def _serve(asked: socket.socket) -> str:
    """Returns in each new process, which then is as the one that was asked for before it runs its first line."""
    while True:
        request, fds, *_ = socket.recv_fds(asked, 2**20, 3)
        if not request:
            os._exit(0)
        exit_fd, *places = fds
        if os.fork():
            for fd in fds:
                os.close(fd)
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if child := os.fork():  # this one waits and tells
            asked.close()
            for fd in places:
                os.close(fd)
            with socket.socket(fileno=exit_fd) as told:
                told.send(str(child).encode())
                told.send(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())
            os._exit(0)
        asked.close()
        os.close(exit_fd)
        for fd, place in zip((1, 2), places, strict=True):
            os.dup2(place, fd)
            os.close(place)
        module, flags, environment, folder = json.loads(request)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        sys.path[0] = folder
        sys.argv[1:] = flags
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return module


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nothing is left of those that wait
    gc.disable()  # as each command does while it imports
    sys.path[0] = os.getcwd()
    import jax

    import jmoe.evaluate
    import jmoe.prepare
    import jmoe.train  # noqa: F401

    for name in ("evaluate", "prepare", "train"):
        del sys.modules[f"jmoe.{name}"]
    module = _serve(socket.socket(fileno=int(sys.argv[1])))
    jax.config.update("jax_compilation_cache_dir", os.environ.get("JAX_COMPILATION_CACHE_DIR"))
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
