"""Make a table of the paper for a law: 1 (compute-optimal), 2 (best E under memory), 4 (law at each E), 5 (bootstrap).

python -m fit table --law=joint-moe-2025 --which=2
python -m fit table --law=law.json --which=5 --out=table_5.csv
"""

import dataclasses
import json
from typing import Any

from fit.asked import fields, plans
from fit.commands import flags
from fit.data.table import Table, write
from fit.errors import UserError


@dataclasses.dataclass(kw_only=True)
class Flags(plans.Shape, flags.Law, flags.Json):
    which: str | None = fields.choice("Which table of the paper to print.", None, ("1", "2", "4", "5"))
    out: str | None = fields.text("Also write the table to this file (.csv, .jsonl, .parquet).")
    flops: tuple[float, ...] = fields.numbers(
        "Training budgets for tables 1, 2 and 5. Default: the paper's, or near the fitted range.", ()
    )
    memory_gb: tuple[float, ...] = fields.numbers(
        "Memories for table 2. Default: 24, 80 and 640, or set by the best dense model.", ()
    )
    kv_tokens: float | None = fields.number(
        "Tokens in table 2's cache. Default: 16,384; 0 if a dense model sets the memories.", least=0
    )
    experts: tuple[int, ...] | None = fields.experts("Numbers of experts. Default: those fitted.")


def run(asked: Flags) -> None:
    law = asked.loaded()
    if asked.which is None:
        raise UserError("--which is missing: 1, 2, 4 or 5")
    from fit.paper import tables

    options: dict[str, Any] = {}
    if asked.experts is not None:
        options["experts"] = plans.experts_of(law, asked.experts)
    if asked.flops and asked.which != "4":
        options["budgets"] = asked.flops
    if asked.memory_gb and asked.which == "2":
        options["memories_gb"] = asked.memory_gb
    if asked.which == "2":
        options["kv_tokens"] = asked.kv_tokens
    rows = tables.TABLES[asked.which](law, asked.architecture(law), **options)
    if asked.json:
        print(json.dumps([{k: None if v != v else v for k, v in row.items()} for row in rows], indent=1))
    else:
        print(tables.text(rows))
        if note := tables.note(asked.which, law, rows):
            print(note)
    if asked.out is not None:
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        write(Table(asked.out, columns, list(range(len(rows)))), asked.out)
