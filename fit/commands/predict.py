"""Predict the loss, in nats per token, of one model or of a table of models.

python -m fit predict --law=joint-moe-2025 --n_active=1e9 --n_tokens=2e10 --n_experts=8
python -m fit predict --law=law.json --runs=models.csv --out=predicted.csv
"""

import sys

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
        "With --runs: where the table goes, with the columns predicted_loss and outside_fitted_range.",
        flag_values=f,
    )


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
        table = runs_lib.read(f.runs)
    values = {name: table.numbers(name) if name in needed else 1.0 for name in ("n_active", "n_tokens", "n_experts")}
    predicted = fitted.predict(**values)
    asked = {name: values[name] for name in needed}
    inside = fitted.inside(**asked)
    outside = [
        "" if inside[i] else lawfile.in_words(fitted.extrapolation(**{name: v[i] for name, v in asked.items()}))
        for i in range(len(table))
    ]
    if f.runs is None:
        if outside[0]:
            print(f"warning: outside the fitted range: {outside[0]}", file=sys.stderr)
        print(f"{predicted[0]:.6f}")
        if fitted.draws:
            low, high = fitted.predict_interval(**values)
            print(
                f"{fitted.percentiles[0]:g}th to {fitted.percentiles[1]:g}th percentile of the fit: {low[0]:.6f} to {high[0]:.6f}"
            )
        return
    if "predicted_loss" in table.columns:
        raise UserError(f"{f.runs}: column predicted_loss is there already")
    table.columns |= {"predicted_loss": [float(v) for v in predicted], "outside_fitted_range": outside}
    if fitted.draws:
        low, high = fitted.predict_interval(**values)
        table.columns |= {"predicted_loss_low": low.tolist(), "predicted_loss_high": high.tolist()}
    runs_lib.write(table, f.out)
