"""How the runs behind a law were trained, as far as a plan needs it: their config and their peak learning rates."""

import math

from fit.architecture import PAPER
from fit.architecture import learning_rate as papers_learning_rate

PAPERS_CONFIG = "configs/joint_moe.py"
SMALLEST_TUNED = 1e7  # n_active below which Eq. 10 is far outside what it was tuned on


def base_config(fitted, architecture):
    """(config file, overrides) that the runs of the law were trained with; (None, {}) where nothing tells.

    A law that names no config has the paper's where its models have the paper's shape.
    """
    if fitted.models["base_config"]:
        return fitted.models["base_config"], fitted.models["overrides"] or {}
    several = (fitted.models["differing"] or {}).get("config")
    return (None if several or architecture != PAPER else PAPERS_CONFIG), {}


def learning_rate(fitted, base, n_active, n_experts):
    """(peak learning rate, where it is from in words), (None, why) where none is known: the law of the runs' own rates,
    else Eq. 10 where they may have had the paper's recipe and the size allows."""
    law = fitted.models["learning_rate"]
    if law:
        rate = law["constant"] + law["n_active"] * math.log(n_active) + law["n_experts"] * math.log(n_experts)
        return math.exp(rate), "Eq. 10" if fitted.published else "by the law of the fitted runs' rates"
    if base != PAPERS_CONFIG:
        return None, "the fitted runs followed no law of learning rates"
    if n_active < SMALLEST_TUNED:
        return None, "Eq. 10 was tuned on far larger models"
    return float(papers_learning_rate(n_active, n_experts)), "Eq. 10"
