"""The models around a law's optimum: for each number of experts, those of whole blocks below and above the best size.

python -m launch.sweep --sweep=configs/sweeps/planned.py --workdir=DIR --dry_run

Copy it and change the law, the flags of `fit plan` and the config. For a law fitted to the demo: LAW =
"runs/demo/law.json", FLAGS = ("--flops=2e12", "--vocab_size=257", "--width_per_block=8", "--experts=1,2,4,8"), and
quickstart in place of joint_moe.
"""

import json
import math
import subprocess
import sys

from configs import joint_moe as base
from jmoe import counts

LAW = "joint-moe-2025"
FLAGS = ("--flops=1e20", "--experts=1,2,4,8,16,32")
CONFIG = "configs/joint_moe.py"


def get_sweep():
    """(config file, one dict of overrides for each model), every model with the planned FLOPs."""
    plan = subprocess.run(
        [sys.executable, "-m", "fit", "plan", f"--law={LAW}", *FLAGS, "--json"], capture_output=True, text=True
    )
    if plan.returncode:
        raise ValueError(plan.stderr.strip())
    model = base.get_config().model
    per_block = model.d_model // model.n_blocks
    jobs = []
    for optimum in json.loads(plan.stdout)["optima"]:
        blocks = optimum["d_model"] / per_block
        for n_blocks in sorted({max(1, math.floor(blocks)), math.ceil(blocks)}):
            model.d_model, model.n_experts = n_blocks * per_block, optimum["n_experts"]
            n_tokens = round(optimum["training_flops"] / counts.training_flops(model, 1))
            jobs.append({"model.d_model": model.d_model, "model.n_experts": model.n_experts, "n_tokens": (n_tokens,)})
    return CONFIG, jobs
