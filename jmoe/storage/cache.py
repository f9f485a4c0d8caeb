"""This machine's cache: prepared text, compiled steps, and what a gs:// sweep keeps on a local disk."""

import os
import pathlib


def cache_dir() -> pathlib.Path:
    """$JMOE_CACHE, else jmoe under $XDG_CACHE_HOME, else ~/.cache/jmoe."""
    if path := os.environ.get("JMOE_CACHE"):
        return pathlib.Path(path)
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "jmoe"
