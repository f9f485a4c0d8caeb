"""The batches that models of a grid may have on their training tokens, and the tokens on which they may have a batch.

Axes: [n_shapes] models of one number of experts, [n] some of them, perhaps several times.
"""

import dataclasses
import math

import numpy as np

from fit.aliases import Array, Numbers
from fit.fitted_law.law import Law
from fit.model.shape import ModelShape
from fit.planning.recipe import rates
from fit.planning.recipe.which_recipe import PRETRAIN_SEQUENCE

FLAT = 1e-9  # smaller slopes are replaced by this one
LEAST_BATCH = 0.5  # share of the best batch that is always allowed, even if the laws agree on a larger one
# ln of a batch as a line in ln of the training tokens: (its value at one token, for each model; its slope)
LogLine = tuple[Numbers, float]


@dataclasses.dataclass(frozen=True)
class BatchLaws:
    """How the batch of models depends on their training tokens.

    Attributes:
      best: The best batch.
      others: Batches by single laws. The least batch that is allowed is the lowest of these, or LEAST_BATCH of the
        best if that is lower.
    """

    best: LogLine
    others: tuple[LogLine, ...]

    def allowed(self, n_tokens: Numbers) -> tuple[Array, Array]:
        """(the least, the largest) batch of each model on n_tokens."""
        log_tokens = np.log(np.asarray(n_tokens, float))  # a whole number may be too large for an array of such
        logs = [constant + slope * log_tokens for constant, slope in (self.best, *self.others)]
        least = np.minimum.reduce([logs[0] + math.log(LEAST_BATCH), *logs[1:]])
        return np.exp(least), np.exp(logs[0])


def batch_laws_of(law: Law, shape: ModelShape) -> BatchLaws:
    """The batches that the recipe of published models allows.

    They follow from the best batch of the law's own runs where these tell it, else from published laws, whose geometric
    mean is the best.

    Args:
      law: What the models are planned by.
      shape: One model, or arrays [n_shapes].
    """
    if law.tuning and law.tuning.with_batch:
        line = law.tuning.batch_line(n_active=shape.n_active, n_experts=np.asarray(shape.n_experts, float))
        return BatchLaws(best=line, others=())
    # whole numbers may be too large for an array of such
    log_total = np.log(np.asarray(shape.n_total - shape.embedding_and_head, float))
    log_flops = np.log(np.asarray(rates.flops_per_token(shape, PRETRAIN_SEQUENCE), float))
    is_mixture = bool(np.all(np.greater(shape.n_experts, 1)))
    lines = []
    for rate_law in rates.laws_for(rates.MIXTURE if is_mixture else rates.DENSE):
        constant, exponents = rate_law.batch
        of_flops = exponents.get("C", 0.0)
        value = math.log(constant) + exponents.get("N", 0.0) * log_total + of_flops * log_flops
        lines.append((value, exponents.get("D", 0.0) + of_flops))
    mean = sum(value for value, _ in lines) / len(lines)
    slope = sum(slope for _, slope in lines) / len(lines)
    return BatchLaws(best=(mean, slope), others=tuple(lines))


def tokens_of_batches(laws: BatchLaws, models: Array, log_batch: Array) -> tuple[Array, Array]:
    """The least and the most training tokens on which batches are allowed.

    Args:
      laws: the batches of a grid of models.
      models: index of each row's model, [n].
      log_batch: ln of batches, [n, n_batches].
    """

    def crossing(line: LogLine, log_values: Array) -> Array:
        """The tokens at which a law gives a batch; for a flat law, almost none or more than any run has."""
        constant, slope = line
        constants = np.broadcast_to(constant, np.shape(laws.best[0]))[models, None]
        steepness = slope if abs(slope) > FLAT else FLAT
        return np.exp(np.clip((log_values - constants) / steepness, -700.0, 700.0))

    above = log_batch - math.log(LEAST_BATCH)
    if laws.best[1] < 0:  # the best batch falls with the tokens
        return crossing(laws.best, above), crossing(laws.best, log_batch)
    least = crossing(laws.best, log_batch)
    most = crossing(laws.best, above)
    for line in laws.others:
        most = np.maximum(most, crossing(line, log_batch))
    return least, most
