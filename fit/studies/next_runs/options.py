"""Options of `fit next`: the budget, and the goal of the runs."""

import dataclasses

from fit.errors import UserError
from fit.fitted_law.law import Law
from fit.options import choice, experts, number, required, switch, words
from fit.planning.inputs.options import ShapeOptions


@dataclasses.dataclass(kw_only=True)
class NextOptions(ShapeOptions):
    """Which runs to train next."""

    flops: float = required(number("Training FLOPs to spend; a trunk that branches share is counted once."))
    goal: str = choice(
        "What the runs should make surer: loss and best number of experts at --target_flops, or --coefficients.",
        "plan",
        ("plan", "coefficients"),
    )
    target_flops: float | None = number("With --goal=plan: training FLOPs of the plan to make surer.")
    coefficients: tuple[str, ...] | None = words(
        "Names of the law's coefficients. Default: all that the fit did not hold fixed.", None
    )
    experts: tuple[int, ...] | None = experts("Numbers of experts to train and to compare. Default: those fitted.")
    verbose: bool = switch("Also print tables of the runs and of all that is expected of them.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.goal == "plan" and self.coefficients is not None:
            raise UserError("--coefficients is for --goal=coefficients")
        if self.goal == "plan" and self.target_flops is None:
            raise UserError("--target_flops is missing: the training FLOPs of the plan that matters")
        if self.goal != "plan" and self.target_flops is not None:
            raise UserError("--target_flops is for --goal=plan")

    def names(self, law: Law) -> tuple[str, ...]:
        """The coefficients to determine better; empty if the goal is a plan.

        Raises:
          UserError: The law has no such coefficient, or its fit held it fixed.
        """
        if self.goal == "plan":
            return ()
        fitted = tuple(name for name in law.form.names if name not in law.settings.fix)
        names = fitted if self.coefficients is None else self.coefficients
        unknown = [name for name in names if name not in fitted]
        if unknown:
            raise UserError(
                f"--coefficients={','.join(names)}: found {unknown[0]!r}, expected some of {', '.join(fitted)}"
            )
        return names
