"""The models around a law's optimum: for each number of experts, whole numbers of blocks below and above the best size.

python -m launch.sweep --sweep=configs/sweeps/planned.py --workdir=DIR --dry_run

Copy it and change the law and the flags of `fit plan`. A law names its models and their config, so for one fitted to
the demo only LAW = "runs/demo/law.json" and FLAGS = ("--flops=2e12",) change.
"""

import ast
import json
import math
import runpy
import subprocess
import sys
from collections.abc import Sequence

from jmoe.config import counts

LAW = "joint-moe-2025"
FLAGS = ("--flops=1e20",)


def get_sweep(law: str = LAW, flags: Sequence[str] = FLAGS) -> tuple[str, list[dict]]:
    """Returns the config file, and a dict of overrides for each model; every model has the planned FLOPs.

    Raises:
        ValueError: if `fit plan` fails, or the law names no config.
    """
    command = [sys.executable, "-m", "fit", "plan", f"--law={law}", *flags, "--json"]
    finished = subprocess.run(command, capture_output=True, text=True)
    if finished.returncode:
        raise ValueError(finished.stderr.strip())
    plan = json.loads(finished.stdout)
    if plan["base_config"] is None:
        raise ValueError(f"{law} does not say which config its runs had")
    config = runpy.run_path(plan["base_config"])["get_config"]()
    shared = {field: ast.literal_eval(value) for field, value in plan["overrides"].items()}
    model = config.model
    jobs = []
    for optimum in plan["optima"]:
        best_n_blocks = optimum["d_model"] / plan["width_per_block"]
        for n_blocks in sorted({max(1, math.floor(best_n_blocks)), math.ceil(best_n_blocks)}):
            model.d_model = n_blocks * plan["width_per_block"]
            model.n_experts = optimum["n_experts"]
            n_tokens = round(optimum["training_flops"] / counts.training_flops(counts.n_active(model), 1))
            job = {
                "model.d_model": model.d_model,
                "model.n_experts": model.n_experts,
                "n_tokens": (n_tokens,),
                "optimizer.warmup_tokens": min(config.optimizer.warmup_tokens, n_tokens // 3),  # a third of a short run
            }
            jobs.append(shared | job)
    return plan["base_config"], jobs
