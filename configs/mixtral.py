"""Mixtral-8x7B (Jiang et al. 2024), as its difference from the recipe of configs/joint_moe.py.

    python -m jmoe.compile --config=configs/mixtral.py --topology=v5p:8x8x8

The model is Mixtral's: 2 of 8 experts for each token, and 32 query heads of 128 with 8 key-value heads. Rows have 4,096
tokens instead of its 32,768. 12.9B of 46.7B parameters are active. Batch, learning rate, warm-up and initial values are
not published. The batch is chosen here; the others stay those of configs/joint_moe.py.
"""

from ml_collections import ConfigDict

from configs import joint_moe


def get_config() -> ConfigDict:
    config = joint_moe.get_config()
    config.n_tokens = (1_000_000_000_000,)

    config.model.d_model = 4_096
    config.model.n_blocks = 32
    config.model.n_heads = 32
    config.model.n_kv_heads = 8
    config.model.d_ff = 14_336
    config.model.vocab_size = 32_000
    config.model.n_experts = 8
    config.model.top_k = 2
    config.model.group_tokens = 4_096
    config.model.rope_base = 1_000_000.0
    config.model.norm = "rms"
    config.model.final_norm = True

    config.data.seq_len = 4_096
    config.batch_tokens = ((0, 2_097_152),)

    config.mesh.expert = 8
    return config
