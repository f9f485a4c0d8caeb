"""A model of Mixtral-8x7B's size (Jiang et al. 2024), as its difference from the recipe of configs/joint_moe.py.

    python -m jmoe.compile --config=configs/mixtral.py --topology=v5p:8x8x8

The size is Mixtral's, the mathematics this trainer's: top-1 where Mixtral chooses 2 of 8 experts, 32 heads of keys and
values where it shares 8 (grouped-query attention), rows of 4,096 tokens. So 8.0B parameters are active and 47.5B in
all, against Mixtral's 12.9B and 46.7B.
"""

from configs import joint_moe


def get_config():
    config = joint_moe.get_config()
    config.n_tokens = (1_000_000_000_000,)

    config.model.d_model = 4_096
    config.model.n_blocks = 32
    config.model.n_heads = 32
    config.model.d_ff = 14_336
    config.model.vocab_size = 32_000
    config.model.n_experts = 8
    config.model.group_tokens = 4_096
    config.model.rope_base = 1_000_000.0

    config.data.seq_len = 4_096
    config.batch_tokens = ((0, 2_097_152),)

    config.mesh.expert = 8
    return config
