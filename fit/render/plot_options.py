"""Options of pictures of a law: those of `fit.plot` and `fit plot`, and those of `fit.plot` alone."""

import dataclasses
from collections.abc import Collection

from fit.errors import UserError
from fit.options import choice, experts, numbers, path, text
from fit.planning.inputs.options import ShapeOptions
from fit.render.figures import COMPUTE, FIGURES, ON_CHIPS

WITH_RUNS = ("2a", "5", COMPUTE)  # figures that show runs
# {option: figures that read it}
READERS = dict(
    flops=("1a", "2a", "2b", "3", "4", "memory", *ON_CHIPS),
    experts=("1a", "2a", "2b", "3", "4", "memory", COMPUTE, *ON_CHIPS),
    chips=tuple(ON_CHIPS),
    speeds=tuple(ON_CHIPS),
)


@dataclasses.dataclass(kw_only=True)
class FigureOptions(ShapeOptions):
    """What a picture of a law shows."""

    flops: tuple[float, ...] | None = numbers(
        "Training budgets: several for 2a, 2b and memory, one for 1a, 3 and 4. Default: the "
        "paper's for a published law, else from the range of the fitted runs."
    )
    experts: tuple[int, ...] | None = experts("Numbers of experts to draw. Default: those fitted.")
    chips: str | None = text("With --figure=hours: chips to train on, such as H100:8, H100:8x8 or v5p:4x4x4.")
    speeds: str | None = path("With --figure=hours: a table of your own speeds, as fit plan --hours takes it.")

    @property
    def budgets(self) -> tuple[float, ...]:
        """The training budgets; none where the default is meant."""
        return self.flops or ()

    def check_figures(self, drawn: Collection[str], has_runs: bool) -> None:
        """Raises UserError for an option that is given, or runs, that none of the figures drawn reads."""
        self.check_readers("figure", drawn, READERS)
        if has_runs and not set(drawn) & set(WITH_RUNS):
            raise UserError(f"--runs is for --figure={', '.join(WITH_RUNS)}")


@dataclasses.dataclass(kw_only=True)
class PlotOptions(FigureOptions):
    """A picture of a law."""

    figure: str = choice(
        "Figure of the paper, memory for best E against memory, compute for the loss against compute, or hours for the "
        "loss against hours on chips.",
        COMPUTE,
        (COMPUTE, *FIGURES, *ON_CHIPS),
    )
