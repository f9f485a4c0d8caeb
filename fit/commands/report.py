"""Write one self-contained HTML page with every table and figure of the paper for a law, and the numbers behind them.

python -m fit report --law=law.json --runs=runs.csv --out=report.html
"""

from fit.commands import flags
from fit.data.table import check_writable, write_text

FLAGS = (
    ("string", "runs", None, "Table of runs, for predicted against measured and for points on the curves."),
    ("string", "out", "report.html", "File to write the page to."),
)


def define_flags(f):
    flags.define(f, FLAGS)
    flags.define_law(f)
    flags.define_columns(f)
    flags.define_shape(f)


def run(f):
    law = flags.law_of(f)
    from fit.paper import figures, report

    architecture = flags.shape_of(f, law)
    runs, out = (None, None) if f.runs is None else figures.measured(law, f.runs, flags.columns_of(f))
    check_writable(f.out)
    write_text(f.out, report.page(law, architecture, runs, out))
    print(f"written to {f.out}")
