"""OLMoE-1B-7B (Muennighoff et al. 2024): 64 experts, 8 of them for each token, as its difference from the recipe.

    python -m jmoe.compile --config=configs/olmoe.py --topology=v5p:4x4x4

The model is OLMoE's, with its norms of queries and keys over the whole projection. 1.3B of 6.9B parameters are active.
Learning rate, warm-up, initial values and epsilon of the norms stay those of configs/joint_moe.py.
"""

from ml_collections import ConfigDict

from configs import joint_moe


def get_config() -> ConfigDict:
    config = joint_moe.get_config()
    config.n_tokens = (5_000_000_000_000,)

    config.model.d_model = 2_048
    config.model.n_blocks = 16
    config.model.n_heads = 16
    config.model.d_ff = 1_024
    config.model.vocab_size = 50_304
    config.model.n_experts = 64
    config.model.top_k = 8
    config.model.normalize_gates = False
    config.model.capacity_factor = None  # no token is dropped
    config.model.group_tokens = 4_096
    config.model.norm = "rms"
    config.model.final_norm = True
    config.model.qk_norm = "projection"

    config.data.seq_len = 4_096
    config.batch_tokens = ((0, 4_194_304),)
    return config
