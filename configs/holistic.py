"""The setting of Holistic Scaling Laws (Wan et al. 2026, App. F.1), as its difference from the recipe.

A token uses 8 of 288 routed experts and one shared expert; the first block is dense; rows have 8,192 tokens. The model
is the one that checks the laws, with 23M active and 552M parameters without the embedding;
configs/sweeps/holistic_phase1.py has the others. The paper is arXiv 2603.21862.

Its text and tokenizer are not public: give a tokenizer.json of up to 152,064 tokens by --config.data.tokenizer. What
the paper does not print is chosen here: the tokens of warmup, the share of the decay, RMSNorm, dropless routing.
"""

import math

from ml_collections import ConfigDict

from configs import joint_moe


def get_config() -> ConfigDict:
    config = joint_moe.get_config()
    config.n_tokens = (3_742_000_000,)

    model = config.model
    model.d_model = 512
    model.n_blocks = 8
    model.n_dense_blocks = 1
    model.n_heads = 4
    model.n_kv_heads = 2
    model.head_dim = 64
    model.vocab_size = 152_064
    model.n_experts = 288
    model.top_k = 8
    model.n_shared_experts = 1
    model.d_expert = 176
    model.capacity_factor = None
    model.group_tokens = 8_192
    model.norm = "rms"
    model.final_norm = True

    config.data.seq_len = 8_192
    config.batch_tokens = ((0, 64 * 8_192),)
    optimizer = config.optimizer
    optimizer.lr_law.constant = math.log(1.2e-3)  # one rate for each budget, for all models
    optimizer.lr_law.n_active = 0.0
    optimizer.lr_law.n_experts = 0.0
    optimizer.warmup_tokens = 100_000_000
    optimizer.b2 = 0.95
    optimizer.grad_clip = 1.0
    return config
