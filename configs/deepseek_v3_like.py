"""A model with the layers of DeepSeek-V3 (DeepSeek-AI 2024) but for its attention, as its difference from the recipe.

    python -m jmoe.compile --config=configs/deepseek_v3_like.py --topology=v5p:8x8x16

Three dense blocks, then 58 of 256 experts, of which a token takes 8 and one more that is shared; sigmoid scores,
balanced by a bias and not by a loss. Attention is this trainer's: 128 heads of 128 that share 8 of keys and values,
where DeepSeek-V3 makes them all out of one latent vector of 512. So 41B of 675B parameters are active against its 37B
of 671B. Neither its factor of 2.5 on what the experts give, nor its limit on the machines that a token is sent to, nor
its prediction of a second token is here.
"""

from configs import joint_moe


def get_config():
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
