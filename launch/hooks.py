"""Commands of the user's that report on a sweep: --on_done at its end, --on_failure for each job that failed for good.

Each command is split into words as in a shell, but run without one.
"""

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


def commands(refusal: str) -> dict[str, list[str] | None]:
    """The commands of --on_done and --on_failure as argument lists; None for a flag that is not given.

    Args:
      refusal: Why neither flag can be used here, as the end of an error's sentence; "" if they can.

    Raises:
      UserError: A flag is given although there is a refusal, a quotation is not closed, or this machine has no
        such program.
    """
    command_of = {flag: words(flag) for flag in ("on_done", "on_failure")}
    for flag, command in command_of.items():
        if command is None:
            continue
        if refusal:
            raise UserError(f"--{flag}{refusal}")
        if not shutil.which(command[0]):
            raise UserError(f"--{flag}={flags.FLAGS[flag].value} names no program that is on this machine's PATH")
    return command_of


def words(flag: str) -> list[str] | None:
    """The command of a flag as an argument list, None if it is not given; UserError if it is no command."""
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
    """Runs the command of a flag. A failure is printed and has no other effect.

    Args:
      flag: The name of the flag, for messages.
      command: The command as an argument list; None runs nothing.
      workdir: The sweep's directory, which the command gets as JMOE_WORKDIR.
      **variables: Further environment variables of the command.
    """
    if not command:
        return
    environment = os.environ | {"JMOE_WORKDIR": os.fspath(workdir)}
    environment |= {name: str(value) for name, value in variables.items()}
    try:
        code = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL).returncode
    except OSError as error:
        code = error.strerror
    if code:
        print(f"--{flag}: {command[0]} failed: {code}", file=sys.stderr)


def failed(sweep: Sweep, job: Job) -> None:
    """Runs the command of --on_failure once if the job has failed for good; failure.json then records it as "told"."""
    command = sweep.options.get("on_failure")
    failure = job.failure()
    is_known = bool({"cancelled", "accepted", "told"} & failure.keys())
    if command and failure.get("for_good") and not is_known:
        job.refuse_links()
        storage.write_whole(job.folder / "failure.json", json.dumps(failure | {"told": True}, indent=1))
        run("on_failure", command, sweep.workdir, JMOE_JOB=job.name, JMOE_CAUSE=failure["cause"])
