"""Which runs share a trunk: they share its error, so resampling and intervals must take them together."""

import re

import numpy as np

from fit import UserError

BRANCH = re.compile(r"(.+)/branch[-_][^/]*/?")  # the column `run` of a sweep: jobs/NAME/branch-TOKENS
# Without such names: runs that agree in all of these are branches of one trunk, if both of the last two are there.
SAME = ("n_active", "n_total", "n_experts", "d_model", "n_blocks", "peak_learning_rate", "corpus_fingerprint")
SAME += ("overrides", "seed", "config")


def trunks_of(table, by="trunk"):
    """(labels int [n_runs], what they are in words); labels are None where each run stands for itself.

    by: "trunk" for whole trunks where the table tells them, "row" for each run by itself, or a column's name.
    """
    if by == "row":
        return None, "runs"
    if by != "trunk":
        if by not in table:
            raise UserError(
                f"--bootstrap_by={by}: expected trunk, row, or one of the columns of {table.path}: "
                f"{', '.join(table.columns)}"
            )
        return _labels([str(v) for v in table.column(by)]), f"groups of equal {by}"
    names = [BRANCH.fullmatch(str(v)) for v in (table.column("run") if "run" in table else [])]
    if names and all(names):
        labels, words = _labels([m[1] for m in names]), "trunks (column run)"
    elif "seed" in table and "config" in table:
        columns = [name for name in SAME if name in table]
        rows = zip(*(table.column(name) for name in columns))
        labels, words = _labels([str(row) for row in rows]), f"trunks (same {', '.join(columns)})"
    else:
        return None, "runs"
    return (None, "runs") if labels.max() + 1 == len(labels) else (labels, words)


def _labels(names):
    return np.unique(names, return_inverse=True)[1]
