"""What the next runs should make surer: the plan for a budget, or coefficients of the law.

A goal has gradients by the solver's coordinates, weights, and what is expected of it by the standard errors of these.

Axes: g goals, n coefficients, stages (the fields of ByStage).
"""

import dataclasses
import statistics
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from fit.aliases import Array, ByName, Floats
from fit.fitted_law import planned_models
from fit.fitted_law.law import Law
from fit.fitted_law.parts import LEVEL, Scatter
from fit.model.architecture import Architecture
from fit.planning.inputs.constraints import Constraints
from fit.planning.inputs.problem import Problem
from fit.planning.search import solver
from fit.planning.search.best_models import BestModels
from fit.studies.next_runs.linearised import LEAST_NOISE, Linearised
from fit.studies.next_runs.results import ByStage, ExpectedCoefficient, ExpectedCoefficients, ExpectedGap, ExpectedPlan

SMALLEST_VARIANCE = 1e-300  # so that a goal without any has a finite weight


@dataclasses.dataclass(frozen=True)
class PlanGoal:
    """The loss of the best model for a budget, and its gaps to the best with other numbers of experts.

    Attributes:
      optima: The best model with each number of experts.
      best, others: Indices of the best of them, and of the others.
      columns: What the law reads of them.
    """

    optima: BestModels
    best: int
    others: list[int]
    columns: ByName
    name: ClassVar[str] = "plan"

    @property
    def parts(self) -> list[ByName]:
        """Sets of columns whose losses are in question."""
        return [self.columns]

    def gradients(self, linear: Linearised, jacobians: Sequence[Array]) -> Array:
        """[g, n]: of the best's log loss, and of the others' above it. jacobians: those of `parts`."""
        (of_optima,) = jacobians
        gaps = [of_optima[i] - of_optima[self.best] for i in self.others]
        return np.stack([of_optima[self.best], *gaps])

    def weights(self, variances: Array, scatter: Scatter) -> Array:
        """[g]: 1 of the loss, and exp(-z^2 / 2) of a gap of z standard errors: gaps that are not settled count most.

        Args:
          variances: [g], of the goals with the fitted runs alone, over the noise's.
          scatter: The noise of the fitted runs.
        """
        gaps = np.log(self.optima.loss[self.others] / self.optima.loss[self.best])
        errors = np.maximum(scatter.total, LEAST_NOISE) * np.sqrt(variances[1:])
        return np.append(1.0, np.exp(-0.5 * (gaps / np.maximum(errors, SMALLEST_VARIANCE)) ** 2))

    def expected(self, errors: Array) -> ExpectedPlan:
        """How sure the plan is. errors: [g, stages], standard errors of the goals."""
        z = statistics.NormalDist().inv_cdf((1 + LEVEL) / 2)
        loss = float(self.optima.loss[self.best])
        gaps = []
        for i, error in zip(self.others, errors[1:], strict=True):
            gap = ExpectedGap(
                n_experts=int(self.optima.n_experts[i]),
                log_loss_above=float(np.log(self.optima.loss[i] / loss)),
                log_error=_by_stage(error),
            )
            gaps.append(gap)
        return ExpectedPlan(
            best=self.optima.row(self.best),
            level=LEVEL,
            loss=_by_stage(loss * np.exp(z * np.outer(errors[0], (-1, 1)))),
            log_error=_by_stage(errors[0]),
            others=gaps,
        )


def plan_goal(law: Law, architecture: Architecture, experts: Floats, flops: float) -> PlanGoal:
    """The goal of a plan for a budget of training FLOPs. Raises UserError where the law cannot plan it."""
    optima = solver.best_of_each_number(Problem(law, architecture, Constraints(flops=flops), experts))
    best = optima.best
    others = [i for i in np.flatnonzero(optima.feasible).tolist() if i != best]
    columns = planned_models.columns_of(law, architecture, optima.d_model, optima.n_experts, optima.n_tokens)
    return PlanGoal(optima, best, others, columns)


@dataclasses.dataclass(frozen=True)
class CoefficientsGoal:
    """Coefficients of the law, by their names."""

    law: Law
    names: tuple[str, ...]
    name: ClassVar[str] = "coefficients"

    @property
    def parts(self) -> list[ByName]:
        """Sets of columns whose losses are in question: none."""
        return []

    def gradients(self, linear: Linearised, jacobians: Sequence[Array]) -> Array:
        """[g, n]: of the coefficients."""
        return linear.of_coefficients[[self.law.form.names.index(name) for name in self.names]]

    def weights(self, variances: Array, scatter: Scatter) -> Array:
        """[g]: the share of each variance that is left counts. The arguments are those of PlanGoal.weights."""
        return 1 / np.maximum(variances, SMALLEST_VARIANCE)

    def expected(self, errors: Array) -> ExpectedCoefficients:
        """How sure the coefficients are. errors: [g, stages], their standard errors."""
        coefficients = []
        for name, error in zip(self.names, errors, strict=True):
            value = self.law.coefficients[name]
            coefficients.append(ExpectedCoefficient(name=name, value=value, standard_error=_by_stage(error)))
        return ExpectedCoefficients(coefficients=coefficients)


Goal = PlanGoal | CoefficientsGoal


def _by_stage(values: Array) -> ByStage:
    """Values whose first axis is the stages."""
    before, after, grid = values.tolist()
    return ByStage(before=before, after=after, grid=grid)
