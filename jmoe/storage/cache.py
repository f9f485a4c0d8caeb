"""The cache of this machine, and its locks: prepared text, compiled steps, and what a gs:// sweep keeps on a disk."""

import contextlib
import fcntl
import os
import pathlib
import sys

from tqdm import tqdm


def cache_dir() -> pathlib.Path:
    """$JMOE_CACHE, else jmoe under $XDG_CACHE_HOME, else ~/.cache/jmoe."""
    if path := os.environ.get("JMOE_CACHE"):
        return pathlib.Path(path)
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "jmoe"


def folder_of_cache(*parts: str) -> pathlib.Path:
    """A folder of the cache, made where it is missing."""
    path = cache_dir().joinpath(*parts)
    path.mkdir(parents=True, exist_ok=True)
    return path


@contextlib.contextmanager
def locked(path: pathlib.Path, wait: bool = True):
    """Holds the lock file `path` of a preparation until the block or the process ends; BlockingIOError where another
    process holds it, unless `wait`."""
    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                raise
            tqdm.write("waiting for another process that prepares the same text", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
