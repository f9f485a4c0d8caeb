"""Runs for the tests of fit, and the joint law once more in plain NumPy, written from the paper's Eq. 4 and 6."""

import csv
import pathlib

import numpy as np

from fit import runs as runs_lib

DATA = pathlib.Path(__file__).parent / "data"
# Table 3 with E_start as its Table 4 implies.
TABLE_3 = dict(
    a=35.91,
    alpha=-0.1889,
    delta=-0.2285,
    gamma=0.0098,
    b=35.98,
    beta=-0.1775,
    omega=0.5529,
    zeta=-0.0259,
    E_start=2.0832,
    E_max=290.4521,
    c=1.3637,
)


def joint_loss(n_active, n_tokens, n_experts, c):
    """Eq. 6 as printed, no logarithms of sums."""
    e = 1 / (1 / (n_experts - 1 + 1 / (1 / c["E_start"] - 1 / c["E_max"])) + 1 / c["E_max"])
    return (
        c["a"] * e ** c["delta"] * n_active ** (c["alpha"] + c["gamma"] * np.log(e))
        + c["b"] * e ** c["omega"] * n_tokens ** (c["beta"] + c["zeta"] * np.log(e))
        + c["c"]
    )


def paper_grid():
    """(n_active, n_tokens, n_experts) of the paper's 270 runs."""
    with open(DATA / "joint_moe_appendix_h.csv", encoding="utf-8") as f:
        rows = list(csv.DictReader(f))
    return tuple(np.array([float(row[name]) for row in rows]) for name in ("N_act", "D", "E"))


def paper_runs(noise=0.0, seed=0):
    """The paper's grid with losses from Table 3 and log-normal noise."""
    n, d, e = paper_grid()
    loss = joint_loss(n, d, e, TABLE_3) * np.exp(noise * np.random.default_rng(seed).normal(size=len(n)))
    return runs_lib.Runs("the paper's grid", n, d, e, loss, runs_lib.Table("the paper's grid", {}, list(range(len(n)))))


def chinchilla_runs():
    """The 240 points of Besiroglu et al.: 245 less the 5 highest losses."""
    table = runs_lib.read(str(DATA / "chinchilla_svg_245.csv"))
    columns = [table.numbers(name) for name in ("n_active", "n_tokens", "n_experts", "loss")]
    rows = np.sort(np.argsort(columns[3], kind="stable")[:-5])
    return runs_lib.Runs(table.path, *(column[rows] for column in columns), table)


def write_csv(path, runs, **more):
    """Writes runs as the trainer does; more columns by name."""
    columns = dict(
        n_active=runs.n_active,
        n_total=runs.n_active,
        n_tokens=runs.n_tokens,
        n_experts=runs.n_experts.astype(int),
        loss=runs.loss,
        **more,
    )
    with open(path, "w", newline="", encoding="utf-8") as f:
        writer = csv.writer(f)
        writer.writerow(columns)
        writer.writerows([[v if isinstance(v, str) else repr(v.item()) for v in row] for row in zip(*columns.values())])
    return str(path)
