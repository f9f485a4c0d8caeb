"""Write one self-contained HTML page with every table and figure of the paper for a law, and the numbers behind them.

python -m fit report --law=law.json --runs=runs.csv --out=report.html
"""

from absl import flags

from fit.commands.flags import columns_of, define_columns, define_law, define_shape, law_of, shape_of
from fit.table import check_writable, write_text


def define_flags(f):
    define_law(f)
    flags.DEFINE_string(
        "runs", None, "The runs, for predicted against measured and for points on the curves.", flag_values=f
    )
    flags.DEFINE_string("out", "report.html", "The page.", flag_values=f)
    define_columns(f)
    define_shape(f)


def run(f):
    law = law_of(f)
    from fit.paper import figures, report

    architecture = shape_of(f, law)
    runs, out = (None, None) if f.runs is None else figures.measured(law, f.runs, columns_of(f))
    check_writable(f.out)
    write_text(f.out, report.page(law, architecture, runs, out))
    print(f"written to {f.out}")
