"""The best n_active, n_tokens and n_experts for a law under constraints, and the best model that can be built.

python -m fit plan --law=joint-moe-2025 --flops=1e22 --memory_gb=80 --kv_tokens=16384
python -m fit plan --law=joint-moe-2025 --chips=H100:64 --hours=240 --dollars_per_hour=2.5 --max_tokens=2e10 --epochs=4
python -m fit plan --law=joint-moe-2025 --target_loss=2.1 --inference_tokens=1e12
python -m fit plan --law=sparsity-2025 --flops=1e21 --memory_gb=80 --used=1,2,4 --kv_share=0.25
"""

import dataclasses
import json

from fit import api
from fit.asked import fields, plans
from fit.commands import flags
from fit.data.files import write_text
from fit.errors import UserError
from fit.planning import plan_config


@dataclasses.dataclass(kw_only=True)
class Flags(plans.Plan, flags.Law, flags.Json):
    emit_config: str | None = fields.text("Write a training config of the best buildable model to this file (.py).")
    base_config: str | None = fields.text("Config file that --emit_config starts from; default: the law's own.")


def run(asked: Flags) -> None:
    law = asked.loaded()
    plan = api.plan(law, asked=asked)
    if asked.emit_config is None and asked.base_config is not None:
        raise UserError("--base_config is for --emit_config")
    if asked.emit_config is not None:
        write_text(asked.emit_config, plan_config.source(law, vars(plan), asked.base_config))
    print(json.dumps(vars(plan), indent=1, allow_nan=False) if asked.json else plan)
