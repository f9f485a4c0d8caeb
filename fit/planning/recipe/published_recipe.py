"""The recipe of published models, configs/pretrain.py: with rate and batch by published laws (rates.py).

Where the law's own runs tell the best rate or batch, these are by the law.
"""

from fit.fitted_law.law import Law
from fit.fitted_law.tuning import Estimate
from fit.messages import sentences
from fit.messages.finding import Finding, finding
from fit.messages.units import say
from fit.model.architecture import Model, Ramp
from fit.planning.recipe import ramps, rates, which_recipe
from fit.planning.recipe.allowed_batches import batch_laws_of
from fit.planning.recipe.recipe import RateLawRow, Recipe, findings_on_steps, tuning_columns
from fit.planning.recipe.which_recipe import PRETRAIN_CONFIG, PRETRAIN_SEQUENCE

WARMUP_STEPS = 2_000  # DeepSeek LLM, DeepSeek-V3, Llama 2
WARMUP_SHARE = 0.05  # of the tokens, at most
DISAGREEMENT = 2  # the factor between two laws above which a plan warns


def recipe_of_published_models(law: Law, model: Model, n_tokens: float, ramp: Ramp | None) -> Recipe:
    """The recipe of published models for a planned run.

    Args:
      law: What the model is planned by.
      model: What is trained.
      n_tokens: Training tokens.
      ramp: The batches of its layout; None for the best ones.
    """
    run = rates.run_of(model.shape, n_tokens, PRETRAIN_SEQUENCE)
    rate, lowest_rate, highest_rate = rates.learning_rate(run)
    batch, lowest_batch, highest_batch = rates.batch_tokens(run)
    columns = tuning_columns(model, n_tokens)
    best_batch = law.tuning.batch(**columns) if law.tuning else None
    if best_batch:
        batch, lowest_batch, highest_batch = _ends(best_batch)
    batches = ramp or ramps.published(batch, n_tokens, PRETRAIN_SEQUENCE)
    rows = [_law_row(rate_law, run) for rate_law in rates.laws_for(run.kind)]
    *first, last = [row.law for row in rows]
    names = f"{', '.join(first)} and {last}"
    rate_from = names
    extrapolation = max(row.extrapolation for row in rows)
    findings = [*_findings_on_laws("learning_rate", rows), *_findings_on_laws("batch_tokens", rows)]
    if law.tuning:
        rate, lowest_rate, highest_rate = _ends(law.tuning.rate(batches[-1][1], **columns))
        rate_from = sentences.RATE_OF_THIS_LAW
        extrapolation = which_recipe.beyond(law, model, n_tokens)
        findings = [] if best_batch else _findings_on_laws("batch_tokens", rows)
    least, most = batch_laws_of(law, model.shape).allowed(n_tokens)
    instead = say(sentences.INSTEAD, **law.models) if law.models.seq_len else ""
    note = say(sentences.RECIPE_DIFFERS, base=PRETRAIN_CONFIG, sequence=PRETRAIN_SEQUENCE, instead=instead)
    return Recipe(
        base_config=PRETRAIN_CONFIG,
        overrides={},
        sequence=PRETRAIN_SEQUENCE,
        batch_tokens=batches,
        batch_range=(lowest_batch, highest_batch),
        batch_allowed=(float(least), float(most)),
        batch_from=sentences.RATE_OF_THIS_LAW if best_batch else names,
        warmup_tokens=round(min(WARMUP_STEPS * batches[0][1], WARMUP_SHARE * n_tokens)),
        learning_rate=float(f"{rate:.2e}"),  # no law is known to more digits
        learning_rate_range=(lowest_rate, highest_rate),
        learning_rate_from=rate_from,
        extrapolation=extrapolation,
        as_published=True,
        laws=tuple(rows),
        note=note,
        findings=(*findings, *findings_on_steps(batches, n_tokens)),
    )


def _ends(best: Estimate) -> tuple[float, float, float]:
    """An optimum and the ends of its interval; of a law without draws those that are near-optimal by other laws."""
    if best.low is None or best.high is None:
        return best.value, best.value / rates.NEAR_OPTIMAL, best.value * rates.NEAR_OPTIMAL
    return best.value, best.low, best.high


def _law_row(law: rates.PublishedRateLaw, run: rates.CountedRun) -> RateLawRow:
    """What a published law says of a run."""
    return RateLawRow(
        law=law.name,
        source=law.source,
        learning_rate=law.learning_rate(run),
        batch_tokens=law.batch_tokens(run),
        extrapolation=law.extrapolation(run),
    )


def _findings_on_laws(quantity: str, rows: list[RateLawRow]) -> list[Finding]:
    """A finding where two laws differ by more than DISAGREEMENT in a column of their rows."""
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
            low_law=lowest.law,
            high=highest[quantity],
            high_law=highest.law,
        )
    ]
