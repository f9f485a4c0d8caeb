"""The best n_active, n_tokens and n_experts for a law under constraints, and the best model that can be built.

python -m fit plan --law=joint-moe-2025 --flops=1e22 --memory_gb=80 --kv_tokens=16384
python -m fit plan --law=joint-moe-2025 --chips=H100:64 --hours=240 --dollars_per_hour=2.5 --max_tokens=2e10 --epochs=4
python -m fit plan --law=joint-moe-2025 --target_loss=2.1 --inference_tokens=1e12
python -m fit plan --law=sparsity-2025 --flops=1e21 --memory_gb=80 --used=1,2,4 --kv_share=0.25
"""

import json

from fit.commands import flags
from fit.data.table import write_text
from fit.errors import UserError
from fit.planning import cost, plan_config, plan_text, repeats, target
from fit.planning.planning import plan as solved
from fit.words import sentences

FLAGS = (
    ("float", "target_loss", None, "Loss to reach with the fewest FLOPs of training and --inference_tokens."),
    ("bool", "json", False, "Print the plan as JSON."),
    ("string", "emit_config", None, "Write a training config of the best buildable model to this file (.py)."),
    ("string", "base_config", None, "Config file that --emit_config starts from; default: the law's own."),
)


def define_flags(f):
    flags.define(f, FLAGS)
    flags.define_law(f)
    flags.define_constraints(f)
    flags.define_chips(f)
    flags.define_shape(f)
    flags.define_architecture(f)


def planned(f, law):
    """The (law, plan) that the flags ask for; with --epochs the law becomes that of repeated text. With several
    architectures, the plan is that of the best and lists the results of all."""
    made, architectures = [], flags.architectures_of(f, law)
    for architecture in architectures:
        try:
            made.append((architecture, *_planned(f, law, architecture)))
        except UserError as error:  # another of the architectures may be feasible
            refused = error
    if not made:
        raise refused
    cost = lambda plan: plan["target"]["best"]["flops"] if "target" in plan else plan["best"]["loss"]
    _, law, plan = min(made, key=lambda one: cost(one[2]))
    if len(architectures) > 1:
        names = ("n_experts", "n_active", "n_total", "n_tokens", "loss")
        rows = [dict(used=getattr(a, "used", 1.0)) | {name: p["best"][name] for name in names} for a, _, p in made]
        plan["architectures"] = sorted(rows, key=lambda row: row["used"])
        plan.setdefault("used", 1.0)  # the law's own architecture does not say it
    return law, plan


def _planned(f, law, architecture):
    experts = flags.experts_of(f, law)
    chips = flags.chips_of(f, experts)
    constraints, loss, reached = flags.constraints_of(f, chips), flags.positive(f, "target_loss"), None
    if constraints.epochs is not None:
        law = repeats.of_law(law, constraints.max_tokens, *([0] if loss is not None else []))  # a target is met exactly
    if loss is not None:
        if constraints.flops is not None:
            raise UserError(sentences.TARGET_OR_BUDGET)
        constraints, reached = target.reach(law, architecture, constraints, experts, loss, chips)
    try:
        plan = solved(law, architecture, constraints, experts)
    except UserError as error:
        raise UserError(_as_given(f, str(error))) from None
    for row in plan["infeasible"]:
        row["why"] = _as_given(f, row["why"])
    if reached is not None:
        plan["target"] = reached | dict(front=target.front(law, architecture, constraints, experts, chips))
    if constraints.epochs is not None:
        repeats.add_to(plan, law, architecture, constraints, experts)
    if chips is not None:
        cost.add_to(plan, law, architecture, constraints, experts)
    return law, plan


def _as_given(f, sentence):
    """The sentence with the flags --hours and --chips in place of --flops, if the budget came from those."""
    return sentence if f.hours is None else sentence.replace("--flops", f"--hours={f.hours:g} of --chips={f.chips}", 1)


def run(f):
    law, plan = planned(f, flags.law_of(f))
    if f.emit_config is None and f.base_config is not None:
        raise UserError("--base_config is for --emit_config")
    if f.emit_config is not None:
        write_text(f.emit_config, plan_config.source(law, plan, f.base_config))
    print(json.dumps(plan, indent=1, allow_nan=False) if f.json else plan_text.text(plan))
