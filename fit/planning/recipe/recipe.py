"""The recipe of a planned run: config, rows, batches, warm-up and peak learning rate, each with its source.

Within the sizes of a law's runs, the recipe is that of these runs, so that the law's losses hold for it. Beyond them,
and for a law that does not say how its runs were trained, it is `configs/pretrain.py` with the rate and the batch of
published laws (rates.py).
"""

import dataclasses
from typing import Any

import numpy as np

from fit.aliases import Json
from fit.fitted_law.batches import PAPERS_CONFIG
from fit.fitted_law.law import Law
from fit.fitted_law.law_files import load
from fit.fitted_law.tuning import Estimate, Tuning
from fit.fitting import learning_rate
from fit.messages import sentences
from fit.messages.finding import Finding, finding
from fit.messages.units import say
from fit.model.architecture import Model, Ramp
from fit.model.shape import ModelShape
from fit.planning.recipe import ramps, rates, which_recipe
from fit.planning.recipe.which_recipe import PRETRAIN_CONFIG, PRETRAIN_SEQUENCE

PAPERS_LAW = "joint-moe-2025"
SMALLEST_TUNED = 1e7  # n_active below which Eq. 10 is far outside what it was tuned on
WARMUP_STEPS = 2_000  # DeepSeek LLM, DeepSeek-V3, Llama 2
WARMUP_SHARE = 0.05  # of the tokens, at most
DISAGREEMENT = 2  # the factor between two laws above which a plan warns
FEWEST_STEPS = 2_000
MOST_STEPS = 500_000


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
      batch_source: where the batch comes from, in words.
      warmup_tokens: tokens over which the rate rises; None: as base_config has it.
      learning_rate: the peak; None where nothing tells it.
      learning_rate_range: the lowest and the highest peak by the laws that were asked; None where there is none.
      learning_rate_source: where the rate comes from, or why there is none, in words.
      extrapolation: by what factor the run lies above the sizes of the runs behind rate and batch: the largest over
        the laws that were asked. 1 within them.
      family: whether the model is built like a published one, whatever its size.
      as_published: whether it is the recipe of published models, not that of the law's runs.
      laws: for each published law its name, source, learning_rate, batch_tokens and extrapolation.
      note: a sentence on what differs from the recipe of the law's runs; empty for theirs.
      findings: on what is doubtful.
    """

    base_config: str | None
    overrides: dict[str, str]
    sequence: int
    batch_tokens: Ramp | None
    batch_range: tuple[float, float] | None
    batch_allowed: tuple[float, float] | None
    batch_source: str
    warmup_tokens: int | None
    learning_rate: float | None
    learning_rate_range: tuple[float, float] | None
    learning_rate_source: str
    extrapolation: float
    family: bool = False
    as_published: bool = False
    laws: tuple[dict[str, Any], ...] = ()
    note: str = ""
    findings: tuple[Finding, ...] = ()

    def exact_parameters(self, model: Model) -> int:
        """Every weight of the model, with the norms of this recipe: RMSNorms in that of published models."""
        if self.as_published:
            return int(model.shape.exact_parameters(rms_norms=True, final_norm=True))
        return model.exact_parameters

    def row(self) -> Json:
        """The recipe as plain values, for a plan's buildable model."""
        batches = None
        if self.batch_tokens is not None:
            batches = [list(step) for step in self.batch_tokens]
        return dict(
            sequence=self.sequence,
            learning_rate=self.learning_rate,
            learning_rate_range=_as_list(self.learning_rate_range),
            learning_rate_from=self.learning_rate_source,
            batch_tokens=batches,
            batch_range=_as_list(self.batch_range),
            batch_allowed=_as_list(self.batch_allowed),
            batch_from=self.batch_source,
            warmup_tokens=self.warmup_tokens,
            recipe_extrapolation=self.extrapolation,
            recipe_laws=[dict(row) for row in self.laws],
            recipe_note=self.note,
        )


def recipe_of(  # noqa: PLR0913  what a recipe depends on
    law: Law,
    model: Model,
    n_tokens: float,
    family: bool = False,
    batches: Ramp | None = None,
    as_published: bool | None = None,
) -> Recipe:
    """The Recipe of a planned model.

    Args:
      law: what it was planned by.
      model: what is trained.
      n_tokens: training tokens.
      family: whether the model is built like a published one, whose vocabulary and blocks are not those of the law's
        runs.
      batches: those of its layout, where it has one; None for the best.
      as_published: whether its recipe is that of published models; None where its size tells.
    """
    if as_published is None:
        as_published = which_recipe.is_published(law, model, n_tokens, family)
    if as_published:
        return _of_published_models(law, model, n_tokens, family, batches)
    base, overrides = which_recipe.runs_config(law, which_recipe.has_papers_shape(model))
    return _of_the_runs(law, model, n_tokens, base, overrides, batches)


def rate_note(law: Law, model: Model, n_tokens: float, run_recipe: Recipe) -> str:
    """Why the peak learning rate jumps where plans leave the law's runs, in words; "" where it does not.

    Within the runs a plan has their recipe, beyond them that of published models. Their rates may be far apart.

    Args:
      law: what the model was planned by.
      model: what is trained.
      n_tokens: training tokens.
      run_recipe: the recipe that it is trained by.
    """
    rate = run_recipe.learning_rate
    run = rates.run_of(model.shape, n_tokens, PRETRAIN_SEQUENCE)
    if rate is None or law.tuning is not None or run.active < rates.SMALLEST_ACTIVE:
        return ""
    if not run_recipe.as_published:
        other: float | None = rates.learning_rate(run)[0]
        sentence = sentences.RATE_WITHIN
    elif run_recipe.family or which_recipe.beyond(law, model, n_tokens) == 1:
        return ""  # plans within the runs have this recipe, too
    else:
        base, _ = which_recipe.runs_config(law, which_recipe.has_papers_shape(model))
        other, _ = peak_learning_rate(law, base, float(model.shape.n_active), float(model.shape.n_experts))
        sentence = sentences.RATE_BEYOND
    if other is None or max(rate / other, other / rate) < DISAGREEMENT:
        return ""
    return say(sentence, other=other)


def _as_list(ends: tuple[float, float] | None) -> list[float] | None:
    """A range as JSON has it; None where there is none."""
    return None if ends is None else list(ends)


def _of_the_runs(
    law: Law, model: Model, n_tokens: float, base: str | None, overrides: dict[str, str], ramp: Ramp | None
) -> Recipe:
    """The recipe of the law's own runs. ramp: the batches that the layout is timed with: those of the runs as the mesh
    divides them, or where the law does not know these, the paper's."""
    rate, source = peak_learning_rate(law, base, float(model.shape.n_active), float(model.shape.n_experts))
    rate_range = None
    batches = ramp
    batch_source = sentences.BATCH_OF_RUNS
    known = which_recipe.runs_batches(law, base, overrides)
    if ramp is None and known is not None:
        batches = tuple(step for step in known if step[0] < n_tokens)
    if law.tuning:
        batch = batches[-1][1] if batches else None
        rate, source = _fitted_rate(law.tuning, model, n_tokens, batch)
        if batches is None:
            batch_source = _fitted_batch(law.tuning, model, n_tokens)
    if rate is not None:
        rate_range = rate / rates.NEAR_OPTIMAL, rate * rates.NEAR_OPTIMAL
    return Recipe(
        base_config=base,
        overrides=overrides,
        sequence=which_recipe.sequence_of(law, as_published=False),
        batch_tokens=batches,
        batch_range=None,
        batch_allowed=_allowed_of_runs(law, n_tokens) if batches else None,
        batch_source=batch_source,
        warmup_tokens=None,
        learning_rate=rate,
        learning_rate_range=rate_range,
        learning_rate_source=source,
        extrapolation=which_recipe.beyond(law, model, n_tokens),
        findings=(*_doubts_of_batches(ramp, known), *_doubts_of_steps(batches, n_tokens)),
    )


def peak_learning_rate(law: Law, base: str | None, n_active: float, n_experts: float) -> tuple[float | None, str]:
    """The peak learning rate of a model by the law of the runs' own rates.

    Without that law the rate is by Eq. 10, if the runs may have had the paper's recipe and the size allows.

    Args:
      law: what the model was planned by.
      base: the config file of the law's runs; None where it is not known.
      n_active, n_experts: of the model, experts as the trainer counts them.

    Returns:
      (peak learning rate, its origin in words), or (None, why) where none is known.
    """
    coefficients = law.models.learning_rate
    if not coefficients:
        if base != PAPERS_CONFIG:
            return None, sentences.RATE_UNKNOWN
        if n_active < SMALLEST_TUNED:
            return None, sentences.RATE_TOO_SMALL
        law = load(PAPERS_LAW)
        coefficients = law.models.learning_rate
        assert coefficients is not None
    origin = sentences.RATE_EQ_10 if law.published else sentences.RATE_OF_RUNS
    return float(learning_rate.predict(coefficients, n_active, n_experts)), origin


def _fitted_rate(tuning: Tuning, model: Model, n_tokens: float, batch_tokens: float | None) -> tuple[float, str]:
    """(peak learning rate, its origin with its interval) by the optima that were fitted with the law.

    Args:
      batch_tokens: of the largest batch; None for the best.
    """
    best = tuning.rate(batch_tokens, **_columns_of_tuning(model, n_tokens))
    return best.value, sentences.RATE_FITTED + _interval(tuning, best, "{low:.2g} to {high:.2g}")


def _fitted_batch(tuning: Tuning, model: Model, n_tokens: float) -> str:
    """The best batch by the optima that were fitted with the law, in words; that of the runs where they have one."""
    best = tuning.batch(**_columns_of_tuning(model, n_tokens))
    if best is None:
        return sentences.BATCH_OF_RUNS
    size = say(sentences.BATCH_FITTED, tokens=best.value)
    return size + _interval(tuning, best, "{low:amount} to {high:amount}")


def _columns_of_tuning(model: Model, n_tokens: float) -> dict[str, float]:
    """The columns of a model that the optima fitted with a law read."""
    n_experts = float(model.shape.n_experts)
    return dict(n_active=float(model.shape.n_active), n_tokens=n_tokens, n_experts=n_experts)


def _ends(best: Estimate) -> tuple[float, float, float]:
    """An optimum and the ends of its interval; of a law without draws those that are near-optimal by other laws."""
    if best.low is None or best.high is None:
        return best.value, best.value / rates.NEAR_OPTIMAL, best.value * rates.NEAR_OPTIMAL
    return best.value, best.low, best.high


def _interval(tuning: Tuning, best: Estimate, ends: str) -> str:
    """The interval of an optimum in words; "" for a law without draws."""
    if best.low is None or best.high is None:
        return ""
    low, high = tuning.percentiles
    return say(sentences.IN_CASES, ends=say(ends, low=best.low, high=best.high), share=high - low)


def _of_published_models(law: Law, model: Model, n_tokens: float, family: bool, ramp: Ramp | None) -> Recipe:
    """configs/pretrain.py, with rate and batch by published laws. ramp: batches in place of the best."""
    run = rates.run_of(model.shape, n_tokens, PRETRAIN_SEQUENCE)
    rate, lowest_rate, highest_rate = rates.learning_rate(run)
    batch, lowest_batch, highest_batch = rates.batch_tokens(run)
    model_columns = _columns_of_tuning(model, n_tokens)
    best_batch = law.tuning.batch(**model_columns) if law.tuning else None
    if best_batch:
        batch, lowest_batch, highest_batch = _ends(best_batch)
    batches = ramp or ramps.published(batch, n_tokens, PRETRAIN_SEQUENCE)
    instead = say(sentences.INSTEAD, **law.models) if law.models.seq_len else ""
    laws = tuple(_law_row(rate_law, run) for rate_law in rates.laws_for(run))
    names = _joined([row["law"] for row in laws])
    rate_source = names
    extrapolation = max(row["extrapolation"] for row in laws)
    doubts = [*_disagreements("learning_rate", laws), *_disagreements("batch_tokens", laws)]
    if law.tuning:
        rate, lowest_rate, highest_rate = _ends(law.tuning.rate(batches[-1][1], **model_columns))
        rate_source = sentences.RATE_OF_THIS_LAW
        extrapolation = which_recipe.beyond(law, model, n_tokens)
        doubts = [] if best_batch else _disagreements("batch_tokens", laws)
    return Recipe(
        base_config=PRETRAIN_CONFIG,
        overrides={},
        sequence=PRETRAIN_SEQUENCE,
        batch_tokens=batches,
        batch_range=(lowest_batch, highest_batch),
        batch_allowed=_allowed(law, model, n_tokens),
        batch_source=sentences.RATE_OF_THIS_LAW if best_batch else names,
        warmup_tokens=round(min(WARMUP_STEPS * batches[0][1], WARMUP_SHARE * n_tokens)),
        learning_rate=float(f"{rate:.2e}"),  # no law is known to more digits
        learning_rate_range=(lowest_rate, highest_rate),
        learning_rate_source=rate_source,
        extrapolation=extrapolation,
        family=family,
        as_published=True,
        laws=laws,
        note=say(
            sentences.RECIPE_DIFFERS,
            base=PRETRAIN_CONFIG,
            sequence=PRETRAIN_SEQUENCE,
            instead=instead,
        ),
        findings=(*doubts, *_doubts_of_steps(batches, n_tokens)),
    )


def _allowed(law: Law, model: Model, n_tokens: float) -> tuple[float, float]:
    """The least and the largest batch that laws of batch allow a model on n_tokens."""
    least, most = batch_laws_of(law, model.shape).allowed(n_tokens)
    return float(least), float(most)


def _allowed_of_runs(law: Law, n_tokens: float) -> tuple[float, float]:
    """(least, largest) batch by the recipe of the law's runs: meshes may ask for less than their own batch."""
    most = max(tokens for start, tokens in which_recipe.batches_of(law) if start < n_tokens)
    return rates.LEAST_BATCH * most, float(most)


def batch_laws_of(law: Law, shape: ModelShape) -> rates.BatchLaws:
    """The batches that the recipe of published models allows, for a shape.

    They follow from the best batch of the law's own runs where these tell it, else from published laws.
    """
    if law.tuning and law.tuning.with_batch:
        line = law.tuning.batch_line(n_active=shape.n_active, n_experts=np.asarray(shape.n_experts, float))
        return rates.BatchLaws(best=line, others=())
    return rates.batch_laws(
        total=np.asarray(shape.n_total - shape.embedding_and_head),
        flops_per_token=np.asarray(rates.flops_per_token(shape, PRETRAIN_SEQUENCE)),
        is_mixture=bool(np.all(np.greater(shape.n_experts, 1))),
    )


def _law_row(law: rates.PublishedRateLaw, run: rates.CountedRun) -> dict[str, Any]:
    """The row of a published law in a plan's list: its rate and batch for a run."""
    return dict(
        law=law.name,
        source=law.source,
        learning_rate=law.learning_rate(run),
        batch_tokens=law.batch_tokens(run),
        extrapolation=law.extrapolation(run),
    )


def _joined(names: list[str]) -> str:
    """Names as a sentence lists them: "a, b and c"."""
    *first, last = names
    return f"{', '.join(first)} and {last}"


def _disagreements(quantity: str, rows: tuple[dict[str, Any], ...]) -> list[Finding]:
    """A finding where two laws differ by more than DISAGREEMENT."""
    lowest = min(rows, key=lambda row: row[quantity])
    highest = max(rows, key=lambda row: row[quantity])
    factor = highest[quantity] / lowest[quantity]
    if factor <= DISAGREEMENT:
        return []
    return [
        finding(
            "rates_differ" if quantity == "learning_rate" else "batches_differ",
            factor=factor,
            low=lowest[quantity],
            low_law=lowest["law"],
            high=highest[quantity],
            high_law=highest["law"],
        )
    ]


def _doubts_of_batches(ramp: Ramp | None, known: Ramp | None) -> list[Finding]:
    """A finding where the batches are those of the layout, and the runs had others that nobody knows."""
    if ramp is None or known is not None:
        return []
    return [finding("batch_of_layout", tokens=ramp[-1][1])]


def _doubts_of_steps(batches: Ramp | None, n_tokens: float) -> list[Finding]:
    """A finding where the batches make very few or very many steps."""
    if batches is None:
        return []
    steps = ramps.steps_of(batches, n_tokens)
    if steps > MOST_STEPS:
        return [finding("many_steps", steps=steps, most=MOST_STEPS, tokens=batches[-1][1])]
    if steps < FEWEST_STEPS:
        return [finding("few_steps", steps=steps, fewest=FEWEST_STEPS, tokens=batches[-1][1])]
    return []
