"""configs/bytes_2026.py with the learning rates that configs/sweeps/bytes_2026_lr.py found best.

    python -m jmoe.train --config=configs/bytes_2026_tuned.py --workdir=runs/one --config.model.n_experts=16

`python -m fit lr` of that sweep's 32 runs gave the law. It has no tokens in it: four times as many moved the best rate
by 4%.
"""

from configs import bytes_2026


def get_config():
    config = bytes_2026.get_config()
    config.optimizer.lr_law.constant = 2.8736
    config.optimizer.lr_law.n_active = -0.67326
    config.optimizer.lr_law.n_experts = -0.030432
    return config
