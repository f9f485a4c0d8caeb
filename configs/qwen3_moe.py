"""Qwen3-30B-A3B (Qwen Team 2025): 128 experts, 8 of them for each token, as its difference from the recipe.

    python -m jmoe.compile --config=configs/qwen3_moe.py --topology=v5p:8x8x8

The model is Qwen3's: 32 query heads of 128 with 4 key-value heads, and a norm of each head's queries and keys. 3.3B of
30.5B parameters are active. Batch, learning rate, warm-up and initial values are not published. The batch is chosen
here; the others stay those of configs/joint_moe.py.
"""

from ml_collections import ConfigDict

from configs import joint_moe


def get_config() -> ConfigDict:
    config = joint_moe.get_config()
    config.n_tokens = (36_000_000_000_000,)

    config.model.d_model = 2_048
    config.model.n_blocks = 48
    config.model.n_heads = 32
    config.model.n_kv_heads = 4
    config.model.head_dim = 128
    config.model.qk_norm = "head"
    config.model.d_ff = 768
    config.model.vocab_size = 151_936
    config.model.n_experts = 128
    config.model.top_k = 8
    config.model.group_tokens = 4_096
    config.model.rope_base = 1_000_000.0
    config.model.norm = "rms"
    config.model.final_norm = True

    config.data.seq_len = 4_096
    config.batch_tokens = ((0, 4_194_304),)

    config.mesh.expert = 8
    return config
