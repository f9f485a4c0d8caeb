"""Files of a workdir, on a local disk or in object storage (gs://BUCKET/FOLDER). A workdir is always an epath.Path.

jmoe/storage/gcs.py sends the requests to gs:// and retries them (jmoe/storage/retries.py).
"""

import concurrent.futures
import contextlib
import hashlib
import itertools
import json
import logging
import os
import pathlib
import posixpath
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import fsspec
from etils import epath
from fsspec.config import conf as fsspec_config

from jmoe.errors import Damaged, Unavailable, UserError
from jmoe.storage import durable
from jmoe.storage.owner_check import check_owner

_T = TypeVar("_T")
_Item = TypeVar("_Item")

# gcsfs would answer from its cache of listings, which lacks what other processes have written since
fsspec_config.setdefault("gs", {})["use_listings_cache"] = False
for scheme in ("gs", "gcs"):
    fsspec.register_implementation(scheme, "jmoe.storage.gcs.Store", clobber=True)
# gcsfs warns at every call if it is not allowed to ask for the bucket's type: anonymous access, or an emulator
logging.getLogger("gcsfs").addFilter(lambda record: "Could not determine bucket type" not in record.getMessage())


def is_remote(path: str | os.PathLike) -> bool:
    """Whether `path` names objects (gs://...), which are written and replaced as a whole and cannot be appended to."""
    return "://" in os.fspath(path)


def absolute(path: str | os.PathLike) -> epath.Path:
    """The absolute path that a flag names, the same for every spelling.

    Links, `..` and doubled or trailing slashes are resolved.
    """
    path = os.fspath(path)
    if is_remote(path):
        scheme, _, rest = path.partition("://")
        return epath.Path(f"{scheme}://{posixpath.normpath(rest)}")
    return epath.Path(os.path.realpath(os.path.expanduser(path)))


def cache_dir() -> pathlib.Path:
    """This machine's cache: $JMOE_CACHE, else jmoe under $XDG_CACHE_HOME, else ~/.cache/jmoe.

    It has prepared text, compiled steps, and what a gs:// sweep keeps on a local disk.
    """
    own_cache = os.environ.get("JMOE_CACHE")
    if own_cache:
        return pathlib.Path(own_cache)
    user_cache = os.environ.get("XDG_CACHE_HOME")
    if user_cache:
        return pathlib.Path(user_cache) / "jmoe"
    return pathlib.Path.home() / ".cache" / "jmoe"


def make_folder(folder: epath.Path) -> None:
    """Makes a folder and those above it; on a local disk their names outlast a loss of power."""
    if is_remote(folder):
        folder.mkdir(parents=True, exist_ok=True)
    else:
        durable.make_folder(folder)


def refuse_links(folder: str | os.PathLike) -> None:
    """Raises UserError where a run's folder, or what a trainer writes or deletes in it, is a symbolic link."""
    if not is_remote(folder):
        durable.refuse_links(folder)


# the longest path that Linux allows, less the longest that Orbax makes in a job's folder of a sweep
MAX_WORKDIR_BYTES = 4096 - 400


def make_workdir(path: str | os.PathLike) -> epath.Path:
    """Creates the folder `path`, and writes to it as a test before any work is done.

    Returns:
      Its absolute path.

    Raises:
      UserError: The folder can't be written to.
      Unavailable: The store gives no answer.
    """
    folder = absolute(path)
    n_bytes = len(os.fsencode(folder))
    if not is_remote(folder) and n_bytes > MAX_WORKDIR_BYTES:
        raise UserError(f"--workdir is too long, {n_bytes} bytes: expected at most {MAX_WORKDIR_BYTES}")
    probe = folder / f".probe-{uuid.uuid4().hex}"  # a process id would not do: hosts may share the folder
    try:
        make_folder(folder)
        probe.write_text("0" * 4096)
        probe.unlink()
    except Exception as error:  # noqa: BLE001  object stores raise their clients' own errors
        if isinstance(error, Unavailable) or not (is_remote(path) or isinstance(error, OSError)):
            raise
        number = getattr(error, "errno", None)
        reason = os.strerror(number) if number else " ".join(str(error).split())
        raise UserError(f"--workdir={path} cannot be written: {reason or type(error).__name__}") from None
    return folder


def write_whole(path: pathlib.Path | epath.Path, content: str | bytes) -> None:
    """Writes a file atomically, so that it is on the disk once this returns.

    After a kill, a loss of power or on a full disk the file is either complete or as it was before.

    Raises:
      UserError: The name is a symbolic link.
      OSError: The disk failed.
    """
    data = content.encode() if isinstance(content, str) else content
    if is_remote(path):
        path.write_bytes(data)  # an object appears when its upload is complete
        return
    check_owner()
    durable.refuse_link(path)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with durable.named(temporary), durable.open_here(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    durable.replace(temporary, path)


def copy_files(source: str, target: epath.Path) -> None:
    """Copies all files below the local folder `source` to the same places below `target`, overwriting what is there."""
    for path in filter(pathlib.Path.is_file, pathlib.Path(source).rglob("*")):
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        epath.Path(path).copy(copy, overwrite=True)


def read_bytes(path: pathlib.Path | epath.Path) -> bytes:
    """Reads a whole file, an object by a single request.

    Raises:
      FileNotFoundError: There is no such file.
    """
    if not is_remote(path):
        with durable.named(path):
            return path.read_bytes()
    return _store(path).cat_file(os.fspath(path))


def names_below(folder: str | os.PathLike, depth: int) -> list[str]:
    """Lists the files below a folder.

    On gs:// this lists everything below `folder`, however deep, with a request for each thousand objects.

    Args:
      folder: The folder; it need not exist.
      depth: Most names that a path may have.

    Returns:
      Paths relative to `folder`.
    """
    if is_remote(folder):
        inside = os.fspath(folder).partition("://")[2] + "/"
        names = (name.removeprefix(inside) for name in _store(folder).find(os.fspath(folder)))
        return [name for name in names if name.count("/") < depth]
    names = []
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if not _is_folder(entry):
                names.append(entry.name)
            elif depth > 1:
                names += [f"{entry.name}/{name}" for name in names_below(entry.path, depth - 1)]
    return names


def _is_folder(entry: os.DirEntry) -> bool:
    """Whether an entry of a folder is a folder; a link that leads nowhere, or to itself, is none."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def of_each(call: Callable[[_Item], _T], items: Iterable[_Item], folder: str | os.PathLike) -> list[_T]:
    """Returns `call(item)` of each item, with many calls at once if `folder` is on gs://, which answers slowly."""
    if not is_remote(folder):
        return [call(item) for item in items]
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        return list(pool.map(call, items))


def _store(path: str | os.PathLike) -> fsspec.AbstractFileSystem:
    """fsspec's file system of a path."""
    return fsspec.filesystem(os.fspath(path).partition("://")[0])


def read_lines(path: pathlib.Path | epath.Path) -> list[dict[str, Any]]:
    """The lines of a JSONL file, none if it is missing; a last line that a kill cut short is left out.

    Raises:
      UserError: Any other line is damaged.
    """
    if not path.exists():
        return []
    lines = []
    for number, line in enumerate(read_bytes(path).split(b"\n")[:-1], 1):
        try:
            lines.append(json.loads(line))
        except (ValueError, RecursionError) as error:  # also for bytes that are not UTF-8
            raise UserError(f"{path} is damaged in line {number} ({error}); without that line it can be read") from None
    return lines


def lines_before_damage(path: pathlib.Path | epath.Path) -> list[dict[str, Any]]:
    """The lines of a JSONL file up to the first that cannot be read, none if it is missing.

    Of lines that were not synced, a loss of power keeps any part, with zeros between them.
    """
    if not path.exists():
        return []
    lines = []
    for line in read_bytes(path).split(b"\n")[:-1]:
        try:
            lines.append(json.loads(line))
        except (ValueError, RecursionError):
            break
    return lines


def sealed(values: dict[str, Any]) -> dict[str, Any]:
    """JSON values with a hash over all of them, so that a reader can check them."""
    body = {name: value for name, value in values.items() if name != "sha256"}
    return body | {"sha256": hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()}


def read_sealed(path: pathlib.Path | epath.Path) -> dict[str, Any] | None:
    """Reads JSON values that `sealed` made, and checks their hash.

    A file without a hash, as older results are, must have a `record`.

    Returns:
      The values without their hash; None if there is no file.

    Raises:
      Damaged: The file is cut short or altered.
    """
    try:
        values = json.loads(read_bytes(path))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{path} is damaged: {error}") from None
    if not isinstance(values, dict) or not _is_intact(values):
        raise Damaged(f"{path} is damaged: it is not what was written")
    values.pop("sha256", None)
    return values


def _is_intact(values: dict[str, Any]) -> bool:
    """Whether the hash fits; of values without one, whether they are an older result, which has a `record`."""
    if "sha256" in values:
        return values == sealed(values)
    return "record" in values


def _damaged_names(name: str) -> Iterator[str]:
    """damaged-NAME, damaged-NAME-1, damaged-NAME-2, ..."""
    yield f"damaged-{name}"
    for i in itertools.count(1):
        yield f"damaged-{name}-{i}"


def set_aside(path: epath.Path, folder: epath.Path) -> epath.Path:
    """Moves a file or folder to damaged-NAME in `folder`, or damaged-NAME-1 and so on; returns the new path."""
    target = next(folder / name for name in _damaged_names(path.name) if not (folder / name).exists())
    check_owner()
    path.rename(target)
    if not is_remote(path):
        durable.sync_folder(folder)
        durable.sync_folder(path.parent)
    return target
