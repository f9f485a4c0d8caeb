"""The surfaces of several budgets: what `fit surface` and `fit.surface` do, and their options."""

import dataclasses
from typing import Any

from fit.aliases import Json
from fit.options import Options, whole
from fit.results import JSON_VERSION, Result, to_plain
from fit.studies import surface

OF_PICTURES = ("surface", "points")  # of a budget: arrays and functions that no JSON holds


@dataclasses.dataclass(kw_only=True)
class SurfaceOptions(Options):
    """How the surface of each budget is fitted."""

    seed: int = whole("Seed of the refits.", 0)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Surfaces(Result):
    """The loss over total parameters and sparsity at equal FLOPs.

    Attributes:
      budgets: One dictionary for each budget, as surface.of_table makes it: flops, runs, the fitted surface, the best
        n_total and sparsity with intervals, and the best sparsity at several sizes.
    """

    budgets: list[dict[str, Any]]

    @property
    def title(self) -> str:
        """The result's title."""
        return "surface"

    def rows(self) -> list[Json]:
        """One row for each budget, without its surface and points."""
        return [
            {name: to_plain(value) for name, value in budget.items() if name not in OF_PICTURES}
            for budget in self.budgets
        ]

    def to_dict(self) -> Json:
        """The budgets without their surfaces and points, ready for JSON."""
        return dict(version=JSON_VERSION, budgets=self.rows())


def fit_surfaces(runs: object, options: SurfaceOptions) -> Surfaces:
    """The surface of each budget of a table of runs. Raises UserError where no budget has enough runs."""
    return Surfaces(budgets=surface.of_table(runs, options.seed), answer_of=surface.answer)
