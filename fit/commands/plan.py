"""The best n_active, n_tokens and n_experts for a law under constraints, and the best model that can be built.

python -m fit plan --law=joint-moe-2025 --flops=1e22 --memory_gb=80 --kv_tokens=16384
"""

import json

from fit import UserError, plan_config, plan_text
from fit.commands import flags
from fit.planning import plan as solved
from fit.table import write_text

FLAGS = (
    ("bool", "json", False, "Print the plan as JSON."),
    ("string", "emit_config", None, "Write a training config of the best buildable model to this file (.py)."),
    ("string", "base_config", None, "Config file that --emit_config starts from; default: the law's own."),
)


def define_flags(f):
    flags.define(f, FLAGS)
    flags.define_law(f)
    flags.define_constraints(f)
    flags.define_shape(f)


def planned(f, law):
    """(law, plan) that the flags ask for of this law."""
    constraints, experts = flags.constraints_of(f), flags.experts_of(f, law)
    return law, solved(law, flags.shape_of(f, law), constraints, experts)


def run(f):
    law, plan = planned(f, flags.law_of(f))
    if f.emit_config is None and f.base_config is not None:
        raise UserError("--base_config is for --emit_config")
    if f.emit_config is not None:
        write_text(f.emit_config, plan_config.source(law, plan, f.base_config))
    print(json.dumps(plan, indent=1, allow_nan=False) if f.json else plan_text.text(plan))
