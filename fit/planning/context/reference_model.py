"""A model to start from beside a plan: what it counts, and what a law says of it under the same budget."""

import dataclasses

import numpy as np

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
class ReferenceCounts(Record):
    """What is counted of a reference model.

    Attributes:
      name: Its name, or that of its config.json.
      n_active, n_total: Parameters, with embedding and head.
      n_embedding: Those of the input embedding.
      n_experts: Experts that tokens choose from.
      top_k: Experts that a token chooses.
      n_shared_experts: Experts that all tokens use.
      whole_experts: All experts' weights over those that a token uses.
      notes: Sentences on what is not counted exactly.
      cache_elements_per_token: Numbers that a token leaves in the cache.
      n_active_without_embedding: Active parameters without the input embedding.
      training_bytes: Memory of training, without what tokens at work take.
      training_flops_per_token: 6 n_active.
    """

    name: str
    n_active: int
    n_total: int
    n_embedding: int
    n_experts: int
    top_k: int
    n_shared_experts: int
    whole_experts: float
    notes: list[str]
    cache_elements_per_token: int
    n_active_without_embedding: int
    training_bytes: float
    training_flops_per_token: float


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


def counts_of(reference: PublishedModel) -> ReferenceCounts:
    """The counts of a reference model."""
    return ReferenceCounts(
        name=reference.name,
        n_active=reference.n_active,
        n_total=reference.n_total,
        n_embedding=reference.n_embedding,
        n_experts=int(reference.shape.n_experts),
        top_k=int(reference.shape.top_k),
        n_shared_experts=int(reference.shape.n_shared_experts),
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
    counted = law.counting.counted(its_architecture, reference.n_active, reference.shape.d_model)
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
    like_best = Problem(law, problem.architecture, within)
    needed = solver.least_budget(like_best, float(n_experts), loss, times=1 / SMALLEST_SHARE)
    return TrainedReference(
        n_tokens=n_tokens,
        loss=loss,
        extrapolation=extrapolation.outside(
            law, **columns, n_tokens=n_tokens, training_flops=training_flops(counted, n_tokens)
        ),
        flops_share=None if needed is None else needed / its_flops,
    )
