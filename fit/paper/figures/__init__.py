"""The paper's figures for any law, and a fit's own: draw() makes one of FIGURES.

style.py    sizes, colours, units on axes, dashes where a law is extrapolated, bands, formats
flops.py    isoFLOP curves (2a) and savings (2b) against training compute
memory.py   loss under a memory limit (1a), models of equal memory (3), the best number of experts (4, memory)
quality.py  predicted against measured (5)
"""

import contextlib
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING

import numpy as np

from fit.aliases import Array, Floats
from fit.data.files import replacing
from fit.data.runs import Runs, read_runs
from fit.data.table import Table
from fit.errors import UserError
from fit.lawbook.lawfile import Law
from fit.planning import optimum
from fit.shape.architecture import Architecture
from fit.words import units

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fit.paper.figures.style import Drawn

FIGURES = {  # name: caption
    "1a": "Figure 1a: loss under a memory limit",
    "2a": "Figure 2a: isoFLOP profiles",
    "2b": "Figure 2b: savings against dense models",
    "3": "Figure 3: models of equal memory",
    "4": "Figure 4: best number of experts for three sizes",
    "5": "Figure 5: predicted against measured",
    "memory": "Best number of experts against memory",
}
FORMATS = ("pdf", "png", "svg")
PAPER_FLOPS = (1e20, 1e21, 1e22)  # of its figures, for a published law
PAPER_ONE = {"1a": 1e22, "3": 5e22, "4": 5e22}


def save(figure: "Figure", file: str | IO[bytes], kind: str) -> None:
    """Writes a figure to a path or an open file as one of FORMATS; the same figure gives the same bytes."""
    from fit.paper.figures import style

    with replacing(file) if isinstance(file, str) else contextlib.nullcontext(file) as target, style.in_style():
        figure.savefig(target, format=kind, dpi=style.DPI, metadata=style.METADATA[kind])


def measured(
    law: Law, path: str | Table | None, names: Mapping[str, str] | None = None
) -> tuple[Runs, Array] | tuple[None, None]:
    """(runs, boolean [n_runs]: those that the fit kept out) of a table of runs, if there is one; UserError where it
    cannot be read. In a table other than the one that the law was fitted to, none is known to be kept out. names: what
    the table calls its columns, {ours: theirs}; those that the fit was given, by default."""
    from fit.fitting import holdout

    if path is None:
        return None, None
    settings = law.record.get("settings") or {}
    runs = read_runs(path, law.form.columns, mix_corpora=True, names=names or settings.get("columns"))
    same = runs.fingerprint() == (law.record.get("runs") or {}).get("fingerprint")
    return runs, holdout.held_out(runs, settings.get("holdout", "none") if same else "none")


def draw(
    which: str,
    law: Law,
    architecture: Architecture,
    experts: Floats,
    budgets: Sequence[float] = (),
    runs: Runs | None = None,
    out: Array | None = None,
) -> "Drawn":
    """(matplotlib figure, its numbers) of one of FIGURES; UserError where the law or the runs cannot give it.

    budgets: training FLOPs, none for those that suit the law; runs: a runs.Runs to draw measured points of, and `out`,
    boolean [n_runs], those kept out of the fit. The numbers are columns: {name: list}.
    """
    from fit.paper.figures import flops, memory, quality, style

    several = list(budgets) or budgets_of(law)
    one = budgets[0] if budgets else PAPER_ONE.get(which, several[1]) if law.published else several[1]
    with style.in_style():
        if which == "5":
            if runs is None or out is None:
                raise UserError("--figure=5 needs --runs")
            return quality.fit_quality(law, architecture, runs, out)
        picture = style.Picture(law, architecture, experts)
        if which == "2a":
            return flops.isoflop(picture, list(budgets) or budgets_of(law, runs), runs)
        if which == "2b":
            return flops.savings(picture, several)
        if which == "memory":
            return memory.experts_against_memory(picture, several)
        if which == "1a":
            return memory.memory_curves(picture, one)
        served = _served(law, architecture, one, 8192 if which == "3" else 32768)
        if which == "3":
            return memory.matched_memory(picture, one, *served)
        size = dense_optimum(law, architecture, one)[0]
        sizes = (2e9, 5e9, 10e9) if law.published else tuple(units.rounded(share * size) for share in (0.3, 0.7, 1.4))
        return memory.best_experts(picture, one, sizes, *served)


def budgets_of(law: Law, runs: Runs | None = None) -> list[float]:
    """Three training budgets that suit a law: its paper's, or spread over the upper two thirds of its runs; with
    `runs`, those there that most runs are near."""
    if law.published or "training_flops" not in law.ranges:
        return list(PAPER_FLOPS)
    low, high = law.ranges["training_flops"]
    if runs is None:
        return [units.rounded(low ** (1 - share) * high**share) for share in (1 / 3, 2 / 3, 1)]
    from fit.paper.figures import style

    spent = np.log(runs.flops)
    budgets = []
    for start in (0.2, 0.5, 0.8):
        tried = np.log(low) + np.log(high / low) * np.linspace(start, start + 0.2, 20)
        near = [np.sum(np.abs(spent - at) < np.log(style.NEAR)) for at in tried]
        budgets.append(units.rounded(np.exp(tried[np.argmax(near)])))
    return budgets


def dense_optimum(law: Law, architecture: Architecture, flops: float) -> tuple[float, float]:
    """(n_active, n_tokens) of the compute-optimal dense model."""
    optima = optimum.optima(law, architecture, optimum.Constraints(flops=flops), [1])
    return float(optima.n_active[0]), float(optima.n_tokens[0])


def _served(law: Law, architecture: Architecture, flops: float, paper_kv_tokens: int) -> tuple[float, float]:
    """(tokens in the key-value cache, tokens served): the paper's for a published law; else a cache of a third of the
    weights of the compute-optimal dense model, about what the paper's is, and as many tokens as that trains on."""
    if law.published:
        return float(paper_kv_tokens), 1e11
    size, tokens = dense_optimum(law, architecture, flops)
    return units.rounded(size / 3 / architecture.kv_elements(architecture.d_model(size, 1), 1.0)), units.rounded(tokens)
