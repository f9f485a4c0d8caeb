"""The recipe of the runs that a law was fitted to, so that the law's losses hold for a planned run."""

from fit.fitted_law.batches import PAPERS_CONFIG
from fit.fitted_law.law import Law
from fit.fitted_law.law_files import load
from fit.fitted_law.tuning import Estimate, Tuning
from fit.fitting import learning_rate
from fit.messages import sentences
from fit.messages.finding import Finding, finding
from fit.messages.units import say
from fit.model.architecture import Model, Ramp
from fit.planning.recipe import rates, which_recipe
from fit.planning.recipe.allowed_batches import LEAST_BATCH
from fit.planning.recipe.recipe import Recipe, findings_on_steps, tuning_columns

PAPERS_LAW = "joint-moe-2025"
SMALLEST_TUNED = 1e7  # n_active below which Eq. 10 is far outside what it was tuned on


def recipe_of_runs(law: Law, model: Model, n_tokens: float, ramp: Ramp | None) -> Recipe:
    """The recipe of the law's own runs.

    Args:
      law: What the model is planned by.
      model: What is trained.
      n_tokens: Training tokens.
      ramp: The batches of its layout: those of the runs as the mesh divides them, or where the law does not know these,
        the paper's. None without a layout.
    """
    base, overrides = which_recipe.runs_config(law, which_recipe.has_papers_shape(model))
    rate, rate_from = peak_learning_rate(law, base, model)
    batches = ramp
    batch_from = sentences.BATCH_OF_RUNS
    known = which_recipe.runs_batches(law, base, overrides)
    if ramp is None and known is not None:
        batches = tuple(step for step in known if step[0] < n_tokens)
    if law.tuning:
        batch = batches[-1][1] if batches else None
        rate, rate_from = _fitted_rate(law.tuning, model, n_tokens, batch)
        if batches is None:
            batch_from = _fitted_batch(law.tuning, model, n_tokens)
    rate_range = None
    if rate is not None:
        rate_range = rate / rates.NEAR_OPTIMAL, rate * rates.NEAR_OPTIMAL
    return Recipe(
        base_config=base,
        overrides=overrides,
        sequence=which_recipe.sequence_of(law, as_published=False),
        batch_tokens=batches,
        batch_range=None,
        batch_allowed=_allowed_batches(law, n_tokens) if batches else None,
        batch_from=batch_from,
        warmup_tokens=None,
        learning_rate=rate,
        learning_rate_range=rate_range,
        learning_rate_from=rate_from,
        extrapolation=which_recipe.beyond(law, model, n_tokens),
        findings=(*_findings_on_batches(ramp, known), *findings_on_steps(batches, n_tokens)),
    )


def peak_learning_rate(law: Law, base: str | None, model: Model) -> tuple[float | None, str]:
    """The peak learning rate of a model by the law of the runs' own rates.

    Without that law the rate is by Eq. 10, if the runs may have had the paper's recipe and the size allows.

    Args:
      law: What the model is planned by.
      base: The config file of the law's runs; None where it is not known.
      model: What is trained.

    Returns:
      (peak learning rate, its origin in words), or (None, why) where none is known.
    """
    n_active = float(model.shape.n_active)
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
    return float(learning_rate.predict(coefficients, n_active, float(model.shape.n_experts))), origin


def _fitted_rate(tuning: Tuning, model: Model, n_tokens: float, batch_tokens: float | None) -> tuple[float, str]:
    """(peak learning rate, its origin with its interval) by the optima that were fitted with the law.

    Args:
      batch_tokens: Of the largest batch; None for the best.
    """
    best = tuning.rate(batch_tokens, **tuning_columns(model, n_tokens))
    return best.value, sentences.RATE_FITTED + _interval(tuning, best, "{low:.2g} to {high:.2g}")


def _fitted_batch(tuning: Tuning, model: Model, n_tokens: float) -> str:
    """The best batch by the optima that were fitted with the law, in words; that of the runs where they have one."""
    best = tuning.batch(**tuning_columns(model, n_tokens))
    if best is None:
        return sentences.BATCH_OF_RUNS
    size = say(sentences.BATCH_FITTED, tokens=best.value)
    return size + _interval(tuning, best, "{low:amount} to {high:amount}")


def _interval(tuning: Tuning, best: Estimate, ends: str) -> str:
    """The interval of an optimum in words; "" for a law without draws."""
    if best.low is None or best.high is None:
        return ""
    low, high = tuning.percentiles
    return say(sentences.IN_CASES, ends=say(ends, low=best.low, high=best.high), share=high - low)


def _allowed_batches(law: Law, n_tokens: float) -> tuple[float, float]:
    """(least, largest) batch by the recipe of the law's runs: meshes may ask for less than their own batch."""
    most = max(tokens for start, tokens in which_recipe.batches_of(law) if start < n_tokens)
    return LEAST_BATCH * most, float(most)


def _findings_on_batches(ramp: Ramp | None, known: Ramp | None) -> list[Finding]:
    """A finding where the batches are those of the layout, and the runs had others that nobody knows."""
    if ramp is None or known is not None:
        return []
    return [finding("batch_of_layout", tokens=ramp[-1][1])]
