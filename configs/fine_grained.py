"""Fine-grained experts at laptop size: 8 of 64 experts of an eighth of configs/quickstart.py's width.

    python -m jmoe.train --config=configs/fine_grained.py --workdir=runs/fine

It has as many active parameters as that config with --config.model.n_experts=8, and as many in total except for the
routers.
"""

import math

from ml_collections import ConfigDict

from configs import quickstart


def get_config() -> ConfigDict:
    config = quickstart.get_config()
    config.model.n_experts = 64
    config.model.top_k = 8
    config.model.d_expert = config.model.get_oneway_ref("d_model") * 3 // 8
    # the law was fitted to models with one expert per token; 8 of 64 is as sparse as 1 of 8
    config.optimizer.lr_law.constant += 0.25 * math.log(64 / 8)
    return config
