"""How many times the compute a law's recipe needs for the losses of other runs, and whether that grows with compute.

python -m fit speedup --law=law.json --runs=variant.csv
"""

import json
import sys

from fit.commands import flags
from fit.data.table import plain, read
from fit.errors import UserError
from fit.planning import speedup
from fit.words.units import amount
from fit.words.units import flops as written

FLAGS = (
    (
        "string",
        "runs",
        None,
        "Table of the runs to judge: n_active, n_tokens, n_experts, loss (.csv, .jsonl, .parquet).",
    ),
    ("integer", "seed", 0, "Seed of the runs' errors that intervals draw.", 0),
    ("bool", "json", False, "Print everything as JSON."),
)


def define_flags(f):
    flags.define_law(f)
    flags.define(f, FLAGS)
    flags.define_columns(f)


def run(f):
    if f.runs is None:
        raise UserError("--runs is missing: a table with n_active, n_tokens, n_experts and loss")
    result = speedup.speedup(flags.law_of(f), read(f.runs, flags.columns_of(f)), f.seed)
    if f.json:
        print(json.dumps(plain(result), indent=1, allow_nan=False))
        return
    print(
        f"{'n_active':>9} {'n_tokens':>9} {'n_experts':>9} {'loss':>8} {'FLOPs':>10} {'by the law':>10} {'factor':>7}"
    )
    for row in result["runs"]:
        law, factor = (written(row["law_flops"]), f"{row['factor']:.2f}") if row["factor"] else ("-", "-")
        ends = " {:.2f} to {:.2f}".format(*row["interval"]) if row["interval"] else ""
        print(
            f"{amount(row['n_active']):>9} {amount(row['n_tokens']):>9} {row['n_experts']:9g} {row['loss']:8.4f} "
            f"{written(row['flops']):>10} {law:>10} {factor:>7}{ends}"
        )
    print(result["answer"][0].upper() + result["answer"][1:])
    for warning in result["warnings"]:
        print(
            f"warning: the law is used {warning}" if warning.startswith("outside") else f"warning: {warning}",
            file=sys.stderr,
        )
