"""The setting of Holistic Scaling Laws (Wan et al. 2026, arXiv 2603.21862, App. F.1), as its difference from
configs/joint_moe.py: 288 routed experts of which a token uses 8, one shared, a dense block before them, rows of 8,192.

The model is the laws' check, of 23M active and 552M parameters without the embedding; sweeps/holistic_phase1.py has the
others. Their text and tokenizer are not public: give a tokenizer.json of up to 152,064 tokens, --config.data.tokenizer.
What the paper does not print is ours: tokens of warmup, the share of the decay, RMSNorm, dropless routing.
"""

import math

from configs import joint_moe


def get_config():
    config = joint_moe.get_config()
    config.n_tokens = (3_742_000_000,)

    model = config.model
    model.d_model = 512
    model.n_blocks = 8
    model.n_dense_blocks = 1
    model.n_heads, model.n_kv_heads, model.head_dim = 4, 2, 64
    model.vocab_size = 152_064
    model.n_experts, model.top_k, model.n_shared_experts = 288, 8, 1
    model.d_expert = 176
    model.capacity_factor = None
    model.group_tokens = 8_192
    model.norm, model.final_norm = "rms", True

    config.data.seq_len = 8_192
    config.batch_tokens = ((0, 64 * 8_192),)
    optimizer = config.optimizer
    optimizer.lr_law.constant = math.log(1.2e-3)  # a rate for each budget, whatever the model
    optimizer.lr_law.n_active = optimizer.lr_law.n_experts = 0.0
    optimizer.warmup_tokens = 100_000_000
    optimizer.b2 = 0.95
    optimizer.grad_clip = 1.0
    return config
