"""Predict the loss, in nats per token, of one model or of a table of models.

python -m fit predict --law=joint-moe-2025 --n_active=1e9 --n_tokens=2e10 --n_experts=8
python -m fit predict --law=law.json --runs=models.csv --out=predicted.csv
"""

import sys

import numpy as np
from absl import flags

from fit import UserError, lawfile
from fit import runs as runs_lib


def define_flags(f):
    flags.DEFINE_string("law", None, "A law.json, or the name of a published law.", flag_values=f)
    flags.DEFINE_string("n_active", None, "Active parameters, embedding and head included.", flag_values=f)
    flags.DEFINE_string("n_tokens", None, "Training tokens.", flag_values=f)
    flags.DEFINE_string("n_experts", "1", "Experts in each layer, 1 for a dense model.", flag_values=f)
    flags.DEFINE_string(
        "runs", None, "A table of models (.csv, .jsonl, .parquet) instead of a single one.", flag_values=f
    )
    flags.DEFINE_string(
        "out",
        None,
        "With --runs: where the table goes, with the columns predicted_loss, outside_fitted_range and, where the law "
        "holds bootstrap draws, predicted_loss_low and _high (of a new run) and law_loss_low and _high (of the law itself).",
        flag_values=f,
    )
    runs_lib.define_columns(f)


def run(f):
    if f.law is None:
        raise UserError("--law is missing: a law.json, or one of " + ", ".join(lawfile.PRESETS))
    fitted = lawfile.load(f.law)
    needed = fitted.law.COLUMNS
    if (f.runs is None) != (f.out is None):
        raise UserError("--runs and --out go together")
    if f.runs is None:
        one = runs_lib.Table("the command line", {}, [1])
        for name in needed:
            if f[name].value is None:
                raise UserError(f"--{name} is missing: the {fitted.form} law needs it")
            one.columns[name] = [f[name].value]
            try:
                one.numbers(name)
            except UserError as e:
                raise UserError(f"--{name}={f[name].value}" + str(e).split(f"column {name}", 1)[1]) from e
        table = one
    else:
        table = runs_lib.read(f.runs, runs_lib.columns_of(f))
    values = {name: table.numbers(name) if name in needed else 1.0 for name in ("n_active", "n_tokens", "n_experts")}
    asked = {name: values[name] for name in needed}
    inside = fitted.inside(**asked)
    outside = [
        "" if inside[i] else lawfile.in_words(fitted.extrapolation(**{name: v[i] for name, v in asked.items()}))
        for i in range(len(table))
    ]
    columns = {"predicted_loss": np.broadcast_to(fitted.predict(**values), len(table)).tolist()}
    if fitted.draws:
        kinds = {"law_loss": False} if fitted.noise is None else {"predicted_loss": True, "law_loss": False}
        for name, new_run in kinds.items():
            low, high = fitted.predict_interval(**values, new_run=new_run)
            columns |= {f"{name}_low": low.tolist(), f"{name}_high": high.tolist()}
    if f.runs is None:
        if outside[0]:
            print(f"warning: outside the fitted range: {outside[0]}", file=sys.stderr)
        tell(fitted, {name: column[0] for name, column in columns.items()})
        return
    columns["outside_fitted_range"] = outside
    for name in columns:
        if name in table.columns:
            raise UserError(f"{f.runs}: column {name} is there already")
    table.columns |= columns
    runs_lib.write(table, f.out)


def tell(fitted, answer):
    """Prints one prediction and its intervals."""
    print(f"{answer['predicted_loss']:.6f}")
    if not fitted.draws:
        return
    ends = "{:g}th to {:g}th percentile".format(*fitted.percentiles)
    if "predicted_loss_low" in answer:
        print(
            f"{ends} of a new run (its own noise of {fitted.noise:.2%} included): "
            f"{answer['predicted_loss_low']:.6f} to {answer['predicted_loss_high']:.6f}"
        )
    print(f"{ends} of the fit (the law itself): {answer['law_loss_low']:.6f} to {answer['law_loss_high']:.6f}")
