"""Comparisons of arrays by relative error, as rows of a table."""

import contextlib
import functools
import traceback

import jax
import numpy as np


def relative_error(ours, reference) -> float:
    """|ours - reference| / |reference| over all leaves of two trees."""

    def flat(tree):
        return np.concatenate([np.ravel(np.asarray(x, np.float64)) for x in jax.tree.leaves(tree)])

    size = np.linalg.norm(flat(reference))
    return float(np.linalg.norm(flat(ours) - flat(reference)) / (size or 1))


class Checks:
    """Rows of comparisons: |ours - reference| / |reference| over all leaves of two trees, and whether it is within the
    tolerance. A comparison that raises is a row too."""

    def __init__(self):
        self.rows = []

    @contextlib.contextmanager
    def named(self, name):
        try:
            yield functools.partial(self._compare, name)
        except Exception as error:  # noqa: BLE001  the other checks go on
            traceback.print_exc()
            reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            self.rows.append({"check": name, "error": None, "tolerance": None, "passed": False, "reason": reason})

    def _compare(self, name, what, ours, reference, tolerance):
        error = relative_error(ours, reference)
        passed = bool(error <= tolerance)  # False for NaN
        self.rows.append(
            {"check": f"{name}: {what}", "error": error, "tolerance": tolerance, "passed": passed, "reason": ""}
        )
