"""The best dense model beside a plan, and the paper's rule of thumb for mixtures of its size."""

import dataclasses

from fit.aliases import Json
from fit.fitted_law import extrapolation
from fit.fitted_law.extrapolation import Outside
from fit.model.architecture import training_flops
from fit.planning.chosen.optimum import Optimum
from fit.planning.context import repeats
from fit.planning.inputs.constraints import Constraints
from fit.planning.inputs.problem import Problem
from fit.planning.search import solver
from fit.results import Record, optional


@dataclasses.dataclass(frozen=True, kw_only=True)
class DenseComparison(Record):
    """The best dense model under the same limits, and what the plan's best saves against it.

    Attributes:
      loss_saved: Nats per token.
      flops_for_the_same_loss: FLOPs with which dense models reach the best's loss; None where no budget is enough.
      flops_saved: Share of these FLOPs that the best saves.
      hours_for_the_same_loss, hours_saved: The same where hours are the budget.
      inference_flops_ratio: FLOPs per served token of the best, over those of the dense model.
    """

    n_experts: int
    n_active: float
    n_tokens: float
    loss: float
    extrapolation: list[Outside]
    loss_saved: float
    flops_for_the_same_loss: float | None = optional()
    flops_saved: float | None = optional()
    hours_for_the_same_loss: float | None = optional()
    hours_saved: float | None = optional()
    inference_flops_ratio: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class RuleOfThumb(Record):
    """The paper's rule of thumb (Sec. 4.5) for one number of experts.

    Attributes:
      dense_loss: Loss of the compute-optimal dense model.
      holds: Whether a mixture with its total parameters, on n_experts times its tokens, is better.
      flops_ratio: FLOPs of the mixture over those of the dense model.
    """

    n_experts: int
    n_active: float
    n_tokens: float
    loss: float
    dense_loss: float
    holds: bool
    flops_ratio: float
    extrapolation: list[Outside]


def are_compared(problem: Problem) -> bool:
    """Whether a plan compares its best with dense models: under a budget, by a law that knows them itself."""
    return problem.constraints.has_budget and problem.law.holds_for_dense and not problem.law.dense


def _of_dense_models(problem: Problem, n_experts: int) -> Problem:
    """The problem of dense models in the same hours: with FLOPs at their own MFU or, if none is given, at the best's.

    n_experts: Of the best.
    """
    flops = problem.constraints.flops
    if isinstance(flops, dict) and 1 not in flops:
        return problem.at(n_experts)
    return problem.at(1)


def against_dense(problem: Problem, best: Optimum) -> DenseComparison | None:
    """The savings of the best plan against the best dense model under the same constraints (Fig. 2b), in FLOPs or in
    hours. None where no dense model is feasible, or where the plan does not compare with dense ones."""
    if not are_compared(problem):
        return None
    solved = solver.best_models(_of_dense_models(problem, best.n_experts), 1.0)
    if not solved.feasible:
        return None
    problem = problem.at(best.n_experts)
    budget = problem.constraints.budget
    needed = budget  # of the best itself, whose loss rounding may leave just out of reach
    if best.n_experts > 1:
        needed = solver.least_budget(problem, 1.0, best.loss)
    saved = None if needed is None else 1 - budget / needed
    if problem.is_by_hours:
        savings = dict(hours_for_the_same_loss=needed, hours_saved=saved)
    else:
        savings = dict(flops_for_the_same_loss=needed, flops_saved=saved)
    model = solved.row()
    return DenseComparison(
        **model,
        extrapolation=_extrapolation(problem, model),
        loss_saved=float(solved.loss) - best.loss,
        **savings,
        inference_flops_ratio=best.n_active / float(solved.n_active),
        explicit=tuple(savings),
    )


def _extrapolation(problem: Problem, model: Json) -> list[Outside]:
    """What lies outside of a row of BestModels."""
    counts = {name: model[name] for name in ("n_experts", "n_active", "n_tokens")}
    return extrapolation.of_model(problem.law, problem.as_counted, **counts)


def rules_of_thumb(problem: Problem, best: Optimum) -> list[RuleOfThumb] | None:
    """Checks Sec. 4.5: a mixture of E <= 8 experts with the compute-optimal dense model's total parameters, on E times
    its tokens, is better. One row for each E of the problem's experts from 2 to 8.

    None in hours, or where the plan does not compare with dense models.
    """
    if problem.is_by_hours or not are_compared(problem):
        return None
    fresh = repeats.of_fresh_text(problem)
    law = fresh.law
    architecture = problem.architecture
    flops = _of_dense_models(problem, best.n_experts).constraints.flops
    dense = solver.best_models(Problem(law, architecture, Constraints(flops=flops)), 1.0)
    same_size = Constraints(memory_bytes=float(dense.n_total), bytes_per_parameter=1.0)
    rows = []
    for e in solver.allowed_experts(law, problem.experts):
        if not 1 < e <= 8:
            continue
        on_more_tokens = dataclasses.replace(same_size, max_tokens=float(e * dense.n_tokens))
        mixture = solver.best_models(Problem(law, architecture, on_more_tokens), e)
        if not mixture.feasible:
            continue
        model = mixture.row()
        row = RuleOfThumb(
            **model,
            dense_loss=float(dense.loss),
            holds=bool(mixture.loss < dense.loss),
            flops_ratio=float(training_flops(mixture.n_active, mixture.n_tokens) / flops),
            extrapolation=_extrapolation(fresh, model),
        )
        rows.append(row)
    return rows
