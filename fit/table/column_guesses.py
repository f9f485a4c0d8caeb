"""Guesses which column of a table holds a column that fit lacks, by its name and its values."""

import difflib
import re
from collections.abc import Collection, Mapping

import numpy as np

from fit.table.table import to_numbers

# Names that other tools and papers use, the likeliest first, in lower case with _ between words.
USUAL_NAMES = {
    "n_active": (
        "n_active",
        "params_active",
        "active_params",
        "active_parameters",
        "n_params",
        "num_params",
        "num_parameters",
        "parameter_count",
        "n_act",
        "num_scaling_params",
        "params_total",
        "n_parameters",
        "parameters",
        "params",
        "model_size",
        "size",
        "n",
    ),
    "n_total": ("n_total", "params_total", "total_params", "total_parameters", "num_params", "parameter_count"),
    "n_tokens": (
        "n_tokens",
        "tokens",
        "num_tokens",
        "tokens_trained",
        "total_tokens",
        "train_tokens",
        "training_tokens",
        "tokens_seen",
        "num_input_tokens_seen",
        "d",
    ),
    "n_experts": ("n_experts", "num_experts", "n_routed_experts", "num_local_experts", "experts", "e"),
    "loss": (
        "val_loss",
        "eval_loss",
        "valid_loss",
        "validation_loss",
        "test_loss",
        "final_loss",
        "val_ppl",
        "val_bpb",
        "loss",
        "perplexity",
        "ppl",
        "bpb",
        "nll",
        "cross_entropy",
    ),
    "top_k": ("top_k", "num_experts_per_tok", "experts_per_token", "k"),
    "d_model": ("d_model", "hidden_size", "hidden_dim", "model_dim", "n_embd", "width"),
    "n_blocks": ("n_blocks", "n_layers", "num_layers", "n_layer", "num_hidden_layers", "depth"),
    "peak_learning_rate": ("peak_learning_rate", "learning_rate", "peak_lr", "max_lr", "lr"),
    "batch_tokens": ("batch_tokens", "tokens_per_batch", "total_batch_size", "batch_size", "batch"),
}
# words by which a column's name says that it holds a plan, or what was trained in the end
PLANNED = {"target", "planned", "plan", "expected", "nominal", "requested", "goal", "intended", "desired", "predicted"}
ACTUAL = {"actual", "real", "measured", "achieved", "true", "exact"}
# how a column's name, in snake case, says that its counts leave out the embedding
WITHOUT_EMBEDDING = re.compile(r"(^|_)(no|non|without|excl|excluding|minus)_?(emb|embed|embedding|embeddings)(_|$)")
DIFFER = 0.01  # two columns of one quantity differ if they are further apart than this share
OTHER_SIZES = {"vocab", "vocabulary", "batch", "hidden", "head", "block", "context", "seq", "chunk", "step", "tokens"}
RATE = "per"  # a word of speeds and ratios, such as tokens_per_second
LOOSEST = 1  # a rank's match: the column's name has all words of a usual name
CLOSE = 0.8  # how alike a name must be to a usual one, where no words of it are the same
MOSTLY = 0.5  # the share of a column's values that must be positive numbers


def guess(name: str, columns: Mapping[str, list], taken: Collection[str] = ()) -> str | None:
    """The column that likely holds what `fit` calls `name`; None where no column does.

    Args:
      name: a column that the table lacks.
      columns: those that it has, {name: values}.
      taken: columns that hold something else.
    """
    ranked = _ranked(name, columns, taken)
    return ranked[0] if ranked else None


def rivals(name: str, column: str, columns: Mapping[str, list], taken: Collection[str] = ()) -> dict[str, float]:
    """Other columns that could hold what `fit` calls `name`, and differ from the likely one.

    Args:
      name: our name.
      column: the column that likely holds it.
      columns: all columns, {name: values}.
      taken: columns that hold something else.

    Returns:
      {column: how far it is from the likely one at most, as a share of that}.
    """
    numbers = to_numbers(columns[column])
    distances = {}
    for other in _ranked(name, columns, {*taken, column}, LOOSEST):
        others = to_numbers(columns[other])
        both = np.isfinite(numbers) & np.isfinite(others) & (numbers > 0)
        if both.any():
            apart = float(np.max(np.abs(others[both] / numbers[both] - 1)))
            if apart > DIFFER:
                distances[other] = apart
    return distances


def is_actual(column: str) -> bool:
    """Whether a column's name says that it has trained values, not planned ones."""
    return bool(ACTUAL & set(snake_case(column).split("_")))


def is_without_embedding(column: str) -> bool:
    """Whether a column's name says that its counts of parameters leave out the embedding."""
    return bool(WITHOUT_EMBEDDING.search(snake_case(column)))


def _ranked(name: str, columns: Mapping[str, list], taken: Collection[str], loosest: int = 2) -> list[str]:
    """The columns that could hold `name`, the likeliest first.

    Args:
      name: our name.
      columns: all columns, {name: values}.
      taken: columns that hold something else.
      loosest: the largest match, as _rank numbers them, that a column may have.
    """
    ranks = {}
    for column, values in columns.items():
        if column in taken or "," in column:
            continue
        rank = _rank(name, column)
        if rank is not None and rank[1] <= loosest and _are_numbers(values):
            ranks[column] = rank
    return sorted(ranks, key=lambda column: ranks[column])


def _rank(name: str, column: str) -> tuple[int, int, int, int] | None:
    """The rank of a column by its name alone, the likeliest first; None if it is unlikely.

    Returns:
      certainty: -1 for what was trained, 1 for a plan, 0 where the name does not say.
      match: 0 for a usual name, 1 for a name with all words of a usual one, 2 for one that is spelt almost like one.
      place: that of the usual name in its list.
      length: words of the column's name.
    """
    usual = USUAL_NAMES.get(name, (name,))
    written = snake_case(column)
    words = written.split("_")
    certainty = 0
    if is_actual(column):
        certainty = -1
    elif PLANNED & set(words):
        certainty = 1
    for place, other in enumerate(usual):
        if written == other:
            return certainty, 0, place, len(words)
    is_other_size = name in ("n_active", "n_total") and set(words) & OTHER_SIZES
    if RATE in words or is_other_size:
        return None
    for place, other in enumerate(usual):
        is_letter = len(other) == 1
        if not is_letter and set(other.split("_")) <= set(words):
            return certainty, 1, place, len(words)
    close = difflib.get_close_matches(written, [other for other in usual if len(other) > 3], 1, CLOSE)
    return (certainty, 2, usual.index(close[0]), len(words)) if close else None


def snake_case(column: str) -> str:
    """A name in lower case with _ between its words: eval/loss and evalLoss are eval_loss."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", column)
    return re.sub(r"[^a-z0-9]+", "_", spaced.lower()).strip("_")


def _are_numbers(values: list) -> bool:
    """Whether most values of a column are positive numbers."""
    numbers = to_numbers(values)
    return bool(np.mean(np.isfinite(numbers) & (numbers > 0)) > MOSTLY)
