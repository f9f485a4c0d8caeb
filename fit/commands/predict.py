"""Predict the loss, in nats per token, of one model or of a table of models, and say how far measured losses are off.

python -m fit predict --law=joint-moe-2025 --n_active=1e9 --n_tokens=2e10 --n_experts=8
python -m fit predict --law=law.json --runs=models.csv --out=predicted.csv
"""

import sys
import warnings

import numpy as np

from fit.commands import flags
from fit.data.runs import unlikely
from fit.data.table import Table, read, write
from fit.errors import UserError
from fit.lawbook.lawfile import in_words

FLAGS = (
    ("string", "n_active", None, "Active parameters, embedding and head included."),
    ("string", "n_tokens", None, "Training tokens."),
    ("string", "n_experts", "1", "Experts in each layer, 1 for a dense model."),
    ("string", "runs", None, "A table of models (.csv, .jsonl, .parquet) instead of a single one."),
    (
        "string",
        "out",
        None,
        "With --runs: file for the table, with added columns predicted_loss, outside_fitted_range and, if the law "
        "holds bootstrap draws, predicted_loss_low and _high (of a new run) and law_loss_low and _high (of the law "
        "itself).",
    ),
)


def define_flags(f):
    flags.define(f, FLAGS)
    flags.define_law(f)
    flags.define_columns(f)


def run(f):
    law = flags.law_of(f)
    if (f.runs is None) != (f.out is None):
        raise UserError("--runs and --out go together")
    table = _one(f, law) if f.runs is None else read(f.runs, flags.columns_of(f))
    values = {name: table.numbers(name) for name in law.form.columns}
    inside = law.inside(**values)
    outside = [
        "" if inside[i] else in_words(law.extrapolation(**{name: v[i] for name, v in values.items()}))
        for i in range(len(table))
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # said below, as the command line says it
        columns = {"predicted_loss": law.predict(**values).tolist()}
    if odd := unlikely(values):
        print(f"warning: {odd}", file=sys.stderr)
    if law.draws:
        kinds = {"law_loss": False} if law.noise is None else {"predicted_loss": True, "law_loss": False}
        for name, new_run in kinds.items():
            low, high = law.predict_interval(**values, new_run=new_run)
            columns |= {f"{name}_low": low.tolist(), f"{name}_high": high.tolist()}
    if law.warning and any(outside):
        print(f"warning: outside the fitted range of this law: {law.warning}", file=sys.stderr)
    if f.runs is None:
        if outside[0]:
            print(f"warning: outside the fitted range: {outside[0]}", file=sys.stderr)
        show(law, {name: column[0] for name, column in columns.items()})
        return
    columns["outside_fitted_range"] = outside
    for name in columns:
        if name in table.columns:
            raise UserError(f"{f.runs}: column {name} exists already")
    table.columns |= columns
    write(table, f.out)
    if "loss" in table and len(table):
        try:
            print(against_measured(law, table, inside))
        except UserError as e:  # the predictions are written all the same
            print(f"measured losses are not compared: {e}", file=sys.stderr)


def against_measured(law, table, inside):
    """How the losses in a table lie against those predicted, in a sentence. UserError where one is no loss."""
    error = np.log(table.numbers("loss") / np.array(table.columns["predicted_loss"]))
    differs = ""
    if _others(table, "vocab_size", law.models["vocab_size"]):
        differs = ", and their vocabulary is not the law's: nats per token of both do not compare"
    elif _others(table, "corpus_fingerprint", law.models["corpus"]):
        differs = ", and their text is not the law's"
    held = ""
    if "predicted_loss_low" in table.columns:
        low, high = (np.array(table.columns[f"predicted_loss_{end}"]) for end in ("low", "high"))
        loss = table.numbers("loss")
        first, last = law.percentiles
        held = f"; {int(np.sum((low <= loss) & (loss <= high)))} lie between the {first:g}th and {last:g}th percentile"
        held += " predicted for a run"
    return (
        f"{len(table)} measured losses are {np.expm1(error.mean()):+.2%} off {law.name} on average and scatter by "
        f"{error.std():.2%} around that; {int(np.sum(~inside))} of the models lie outside its fitted range"
        f"{held}{differs}"
    )


def _others(table, column, known):
    """Whether the table says of any row that it has not the value `known`, that of the law, if that is known."""
    values = {str(value).removesuffix(".0") for value in table.columns.get(column, ()) if value not in (None, "")}
    return known is not None and bool(values - {str(known)})


def _one(f, law):
    """A table of the one model that the flags describe; UserError where one is missing or no such number."""
    table = Table("the command line", {}, [1])
    for name in law.form.columns:
        text = f[name].value if name in f else None
        if text is None:
            raise UserError(
                f"--{name} is missing: the {law.form.name} law needs it"
                if name in f
                else f"the {law.form.name} law reads {name}, for which there is no flag: give a table by --runs"
            )
        table.columns[name] = [text]
        try:
            table.numbers(name)
        except UserError as e:
            raise UserError(f"--{name}={text}" + str(e).split(f"column {name}", 1)[1]) from e
    return table


def show(law, answer):
    """Prints one prediction and its intervals."""
    print(f"{answer['predicted_loss']:.6f}")
    if not law.draws:
        return
    ends = "{:g}th to {:g}th percentile".format(*law.percentiles)
    if "predicted_loss_low" in answer:
        print(
            f"{ends} of a new run (its own noise of {law.noise:.2%} included): "
            f"{answer['predicted_loss_low']:.6f} to {answer['predicted_loss_high']:.6f}"
        )
    print(f"{ends} of the fit (the law itself): {answer['law_loss_low']:.6f} to {answer['law_loss_high']:.6f}")
