"""Write one self-contained HTML page with every table and figure of the paper for a law, and the numbers behind them.

python -m fit report --law=law.json --runs=runs.csv --out=report.html
"""

from absl import flags

from fit import UserError, figures, lawfile
from fit import architecture as architecture_lib
from fit import runs as runs_lib


def define_flags(f):
    flags.DEFINE_string("law", None, "A law.json, or the name of a published law.", flag_values=f)
    flags.DEFINE_string(
        "runs", None, "The runs, for predicted against measured and for points on the curves.", flag_values=f
    )
    flags.DEFINE_string("out", "report.html", "The page.", flag_values=f)
    runs_lib.define_columns(f)
    architecture_lib.define_flags(f)


def run(f):
    if f.law is None:
        raise UserError("--law is missing: a law.json, or one of " + ", ".join(lawfile.PRESETS))
    from fit import report

    fitted = lawfile.load(f.law)
    architecture = architecture_lib.from_flags(f, fitted)
    runs, out = (None, None) if f.runs is None else figures.measured(fitted, f.runs, runs_lib.columns_of(f))
    runs_lib.check_writable(f.out)
    runs_lib.write_text(f.out, report.page(fitted, architecture, runs, out))
    print(f"written to {f.out}")
