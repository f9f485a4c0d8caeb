"""One HTML file that plans in the browser: the laws as data, the scripts of this folder, and nothing from the network.

data.py      what the page knows of a law, of its runs and of chips
formulas.py  the formulas of the laws' pages and of memory as JavaScript
numbers.js   numbers as Python formats them        counts.js  parameters, bytes and tokens of a model
law.js       the laws at a model, draws, ranges         solve.js   the best model under limits
compare.js   what several laws would build          like.js    published models and config.json
cost.js      hours, dollars, a loss to reach       plan.js    what `fit plan --json` prints
words.js, config.js  its sentences and its config
table.js     a table of runs dropped on the page   form.js    fields, sliders and the state in the URL's hash
asked.js     what the state means                  command.js  the same question as a command
beside.js    laws beside each other
fit.js       a law fitted in the browser            own.js     the reader's own runs
next.js, next_answers.py  the runs to train next  speedup.js  what compute the reader's runs save
chart.js     pictures in SVG                       pictures.js, map.js  the pictures of a plan
app.js       puts a plan on the page               page.html, page.css  what it looks like
"""

import json
import pathlib
import re

from fit.aliases import Json
from fit.laws import FORMS
from fit.planner import formulas
from fit.planning import memory

SCRIPTS = "numbers counts law words solve cost plan config like compare fit table form asked chart pictures map"
SCRIPTS = f"{SCRIPTS} command answers beside next speedup own app".split()


def text(data: Json) -> str:
    """The page as text; data: as fit.planner.data.of makes it."""
    folder = pathlib.Path(__file__).parent
    read = lambda name: (folder / name).read_text(encoding="utf-8")
    parts = dict(
        STYLE=read("page.css"),
        # "<" within a string could end the script element, so JSON's escape stands for it
        DATA=json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
        SCRIPT="\n".join(
            [
                formulas.script(
                    [FORMS[name] for name in dict.fromkeys([*data["forms"], *(law["form"] for law in data["laws"])])],
                    [memory.token_bytes, memory.state_bytes, memory.least_tokens, memory.device_bytes, memory.fewest],
                ),
                *(_as_part(read(f"{name}.js")) for name in SCRIPTS),
            ]
        ),
    )
    return re.sub(r"\{\{(\w+)\}\}", lambda name: parts[name[1]], read("page.html"))


def _as_part(source: str) -> str:
    """A module without its imports, exports, lines of comment and indentation, which the page need not carry: the parts
    become one script, with one scope for all names."""
    return re.sub(r"^(import [^;]*;\n|export | *//.*\n| +)", "", source, flags=re.MULTILINE)
