"""A model to start from beside a plan: what it counts, and what a law says of it under the same budget."""

import dataclasses

import numpy as np

from fit.aliases import Json
from fit.fitted_law import extrapolation
from fit.fitted_law.extrapolation import Outside
from fit.model.architecture import INFERENCE, TRAINING, training_flops
from fit.model.reference_model import PublishedModel
from fit.model.step_counts import KEPT
from fit.planning.inputs.constraints import Constraints
from fit.planning.inputs.problem import Problem
from fit.planning.search import solver
from fit.results import Record

SMALLEST_SHARE = 1e-6  # of its FLOPs, from which on fewer are looked for that reach its loss


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainedReference(Record):
    """A reference model under the same budget, by a law.

    Attributes:
      n_tokens: Tokens that the budget trains it on.
      loss: Its predicted loss.
      extrapolation: Values outside what the law was fitted to.
      flops_share: Share of its FLOPs with which models built like the law's best reach its loss, on no more text;
        None where none does within the budget.
    """

    n_tokens: float
    loss: float
    extrapolation: list[Outside]
    flops_share: float | None


def counts(reference: PublishedModel) -> Json:
    """The counts of a reference model; the cache in numbers, training memory in bytes without what tokens at work
    take."""
    return dict(
        name=reference.name,
        n_active=reference.n_active,
        n_total=reference.n_total,
        n_embedding=reference.n_embedding,
        n_experts=reference.shape.n_experts,
        top_k=reference.shape.top_k,
        n_shared_experts=reference.shape.n_shared_experts,
        whole_experts=reference.whole_experts,
        notes=list(reference.notes),
        cache_elements_per_token=reference.cache_elements_per_token,
        n_active_without_embedding=reference.n_active - reference.n_embedding,
        training_bytes=KEPT * reference.n_total,
        training_flops_per_token=training_flops(reference.n_active, 1),
    )


def trained_within(reference: PublishedModel, problem: Problem, n_experts: int) -> TrainedReference | None:
    """A reference model under the same budget.

    None where the budget trains no token of it, or the law holds for another number of experts alone.
    """
    law = problem.law
    constraints = problem.constraints
    if constraints.flops is None:
        return None
    n_tokens = float(constraints.tokens_within_flops(reference.n_active))
    if n_tokens < 1:
        return None
    its_architecture = reference.architecture()
    uncounted = law.counting.uncounted_rows(its_architecture) * reference.shape.d_model
    columns = reference.columns(uncounted, bool(law.models.architecture))
    if law.only_n_experts is not None and not np.isclose(float(columns["n_experts"]), law.only_n_experts):
        return None
    loss = float(law.loss(law.coefficients, columns | dict(n_tokens=n_tokens)))
    counted = law.counting.n_active(its_architecture, reference.n_active, reference.shape.d_model)
    # the reference model is under no limit of memory, so neither are the models that reach its loss
    within = Constraints(
        flops=SMALLEST_SHARE * constraints.flops,
        inference_tokens=constraints.inference_tokens,
        max_tokens=constraints.max_tokens,
        epochs=constraints.epochs,
    )
    its_flops = constraints.flops
    if n_tokens == constraints.max_tokens_read:  # the text ends before the budget does
        its_flops = reference.n_active * (TRAINING * n_tokens + INFERENCE * constraints.inference_tokens)
    own = Problem(law, problem.architecture, within)
    needed = solver.least_budget(own, float(n_experts), loss, times=1 / SMALLEST_SHARE)
    return TrainedReference(
        n_tokens=n_tokens,
        loss=loss,
        extrapolation=extrapolation.outside(
            law, **columns, n_tokens=n_tokens, training_flops=training_flops(counted, n_tokens)
        ),
        flops_share=None if needed is None else needed / its_flops,
    )
