"""What a law.json holds, and whether one holds that."""

import dataclasses
import json
import typing
from collections.abc import Iterator

import numpy as np

from fit.errors import UserError
from fit.form import Form
from fit.lawbook import models
from fit.laws import FORMS

LEVEL = 0.8  # of profile intervals, like the 10th to 90th percentile of the bootstrap
WAYS_OF_DRAWING = {  # of the bootstrap, which draws runs or trunks anew
    "errors": "the law's own losses with new errors, drawn by {by}",
    "replacement": "{by} drawn with replacement",
    "paper": "80% of the {by} without replacement, the paper's form: about half too narrow by construction",
}
VERSION = 1  # of law.json; one that names none is of this
ERRORS = ("runs", "rmse_nats", "mean_relative_error", "max_relative_error")  # of fitted runs, of those held out
NUMBERS = {"fitted": ERRORS, "held_out": ERRORS, "separate_fitted": ERRORS[:2], "separate_held_out": ERRORS[:2]}
NUMBERS |= {"starts": ("tried", "within_1_percent")}  # what a section must hold, where the law.json has it


@dataclasses.dataclass(kw_only=True)
class Record:
    """What a law.json holds, as `fit law` writes it. Of all but form and coefficients any may be missing, or None."""

    form: str
    coefficients: dict
    version: int | None = VERSION
    objective: float | None = None
    settings: dict | None = None
    runs: dict | None = None  # file, fingerprint, corpora, ranges {column: [low, high]} of the runs fitted
    models: dict | None = None  # as models.py lists it
    fitted: dict | None = None  # errors, of ERRORS
    held_out: dict | None = None
    starts: dict | None = None
    versions: dict | None = None  # of the packages
    rolling: list | None = None
    separate: dict | None = None
    separate_fitted: dict | None = None
    separate_held_out: dict | None = None
    sample: dict | None = None
    noise: dict | None = None  # standard deviations of a run's log loss: total, run, trunk; growth (intervals.py)
    profile: dict | None = None
    warnings: list | None = None
    warning: str | None = None  # what is known against this law beyond its runs
    choice: dict | None = None  # the forms that were tried, and why this one was taken
    # draws [n_draws, n_coefficients], percentiles, form, by; beyond: training_flops, drift [n_draws] (intervals.py)
    bootstrap: dict | None = None


EXPECTED = {dict: "an object", list: "a list", str: "text", int: "a whole number", float: "a number"}


def read(document: object, where: str) -> Record:
    """The Record of a law.json. Raises UserError, naming the field that is not what `fit law` writes, or that a newer
    fit wrote."""
    if not isinstance(document, dict) or not isinstance(document.get("form"), str) or document["form"] not in FORMS:
        raise UserError(f"{where}: has no form that is one of {', '.join(FORMS)}")
    form, hints = FORMS[document["form"]], typing.get_type_hints(Record)
    models.check(document.get("models"), where)
    given = document.get("coefficients")
    for key in form.names:
        value = given.get(key) if isinstance(given, dict) else None
        if not _numbers([value], 1):
            raise UserError(f"{where}: coefficient {key} is {json.dumps(value)}, expected a finite number")
    record = Record(**{name: document[name] for name in hints if name in document})
    version = record.version if record.version is not None else VERSION
    if type(version) is not int or not 1 <= version <= VERSION:
        raise UserError(f"{where}: version is {json.dumps(version)}, expected at most {VERSION}: a newer fit wrote it")
    fields = []
    for name, hint in hints.items():
        kind = next(kind for kind in EXPECTED if kind in (hint, *typing.get_args(hint)))
        fine = (lambda v: _numbers([v], 1)) if kind is float else lambda v, kind=kind: isinstance(v, kind)
        fields.append((name, getattr(record, name), fine, EXPECTED[kind]))
    models.check_fields(fields, where)
    models.check_fields(_within(record, form), where)
    return record


def _within(record: Record, form: Form) -> Iterator[tuple]:
    """(name, value, whether a value is fine, what is expected) of what the sections hold."""
    pair = lambda v: _numbers(v, 1) and len(v) == 2 and v[0] <= v[1]
    number = lambda v: _numbers([v], 1)
    ranges = (record.runs or {}).get("ranges")
    yield "runs.ranges", ranges, lambda v: isinstance(v, dict), "an object"
    for name, ends in (ranges if isinstance(ranges, dict) else {}).items():
        yield f"runs.ranges.{name}", ends, pair, "two rising numbers"
    if record.bootstrap:
        draws, ends, way = (record.bootstrap.get(name) or "missing" for name in ("draws", "percentiles", "form"))
        fine = lambda v: _numbers(v, 2) and np.shape(v)[1] == len(form.names)
        yield "bootstrap.draws", draws, fine, f"rows of {len(form.names)} numbers"
        fine = lambda v: pair(v) and 0 <= v[0] < v[1] <= 100
        yield "bootstrap.percentiles", ends, fine, "two rising numbers from 0 to 100"
        yield "bootstrap.form", way, list(WAYS_OF_DRAWING).__contains__, "errors, replacement or paper"
        beyond = lambda v: isinstance(v, dict) and _numbers([v.get("training_flops")], 1) and v["training_flops"] > 0
        fine = lambda v: beyond(v) and _numbers(v.get("drift"), 1) and len(v["drift"]) == len(draws)
        yield "bootstrap.beyond", record.bootstrap.get("beyond"), fine, "training_flops and a drift for each draw"
    total = (record.noise or {}).get("total")
    yield "noise.total", total, lambda v: number(v) and v >= 0, "a number from 0 up"
    fine = lambda v: (
        isinstance(v, dict) and _numbers([v.get("training_flops"), v.get("power")], 1) and min(v.values()) > 0
    )
    yield "noise.growth", (record.noise or {}).get("growth"), fine, "a positive training_flops and power"
    for section, names in NUMBERS.items():
        held = getattr(record, section) or {}
        for name in names if held else ():
            yield f"{section}.{name}", held.get(name, "missing"), number, "a number"


def _numbers(value: object, depth: int) -> bool:
    """Whether this is a list (of lists) of finite numbers, not empty and of equal lengths."""
    try:
        array = np.array(value)
    except ValueError:
        return False
    return array.ndim == depth and array.size > 0 and array.dtype.kind in "if" and bool(np.isfinite(array).all())
