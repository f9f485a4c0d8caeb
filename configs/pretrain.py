"""A recipe for models beyond the paper's sizes, 100M active parameters and up, as published models are trained today.

    python -m fit plan --law=joint-moe-2025 --chips=H100:64 --hours=240 --emit_config=planned.py
    python -m jmoe.train --config=planned.py --workdir=DIR

A plan's config starts from this one and sets shape, tokens, batches, warm-up and peak learning rate. The model here is
dense and has 1.2B parameters, with 20 tokens for each. What is not set here is as in configs/joint_moe.py.

Sources: OLMoE (Muennighoff et al. 2024, arXiv 2409.02060, and its config), OLMo 2 (2025, arXiv 2501.00656, and its
configs), Qwen3 (2025, arXiv 2505.09388), DeepSeek LLM (2024, arXiv 2401.02954), DeepSeek-V3 (2024, arXiv 2412.19437),
Llama 3 (2024, arXiv 2407.21783), Kimi K2 (2025, arXiv 2507.20534), marin (marin-community/marin, experiments/tootsie).
"""

import math

from ml_collections import ConfigDict

from configs import joint_moe


def get_config() -> ConfigDict:
    config = joint_moe.get_config()
    config.n_tokens = (25_000_000_000,)

    config.model.d_model = 2_048  # 16 blocks of 2,048: OLMoE; 16 heads of 128: Qwen3-1.7B
    config.model.n_blocks = 16
    config.model.n_heads = 16
    config.model.n_kv_heads = 8  # grouped queries with 8 key-value heads: Llama 3, Qwen3-1.7B to 32B
    config.model.head_dim = 128  # Llama 3, Qwen3, OLMoE
    config.model.d_ff = 8_192  # 4 d_model: Llama 3.2 1B
    config.model.vocab_size = 50_304  # GPT-2's 50,257 padded to a multiple of 128: OLMoE
    config.model.norm = "rms"  # all of the sources
    config.model.final_norm = True  # all of the sources
    config.model.qk_norm = "head"  # Qwen3; OLMoE norms the whole projection
    config.model.rope_base = 500_000.0  # Llama 3, OLMo 2; Qwen3 1,000,000 for long rows
    config.model.init_scale = 0.1  # std of sqrt(0.1 / 2,048) = 0.007 here; DeepSeek LLM and DeepSeek-V3 0.006
    config.model.dtype = "bfloat16"  # OLMoE, OLMo 2; DeepSeek-V3 fp8
    config.model.attention = "flash"  # OLMoE, OLMo 2: the exact attention, computed in pieces
    config.model.capacity_factor = 1.0  # as in the law's runs; OLMoE and DeepSeek-V3 drop nothing: None, and slower
    config.model.group_tokens = 4_096  # one row

    config.loss.load_balance = 0.01  # OLMoE
    config.loss.router_z = 0.001  # OLMoE

    config.data.seq_len = 4_096  # OLMoE, OLMo 2, Qwen3, DeepSeek-V3, Kimi K2
    # 524,288 tokens by the laws of fit/planning; DeepSeek-V3 raises its batch over the first 3% of its tokens
    config.batch_tokens = ((0, 131_072), (400_000_000, 262_144), (800_000_000, 524_288))

    # one peak rate, by the laws of fit/planning/recipe/rates.py, in place of Eq. 10, a law of sizes
    config.optimizer.lr_law.constant = math.log(9.09e-4)
    config.optimizer.lr_law.n_active = 0.0
    config.optimizer.lr_law.n_experts = 0.0
    config.optimizer.warmup_tokens = 262_144_000  # 2,000 steps: OLMoE, OLMo 2, DeepSeek LLM, DeepSeek-V3
    config.optimizer.decay_fraction = 0.2  # linear, after a constant rate: marin 0.4, Kimi K2 0.35, the paper 0.2
    config.optimizer.b1 = 0.9  # OLMoE, OLMo 2, DeepSeek-V3
    config.optimizer.b2 = 0.95  # OLMoE, OLMo 2, DeepSeek-V3, marin
    config.optimizer.weight_decay = 0.1  # OLMoE, OLMo 2, DeepSeek-V3, Kimi K2
    config.optimizer.grad_clip = 1.0  # OLMoE, OLMo 2, DeepSeek-V3

    config.checkpoint_minutes = 15.0  # docs/guides/a-week-on-a-cluster.md
    return config
