"""fit from Python: the commands `law`, `predict` and `plan` as functions, with their flags as keyword arguments."""

from __future__ import annotations

import json

from absl import flags

from fit.data import frames
from fit.data.table import Table, plain
from fit.errors import UserError
from fit.lawbook.lawfile import Law, load
from fit.laws import FORMS

__all__ = ["Plan", "law", "load", "plan", "read", "save", "speedup"]


def read(runs, columns: dict[str, str] | None = None) -> Table:
    """A table of runs: a .csv, .jsonl or .parquet file, a pandas frame, a list of dictionaries (a run each) or a
    dictionary of columns; columns: {ours: theirs}, such as {"loss": "val_loss"}. Raises UserError for what cannot be
    read, or has no such columns."""
    return frames.of(runs, columns)


def law(runs, form: str | None = None, **options) -> Law:
    """Fits a law to runs (what `read` takes): exactly the numbers that `python -m fit law` writes. form: "joint", ...;
    without one the form that predicts the larger runs better from the smaller ones.

    Options are the flags of that command: holdout="largest-compute:3", bootstrap=100, fix={"c": 1.2}, seed=1, ...
    Losses are in nats per token. The law's `record` is what law.json holds, including errors and warnings. Raises
    UserError for a bad value in runs or options.
    """
    import jax

    from fit.commands import law as command

    if form is not None and form not in FORMS:
        raise UserError(f"--form={form}: expected one of {', '.join(FORMS)}")
    runs = read(runs)
    f = _flags("law", command, ("runs", "out", "columns"), options | dict(form=form))
    f.columns = [f"{ours}:{theirs}" for ours, theirs in runs.names.items()]  # for the record
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        record = command.fitted(f, runs, FORMS.get(form), quiet=True)
    record = json.loads(json.dumps(plain(record), allow_nan=False))  # as a law.json would be read
    fitted = FORMS[record["form"]]
    return Law("the fitted law", fitted, {name: float(record["coefficients"][name]) for name in fitted.names}, record)


def save(law: Law, path) -> None:
    """Writes a law from `fit.law` as a law.json, for the commands. Raises UserError if it cannot be written."""
    from fit.fitting import fitting

    fitting.save(law.record, str(path))


class Plan:
    """What `python -m fit plan --json` prints, each field as an attribute: `optima`, one dictionary for the optimum at
    each number of experts; `best`, one of them; `buildable`, the model to train; `warnings`; vars(plan) has all of
    them. str(plan) is the text that the command prints."""

    optima: list[dict]
    best: dict
    buildable: dict | None
    warnings: list[str]

    def __init__(self, fields: dict):
        vars(self).update(fields)

    def __repr__(self):
        from fit.planning import plan_text

        return f"<plan by {self.law}: {plan_text.answer(vars(self))}>"

    def __str__(self):
        from fit.planning import plan_text

        return plan_text.text(vars(self))


def plan(law: Law | str, **limits) -> Plan:
    """The best model of a law (or of a published law's name, or a law.json) within limits, which are the flags of
    `python -m fit plan`: flops=1e22 or chips="H100:64" and hours=240, memory_gb=80, kv_tokens=16384,
    inference_tokens=1e12, max_tokens=2e10, experts=[1, 8], ... Raises UserError where a limit is out of range, or no
    model is feasible."""
    from fit.commands import plan as command

    law = law if isinstance(law, Law) else load(law)
    return Plan(command.planned(_flags("plan", command, ("law", "json", "emit_config", "base_config"), limits), law)[1])


def speedup(law: Law | str, runs, seed: int = 0) -> dict:
    """How many times the compute this law's recipe needs for the losses of these runs (what `read` takes), with
    intervals, and whether that grows with compute: what `python -m fit speedup --json` prints. Raises UserError."""
    from fit.planning import speedup as planning

    return planning.speedup(law if isinstance(law, Law) else load(law), read(runs), seed)


def _flags(name, command, not_options, options):
    """The command's flags with these values; TypeError for a name that is none of its options, UserError for a value
    that it refuses."""
    f = flags.FlagValues()
    command.define_flags(f)
    arguments = []
    for option, value in options.items():
        if option not in f or option in not_options:
            known = ", ".join(sorted(set(f) - set(not_options)))
            raise TypeError(f"fit.{name}() has no option {option!r}; options: {known}")
        if hasattr(value, "tolist"):  # an array, a series, or a number of one
            value = value.tolist()
        if isinstance(value, dict):
            value = json.dumps(plain(value)) if option == "mfu" else [f"{key}={v}" for key, v in value.items()]
        if isinstance(value, (list, tuple, range, set)):
            value = ",".join(map(str, value))
        if value is not None:
            arguments.append(f"--{option}={value}")
    try:
        f(["fit", *arguments])
    except flags.Error as e:
        text = " ".join(str(e).split())
        raise UserError(text if len(text) <= 300 else f"{text[:100]} ... {text[-200:]}") from e
    return f
