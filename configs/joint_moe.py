"""The recipe of Joint MoE Scaling Laws (Ludziejewski et al., ICML 2025, Sec. 5.1 and App. A), at the paper's sizes.

One model of App. H, trunk and branches (d_model 512, E = 8: 79M active, 211M in total):

    python -m jmoe.train --config=configs/joint_moe.py --workdir=DIR \\
        --config.model.d_model=512 --config.model.n_experts=8 \\
        --config.n_tokens='(500_000_000, 1_000_000_000, 2_000_000_000)'

n_blocks = n_heads = d_model / 64 and d_ff = 3 d_model follow from d_model. Everything is counted in tokens. GPT-2's
vocabulary is downloaded once; without the net give its file, --config.data.tokenizer=/PATH/vocab.bpe, or try bytes.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.seed = 0
    config.n_tokens = (2_000_000_000,)  # training budgets: they share a trunk, and each has a decay branch

    config.model = model = ConfigDict()
    model.d_model = 512
    model.n_blocks = model.get_oneway_ref("d_model") // 64
    model.n_heads = model.get_oneway_ref("d_model") // 64
    model.n_kv_heads = 0  # key-value heads, each shared by n_heads / n_kv_heads query heads; 0: n_heads
    model.head_dim = 0  # 0: d_model / n_heads
    model.qk_norm = "none"  # RMSNorm of queries and keys before RoPE, over each "head" as in Qwen3, or over the whole
    # "projection" as in OLMoE
    model.d_ff = model.get_oneway_ref("d_model") * 3
    model.vocab_size = 50_257
    model.n_experts = 1
    model.top_k = 1  # experts that a token chooses
    model.normalize_gates = True  # divide a token's gates by their sum if it chooses more than one expert
    model.d_expert = 0  # width of an expert; 0: d_ff
    model.n_shared_experts = 0  # experts that every token uses, besides those that it chooses
    model.n_dense_blocks = 0  # how many of n_blocks, from the first, have a dense layer of d_ff, not a mixture
    model.scores = "softmax"  # or "sigmoid": how the router turns its logits into scores
    model.balance = "loss"  # how to balance the experts' load: "loss" adds loss.load_balance times a loss, "bias"
    # adds a bias to the scores for the choice, and no loss
    model.capacity_factor = 1.0  # training; None: nothing is dropped, which takes more time; evaluation drops nothing
    model.group_tokens = 8_192  # tokens that share one capacity; part of the model, independent of the mesh
    model.rope_base = 10_000.0
    model.init_scale = 0.1
    model.norm = "layer"  # LayerNorm with bias, as in the authors' code; or "rms"
    model.final_norm = False  # an RMSNorm before the head; the authors' code has none
    model.tied_embeddings = False  # True: the head is the transposed embedding
    model.dtype = "bfloat16"  # attention, RoPE, router and norms stay float32
    model.attention = "float32"  # "flash": the backend's attention kernel, with inputs rounded to bfloat16

    config.loss = ConfigDict()
    config.loss.load_balance = 0.01
    config.loss.router_z = 0.001

    config.data = data = ConfigDict()
    data.path = ""  # empty: Python's standard library; else a glob of .txt, .jsonl or .parquet, a folder that
    # jmoe.prepare made, or tfds:NAME/CONFIG:SPLIT
    data.validation_path = ""  # files or TFDS; empty: 1% of the text, held out by hash
    data.validation_sets = ""  # more text to evaluate on, each under its name: "books=DIR/books/*.txt;code=DIR/code"
    data.text_field = "text"  # field with the text in .jsonl, .parquet and TFDS
    data.tokenizer = "gpt2"  # or "bytes", or the path of a tokenizer.json or of GPT-2's own vocab.bpe
    data.end_of_text = ""  # the token that ends a document, if a tokenizer.json does not make that clear
    data.fingerprint = ""  # the only corpus to accept; empty: any
    data.seq_len = 512
    data.validation_tokens = 1_048_576
    data.max_epochs = 1.0  # how many times the training text may be read; laws assume at most once
    data.on_bad_document = "fail"  # stop and name what is not text (not UTF-8, null); "skip" omits and counts it

    config.batch_tokens = ((0, 65_536), (500_000_000, 131_072), (1_000_000_000, 262_144))  # (from token, batch)
    config.microbatch_tokens = 0  # tokens processed at once, to save memory; a batch's gradients are summed; 0: all

    config.optimizer = optimizer = ConfigDict()
    # Eq. 10: peak = exp(constant + n_active ln(n_active) + n_experts ln(n_experts)), unrounded as in the authors' code
    optimizer.lr_law = ConfigDict()
    optimizer.lr_law.constant = 8.391640956234012
    optimizer.lr_law.n_active = -0.8121798244457074
    optimizer.lr_law.n_experts = -0.25
    optimizer.warmup_tokens = 130_000_000
    optimizer.decay_fraction = 0.2  # last part of each budget, over which the rate falls linearly to zero
    optimizer.b1 = 0.9
    optimizer.b2 = 0.999
    optimizer.weight_decay = 0.1
    optimizer.bias_rate = 0.001  # with model.balance = "bias": what a step adds to or takes from an expert's bias
    optimizer.grad_clip = 0.1

    config.mesh = ConfigDict()
    config.mesh.expert = 1  # devices that share one copy of the experts
    config.mesh.model = 1  # devices that share each head and expert; the rest are data parallel
    config.remat = "full"  # what the backward pass recomputes: "none", "dots" (all but matmuls) or "full"
    config.unroll = False  # True: compile each layer separately; compiling takes longer, and steps move less memory

    config.chip = ConfigDict()  # of one device, if jmoe/cost/chips.py does not list it or you know better; 0: as listed
    config.chip.flops = 0.0  # a device's peak dense bfloat16 FLOP/s, for MFU; 0: as in jmoe/cost/chips.py
    config.chip.capacity = 0.0  # bytes of a device's memory; 0: as in jmoe/cost/chips.py
    config.chip.bandwidth = 0.0  # bytes per second of that memory; 0: as in jmoe/cost/chips.py
    config.chip.network = 0.0  # bytes per second out of a device, over all fast links; 0: as in jmoe/cost/chips.py

    config.log_every = 10  # steps between two lines of metrics
    config.profile_steps = ()  # (first, last): trace steps first to last - 1 of each segment that has them
    config.checkpoint_every = 500  # steps between checkpoints
    config.eval_every = 0  # steps between validation losses during training; 0: only at the end of a branch
    config.wandb = ""  # Weights & Biases project that also gets the metrics; WANDB_MODE=offline keeps them local
    return config
