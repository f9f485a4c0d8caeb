"""Write one self-contained HTML page that plans with a law in the browser: limits to slide, answers and pictures.

python -m fit page --law=law.json --runs=runs.csv --out=planner.html
"""

from fit import planner as page
from fit.commands.flags import columns_of, define, define_columns
from fit.data.table import check_writable, write_text
from fit.lawbook.lawfile import load
from fit.paper import figures
from fit.planner import data

FLAGS = (
    (
        "multi_string",
        "law",
        [],
        "A law.json, or the name of a published law. The page always includes all published laws.",
    ),
    ("string", "runs", None, "Table of runs of the first law, drawn over its curves."),
    ("string", "out", "planner.html", "File to write the page to."),
)


def define_flags(f):
    define(f, FLAGS)
    define_columns(f)


def run(f):
    laws = [load(name) for name in dict.fromkeys(f.law or ["joint-moe-2025"])]
    runs = () if f.runs is None else figures.measured(laws[0], f.runs, columns_of(f))
    check_writable(f.out)
    write_text(f.out, page.text(data.of(laws, *runs)))
    print(f"written to {f.out}")
