"""The models around a law's optimum: for each number of experts, those of whole blocks below and above the best size.

python -m launch.sweep --sweep=configs/sweeps/planned.py --workdir=DIR --dry_run

Copy it and change the law and the flags of `fit plan`. The law knows its models and their config: for one fitted to the
demo, LAW = "runs/demo/law.json" and FLAGS = ("--flops=2e12",) are all that changes.
"""

import ast
import json
import math
import runpy
import subprocess
import sys

from jmoe.config import counts

LAW = "joint-moe-2025"
FLAGS = ("--flops=1e20",)


def get_sweep(law=LAW, flags=FLAGS):
    """(config file, one dict of overrides for each model), every model with the planned FLOPs."""
    plan = subprocess.run(
        [sys.executable, "-m", "fit", "plan", f"--law={law}", *flags, "--json"], capture_output=True, text=True
    )
    if plan.returncode:
        raise ValueError(plan.stderr.strip())
    plan = json.loads(plan.stdout)
    if plan["base_config"] is None:
        raise ValueError(f"{law} does not say which config its runs had")
    config = runpy.run_path(plan["base_config"])["get_config"]()
    shared = {field: ast.literal_eval(value) for field, value in plan["overrides"].items()}
    model, jobs = config.model, []
    for optimum in plan["optima"]:
        blocks = optimum["d_model"] / plan["width_per_block"]
        for n_blocks in sorted({max(1, math.floor(blocks)), math.ceil(blocks)}):
            model.d_model, model.n_experts = n_blocks * plan["width_per_block"], optimum["n_experts"]
            n_tokens = round(optimum["training_flops"] / counts.training_flops(counts.n_active(model), 1))
            shape = {"model.d_model": model.d_model, "model.n_experts": model.n_experts, "n_tokens": (n_tokens,)}
            warmup = min(config.optimizer.warmup_tokens, n_tokens // 3)  # a third of a short run
            jobs.append(shared | shape | {"optimizer.warmup_tokens": warmup})
    return plan["base_config"], jobs
