"""The paper's figures for any law, and a fit's own, one of FIGURES each.

draw.py     draws any of them, at budgets and sizes that suit the law
style.py    sizes, colours, units on axes, dashes where a law is extrapolated, bands, formats
loss.py     isoFLOP curves (2a), savings (2b) against training compute, predicted against measured (5)
searches.py isoFLOP surfaces over size and sparsity; ratios and widths of architectures
budget.py   loss under budgets around one, also in hours on the same chips; residuals of one number of experts
compute.py  the loss against compute, with the runs
memory.py   loss under a memory limit (1a), models of equal memory (3), the best number of experts (4, memory)
"""

import contextlib
import copy
import io
import os
from typing import IO, TYPE_CHECKING

from fit.aliases import Array
from fit.errors import UserError
from fit.fitted_law.law import Law
from fit.render.elements import Image
from fit.table.files import replacing
from fit.table.runs import Runs, held_out, read_runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Measured = tuple[Runs, Array] | None  # runs, and boolean [n_runs]: those that the law's fit kept out
FIGURES = {  # name: caption
    "1a": "Figure 1a: loss under a memory limit",
    "2a": "Figure 2a: isoFLOP profiles",
    "2b": "Figure 2b: savings against dense models",
    "3": "Figure 3: models of equal memory",
    "4": "Figure 4: best number of experts for three sizes",
    "5": "Figure 5: predicted against measured",
    "memory": "Best number of experts against memory",
}
ON_CHIPS = {"hours": "Loss against hours on the same chips"}  # figures that need chips
COMPUTE = "compute"  # not of the paper: the loss against compute
FORMATS = ("pdf", "png", "svg")


def check_ending(path: str, instead: str = "") -> None:
    """Raises UserError where the ending of a file is none of FORMATS. instead: what may be typed in its place."""
    if os.path.splitext(path)[1].removeprefix(".") not in FORMATS:
        raise UserError(f"--out={path}: expected the ending .pdf, .png or .svg{instead}")


def save(figure: "Figure", file: str | IO[bytes]) -> None:
    """Writes a figure. The same figure gives the same bytes.

    Args:
      file: a path, whose ending is one of FORMATS, or an open file, for png.
    """
    from fit.render.figures import style

    kind = file.rpartition(".")[2] if isinstance(file, str) else "png"
    fresh = copy.deepcopy(figure)  # drawing lays a figure out, from where the last drawing left it
    with replacing(file) if isinstance(file, str) else contextlib.nullcontext(file) as target, style.in_style():
        fresh.savefig(target, format=kind, dpi=style.DPI, metadata=dict.fromkeys(style.LEFT_OUT[kind]))


def image(figure: "Figure") -> Image:
    """A figure as a page shows it."""
    from fit.render.figures import style

    png = io.BytesIO()
    save(figure, png)
    width, height = (round(96 * inches * 1.3) for inches in figure.get_size_inches())
    return Image(png.getvalue(), width, height, is_wide=figure.get_figwidth() > style.COLUMN)


def measured(law: Law, table: object) -> Measured:
    """The runs of a table, and which of them the law's fit kept out.

    In a table other than the one that the law was fitted to, none is known to be kept out. A file has its columns by
    the names that the fit read them by.

    Args:
      table: what fit.read takes, or None.

    Raises:
      UserError: where it cannot be read.
    """
    if table is None:
        return None
    runs = read_runs(law.settings.read(table), law.form.columns, mix_corpora=True)
    same = runs.has(law.runs.fingerprint or "")
    return runs, held_out(runs, law.settings.holdout if same else "none")
