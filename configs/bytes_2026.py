"""The models of results/: bytes, rows of 128, groups and batches of 4,096 tokens, blocks of width 24.

    python -m results.text --out=runs/bytes_2026/text.parquet
    python -m jmoe.train --config=configs/bytes_2026.py --workdir=runs/one --config.model.n_experts=16

The recipe of configs/joint_moe.py except for two things: the norm before the head, as in configs/quickstart.py, and the
weight of the load-balancing loss.
"""

from ml_collections import ConfigDict

from configs import quickstart


def get_config() -> ConfigDict:
    config = quickstart.get_config()
    config.n_tokens = (2_097_152, 4_194_304)

    config.model.d_model = 48
    config.model.n_blocks = config.model.get_oneway_ref("d_model") // 24
    config.model.n_heads = config.model.get_oneway_ref("d_model") // 24
    config.model.group_tokens = 4_096

    config.data.path = "runs/bytes_2026/text.parquet"
    config.data.fingerprint = "8555333d92c1d2f4"
    config.data.validation_tokens = 1_048_576
    config.batch_tokens = ((0, 4_096),)
    # the recipe's 0.01 drops 12% of the tokens at E = 16 and 4M tokens, 0.03 drops 9%, 0.1 drops 8% for 0.01 nats more
    config.loss.load_balance = 0.03
    config.optimizer.warmup_tokens = 262_144

    config.log_every = 20
    config.checkpoint_every = 1_000
    return config
