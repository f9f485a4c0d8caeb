"""Whose programs a sweep runs: only those that its user named.

sweep.json lies in the workdir, where others may write, and names programs: each job's config file, the commands of
--on_done and --on_failure, and options with which jobs are submitted (an image, sbatch's options). launch.sweep takes
all of them from the user's flags, and hands those that a scheduler's task needs to it as flags. launch.retry has them
from sweep.json alone. So each start keeps the SHA-256 of the sweep.json that it wrote outside of the workdir, in this
machine's cache, and launch.retry goes on only with a file of that hash, or of one that --trust names.
"""

import hashlib
import os
import pathlib
import sys

from etils import epath

from jmoe.errors import UserError
from jmoe.storage.files import cache_dir, write_whole
from launch.jobs import short_hash
from launch.printable import printable

SHOWN = 12  # digits of a hash that --trust asks for


def digest(text: str) -> str:
    """The SHA-256 of a sweep.json, in hexadecimal digits."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def keep(workdir: epath.Path, text: str) -> None:
    """Keeps the hash of the sweep.json that a start of this user writes; prints a warning where it cannot."""
    path = _kept(workdir)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(path, digest(text))
    except OSError as error:
        print(f"{path} cannot be written ({error.strerror}): launch.retry will ask for --trust", file=sys.stderr)


def is_own(workdir: epath.Path, text: str) -> bool:
    """Whether this is the sweep.json that the newest start of this user on this machine wrote."""
    try:
        return _kept(workdir).read_text() == digest(text)
    except (OSError, UnicodeDecodeError):
        return False


def check(workdir: epath.Path, text: str, programs: list[str], named: str | None) -> None:
    """UserError unless this user wrote the sweep.json `text`, or `named` is the beginning of its hash.

    programs: what it would run, in words for the error.
    """
    found = digest(text)
    if named is not None and len(named) >= SHOWN and found.startswith(named.lower()):
        return
    if named is not None:
        raise UserError(f"--trust={named}: {workdir}/sweep.json has the hash {found[:SHOWN]} now")
    if not is_own(workdir, text):
        listed = printable("; ".join(programs))
        raise UserError(
            f"{os.fspath(workdir)}/sweep.json is not as a start of yours on this machine left it, and it would run "
            f"{listed}. If you know these: --trust={found[:SHOWN]}; or start the sweep again by launch.sweep"
        )


def _kept(workdir: epath.Path) -> pathlib.Path:
    """Where the hash of this workdir's sweep.json is kept."""
    return cache_dir() / "started" / short_hash(os.fspath(workdir))
