"""Write one self-contained HTML page that plans with a law in the browser: limits to slide, answers and pictures.

python -m fit page --law=law.json --runs=runs.csv --out=planner.html
"""

from absl import flags

from fit import figures, lawfile, page
from fit import runs as runs_lib
from fit.page import data


def define_flags(f):
    flags.DEFINE_multi_string(
        "law",
        [],
        "A law.json, or the name of a published law; may be given several times. The published laws are always there.",
        flag_values=f,
    )
    flags.DEFINE_string("runs", None, "The runs of the first law, drawn over it.", flag_values=f)
    flags.DEFINE_string("out", "planner.html", "The page.", flag_values=f)
    runs_lib.define_columns(f)


def run(f):
    laws = [lawfile.load(name) for name in dict.fromkeys(f.law or ["joint-moe-2025"])]
    runs = () if f.runs is None else figures.measured(laws[0], f.runs, runs_lib.columns_of(f))
    runs_lib.check_writable(f.out)
    runs_lib.write_text(f.out, page.text(data.of(laws, *runs)))
    print(f"written to {f.out}")
