"""Make a table of the paper for a law: 1 (compute-optimal), 2 (best E under memory), 4 (law at each E), 5 (bootstrap).

python -m fit table --law=joint-moe-2025 --which=2
python -m fit table --law=law.json --which=5 --out=table_5.csv
"""

import json

from fit.commands import flags
from fit.data.table import Table, write
from fit.errors import UserError

FLAGS = (
    ("enum", "which", None, ["1", "2", "4", "5"], "Which table of the paper to print."),
    ("string", "out", None, "Also write the table to this file (.csv, .jsonl, .parquet)."),
    ("list", "flops", [], "Training budgets for tables 1, 2 and 5. Default: the paper's, or near the fitted range."),
    ("list", "memory_gb", [], "Memories for table 2. Default: 24, 80 and 640, or set by the best dense model."),
    ("float", "kv_tokens", None, "Tokens in table 2's cache. Default: 16,384; 0 if a dense model sets the memories."),
    ("bool", "json", False, "Print the rows as JSON."),
    ("list", "experts", None, "Numbers of experts. Default: those fitted."),
)


def define_flags(f):
    flags.define(f, FLAGS)
    flags.define_law(f)
    flags.define_shape(f)


def run(f):
    law = flags.law_of(f)
    if f.which is None:
        raise UserError("--which is missing: 1, 2, 4 or 5")
    from fit.paper import tables

    options = {}
    if f.experts is not None:
        options["experts"] = flags.experts_of(f, law)
    if f.flops and f.which != "4":
        options["budgets"] = tuple(flags.positive_list(f, "flops"))
    if f.memory_gb and f.which == "2":
        options["memories_gb"] = tuple(flags.positive_list(f, "memory_gb"))
    if f.which == "2":
        options["kv_tokens"] = flags.positive(f, "kv_tokens", zero=True)
    rows = tables.TABLES[f.which](law, flags.shape_of(f, law), **options)
    if f.json:
        print(json.dumps([{k: None if v != v else v for k, v in row.items()} for row in rows], indent=1))
    else:
        print(tables.text(rows))
        if note := tables.note(f.which, law, rows):
            print(note)
    if f.out is not None:
        write(Table(f.out, {name: [row[name] for row in rows] for name in rows[0]}, list(range(len(rows)))), f.out)
