"""Say what runs and their law found, in short, and write one HTML page with all of it: the decision and its picture
first, then every table and figure of the paper for this law, and the numbers behind them.

python -m fit report --law=law.json --runs=runs.csv --out=report.html
"""

import dataclasses
import textwrap

from fit.asked import fields, plans
from fit.commands import flags
from fit.data.files import check_writable, write_text


@dataclasses.dataclass(kw_only=True)
class Flags(plans.Shape, flags.Law, flags.Columns):
    runs: str | None = fields.text("Table of runs, for predicted against measured and for points on the curves.")
    out: str = fields.text("File to write the page to.", "report.html")


def run(asked: Flags) -> None:
    law = asked.loaded()
    from fit.paper import figures, report

    architecture = asked.architecture(law)
    runs, out = (None, None) if asked.runs is None else figures.measured(law, asked.runs, asked.columns)
    check_writable(asked.out)
    write_text(asked.out, report.page(law, architecture, runs, out))
    for what, words in report.in_short(law, architecture, runs).items():
        print(textwrap.fill(f"{what + ':':18}{words}.", 110, subsequent_indent=" " * 18))
    print(f"written to {asked.out}")
