"""Write one self-contained HTML page that plans with a law in the browser: limits to slide, answers and pictures.

python -m fit page --law=law.json --runs=runs.csv --out=planner.html
"""

import dataclasses

from fit import api
from fit.asked import fields
from fit.commands import flags


@dataclasses.dataclass(kw_only=True)
class Flags(flags.Columns):
    law: tuple[str, ...] = fields.several(
        "A law.json, or the name of a published law. The page always includes all published laws.", repeated=True
    )
    runs: str | None = fields.text("Table of runs of the first law, drawn over its curves.")
    out: str = fields.text("File to write the page to.", "planner.html")


def run(asked: Flags) -> None:
    runs = asked.runs and asked.read(asked.runs)
    print(f"written to {api.page(asked.law or api.DEFAULT_LAW, runs, asked.out)}")
