"""The complete architecture of a mixture for a budget, by the holistic laws of Wan et al. 2026; or those laws fitted.

python -m fit holistic --flops=1e21
python -m fit holistic --runs=phase1/runs.csv --width_runs=phase2/runs.csv --flops=1e21
python -m fit holistic --rank=runs.csv
python -m fit holistic --refit=runs.csv

The first takes the published laws and says which coefficients are published, which were recovered from the paper's
tables and which are missing. The second fits them to runs of configs/sweeps/holistic_phase1.py and holistic_phase2.py.
The third tests whether architectures keep their rank when the width changes. The last fits Eq. 2, the best FLOPs per
token and tokens for each budget, once more: to runs of several sizes at each budget, built as the search found best.
"""

import dataclasses
import json

from fit import api
from fit.architecture_search import holistic_runs
from fit.asked import fields, searches
from fit.commands import flags
from fit.errors import UserError


@dataclasses.dataclass(kw_only=True)
class Flags(searches.Holistic, flags.Columns, flags.Json):
    runs: str | None = fields.text("Table of runs at several M/N_a and N/N_a, to fit their laws.")
    width_runs: str | None = fields.text("Table of runs at several widths, to fit the law of d_model.")
    rank: str | None = fields.text(
        "Table of runs of several architectures, each at several widths, to compute their rank correlations."
    )
    refit: str | None = fields.text("Table of runs of several sizes at each budget, to fit Eq. 2.")
    out: str | None = fields.text("With --runs or --width_runs: picture to write, .png, .pdf or .svg.")


def run(asked: Flags) -> None:
    if asked.out is not None and asked.runs is None and asked.width_runs is None:
        raise UserError("--out needs --runs or --width_runs")
    ending = flags.picture_ending(asked.out) if asked.out else ""
    table = lambda path: path and asked.read(path)
    searched = [holistic_runs.read(table(path)) if path else None for path in (asked.runs, asked.width_runs)]
    found = api.holistic(*searched, table(asked.rank), table(asked.refit), asked=asked)
    if asked.out:
        from fit.paper.figures import search

        search.save(search.architectures(found.fit["budgets"], *searched), asked.out, ending)
    print(json.dumps(vars(found), indent=1) if asked.json else found)
