"""Files that outlast a loss of power: contents and names that are on the disk, not only in the memory of the system.

A file's contents and its name are kept apart: fsync of the file brings its contents to the disk, fsync of the folder
its name. A disk may keep either without the other, in any order. So whoever replaces something syncs the new contents,
renames, and syncs the folder; and deletes what it replaces only after that.

All paths are local: an object of a store is durable once its upload is complete.
"""

import concurrent.futures
import contextlib
import errno
import os
import re
from collections.abc import Generator
from typing import IO, Any, NoReturn

from jmoe.errors import UserError

# what a file system answers that cannot sync folders, such as some network shares
_FOLDERS_NOT_SYNCED = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)


def sync_file(path: str | os.PathLike) -> None:
    """Returns once the contents of the file are on the disk.

    Raises:
      OSError: The disk failed; the error names the file.
    """
    _sync(path, os.O_RDONLY)


def sync_folder(folder: str | os.PathLike) -> None:
    """Returns once the names in the folder are on the disk.

    Raises:
      OSError: The disk failed; the error names the folder.
    """
    try:
        _sync(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        if error.errno not in _FOLDERS_NOT_SYNCED:
            raise


def sync_tree(folder: str | os.PathLike) -> None:
    """Returns once all files and folders below `folder`, and itself, are on the disk.

    Raises:
      OSError: The disk failed; the error names the file or folder.
    """
    files = []
    folders = []
    for path, _, names in os.walk(folder, onerror=_raise):
        folders.append(path)
        files += [os.path.join(path, name) for name in names]
    # a disk serves many requests together: 40 files take 9 ms at once, and 64 ms one by one
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        futures = [pool.submit(sync_file, path) for path in files]
        futures += [pool.submit(sync_folder, path) for path in folders]
        for future in futures:
            future.result()


def make_folder(folder: str | os.PathLike) -> None:
    """Makes the folder, and those above it that are missing, so that their names are on the disk.

    Raises:
      NotADirectoryError: A file has the name.
    """
    parent = os.path.dirname(os.path.abspath(folder))
    if not os.path.isdir(parent):
        make_folder(parent)
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), os.fspath(folder))
    os.makedirs(folder, exist_ok=True)
    sync_folder(parent)  # also where the folder exists: whoever made it may have been killed before this


def replace(source: str | os.PathLike, target: str | os.PathLike) -> None:
    """Renames `source`, a file or folder, to `target`, and returns once the name is on the disk.

    The contents must be on the disk before.
    """
    os.replace(source, target)
    sync_folder(os.path.dirname(os.path.abspath(target)))


@contextlib.contextmanager
def named(path: str | os.PathLike) -> Generator[None]:
    """Makes an error of the disk in the `with` block name the file: errors of write, read, close and fsync name none.

    Raises:
      OSError: The disk failed in the block.
    """
    try:
        yield
    except Exception as error:
        number = error_number(error)
        if number is None or getattr(error, "filename", None) is not None:
            raise
        raise OSError(number, os.strerror(number), path_in(error) or os.fspath(path)) from error


def error_number(error: BaseException) -> int | None:
    """The errno of an OSError, or of an error of TensorStore's that was one; None for any other."""
    if isinstance(error, OSError):
        return error.errno
    code = re.search(r"os_error_code='(\d+)'", str(error))
    return int(code[1]) if code else None


def path_in(error: BaseException) -> str | None:
    """The first file that an error of TensorStore's names; None where it names none."""
    quoted_path = re.search(r'"(/[^"]+)"', str(error))
    return quoted_path[1] if quoted_path else None


def open_here(path: str | os.PathLike, mode: str, **options: Any) -> IO[Any]:
    """open() for a file that this program owns.

    Raises:
      UserError: The name is a symbolic link, which may lead to anybody's file.
    """

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW, 0o666)

    try:
        return open(path, mode, opener=opener, **options)
    except OSError as error:
        if error.errno == errno.ELOOP and os.path.islink(path):
            refuse_link(path)
        raise


def refuse_link(path: str | os.PathLike) -> None:
    """Raises UserError where `path` is a symbolic link."""
    if os.path.islink(path):
        raise UserError(
            f"{os.fspath(path)} is a symbolic link to {os.readlink(path)}, which is left alone; remove the link"
        )


# folders of a segment whose entries a trainer writes and deletes one by one
_OF_STEPS = ("checkpoints", "snapshots")


def refuse_links(folder: str | os.PathLike) -> None:
    """Checks that a run's folder, and all that a trainer writes or deletes in it, is free of symbolic links.

    These are the entries of the folder, those of its segments, and the steps in a segment's checkpoints and snapshots.
    The folder need not exist.

    Raises:
      UserError: One of them, or the folder, is a symbolic link, which may lead to anybody's files.
    """
    refuse_link(folder)
    for entry in _entries(folder):
        for inner in _entries(entry):
            if inner.name in _OF_STEPS:
                _entries(inner)


def _entries(folder: str | os.PathLike | os.DirEntry) -> list[os.DirEntry]:
    """The entries of a folder, none of a file or where nothing is; UserError where one is a symbolic link."""
    if isinstance(folder, os.DirEntry) and not folder.is_dir(follow_symlinks=False):
        return []
    try:
        with os.scandir(folder) as entries:
            listed = list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []
    for entry in listed:
        if entry.is_symlink():
            refuse_link(entry.path)
    return listed


def _sync(path: str | os.PathLike, flags: int) -> None:
    """fsync of a file or folder, opened with `flags`."""
    handle = os.open(path, flags)
    try:
        with named(path):
            os.fsync(handle)
    finally:
        os.close(handle)


def _raise(error: OSError) -> NoReturn:
    raise error
