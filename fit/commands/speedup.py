"""How many times the compute a law's recipe needs for the losses of other runs, and whether that grows with compute.

python -m fit speedup --law=law.json --runs=variant.csv
"""

import dataclasses
import json
import sys

from fit import api
from fit.asked import fields
from fit.commands import flags
from fit.data.table import plain
from fit.errors import UserError


@dataclasses.dataclass(kw_only=True)
class Flags(flags.Law, flags.Columns, flags.Json):
    runs: str | None = fields.text(
        "Table of the runs to judge: n_active, n_tokens, n_experts, loss (.csv, .jsonl, .parquet)."
    )
    seed: int = fields.whole("Seed of the runs' errors that intervals draw.", 0)


def run(asked: Flags) -> None:
    if asked.runs is None:
        raise UserError("--runs is missing: a table with n_active, n_tokens, n_experts and loss")
    found = api.speedup(asked.loaded(), asked.read(asked.runs), seed=asked.seed)
    if asked.json:
        print(json.dumps(plain(vars(found)), indent=1, allow_nan=False))
        return
    print(found)
    for warning in found.warnings:
        used = "the law is used " if warning.startswith("outside") else ""
        print(f"warning: {used}{warning}", file=sys.stderr)
