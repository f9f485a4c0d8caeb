"""A model with the layers of DeepSeek-V3 (DeepSeek-AI 2024) except its attention, as its difference from the recipe.

    python -m jmoe.compile --config=configs/deepseek_v3_like.py --topology=v5p:8x8x16

Three dense blocks come first, then 58 blocks of 256 experts. A token uses 8 of them and a shared one. Scores are
sigmoids, balanced by a bias and not by a loss. Attention is this trainer's: 128 query heads of 128 share 8 key-value
heads, where DeepSeek-V3 computes all from one latent vector of 512. So 41B of 675B parameters are active, against 37B
of 671B. Three things are left out: the factor of 2.5 on the experts' outputs, the limit on the machines that a token is
sent to, and the prediction of a second token.
"""

from ml_collections import ConfigDict

from configs import joint_moe


def get_config() -> ConfigDict:
    config = joint_moe.get_config()
    config.n_tokens = (14_800_000_000_000,)

    config.model.d_model = 7_168
    config.model.n_blocks = 61
    config.model.n_dense_blocks = 3
    config.model.n_heads = 128
    config.model.n_kv_heads = 8
    config.model.head_dim = 128
    config.model.d_ff = 18_432
    config.model.d_expert = 2_048
    config.model.n_shared_experts = 1
    config.model.vocab_size = 129_280
    config.model.n_experts = 256
    config.model.top_k = 8
    config.model.scores = "sigmoid"
    config.model.balance = "bias"
    config.model.group_tokens = 4_096
    config.model.norm = "rms"
    config.model.final_norm = True

    config.data.seq_len = 4_096
    config.batch_tokens = ((0, 62_914_560),)  # 15,360 rows
    config.microbatch_tokens = 12_582_912  # less memory, the same mathematics

    config.mesh.expert = 64
    return config
