"""Whether the sections of a law.json are what `fit law` writes; any of them may be missing."""

import numpy as np

from fit.lawbook import models

LEVEL = 0.8  # of profile intervals, like the 10th to 90th percentile of the bootstrap
WAYS_OF_DRAWING = {  # of the bootstrap, which draws runs or trunks anew
    "errors": "the law's own losses with new errors, drawn by {by}",
    "replacement": "{by} drawn with replacement",
    "paper": "80% of the {by} without replacement, the paper's form: about half too narrow by construction",
}
SECTIONS = ("settings", "runs", "fitted", "held_out", "starts", "noise", "profile", "bootstrap", "separate", "sample")
SECTIONS += ("choice", "versions", "separate_fitted", "separate_held_out")
ERRORS = ("runs", "rmse_nats", "mean_relative_error", "max_relative_error")  # of fitted runs, of those held out
NUMBERS = {"fitted": ERRORS, "held_out": ERRORS, "separate_fitted": ERRORS[:2], "separate_held_out": ERRORS[:2]}
NUMBERS |= {"starts": ("tried", "within_1_percent")}  # what a section must hold, where the law.json has it


def check(record, form, where):
    """UserError, naming the field of `record` that is not what `fit law` writes; any field may be missing."""
    mapping, rising = lambda v: isinstance(v, dict), lambda v: _numbers(v, 1) and len(v) == 2 and v[0] < v[1]
    fields = [(name, record.get(name), mapping, "an object") for name in SECTIONS]
    fields += [(name, record.get(name), lambda v: isinstance(v, list), "a list") for name in ("warnings", "rolling")]
    fields.append(("warning", record.get("warning"), lambda v: isinstance(v, str), "a sentence"))
    models.check_fields(fields, where)
    ranges, bootstrap = (record.get("runs") or {}).get("ranges"), record.get("bootstrap") or {}
    models.check_fields([("runs.ranges", ranges, mapping, "an object")], where)
    pair = lambda v: _numbers(v, 1) and len(v) == 2 and v[0] <= v[1]
    fields = [(f"runs.ranges.{name}", ends, pair, "two rising numbers") for name, ends in (ranges or {}).items()]
    if bootstrap:
        draws, ends, way = (bootstrap.get(name) or "missing" for name in ("draws", "percentiles", "form"))
        fine = lambda v: _numbers(v, 2) and np.shape(v)[1] == len(form.names)
        fields.append(("bootstrap.draws", draws, fine, f"rows of {len(form.names)} numbers"))
        fine = lambda v: rising(v) and v[0] >= 0 and v[1] <= 100
        fields.append(("bootstrap.percentiles", ends, fine, "two rising numbers from 0 to 100"))
        fields.append(("bootstrap.form", way, list(WAYS_OF_DRAWING).__contains__, "errors, replacement or paper"))
        beyond = lambda v: mapping(v) and _numbers([v.get("training_flops")], 1) and v["training_flops"] > 0
        fine = lambda v: beyond(v) and _numbers(v.get("drift"), 1) and len(v["drift"]) == len(draws)
        fields.append(("bootstrap.beyond", bootstrap.get("beyond"), fine, "training_flops and a drift for each draw"))
    number = lambda v: _numbers([v], 1)
    total = (record.get("noise") or {}).get("total")
    fields.append(("noise.total", total, lambda v: number(v) and v >= 0, "a number from 0 up"))
    fields.append(("objective", record.get("objective"), number, "a number"))
    for section, names in NUMBERS.items():
        held = record.get(section) or {}
        fields += [(f"{section}.{name}", held.get(name, "missing"), number, "a number") for name in names if held]
    models.check_fields(fields, where)


def _numbers(value, depth):
    """Whether this is a list (of lists) of finite numbers, not empty and of equal lengths."""
    try:
        array = np.array(value)
    except ValueError:
        return False
    return array.ndim == depth and array.size > 0 and array.dtype.kind in "if" and bool(np.isfinite(array).all())
