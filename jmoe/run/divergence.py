"""Which fields of a config probably made a run's numbers infinite, in words for its user. Plain Python."""

from ml_collections import ConfigDict

from jmoe.config import schema


def remedy(config: ConfigDict, peak: float) -> str:
    """Suggest a remedy after a loss that is not finite: "try a lower config.FIELD ...".

    A weight of a loss above 1 exceeds that of the cross-entropy, which it is added to. A step shrinks weights by the
    learning rate times the weight decay; above 1 they change sign with each step. Otherwise the learning rate is the
    likely cause.

    Args:
      config: The run's config.
      peak: The peak learning rate.
    """
    suggestions = []
    for name in ("load_balance", "router_z"):
        value = config.loss[name]
        if value > 1 and config.model.n_experts > 1:
            usual = schema.FIELDS[f"loss.{name}"].default
            suggestions.append(
                f"a lower config.loss.{name}: {value:g} is more than the cross-entropy's own weight of 1, and "
                f"{usual:g} is usual"
            )
    logit_z = config.loss.logit_z
    if logit_z > 1:
        suggestions.append(
            f"a lower config.loss.logit_z: {logit_z:g} is more than the cross-entropy's own weight of 1, and 0.0001 is "
            "usual"
        )
    decay = config.optimizer.weight_decay
    if peak * decay > 1:
        usual = schema.FIELDS["optimizer.weight_decay"].default
        suggestions.append(
            f"a lower config.optimizer.weight_decay: {decay:g} times the learning rate of {peak:.3g} is above 1, so "
            f"that each step turns the weights around, and {usual:g} is usual"
        )
    if not suggestions:
        suggestions.append("a lower config.optimizer.lr_law.constant or a longer config.optimizer.warmup_tokens")
    return "try " + "; and ".join(suggestions)
