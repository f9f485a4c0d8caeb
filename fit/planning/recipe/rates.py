"""Published laws of the best peak learning rate and batch of a pretraining run: one entry per law, with its source.

A law gives both as power laws of what it counts. Its counts differ from those of this package's laws:

  N   parameters without embedding and head. Step Law's mixtures count all experts. Over its 16 public grids of mixtures
      the best rate is 1.27 times the law's with all parameters (standard deviation of ln: 0.16), and 0.40 times with
      the active ones (0.61).
  D   training tokens.
  C   training FLOPs M D. For a dense model with rows of L tokens, M = 72 n_blocks d_model^2 + 12 n_blocks d_model L:
      six times the weights outside embedding and head, plus attention over the whole row.

`benchmarks/refit_rates.py` refits Step Law to a clone of step-law/steplaw, whose tables state no licence.
"""

import dataclasses
import math

from fit.aliases import Numbers
from fit.model.shape import ModelShape

# A step of the grid, sqrt(2), away from the best rate costs less than 0.25% of the loss in the median of the 33 public
# grids of step-law/steplaw, dense and mixtures.
NEAR_OPTIMAL = math.sqrt(2)
# Published laws start at models of this many parameters outside embedding and head (Step Law: 59M).
SMALLEST_ACTIVE = 6e7
MOST_LOWERED = 2  # the factor by which the other laws may lower the rate of the law of compute
DENSE = "dense"
MIXTURE = "mixture"


@dataclasses.dataclass(frozen=True)
class CountedRun:
    """A training run, as published laws count it.

    Attributes:
      active, total: parameters outside embedding and head.
      n_tokens: training tokens.
      flops: training FLOPs outside embedding and head.
      kind: DENSE or MIXTURE.
    """

    active: float
    total: float
    n_tokens: float
    flops: float
    kind: str

    @property
    def columns(self) -> dict[str, float]:
        """{column of a law: value}, the columns being N, D and C above."""
        return dict(N=self.total, D=self.n_tokens, C=self.flops)


@dataclasses.dataclass(frozen=True)
class PublishedRateLaw:
    """A published law.

    Attributes:
      name, source: as a plan names it, and the paper.
      kinds: the models that it was fitted to, or checked on.
      rate, batch: (constant, {column: exponent}) of the peak learning rate and of the tokens in a batch.
      most: the largest value of each column among the law's runs.
    """

    name: str
    source: str
    kinds: tuple[str, ...]
    rate: tuple[float, dict[str, float]]
    batch: tuple[float, dict[str, float]]
    most: dict[str, float]

    def learning_rate(self, run: CountedRun) -> float:
        """Peak learning rate of AdamW."""
        return _power_law(self.rate, run)

    def batch_tokens(self, run: CountedRun) -> float:
        """Tokens in a batch."""
        return _power_law(self.batch, run)

    def extrapolation(self, run: CountedRun) -> float:
        """By what factor the run lies above the largest of the law's own runs; 1 where it does not."""
        factors = [run.columns[name] / most for name, most in self.most.items()]
        return max(1.0, *factors)


STEP_LAW = PublishedRateLaw(
    name="Step Law",
    source="Li et al. 2025, arXiv 2503.04715",
    kinds=(DENSE, MIXTURE),
    rate=(1.79, {"N": -0.713, "D": 0.307}),
    batch=(0.58, {"D": 0.571}),
    most={"N": 2.16e9, "D": 1e11},
)
STEP_LAW_REFIT = PublishedRateLaw(
    name="refit of Step Law's dense runs",
    source="17 public grids of step-law/steplaw by benchmarks/refit_rates.py",
    kinds=(DENSE,),
    rate=(84.7, {"N": -0.797, "D": 0.219}),
    batch=(0.321, {"D": 0.595}),
    most={"N": 1.07e9, "D": 1e11},
)
DEEPSEEK_LLM = PublishedRateLaw(
    name="DeepSeek LLM",
    source="Bi et al. 2024, arXiv 2401.02954",
    kinds=(DENSE, MIXTURE),
    rate=(0.3118, {"C": -0.1250}),
    batch=(0.2920, {"C": 0.3271}),
    most={"C": 1e20},
)
LING = PublishedRateLaw(
    name="Ling's mixtures",
    source="Tian et al. 2025, arXiv 2507.17702",
    kinds=(MIXTURE,),
    rate=(1.1576, {"C": -0.1529}),
    batch=(0.0694, {"C": 0.3644}),
    most={"C": 3e20},
)
RATE_LAWS = (STEP_LAW, STEP_LAW_REFIT, DEEPSEEK_LLM, LING)
# Of each kind, the law of compute: fitted to runs at their best size for the compute, as plans are.
BY_COMPUTE = {DENSE: DEEPSEEK_LLM, MIXTURE: LING}


def run_of(shape: ModelShape, n_tokens: float, sequence: int) -> CountedRun:
    """The run of a model as the laws count it.

    Args:
      shape: of the model.
      n_tokens: training tokens.
      sequence: tokens in a row.
    """
    return CountedRun(
        active=float(shape.n_active - shape.embedding_and_head),
        total=float(shape.n_total - shape.embedding_and_head),
        n_tokens=n_tokens,
        flops=float(flops_per_token(shape, sequence) * n_tokens),
        kind=MIXTURE if shape.n_experts > 1 else DENSE,
    )


def flops_per_token(shape: ModelShape, sequence: int) -> Numbers:
    """Training FLOPs of a token outside embedding and head: forward and backward."""
    return 3 * (shape.forward_flops(sequence) - 2 * shape.head)


def laws_for(kind: str) -> list[PublishedRateLaw]:
    """The laws that hold for a kind of model, DENSE or MIXTURE."""
    return [law for law in RATE_LAWS if kind in law.kinds]


def learning_rate(run: CountedRun) -> tuple[float, float, float]:
    """(value, lowest, highest) of the laws' peak learning rates.

    The value is their geometric mean, clipped to between the rate of the law of compute and half of it. That law is
    within 25% of the rates at which published mixtures were trained. Step Law rises with tokens and falls with experts
    without end. A rate too high costs more than one too low.
    """
    rates = [law.learning_rate(run) for law in laws_for(run.kind)]
    by_compute = BY_COMPUTE[run.kind].learning_rate(run)
    value = min(max(_geometric_mean(rates), by_compute / MOST_LOWERED), by_compute)
    return value, min(rates), max(rates)


def batch_tokens(run: CountedRun) -> tuple[float, float, float]:
    """(geometric mean, lowest, highest) of the laws' batches, in tokens."""
    batches = [law.batch_tokens(run) for law in laws_for(run.kind)]
    return _geometric_mean(batches), min(batches), max(batches)


def _power_law(law: tuple[float, dict[str, float]], run: CountedRun) -> float:
    """constant N^a D^b C^c, of those columns that the law has."""
    constant, exponents = law
    return constant * math.prod(run.columns[name] ** exponent for name, exponent in exponents.items())


def _geometric_mean(values: list[float]) -> float:
    """The geometric mean of positive numbers."""
    return math.exp(sum(map(math.log, values)) / len(values))
