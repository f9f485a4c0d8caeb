"""Files of a workdir, on a local disk or in object storage (gs://BUCKET/FOLDER). A workdir is always an epath.Path."""

import json
import logging
import os
import pathlib
import uuid

import fsspec
from etils import epath

from jmoe.cli import UserError

# other processes write beside this one, and what gcsfs once listed it would not look up again
fsspec.config.conf.setdefault("gs", {})["use_listings_cache"] = False
# gcsfs asks for a bucket's type by credentials that anonymous or emulated access has not, and warns at every call
logging.getLogger("gcsfs").addFilter(lambda record: "Could not determine bucket type" not in record.getMessage())


def is_remote(path) -> bool:
    """Whether `path` names objects (gs://...), which appear whole but can't be appended to or renamed in one go."""
    return "://" in os.fspath(path)


def absolute(path: str) -> epath.Path:
    """What a flag names, independent of the folder that the program runs in."""
    return epath.Path(path if is_remote(path) else os.path.abspath(os.path.expanduser(path)))


def make_workdir(path: str) -> epath.Path:
    """`path` made absolute, created, and proved to be writable before any work is done.

    Raises:
      UserError: naming the path and the reason.
    """
    folder = absolute(path)
    probe = folder / f".probe-{uuid.uuid4().hex}"  # hosts may share it, and have processes of the same number
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_text("0" * 4096)
        probe.unlink()
    except Exception as error:  # noqa: BLE001  object stores raise their clients' own
        if not is_remote(path) and not isinstance(error, OSError):
            raise
        reason = os.strerror(error.errno) if getattr(error, "errno", None) else " ".join(str(error).split())
        raise UserError(f"--workdir={path} cannot be written: {reason or type(error).__name__}") from None
    return folder


def write_whole(path: pathlib.Path | epath.Path, text: str) -> None:
    """Writes a file so that it is there whole or not at all, whatever kills the process or fills the disk."""
    if is_remote(path):
        path.write_text(text)  # an object appears when its upload is complete
        return
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with open(temporary, "w", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def read_lines(path: pathlib.Path | epath.Path) -> list[dict]:
    """Whole lines of a JSONL file; a last line that a kill cut short is left out, and a missing file has none."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
