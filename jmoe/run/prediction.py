"""A plan's prediction for a run (config.predicted, from `fit plan --emit_config`) against the measured loss.

Losses are in nats per token.
"""

from typing import Any

from ml_collections import ConfigDict

from jmoe.config import counts

TOLERANCE = 0.01  # relative difference in tokens up to which a run, in whole batches, is the one that was predicted


def _is_predicted(config: ConfigDict, n_tokens: int) -> bool:
    """Whether config.predicted is about a run of this config's model on `n_tokens` tokens."""
    predicted = config.predicted
    if not predicted.loss:
        return False
    same_model = predicted.n_active in (0, counts.n_active(config.model))
    predicted_tokens = predicted.n_tokens or n_tokens
    return same_model and abs(n_tokens - predicted_tokens) <= TOLERANCE * predicted_tokens


def columns(config: ConfigDict, n_tokens: int) -> dict[str, float]:
    """Columns of the result of a branch of `n_tokens`.

    Returns:
      predicted_loss and, where it has an interval, predicted_loss_low and predicted_loss_high. Empty if
      config.predicted is of another run.
    """
    if not _is_predicted(config, n_tokens):
        return {}
    predicted = config.predicted
    values = {"predicted_loss": predicted.loss}
    if predicted.high:
        values |= {"predicted_loss_low": predicted.low, "predicted_loss_high": predicted.high}
    return values


def comparison(config: ConfigDict, results: list[dict[str, Any]]) -> str:
    """The sentence on the branch that was predicted; empty where the config predicts nothing.

    Args:
      config: The run's config.
      results: Results of all branches.
    """
    predicted = config.predicted
    if not predicted.loss:
        return ""
    by_law = f" by {predicted.law}" if predicted.law else ""
    for result in results:
        if _is_predicted(config, result["n_tokens"]):
            return _sentence(predicted, by_law, result["loss"])
    predicted_run = [
        f"{predicted[name]:,} {unit}"
        for name, unit in (("n_active", "active parameters"), ("n_tokens", "tokens"))
        if predicted[name]
    ]
    return (
        f"config.predicted, a loss of {predicted.loss:.4f}{by_law}, is of another run ({', '.join(predicted_run)}): "
        "not compared"
    )


def _sentence(predicted: ConfigDict, by_law: str, loss: float) -> str:
    """Compares a measured loss with the predicted one and its interval."""
    difference = loss - predicted.loss
    side = "above" if difference >= 0 else "below"
    sentence = (
        f"predicted {predicted.loss:.4f}{by_law}, measured {loss:.4f}: {abs(difference):.4f} nats per token "
        f"({abs(difference) / predicted.loss:.2%}) {side} the prediction"
    )
    if not predicted.high:
        return f"{sentence}; the law has no interval"
    inside = "inside" if predicted.low <= loss <= predicted.high else "OUTSIDE"
    share = f"{predicted.share:.0%} " if predicted.share else ""
    return f"{sentence}, {inside} its {share}interval, {predicted.low:.4f} to {predicted.high:.4f}"
