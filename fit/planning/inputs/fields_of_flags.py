"""Options that are fields of a flag: --shape=vocab_size:32000."""

# {name of the option: (flag, field)}
FIELDS = {
    "vocab_size": ("shape", "vocab_size"),
    "width_per_block": ("shape", "width_per_block"),
    "kv_share": ("shape", "kv_share"),
    "dense_blocks": ("shape", "dense_blocks"),
    "used": ("shape", "used"),
    "granularity": ("shape", "granularity"),
    "shared_experts": ("shape", "shared_experts"),
    "mesh_expert": ("mesh", "expert"),
    "mesh_model": ("mesh", "model"),
    "remat": ("mesh", "remat"),
    "bytes_per_parameter": ("bytes", "weights"),
    "bytes_per_kv_element": ("bytes", "cache"),
    "serve_tokens_per_second": ("serve", "tokens_per_second"),
    "serve_batch": ("serve", "batch"),
}
