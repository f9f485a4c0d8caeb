"""The schema of law.json, and its check. All fields but form, coefficients and version may be missing or null:

  runs       file, fingerprint, corpora, ranges {column: [low, high]} of the runs fitted
  models     as models.py lists it
  noise      standard deviations of a run's log loss: total, run, trunk; growth (fitting/noise.py)
  warning    a sentence on known errors of this law beyond its runs
  choice     the forms that were tried, and why this one was chosen
  bootstrap  draws [n_draws, n_coefficients], percentiles, form, by; beyond: training_flops, drift [n_draws]
             (Law.log_change); forms: {form: how many draws} where they are of two, additive ones with k = 1

  rates      the best rates and batches, as tuning.py lists them

and the other entries of SECTIONS.
"""

import functools
import itertools
import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fit.aliases import Json
from fit.errors import UserError
from fit.fitted_law import tuning
from fit.fitted_law.config_fields import FIELDS as CONFIG_FIELDS
from fit.fitted_law.models import is_literal
from fit.form import Form
from fit.laws import FORMS
from fit.messages.printable import is_printable
from fit.table.table import BOUNDS

LEVEL = 0.8  # of profile intervals, like the 10th to 90th percentile of the bootstrap
WAYS_OF_DRAWING = {  # of the bootstrap, which resamples runs or trunks
    "errors": "the law's own losses with new errors, drawn by {by}",
    "replacement": "{by} drawn with replacement",
    "paper": "80% of the {by} without replacement, the paper's form: intervals half as wide as they should be",
}
VERSION = 1  # of law.json; one that names none is of this
ERRORS = ("runs", "rmse_nats", "mean_relative_error", "max_relative_error")  # of fitted runs, of those held out
NUMBERS = {"fitted": ERRORS, "held_out": ERRORS, "separate_fitted": ERRORS[:2], "separate_held_out": ERRORS[:2]}
NUMBERS |= {"starts": ("tried", "within_1_percent")}  # what a section must hold, where the law.json has it
RATES = "coefficients, reference, scatter, runs, near and draws as fit law --with_rate writes them"
LARGEST = 1e100  # of a coefficient: products of a few must stay finite
MOST_EXPERTS = 64  # numbers of experts that a law names; a plan asks each of them
MOST_COUNT = 10**18  # of words or tokens
OBJECTS = "settings runs models versions separate sample noise profile choice bootstrap".split() + list(NUMBERS)


def read(path: str | os.PathLike, where: str) -> tuple[Form, Json]:
    """Read a law.json: its Form and its content.

    Args:
      where: the file's name in errors.

    Raises:
      UserError: names the field that is not what `fit law` writes, or that a newer fit wrote.
    """
    try:
        with open(path, encoding="utf-8") as f:
            record = json.load(f)
    except OSError as e:
        raise UserError(f"{where}: cannot be read: {e.strerror}") from e
    except (ValueError, RecursionError) as e:
        raise UserError(f"{where}: is not JSON: {e}") from e
    if not isinstance(record, dict) or str(record.get("form")) not in FORMS:
        raise UserError(f"{where}: has no form that is one of {', '.join(FORMS)}")
    unprintable = _unprintable(record)
    if unprintable:
        raise UserError(f"{where}: {unprintable} holds a control character; expected text that can be printed")
    form = FORMS[record["form"]]
    coefficients = record.get("coefficients")
    for name, value, check, expected in _fields(record, form):
        if value is not None and not _passes(value, check):
            text = json.dumps(value, default=str)
            text = text if len(text) <= 60 else text[:57] + "..."
            raise UserError(f"{where}: {name} is {text}, expected {expected}")
    for key in form.names:
        value = coefficients.get(key) if isinstance(coefficients, dict) else None
        if not _is_coefficient(value):
            shown = json.dumps(value)[:60]
            raise UserError(
                f"{where}: coefficient {key} is {shown}, expected a finite number from {-LARGEST:g} to {LARGEST:g}"
            )
    return form, record


def _passes(value: object, check: type | Callable[[Any], bool]) -> bool:
    """Whether a value is of a type, or passes a check."""
    return isinstance(value, check) if isinstance(check, type) else check(value)


def _unprintable(record: Json) -> str:
    """The path in a law.json of a text or a name with a control character, such as "models.base_config"; "" if none.

    Names and sentences of a law are printed, and written into configs and pages.
    """
    todo: list[tuple[str, Any]] = [("", record)]
    while todo:
        path, value = todo.pop()
        if isinstance(value, str) and not is_printable(value):
            return path
        if isinstance(value, list):
            todo += [(path, item) for item in value if isinstance(item, (str, list, dict))]
        if isinstance(value, dict):
            if not all(map(is_printable, value)):
                return f"a name in {path or 'it'}"
            todo += [(f"{path}.{name}".lstrip("."), item) for name, item in value.items()]
    return ""


def _fields(record: Json, form: Form) -> Iterator[tuple]:
    """(name, value, its type or a check, what is expected) of each optional field of a law.json."""
    yield "version", record.get("version"), _is_readable_version, f"at most {VERSION}: a newer fit wrote it"
    for name in OBJECTS:
        yield name, record.get(name), dict, "an object"
    for name in ("rolling", "warnings"):
        yield name, record.get(name), list, "a list"
    yield "warning", record.get("warning"), str, "text"
    yield "objective", record.get("objective"), _number, "a number"
    for name, (check, expected) in MODELS.items():
        yield f"models.{name}", (record.get("models") or {}).get(name), check, expected
    ranges = (record.get("runs") or {}).get("ranges")
    yield "runs.ranges", ranges, dict, "an object"
    for name, ends in (ranges or {}).items():
        yield f"runs.ranges.{name}", ends, _rising, "two rising numbers"
    yield "rates", record.get("rates"), functools.partial(_are_rates, bootstrap=record.get("bootstrap")), RATES
    bootstrap = record.get("bootstrap")
    if bootstrap:
        draws, ends, way = (bootstrap.get(name) or "missing" for name in ("draws", "percentiles", "form"))
        are_draws = functools.partial(_are_draws, width=len(form.names))
        yield "bootstrap.draws", draws, are_draws, f"rows of {len(form.names)} numbers from {-LARGEST:g} to {LARGEST:g}"
        yield "bootstrap.percentiles", ends, _are_percentiles, "two rising numbers from 0 to 100"
        yield "bootstrap.form", way, list(WAYS_OF_DRAWING).__contains__, "errors, replacement or paper"
        are_drifts = functools.partial(_are_drifts, draws=draws)
        yield "bootstrap.beyond", bootstrap.get("beyond"), are_drifts, "training_flops and a drift for each draw"
    noise = record.get("noise") or {}
    yield "noise.total", noise.get("total"), _is_not_negative, "a number from 0 up"
    yield "noise.growth", noise.get("growth"), _is_growth, "a positive training_flops and power"
    for section, names in NUMBERS.items():
        for name in names if record.get(section) else ():
            yield f"{section}.{name}", record[section].get(name, "missing"), _number, "a number"


def _numbers(value: object, depth: int) -> bool:
    """Whether this is a list (of lists) of finite numbers, not empty and of equal lengths."""
    try:
        array = np.array(value)
    except ValueError:
        return False
    return array.ndim == depth and array.size > 0 and array.dtype.kind in "if" and bool(np.isfinite(array).all())


def _number(value: object) -> bool:
    """Whether this is a finite number."""
    return _numbers([value], 1)


def _is_not_negative(value: Any) -> bool:
    return _number(value) and value >= 0


def _is_coefficient(value: Any) -> bool:
    return _number(value) and abs(value) <= LARGEST


def _rising(value: Any) -> bool:
    return _numbers(value, 1) and len(value) == 2 and value[0] <= value[1]


def _is_readable_version(value: object) -> bool:
    return type(value) is int and 1 <= value <= VERSION


def _are_draws(value: Any, width: int) -> bool:
    """Whether these are rows of `width` coefficients, one row for each bootstrap fit."""
    return _numbers(value, 2) and np.shape(value)[1] == width and np.abs(value).max() <= LARGEST


def _are_percentiles(value: Any) -> bool:
    return _rising(value) and 0 <= value[0] < value[1] <= 100


def _are_drifts(value: Any, draws: Any) -> bool:
    """Whether this has positive training_flops and a drift for each of the draws."""
    if not _positive(value, "training_flops") or not _numbers(value.get("drift"), 1):
        return False
    return len(value["drift"]) == len(draws)


def _are_rates(value: Any, bootstrap: Any) -> bool:
    """Whether tuning.py can read this: its coefficients, a reference of their exponents, and a draw for each of the
    law's own."""
    if not isinstance(value, dict) or not isinstance(value.get("reference"), dict):
        return False
    coefficients = value.get("coefficients")
    reference = value["reference"]
    if not isinstance(coefficients, dict) or not all(map(_is_coefficient, coefficients.values())):
        return False
    expected = tuning.names(reference, "batch" in coefficients)
    is_complete = list(coefficients) == expected and set(reference) <= set(tuning.OF_MODELS)
    is_positive = _positive(coefficients, *(name for name in tuning.POSITIVE if name in expected))
    if not (is_complete and is_positive and _positive(reference, *reference)):
        return False
    if not all(_count(value.get(name)) for name in ("runs", "near")):
        return False
    scatter = value.get("scatter")
    optima = ["rate", "batch"] if "batch" in coefficients else ["rate"]
    if not isinstance(scatter, dict) or list(scatter) != optima or not all(map(_is_not_negative, scatter.values())):
        return False
    draws = value.get("draws")
    if draws is None:
        return not bootstrap
    is_drawn = isinstance(bootstrap, dict) and _are_draws(draws, len(expected))
    if not is_drawn or len(draws) != len(bootstrap.get("draws") or ()):
        return False
    return all(min(row[expected.index(name)] for row in draws) > 0 for name in tuning.POSITIVE if name in expected)


def _is_growth(value: Any) -> bool:
    return _positive(value, "training_flops", "power")


def _count(value: object) -> bool:
    return type(value) is int and 1 <= value <= MOST_COUNT


def _is_experts(value: object) -> bool:
    """Whether this is a list of numbers of experts that a plan can compare."""
    if not isinstance(value, list) or not 1 <= len(value) <= MOST_EXPERTS:
        return False
    return all(_count(number) and number <= BOUNDS["n_experts"][1] for number in value)


def _are_overrides(value: object) -> bool:
    """Whether this sets fields of a config to literals. An emitted config holds both unchanged."""
    if not isinstance(value, dict):
        return False
    return all(field in CONFIG_FIELDS and is_literal(source) for field, source in value.items())


def _positive(value: Any, *names: str) -> bool:
    """Whether this is an object with positive numbers of these names."""
    return isinstance(value, dict) and all(_number(value.get(name)) and value[name] > 0 for name in names)


def _is_architecture(value: Json) -> bool:
    """Whether models.from_table could have made this value, so that an Architecture can be made of it."""
    limits = dict(kv_share=(1e-3, 1), attention=(1e-3, 1e3), ff=(1e-3, 1e3), split=(1e-3, 1e6), top_k=(1, 1e6))
    limits |= dict(shared=(0, 1e6), n_dense=(0, 1e6), head_dim=(0, 1e6), tied=(0, 1))
    kinds = dict.fromkeys(("top_k", "shared", "n_dense", "head_dim"), (int,)) | dict(tied=(bool,))
    return (
        isinstance(value, dict)
        and set(value) == set(limits)
        and all(
            type(value[name]) in kinds.get(name, (int, float, bool)) and low <= value[name] <= high
            for name, (low, high) in limits.items()
        )
    )


def _is_shares(value: Any) -> bool:
    """Whether expert_widths.at_size can read this."""
    if not isinstance(value, dict) or not all(_numbers(value.get(name), 1) for name in ("n_active", "share")):
        return False
    sizes = value["n_active"]
    shares = value["share"]
    rising = all(1 <= low < high for low, high in itertools.pairwise([*sizes, float("inf")]))
    return len(sizes) == len(shares) and rising and all(0 < share <= 1 for share in shares)


_EQ_10 = ("constant", "n_active", "n_experts")  # of the joint law's paper: the learning rate
MODELS: dict[str, tuple[type | Callable[[Any], bool], str]] = {
    **dict.fromkeys(
        ("vocab_size", "width_per_block", "seq_len", "unique_tokens"), (_count, "a whole number from 1 to 1e18")
    ),
    "final_norm": (bool, "true or false"),
    "n_experts": (_is_experts, f"a list of 1 to {MOST_EXPERTS} whole numbers from 1 to 1,000,000"),
    "repeats": (lambda v: _numbers(v, 1) and len(v) == 2, "a list of two numbers"),
    "base_config": (str, "the path of a config file"),
    "corpus": (str, "a fingerprint"),
    "overrides": (_are_overrides, "names of a config's fields, such as model.norm, each with a literal as text"),
    "architecture": (_is_architecture, "what models.py lists: split, shared, n_dense, kv_share, top_k, ..."),
    "miscounted": (_number, "a number"),
    "shares": (_is_shares, "n_active, rising, and as many shares from 0 to 1"),
    "assumed": (lambda v: isinstance(v, list) and all(isinstance(text, str) for text in v), "a list of sentences"),
    "learning_rate": (
        lambda v: isinstance(v, dict) and all(_number(v.get(name)) for name in _EQ_10),
        "constant, n_active and n_experts of Eq. 10",
    ),
    "differing": (
        lambda v: isinstance(v, dict) and all(isinstance(values, list) for values in v.values()),
        "columns and lists",
    ),
}
