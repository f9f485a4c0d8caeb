"""Fit the isoFLOP surface of each budget: the loss over total parameters and sparsity, and the best of both.

python -m fit surface --runs=runs.csv
python -m fit surface --runs=runs.csv --out=surface.svg

The table has n_active, n_total, n_tokens, loss, and sparsity or n_experts with top_k. Intervals come from 100 refits to
80% of the runs each; every refit also predicts the rest.
"""

import dataclasses
import json

from fit import api
from fit.asked import fields, searches
from fit.commands import flags
from fit.errors import UserError


@dataclasses.dataclass(kw_only=True)
class Flags(searches.Surface, flags.Columns, flags.Json):
    runs: str | None = fields.text(
        "Table of runs at several sizes and sparsities of equal FLOPs: .csv, .jsonl or .parquet."
    )
    out: str | None = fields.text("Picture of the surfaces to write: .png, .pdf or .svg.")


def run(asked: Flags) -> None:
    if asked.runs is None:
        raise UserError("--runs is missing: a table of runs at several sizes and sparsities")
    ending = flags.picture_ending(asked.out) if asked.out else ""
    found = api.surface(asked.read(asked.runs), asked=asked)
    if asked.out:
        from fit.paper.figures import search

        search.save(search.surfaces(found.budgets), asked.out, ending)
    rows = [{k: v for k, v in row.items() if k not in ("surface", "points")} for row in found.budgets]
    print(json.dumps(rows, indent=1) if asked.json else found)
