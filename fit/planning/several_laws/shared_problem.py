"""The problem that several laws solve: one budget, one set of limits, and models that all of them count alike."""

import dataclasses
from collections.abc import Sequence
from typing import Self

from fit.aliases import Floats, Json
from fit.fitted_law.law import Law
from fit.model.architecture import PAPER, Architecture
from fit.model.reference_model import PublishedModel
from fit.planning import make_problem
from fit.planning.inputs.constraints import Constraints
from fit.planning.inputs.options import BudgetOptions
from fit.planning.inputs.problem import Problem
from fit.planning.several_laws.architectures import SIZES


@dataclasses.dataclass(frozen=True)
class SharedProblem:
    """The problem that every law of a comparison solves.

    Attributes:
      shape: {field of Architecture: value}: vocab_size, width_per_block, and others where they are given.
      constraints: The budget and the limits.
      experts: Numbers of experts to choose from; None takes each law's own.
      used: Widths of experts that a token may use, for laws that read it; None takes each law's own.
      reference: A model to start from: models are built like it, and it is set beside each law's best.
      fixes_expert_widths: Whether the options say how wide experts are, or the model to start from does.
      has_modelled_speeds: Whether each model has its own speed on the chips.
      speeds: Path of a table of the user's speeds, or None.
    """

    shape: Json
    constraints: Constraints
    experts: Floats | None = None
    used: Sequence[float] | None = None
    reference: PublishedModel | None = None
    fixes_expert_widths: bool = False
    has_modelled_speeds: bool = False
    speeds: str | None = None

    @classmethod
    def of_options(cls, laws: Sequence[Law], options: BudgetOptions, constraints: Constraints) -> Self:
        """The problem that options pose.

        Args:
          laws: All laws.
          options: The options.
          constraints: Those of the options.

        Raises:
          UserError: The runs of a law had several sizes, none in a majority.
        """
        return cls(
            shape=shape_of_all_laws(laws, options),
            constraints=constraints,
            experts=options.experts,
            used=options.shape.used,
            reference=options.reference_model,
            fixes_expert_widths=options.fixes_expert_widths,
            has_modelled_speeds=options.has_modelled_speeds,
            speeds=options.speeds,
        )

    def problem(self, law: Law, architecture: Architecture, experts: Floats) -> Problem:
        """The problem of one law and one architecture.

        Raises:
          UserError: The law does not say what repeated text is worth, or the table of speeds cannot be read.
        """
        return make_problem.problem_within(
            law,
            architecture,
            self.constraints,
            experts,
            has_modelled_speeds=self.has_modelled_speeds,
            speeds=self.speeds,
        )


def shape_of_all_laws(laws: Sequence[Law], options: BudgetOptions) -> Json:
    """{field of Architecture: value} of the models of all laws: vocab_size, width_per_block, and what options give.

    FLOPs and n_active contain embedding and head, so laws can be compared at one vocabulary alone. It is that of the
    model to start from, else the laws' own where all have the same, else the paper's. So is the width per block.

    Raises:
      UserError: The runs of a law had several sizes, none in a majority.
    """
    architectures = [options.architecture(law) for law in laws]
    shape = {}
    for name in SIZES:
        values = {getattr(architecture, name) for architecture in architectures}
        shape[name] = values.pop() if len(values) == 1 else getattr(PAPER, name)
    return shape | options.architecture_fields
