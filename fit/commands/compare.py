"""What several laws answer to one budget, each against its own best dense model, and what they agree on.

python -m fit compare --flops=1e22 --memory_gb=80
python -m fit compare --flops=1e22 --memory_gb=80 --laws=joint-moe-2025,law.json --json
"""

import dataclasses
import json

from fit import api
from fit.asked import fields, plans
from fit.commands import flags
from fit.errors import UserError
from fit.planning.compare import LAWS


@dataclasses.dataclass(kw_only=True)
class Flags(plans.Compare, flags.Json):
    laws: tuple[str, ...] = fields.several("Laws to compare: names of published laws, or law.json files.", LAWS)


def run(asked: Flags) -> None:
    if not asked.laws or not all(asked.laws):
        raise UserError(f"--laws={','.join(asked.laws)}: expected laws separated by commas")
    found = api.compare(asked.laws, asked=asked)
    print(json.dumps(vars(found), indent=1, allow_nan=False) if asked.json else found)
