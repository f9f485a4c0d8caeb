"""Whether what stands in a law.json beside the coefficients is what a fit writes there."""

import json

import numpy as np

from fit import UserError

SECTIONS = (
    "settings",
    "runs",
    "fitted",
    "held_out",
    "starts",
    "noise",
    "profile",
    "bootstrap",
    "separate",
    "sample",
    "versions",
)


def check(record, law, where):
    """UserError, naming the field of `record` that is not what `fit law` writes; any field may be missing."""
    for name in SECTIONS:
        _is(record.get(name), dict, "an object", f"{where}: {name}")
    for name in ("warnings", "rolling"):
        _is(record.get(name), list, "a list", f"{where}: {name}")
    ranges = (record.get("runs") or {}).get("ranges")
    _is(ranges, dict, "an object", f"{where}: runs.ranges")
    for name, ends in (ranges or {}).items():
        if not (_numbers(ends, 1) and len(ends) == 2 and ends[0] <= ends[1]):
            raise UserError(f"{where}: runs.ranges.{name} is {_shown(ends)}, expected two rising numbers")
    bootstrap = record.get("bootstrap")
    if bootstrap:
        if not (_numbers(bootstrap.get("draws"), 2) and np.shape(bootstrap["draws"])[1] == len(law.COEFFICIENTS)):
            raise UserError(
                f"{where}: bootstrap.draws is {_shown(bootstrap.get('draws'))}, expected rows of "
                f"{len(law.COEFFICIENTS)} numbers"
            )
        ends = bootstrap.get("percentiles")
        if not (_numbers(ends, 1) and len(ends) == 2 and 0 <= ends[0] < ends[1] <= 100):
            raise UserError(
                f"{where}: bootstrap.percentiles is {_shown(ends)}, expected two rising numbers from 0 to 100"
            )
        if bootstrap.get("form") not in ("errors", "replacement", "paper"):
            raise UserError(
                f"{where}: bootstrap.form is {_shown(bootstrap.get('form'))}, expected errors, replacement or paper"
            )
    total = (record.get("noise") or {}).get("total", 0.0)
    if not (_numbers([total], 1) and total >= 0):
        raise UserError(f"{where}: noise.total is {_shown(total)}, expected a number from 0 up")


def _is(value, kind, words, where):
    if value is not None and not isinstance(value, kind):
        raise UserError(f"{where} is {_shown(value)}, expected {words}")


def _numbers(value, depth):
    """Whether this is a list (of lists) of finite numbers, not empty and of equal lengths."""
    try:
        array = np.array(value)
    except ValueError:
        return False
    return array.ndim == depth and array.size > 0 and array.dtype.kind in "if" and bool(np.isfinite(array).all())


def _shown(value):
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
