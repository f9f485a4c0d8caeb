"""Fine-grained experts at laptop size: 8 of 64 experts of an eighth of configs/quickstart.py's width.

    python -m jmoe.train --config=configs/fine_grained.py --workdir=runs/fine

As many parameters are active, and as many in all but for the routers, as with --config.model.n_experts=8 there.
"""

import math

from configs import quickstart


def get_config():
    config = quickstart.get_config()
    config.model.n_experts = 64
    config.model.top_k = 8
    config.model.d_expert = config.model.get_oneway_ref("d_model") * 3 // 8
    # the law was fitted to one choice of E experts; 8 of 64 is as sparse as 1 of 8
    config.optimizer.lr_law.constant += 0.25 * math.log(64 / 8)
    return config
