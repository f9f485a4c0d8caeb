"""What a plan predicted of a run (config.predicted, of `fit plan --emit_config`) against what was measured."""

from jmoe.config import counts

SAME = 0.01  # a run of up to so many more or fewer tokens, in whole batches, is the one that was predicted


def _is_predicted(config, n_tokens: int) -> bool:
    """Whether config.predicted is about a run of this config's model on so many tokens."""
    predicted = config.get("predicted", {})
    if not predicted.get("loss"):
        return False
    same_model = predicted.get("n_active", 0) in (0, counts.n_active(config.model))
    asked = predicted.get("n_tokens", 0) or n_tokens
    return same_model and abs(n_tokens - asked) <= SAME * asked


def columns(config, n_tokens: int) -> dict[str, float]:
    """The columns predicted_loss and, where it has an interval, predicted_loss_low and predicted_loss_high of a branch
    of so many tokens; none where nothing was predicted of it."""
    if not _is_predicted(config, n_tokens):
        return {}
    predicted = config.predicted
    found = {"predicted_loss": predicted.loss}
    if predicted.get("high"):
        found |= {"predicted_loss_low": predicted.low, "predicted_loss_high": predicted.high}
    return found


def comparison(config, results: list[dict]) -> str:
    """The sentence on the branch that was predicted, empty where the config predicts nothing."""
    predicted = config.get("predicted", {})
    if not predicted.get("loss"):
        return ""
    by = f" by {predicted.law}" if predicted.get("law") else ""
    for result in results:
        if _is_predicted(config, result["n_tokens"]):
            return _sentence(predicted, by, result["loss"])
    asked = [
        f"{predicted.get(name):,} {words}"
        for name, words in (("n_active", "active parameters"), ("n_tokens", "tokens"))
        if predicted.get(name)
    ]
    return f"config.predicted, a loss of {predicted.loss:.4f}{by}, is of another run ({', '.join(asked)}): not compared"


def _sentence(predicted, by: str, loss: float) -> str:
    difference = loss - predicted.loss
    side = "above" if difference >= 0 else "below"
    words = (
        f"predicted {predicted.loss:.4f}{by}, measured {loss:.4f}: {abs(difference):.4f} nats per token "
        f"({abs(difference) / predicted.loss:.2%}) {side} the prediction"
    )
    if not predicted.get("high"):
        return f"{words}; the law has no interval"
    inside = "inside" if predicted.low <= loss <= predicted.high else "OUTSIDE"
    share = f"{predicted.share:.0%} " if predicted.get("share") else ""
    return f"{words}, {inside} its {share}interval, {predicted.low:.4f} to {predicted.high:.4f}"
