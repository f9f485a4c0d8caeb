"""Comparisons of arrays by relative error, as rows of a table."""

import contextlib
import functools
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np


def relative_error(ours: Any, reference: Any) -> float:
    """Returns |ours - reference| / |reference| over all leaves of two trees."""

    def flat(tree: Any) -> np.ndarray:
        return np.concatenate([np.ravel(np.asarray(x, np.float64)) for x in jax.tree.leaves(tree)])

    size = np.linalg.norm(flat(reference))
    return float(np.linalg.norm(flat(ours) - flat(reference)) / (size or 1))


class Checks:
    """Comparisons of trees by relative error.

    Attributes:
        rows: for each comparison its name, error and tolerance, and whether it passed. A comparison that raises is a
            row too.
    """

    def __init__(self) -> None:
        self.rows: list[dict] = []
        self._begin = time.monotonic()  # a part that is stopped at its limit leaves its log alone

    @contextlib.contextmanager
    def named(self, name: str) -> Iterator[Callable[[str, Any, Any, float], None]]:
        """Yields compare(what, ours, reference, tolerance), whose rows have this name."""
        try:
            yield functools.partial(self._compare, name)
        except Exception as error:  # noqa: BLE001  the other checks continue
            traceback.print_exc()
            reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            self.rows.append({"check": name, "error": None, "tolerance": None, "passed": False, "reason": reason})

    def _compare(self, name: str, what: str, ours: Any, reference: Any, tolerance: float) -> None:
        error = relative_error(ours, reference)
        passed = bool(error <= tolerance)  # False for NaN
        seconds = time.monotonic() - self._begin
        print(f"{name}: {what}: {error:.1e} of {tolerance:.0e} permitted, {seconds:.0f} s", flush=True)
        self.rows.append(
            {"check": f"{name}: {what}", "error": error, "tolerance": tolerance, "passed": passed, "reason": ""}
        )
