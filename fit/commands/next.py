"""Which runs to train next, so that a law's answer becomes surer: the best set within a budget of training FLOPs.

python -m fit next --law=law.json --runs=runs.csv --flops=1e13 --target_flops=1e15 --emit_sweep=configs/sweeps/next.py
python -m fit next --law=law.json --runs=runs.csv --flops=1e13 --goal=coefficients --coefficients=E_max,c
"""

import json

from fit.commands import flags
from fit.data.table import check_writable, write_text
from fit.errors import UserError

FLAGS = (
    ("string", "runs", None, "The table of runs that the law was fitted to."),
    ("float", "flops", None, "Training FLOPs to spend; a trunk that branches share is counted once."),
    (
        "enum",
        "goal",
        "plan",
        ["plan", "coefficients"],
        "What the runs should make surer: loss and best number of experts at --target_flops, or --coefficients.",
    ),
    ("float", "target_flops", None, "With --goal=plan: training FLOPs of the plan to make surer."),
    ("list", "coefficients", None, "Names of the law's coefficients. Default: all that the fit did not hold fixed."),
    ("list", "experts", None, "Numbers of experts to train and to compare. Default: those fitted."),
    ("string", "emit_sweep", None, "Write the runs as a sweep file (.py) for launch.sweep."),
    ("string", "base_config", None, "Config file that --emit_sweep starts from; default: the law's own."),
    ("bool", "json", False, "Print the result as JSON."),
)


def define_flags(f):
    flags.define(f, FLAGS)
    flags.define_law(f)
    flags.define_columns(f)
    flags.define_shape(f)


def goal_of(f, law):
    """The Goal that the flags ask for; UserError where they do not go together or name no coefficient of the law."""
    from fit.next_runs.next_runs import Goal

    if f.goal == "plan":
        if f.coefficients is not None:
            raise UserError("--coefficients is for --goal=coefficients")
        if f.target_flops is None:
            raise UserError("--target_flops is missing: the training FLOPs of the plan that matters")
        return Goal("plan", flags.positive(f, "target_flops"))
    if f.target_flops is not None:
        raise UserError("--target_flops is for --goal=plan")
    fixed = (law.record.get("settings") or {}).get("fix") or {}
    free = [name for name in law.form.names if name not in fixed]
    names = tuple(dict.fromkeys(free if f.coefficients is None else f.coefficients))
    if unknown := [name for name in names if name not in free]:
        raise UserError(
            f"--coefficients={','.join(f.coefficients)}: found {unknown[0]!r}, expected some of {', '.join(free)}"
        )
    return Goal("coefficients", None, names)


def run(f):
    for name in ("runs", "flops"):
        if f[name].value is None:
            raise UserError(f"--{name} is missing")
    if f.base_config is not None and f.emit_sweep is None:
        raise UserError("--base_config is for --emit_sweep")
    law = flags.law_of(f)
    flops, goal, experts = flags.positive(f, "flops"), goal_of(f, law), flags.experts_of(f, law)
    architecture = flags.shape_of(f, law)
    if f.emit_sweep is not None:
        check_writable(f.emit_sweep)
    from fit.next_runs import next_runs, next_text

    found = next_runs.next_runs(law, f.runs, architecture, experts, flops, goal, flags.columns_of(f))
    if f.emit_sweep is not None:
        write_text(f.emit_sweep, next_text.sweep_source(law, architecture, found, f.base_config))
    print(json.dumps(found, indent=1, allow_nan=False) if f.json else next_text.text(found))
