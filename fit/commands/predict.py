"""Predict the loss, in nats per token, of one model or of a table of models, and say how far measured losses are off.

python -m fit predict --law=joint-moe-2025 --n_active=1e9 --n_tokens=2e10 --n_experts=8
python -m fit predict --law=law.json --runs=models.csv --out=predicted.csv
"""

import dataclasses
import sys

from fit import api
from fit.asked import fields, searches
from fit.commands import flags
from fit.data.table import write
from fit.errors import UserError


@dataclasses.dataclass(kw_only=True)
class Flags(searches.Model, flags.Law, flags.Columns):
    runs: str | None = fields.text("A table of models (.csv, .jsonl, .parquet) instead of a single one.")
    out: str | None = fields.text(
        "With --runs: file for the table, with added columns predicted_loss, outside_fitted_range and, if the law "
        "holds bootstrap draws, predicted_loss_low and _high (of a new run) and law_loss_low and _high (of the law "
        "itself)."
    )


def run(asked: Flags) -> None:
    law = asked.loaded()
    if (asked.runs is None) != (asked.out is None):
        raise UserError("--runs and --out go together")
    found = api.predict(law, asked.runs and asked.read(asked.runs), asked=asked)
    if asked.out is not None:
        write(found.table, asked.out)
    for warning in found.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    if found.not_compared:
        print(f"measured losses are not compared: {found.not_compared}", file=sys.stderr)
    if found.text:
        print(found)
