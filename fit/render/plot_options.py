"""Options of `fit.plot`: the picture, and what it shows."""

import dataclasses

from fit.errors import UserError
from fit.options import choice, experts, numbers, path, text
from fit.planning.inputs.options import ShapeOptions
from fit.render.figures import COMPUTE, FIGURES, ON_CHIPS


@dataclasses.dataclass(kw_only=True)
class PlotOptions(ShapeOptions):
    """A picture of a law."""

    figure: str = choice(
        "Figure of the paper, memory for best E against memory, compute for the loss against compute, or hours for the "
        "loss against hours on chips.",
        COMPUTE,
        (COMPUTE, *FIGURES, *ON_CHIPS),
    )
    flops: tuple[float, ...] | None = numbers("Training budgets of the paper's figures. Default: those of the law.")
    experts: tuple[int, ...] | None = experts("Numbers of experts to draw. Default: those fitted.")
    chips: str | None = text("With hours: chips to train on, such as H100:8, H100:8x8 or v5p:4x4x4.")
    speeds: str | None = path("With hours: a table of your own speeds.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.figure not in ON_CHIPS and self.changed("chips", "speeds"):
            raise UserError(f"--{self.changed('chips', 'speeds')[0]} is for --figure=hours")
