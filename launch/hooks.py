"""Commands of the user's that tell how a sweep goes: --on_done at its end, --on_failure for each job that failed for
good. Each is split into words as in a shell, but run without one."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from typing import Any

from etils import epath

from jmoe.errors import UserError
from jmoe.storage import files as storage
from launch.backend import Sweep
from launch.jobs import Job

NAMES = ("on_done", "on_failure")


def words(flag: str, text: str | None) -> list[str] | None:
    """The argument list that a flag's value means, None for None. UserError where a quotation is not closed, or there
    is no such program on this machine."""
    if text is None:
        return None
    try:
        command = shlex.split(text)
    except ValueError as error:
        raise UserError(f"--{flag}={text}: {error}") from None
    if not command or not shutil.which(command[0]):
        raise UserError(f"--{flag}={text} names no program that is on this machine's PATH")
    return command


def run(flag: str, command: list[str] | None, workdir: epath.Path, **variables: Any) -> None:
    """Runs a command, if there is one, with JMOE_WORKDIR and the `variables` in its environment; if it fails, that is
    printed and changes nothing else."""
    if not command:
        return
    environment = os.environ | {"JMOE_WORKDIR": os.fspath(workdir)} | {k: str(v) for k, v in variables.items()}
    try:
        code = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL).returncode
    except OSError as error:
        code = error.strerror
    if code:
        print(f"--{flag}: {command[0]} failed: {code}", file=sys.stderr)


def done(sweep: Sweep, n_missing: int) -> None:
    """Runs the command of --on_done."""
    run("on_done", sweep.options.get("on_done"), sweep.workdir, JMOE_RUNS_MISSING=n_missing)


def failed(sweep: Sweep, jobs: list[Job]) -> None:
    """Runs the command of --on_failure for each of the jobs that failed for good, once; failure.json then says so."""
    command = sweep.options.get("on_failure")
    for job in jobs if command else ():
        failure = job.failure()
        if failure.get("for_good") and not {"cancelled", "accepted", "told"} & failure.keys():
            storage.write_whole(job.folder / "failure.json", json.dumps(failure | {"told": True}, indent=1))
            run("on_failure", command, sweep.workdir, JMOE_JOB=job.name, JMOE_CAUSE=failure["cause"])
