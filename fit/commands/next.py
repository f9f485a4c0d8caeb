"""Which runs to train next, so that a law's answer becomes surer: the best set within a budget of training FLOPs.

python -m fit next --law=law.json --runs=runs.csv --flops=1e13 --target_flops=1e15 --emit_sweep=configs/sweeps/next.py
python -m fit next --law=law.json --runs=runs.csv --flops=1e13 --goal=coefficients --coefficients=E_max,c
"""

import dataclasses
import json

from fit import api
from fit.asked import fields, searches
from fit.commands import flags
from fit.data.files import check_writable, write_text
from fit.errors import UserError


@dataclasses.dataclass(kw_only=True)
class Flags(searches.Next, flags.Law, flags.Columns, flags.Json):
    runs: str | None = fields.text("The table of runs that the law was fitted to.")
    emit_sweep: str | None = fields.text("Write the runs as a sweep file (.py) for launch.sweep.")
    base_config: str | None = fields.text("Config file that --emit_sweep starts from; default: the law's own.")


def run(asked: Flags) -> None:
    if asked.runs is None:
        raise UserError("--runs is missing")
    if asked.base_config is not None and asked.emit_sweep is None:
        raise UserError("--base_config is for --emit_sweep")
    law = asked.loaded()
    if asked.emit_sweep is not None:
        check_writable(asked.emit_sweep)
    found = api.next(law, asked.read(asked.runs), asked=asked)
    if asked.emit_sweep is not None:
        from fit.next_runs import next_text

        sweep = next_text.sweep_source(law, asked.architecture(law), vars(found), asked.base_config)
        write_text(asked.emit_sweep, sweep)
    print(json.dumps(vars(found), indent=1, allow_nan=False) if asked.json else found)
