"""Options of `fit report`: the limits of `fit plan` and the laws of `fit compare`."""

import dataclasses

from fit.errors import UserError
from fit.fitted_law.law import Law
from fit.options import switch, words
from fit.planning import compare
from fit.planning.options import BudgetOptions, PlanOptions, ShapeOptions
from fit.shape.architecture import PAPER


@dataclasses.dataclass(kw_only=True)
class ReportOptions(PlanOptions):
    """The options of `fit report` beside the law, its runs and the page."""

    laws: tuple[str, ...] = words(
        "Laws to compare with --law under the limits: names of published laws, or law.json files.", compare.LAWS
    )
    verbose: bool = switch("Under limits: also the plan's tables, costs and all warnings, as fit plan prints them.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.has_limits and self.changed("laws", "verbose"):
            raise UserError(f"--{self.changed('laws', 'verbose')[0]} needs limits such as --flops")

    @property
    def has_limits(self) -> bool:
        """Whether the report is on a budget and limits, and not on the law alone."""
        of_law_alone = {field.name for field in dataclasses.fields(ShapeOptions)} | {"verbose"}
        names = [field.name for field in dataclasses.fields(PlanOptions) if field.name not in of_law_alone]
        return bool(self.changed(*names))

    def budget_options(self, law: Law, flops: float | None = None) -> BudgetOptions:
        """The options of `fit compare` among these. Models have the law's own vocabulary and width per block, where
        these are not the paper's.

        Args:
          law: The law that plans.
          flops: The budget instead of a target loss.
        """
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(BudgetOptions)}
        if flops is not None:
            values["flops"] = flops
        values |= self.shape_of_law(law)
        return BudgetOptions.parse(**values)

    def shape_of_law(self, law: Law) -> dict[str, int]:
        """{option: value} of the shape of the law's models, where that is not the paper's and no model is given."""
        if self.like is not None:
            return {}
        architecture = self.architecture(law)
        shape = dict(vocab_size=architecture.vocab_size, width_per_block=architecture.width_per_block)
        papers = dict(vocab_size=PAPER.vocab_size, width_per_block=PAPER.width_per_block)
        return {} if shape == papers else shape
