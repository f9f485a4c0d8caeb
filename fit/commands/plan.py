"""The best n_active, n_tokens and n_experts for a law under constraints, and the best model that can be built.

python -m fit plan --law=joint-moe-2025 --flops=1e22 --memory_gb=80 --kv_tokens=16384
"""

import json

from absl import flags

from fit import UserError, lawfile, plan_config, plan_text, planning
from fit import architecture as architecture_lib
from fit import runs as runs_lib


def define_flags(f):
    flags.DEFINE_string("law", None, "A law.json, or the name of a published law.", flag_values=f)
    flags.DEFINE_bool("json", False, "Print the plan as JSON.", flag_values=f)
    flags.DEFINE_string(
        "emit_config", None, "Write a training config of the best buildable model to this file (.py).", flag_values=f
    )
    flags.DEFINE_string(
        "base_config", None, "Config file that --emit_config starts from; default: the law's own.", flag_values=f
    )
    planning.define_flags(f)


def run(f):
    if f.law is None:
        raise UserError("--law is missing: a law.json, or one of " + ", ".join(lawfile.PRESETS))
    fitted = lawfile.load(f.law)
    constraints, experts = planning.constraints_of(f), planning.experts_of(f, fitted)
    plan = planning.plan(fitted, architecture_lib.from_flags(f, fitted), constraints, experts)
    if f.emit_config is None and f.base_config is not None:
        raise UserError("--base_config is for --emit_config")
    if f.emit_config is not None:
        runs_lib.write_text(f.emit_config, plan_config.source(fitted, plan, f.base_config))
    print(json.dumps(plan, indent=1, allow_nan=False) if f.json else plan_text.text(plan))
