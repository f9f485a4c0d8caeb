"""The recipe of a planned run: config, rows, batches, warm-up and peak learning rate, each with its source."""

import dataclasses

from fit.aliases import Json
from fit.messages.finding import Finding, finding
from fit.model.architecture import Model, Ramp
from fit.planning.recipe import ramps
from fit.results import Record

FEWEST_STEPS = 2_000
MOST_STEPS = 500_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class RateLawRow(Record):
    """What a published law of rate and batch says of a run.

    Attributes:
      law: Its name.
      source: Its paper.
      learning_rate: The best peak learning rate.
      batch_tokens: The best batch, in tokens.
      extrapolation: By what factor the run lies above the largest of the law's own runs; 1 where it does not.
    """

    law: str
    source: str
    learning_rate: float
    batch_tokens: float
    extrapolation: float


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How to train a planned model.

    Attributes:
      base_config: the config file to start from; None where the law does not say how its runs were trained.
      overrides: {field: value as Python source} that the law's runs had on top of it.
      sequence: tokens in a row.
      batch_tokens: ((from this many tokens seen, tokens in a batch), ...); None: as base_config has it.
      batch_range: the lowest and the highest batch by the laws that were asked, in tokens; None where there is none.
      batch_allowed: the least batch that a plan by hours may choose at these tokens, and the best one; None where the
        recipe does not state a batch.
      batch_from: where the batch comes from, in words.
      warmup_tokens: tokens over which the rate rises; None: as base_config has it.
      learning_rate: the peak; None where nothing tells it.
      learning_rate_range: the lowest and the highest peak by the laws that were asked; None where there is none.
      learning_rate_from: where the rate comes from, or why there is none, in words.
      extrapolation: by what factor the run lies above the sizes of the runs behind rate and batch: the largest over
        the laws that were asked. 1 within them.
      as_published: whether it is the recipe of published models, not that of the law's runs.
      laws: what each published law says.
      note: a sentence on what differs from the recipe of the law's runs; empty for theirs.
      rate_note: why the rate jumps where plans leave the law's runs, in words; "" where it does not.
      findings: on what is doubtful.
    """

    base_config: str | None
    overrides: dict[str, str]
    sequence: int
    batch_tokens: Ramp | None
    batch_range: tuple[float, float] | None
    batch_allowed: tuple[float, float] | None
    batch_from: str
    warmup_tokens: int | None
    learning_rate: float | None
    learning_rate_range: tuple[float, float] | None
    learning_rate_from: str
    extrapolation: float
    as_published: bool = False
    laws: tuple[RateLawRow, ...] = ()
    note: str = ""
    rate_note: str = ""
    findings: tuple[Finding, ...] = ()

    def row(self) -> Json:
        """The recipe as fields of a plan's buildable model, with tuples as lists."""
        batches = None
        if self.batch_tokens is not None:
            batches = [list(step) for step in self.batch_tokens]
        return dict(
            sequence=self.sequence,
            learning_rate=self.learning_rate,
            learning_rate_range=_as_list(self.learning_rate_range),
            learning_rate_from=self.learning_rate_from,
            rate_note=self.rate_note,
            batch_tokens=batches,
            batch_range=_as_list(self.batch_range),
            batch_allowed=_as_list(self.batch_allowed),
            batch_from=self.batch_from,
            warmup_tokens=self.warmup_tokens,
            recipe_extrapolation=self.extrapolation,
            recipe_laws=list(self.laws),
            recipe_note=self.note,
        )


def _as_list(ends: tuple[float, float] | None) -> list[float] | None:
    """A range as JSON has it; None where there is none."""
    return None if ends is None else list(ends)


def tuning_columns(model: Model, n_tokens: float) -> dict[str, float]:
    """The columns of a run that optima of rate and batch read, where they are fitted with the law."""
    n_experts = float(model.shape.n_experts)
    return dict(n_active=float(model.shape.n_active), n_tokens=n_tokens, n_experts=n_experts)


def findings_on_steps(batches: Ramp | None, n_tokens: float) -> list[Finding]:
    """A finding where batches make very few or very many steps of n_tokens."""
    if batches is None:
        return []
    steps = ramps.steps_of(batches, n_tokens)
    if steps > MOST_STEPS:
        return [finding("many_steps", steps=steps, most=MOST_STEPS, tokens=batches[-1][1])]
    if steps < FEWEST_STEPS:
        return [finding("few_steps", steps=steps, fewest=FEWEST_STEPS, tokens=batches[-1][1])]
    return []
