"""A law.json of an older version as one of today.

Version 1 had other names of fields, 2 had sentences in place of findings, 3 a sentence in place of a choice's reason.
"""

from typing import Any

from fit.aliases import Json
from fit.fitted_law.decoding import MISSING, decoded
from fit.messages.finding import finding

# names in version 1 and in version 2, of fields of these entries
RENAMED = dict(split="granularity", holds="coverage", reach="log_compute_range", drift="drift_mean", wander="drift_rms")
RENAMED_IN = ("models", "rolling", "choice")


def upgraded(values: Json, version: int) -> Json:
    """The object of a file of this version as one of the newest. Raises Invalid where a sentence is none."""
    if version == 1:
        values = _of_version_1(values)
    if version <= 2:
        values = _of_version_2(values)
    if version <= 3:
        values = _of_version_3(values)
    return values


def _of_version_1(values: Json) -> Json:
    """An object of version 1 with the names of version 2."""
    values = values | {name: _renamed(values[name]) for name in RENAMED_IN if name in values}
    sample = values.get("sample")
    if isinstance(sample, dict):
        values["sample"] = sample.get("runs")
    rates = values.get("rates")
    bootstrap = values.get("bootstrap")
    if isinstance(rates, dict) and isinstance(bootstrap, dict):
        values["rates"] = rates | dict(percentiles=bootstrap.get("percentiles"))
    return values


def _of_version_2(values: Json) -> Json:
    """An object of version 2 with the names of version 3, which has findings in place of sentences."""
    models = values.get("models")
    if isinstance(models, dict) and "assumed" in models:
        values = values | dict(models=models | dict(assumed=_findings("models.assumed", models["assumed"])))
    if values.get("warnings"):
        values = values | dict(findings=_findings("warnings", values["warnings"]))
    if values.get("warning"):
        (beyond_runs,) = _findings("warning", [values["warning"]])
        values = values | dict(beyond_runs=beyond_runs)
    return values


def _of_version_3(values: Json) -> Json:
    """An object of version 3 as one of version 4, whose choice of a form has a finding in place of a sentence."""
    choice = values.get("choice")
    if not isinstance(choice, dict):
        return values
    (reason,) = _findings("choice.why", [choice.get("why", MISSING)])
    return values | dict(choice=choice | dict(reason=reason))


def _findings(field: str, sentences: Any) -> list[Json]:
    """Sentences of a law.json of version 2 as its findings."""
    told = decoded(tuple[str, ...], sentences, field)
    return [finding("older_words", sentence=sentence).to_dict() for sentence in told]


def _renamed(value: Any) -> Any:
    """A value of JSON with the names of version 2 in its objects."""
    if isinstance(value, list):
        return [_renamed(item) for item in value if not _is_old_hold_out(item)]
    if isinstance(value, dict):
        return {RENAMED.get(name, name): _renamed(item) for name, item in value.items()}
    return value


def _is_old_hold_out(value: Any) -> bool:
    """Whether this is a rolling hold-out as fit 0.2 wrote it, which did not go by factors of compute."""
    return isinstance(value, dict) and "fitted_flops" in value and "factor" not in value
