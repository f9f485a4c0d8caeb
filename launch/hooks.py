"""Commands of the user's that tell how a sweep goes: --on_done at its end, --on_failure for each job that failed for
good. Each is split into words as in a shell, but run without one."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from typing import Any

from absl import flags
from etils import epath

from jmoe.errors import UserError
from jmoe.storage import files as storage
from launch.backend import Sweep
from launch.jobs import Job


def given(refused: str) -> dict[str, list[str] | None]:
    """The commands of --on_done and --on_failure as argument lists, None where there is none. UserError where one is
    given although it is `refused` for this reason, a quotation is not closed, or this machine has no such program."""
    commands = {flag: words(flag) for flag in ("on_done", "on_failure")}
    for flag, command in commands.items():
        if command is not None and refused:
            raise UserError(f"--{flag}{refused}")
        if command is not None and not shutil.which(command[0]):
            raise UserError(f"--{flag}={flags.FLAGS[flag].value} names no program that is on this machine's PATH")
    return commands


def words(flag: str) -> list[str] | None:
    """The command of a flag as an argument list, None where it is not given; UserError where it is no command."""
    text = flags.FLAGS[flag].value
    if text is None:
        return None
    try:
        command = shlex.split(text)
    except ValueError as error:
        raise UserError(f"--{flag}={text}: {error}") from None
    if not command:
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


def failed(sweep: Sweep, job: Job) -> None:
    """Runs the command of --on_failure if the job has failed for good, once; failure.json then says so."""
    failure, command = job.failure(), sweep.options.get("on_failure")
    if command and failure.get("for_good") and not {"cancelled", "accepted", "told"} & failure.keys():
        storage.write_whole(job.folder / "failure.json", json.dumps(failure | {"told": True}, indent=1))
        run("on_failure", command, sweep.workdir, JMOE_JOB=job.name, JMOE_CAUSE=failure["cause"])
