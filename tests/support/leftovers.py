"""Ends what the tests leave behind when they are interrupted or killed: servers, sweeps, trainers, also those that are
forked or have a session of their own. Each inherits a variable of this process of the tests, and is known by it.

    python tests/support/leftovers.py MARK     waits until its stdin ends, with the process that started it
"""

import os
import pathlib
import signal
import subprocess
import sys
import time
import uuid

VARIABLE = "JMOE_TESTS_OF"


def end_with_this_process() -> None:
    """Has all that this process starts from now on ended when it ends, however that happens (Linux)."""
    os.environ[VARIABLE] = mark = uuid.uuid4().hex
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    command = [sys.executable, "-S", __file__, mark]
    its_end, _ = os.pipe()  # the other end stays open until this process has ended
    watcher = subprocess.Popen(command, stdin=its_end, env=environment, start_new_session=True)
    os.close(its_end)
    watcher.returncode = 0  # it outlives this process, which does not wait for it


def marked(mark: str) -> list[int]:
    """The processes that inherited this value of the variable."""
    entry = f"{VARIABLE}={mark}".encode()
    pids = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if entry in (folder / "environ").read_bytes().split(b"\0"):
                pids.append(int(folder.name))
        except OSError:  # it has ended, or is another user's
            continue
    return pids


def main() -> None:
    sys.stdin.read()
    deadline = time.monotonic() + 10
    while (pids := marked(sys.argv[1])) and time.monotonic() < deadline:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.1)


if __name__ == "__main__":
    main()
