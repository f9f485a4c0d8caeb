"""The learning-rate study behind Eq. 10: E in {1, 4, 8, 32}, three sizes, seven rates around the paper's law.

python -m launch.sweep --sweep=configs/sweeps/lr_grid.py --workdir=DIR --backend=slurm|gke
python -m fit lr --runs=DIR/runs.csv --experts=1,8

The paper fits on E = 1 and 8, and checks the law on 4 and 32. It prints neither sizes, budgets nor the rates that it
tried, so these are ours: rates a factor of sqrt(2) apart, from 2^-1.5 to 2^1.5 times Eq. 10, with 2B tokens each.
"""

import math

from configs import joint_moe


def get_sweep() -> tuple[str, dict]:
    """Returns the config file, and a grid of which every combination is a job."""
    constant = joint_moe.get_config().optimizer.lr_law.constant
    return "configs/joint_moe.py", {
        "model.d_model": (512, 640, 768),
        "model.n_experts": (1, 4, 8, 32),
        "optimizer.lr_law.constant": tuple(constant + 0.5 * k * math.log(2) for k in range(-3, 4)),
        "n_tokens": ((2_000_000_000,),),
    }
