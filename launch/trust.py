"""Whose programs a sweep runs: only those that its user named.

sweep.json lies in the workdir, where others may write, and names programs: each job's config file, the commands of
--on_done and --on_failure, and options with which jobs are submitted (an image, sbatch's options). launch.sweep takes
all of them from the user's flags, and passes those that a scheduler's task needs to it as flags. launch.retry has them
from sweep.json alone. So each start stores the SHA-256 of the sweep.json that it wrote outside of the workdir, in this
machine's cache. launch.retry continues only with a file of that hash, or of one that --trust names.
"""

import hashlib
import os
import pathlib
import sys

from etils import epath

from jmoe.errors import UserError
from jmoe.printable import printable
from jmoe.storage.files import cache_dir, write_whole
from launch.jobs import short_hash

N_DIGITS = 12  # of a hash that --trust needs


def digest(text: str) -> str:
    """The SHA-256 of a sweep.json, in hexadecimal digits."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def keep(workdir: epath.Path, text: str) -> None:
    """Stores the hash of the sweep.json that a start of this user writes; prints a warning if it cannot."""
    path = _path_of_hash(workdir)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(path, digest(text))
    except OSError as error:
        print(f"{path} cannot be written ({error.strerror}): launch.retry will ask for --trust", file=sys.stderr)


def is_own(workdir: epath.Path, text: str) -> bool:
    """Whether this is the sweep.json that the newest start of this user on this machine wrote."""
    try:
        return _path_of_hash(workdir).read_text() == digest(text)
    except (OSError, UnicodeDecodeError):
        return False


def check(workdir: epath.Path, text: str, programs: list[str], named: str | None) -> None:
    """Checks that a sweep.json may be run.

    Args:
      workdir: The sweep's directory.
      text: The sweep.json.
      programs: What it would run, in words for the error.
      named: The value of --trust.

    Raises:
      UserError: Unless this user wrote the file, or `named` is the beginning of its hash.
    """
    actual = digest(text)
    if named is not None:
        if len(named) >= N_DIGITS and actual.startswith(named.lower()):
            return
        raise UserError(f"--trust={named}: {workdir}/sweep.json has the hash {actual[:N_DIGITS]} now")
    if not is_own(workdir, text):
        listed = printable("; ".join(programs))
        raise UserError(
            f"{os.fspath(workdir)}/sweep.json is not as a start of yours on this machine left it, and it would run "
            f"{listed}. If you know these: --trust={actual[:N_DIGITS]}; or start the sweep again by launch.sweep"
        )


def _path_of_hash(workdir: epath.Path) -> pathlib.Path:
    """The path of the file with the hash of this workdir's sweep.json."""
    return cache_dir() / "started" / short_hash(os.fspath(workdir))
