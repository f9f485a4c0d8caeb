"""The fields that a config of the trainer has, by their dotted names.

A law.json may set these and no others in an emitted config. configs/joint_moe.py defines them for the trainer, which
fit does not import; tests/fit/fitted_law/test_trust.py checks that the two lists agree.
"""

FIELDS = frozenset(
    """
    seed n_tokens batch_tokens microbatch_tokens parametrization remat unroll
    model.d_model model.n_blocks model.n_heads model.n_kv_heads model.head_dim model.qk_norm model.tied_embeddings
    model.d_ff model.vocab_size model.n_experts model.top_k model.normalize_gates model.d_expert
    model.n_shared_experts model.n_dense_blocks model.scores model.balance model.capacity_factor model.group_tokens
    model.rope_base model.init_scale model.norm model.final_norm model.dtype model.attention
    loss.load_balance loss.router_z loss.logit_z
    data.path data.mixture data.validation_path data.validation_sets data.text_field data.tokenizer data.end_of_text
    data.fingerprint data.seq_len data.document_mask data.validation_tokens data.max_epochs data.on_bad_document
    optimizer.lr_law.constant optimizer.lr_law.n_active optimizer.lr_law.n_experts optimizer.lr_law.n_tokens
    optimizer.lr_law.batch_tokens optimizer.warmup_tokens optimizer.decay_fraction optimizer.name optimizer.b1
    optimizer.b2 optimizer.weight_decay optimizer.bias_rate optimizer.grad_clip optimizer.skip_above
    mup_base.d_model mup_base.n_blocks mup_base.head_dim
    mesh.expert mesh.model
    chip.flops chip.capacity chip.bandwidth chip.network
    predicted.loss predicted.low predicted.high predicted.share predicted.law predicted.n_active predicted.n_tokens
    log_every profile_steps checkpoint_every checkpoint_minutes keep_newest keep_every eval_every snapshot_every
    router_health wandb
    """.split()
)
