"""Options of `fit.plot`: the picture, and what it shows."""

import dataclasses

from fit.options import choice, experts, numbers
from fit.paper.figures import COMPUTE, FIGURES
from fit.planning.options import ShapeOptions


@dataclasses.dataclass(kw_only=True)
class PlotOptions(ShapeOptions):
    """A picture of a law."""

    figure: str = choice(
        "Figure of the paper, memory, or compute for the loss against compute.", COMPUTE, (COMPUTE, *FIGURES)
    )
    flops: tuple[float, ...] | None = numbers("Training budgets of the paper's figures. Default: those of the law.")
    experts: tuple[int, ...] | None = experts("Numbers of experts to draw. Default: those fitted.")
