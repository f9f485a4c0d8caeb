"""Which recipe a model has: that of the law's runs within their sizes, that of published models beyond.

Axes: [n_shapes] models of one number of experts.
"""

import dataclasses
import math

import numpy as np

from fit.aliases import Array, Numbers
from fit.fitted_law import batches as batches_lib
from fit.fitted_law import extrapolation
from fit.fitted_law.batches import PAPERS_CONFIG, SEQUENCE
from fit.fitted_law.extrapolation import ROUNDING
from fit.fitted_law.law import Law
from fit.fitted_law.tuning import BATCH
from fit.model.architecture import BATCH_RAMP, PAPER, Architecture, Model, Ramp
from fit.model.shape import ModelShape
from fit.planning.recipe import rates

PRETRAIN_CONFIG = "configs/pretrain.py"
PRETRAIN_SEQUENCE = 4_096  # OLMoE, Qwen3, DeepSeek-V3 and Kimi K2 pretrain on rows of 4,096 tokens
SIZE_COLUMNS = ("n_active", "n_total", "n_tokens")  # columns of a law that tell whether a plan is beyond its runs


def tokens_of_recipe(
    law: Law, architecture: Architecture, shape: ModelShape, as_published: bool, base: str | None, like_published: bool
) -> tuple[Array, Array, Array]:
    """On which training tokens runs of models have a recipe.

    Small models have the recipe of the law's runs. Large ones have the published recipe where their size or their
    tokens lie beyond the runs.

    Args:
      law: what they are planned by.
      architecture: how they are built.
      shape: one model, or arrays [n_shapes].
      as_published: whether the recipe in question is that of published models, else of the law's runs.
      base: the config file of the law's runs; None where it is not known.
      like_published: whether models are built like a published one.

    Returns:
      (whether there are such tokens, on more tokens than, up to), each of the shapes' number.
    """
    inside = np.asarray(shape.n_active - shape.embedding_and_head)
    is_large = inside >= rates.SMALLEST_ACTIVE
    is_beyond = np.full(inside.shape, like_published or base is None)
    for name, values in _counted(law, architecture, shape).items():
        if name in law.form.columns and name in law.ranges:
            is_beyond |= values > law.ranges[name][1] * (1 + ROUNDING)
    most_of_runs = math.inf
    if "n_tokens" in law.ranges:
        most_of_runs = law.ranges["n_tokens"][1] * (1 + ROUNDING)
    if as_published:
        has_recipe = is_large & (is_beyond | math.isfinite(most_of_runs))
        return has_recipe, np.where(is_beyond, 0.0, most_of_runs), np.full(inside.shape, np.inf)
    return ~is_large | ~is_beyond, np.zeros(inside.shape), np.where(is_large, most_of_runs, np.inf)


def _counted(law: Law, architecture: Architecture, shape: ModelShape) -> dict[str, Numbers]:
    """{n_active, n_total} of models as the ranges of a law's runs count them: with the law's own vocabulary."""
    return dict(
        n_active=law.counting.counted(architecture, shape.n_active, shape.d_model),
        n_total=law.counting.counted(architecture, shape.n_total, shape.d_model),
    )


def is_published(law: Law, model: Model, n_tokens: float, like_published: bool) -> bool:
    """Whether a run of one model has the recipe of published models. The arguments are those of `tokens_of_recipe`."""
    base, _ = runs_config(law, has_papers_shape(model))
    has_recipe, least, _ = tokens_of_recipe(law, _as_built(model), model.shape, True, base, like_published)
    return bool(has_recipe & (n_tokens > least))


def _as_built(model: Model) -> Architecture:
    """The architecture of a model, with the vocabulary that it is built with."""
    return dataclasses.replace(model.architecture, vocab_size=model.fields["vocab_size"])


def beyond(law: Law, model: Model, n_tokens: float) -> float:
    """By what factor the model or its tokens exceed those of the law's runs.

    The factor is 1 within the runs, and where the law does not say how large they were.
    """
    counted = {name: float(value) for name, value in _counted(law, _as_built(model), model.shape).items()}
    outside = extrapolation.outside(law, **counted, n_tokens=n_tokens)
    return max([1.0, *(o.factor for o in outside if o.column in SIZE_COLUMNS and o.is_above and o.factor)])


def sequence_of(law: Law, as_published: bool) -> int:
    """Tokens in a row of a recipe."""
    if as_published:
        return PRETRAIN_SEQUENCE
    return law.models.seq_len or SEQUENCE


def runs_config(law: Law, papers_shape: bool) -> tuple[str | None, dict[str, str]]:
    """(config file, overrides) that the runs of the law were trained with; (None, {}) where that is not known.

    A law that names no config has the paper's where its models have the paper's shape, with the batches of its runs
    where it knows these.

    Args:
      law: the law in question.
      papers_shape: whether models have the paper's shape.
    """
    if law.models.base_config:
        return law.models.base_config, law.models.overrides_with_text
    has_several_configs = law.models.differing.get("config")
    if has_several_configs or not papers_shape:
        return None, {}
    if law.models.batches:
        return PAPERS_CONFIG, {BATCH: repr(law.models.batches)}
    return PAPERS_CONFIG, {}


def runs_batches(law: Law, base: str | None, overrides: dict[str, str]) -> Ramp | None:
    """The batches of the law's runs; None where they are not known.

    Args:
      law: the law in question.
      base, overrides: as `runs_config` has them.
    """
    if law.models.batches is not None:
        return law.models.batches
    # a published law, and one that an older version wrote, have their config alone
    return batches_lib.of_config(base, overrides, law.models.differing)


def batches_of(law: Law) -> Ramp:
    """The batches of a plan by the recipe of the law's runs: theirs, or the paper's where they are not known."""
    known = runs_batches(law, *runs_config(law, True))
    return BATCH_RAMP if known is None else known


def has_papers_shape(model: Model) -> bool:
    """Whether heads, feed-forward layers and vocabulary are the paper's, and no other field is set."""
    fields = model.fields
    d_model = fields["d_model"]
    return fields == dict(
        d_model=d_model,
        n_blocks=fields["n_blocks"],
        n_heads=d_model // PAPER.width_per_block,
        d_ff=round(PAPER.ff * d_model),
        vocab_size=PAPER.vocab_size,
        n_experts=fields["n_experts"],
    )
