"""Parameters and FLOPs of a config, counted as the paper counts them (Eq. 11-12, App. A.2). Plain Python."""


def n_active(model) -> int:
    """Parameters that one token uses, embedding and head included, norms and router not (Eq. 12)."""
    return _n_parameters(model, 1)


def n_total(model) -> int:
    """All parameters, embedding and head included, norms and router not (Eq. 11)."""
    return _n_parameters(model, model.n_experts)


def n_uncounted(model) -> int:
    """Parameters outside the paper's count: the norms' scales and biases and, when E > 1, the routers."""
    per_norm = 2 if model.get("norm", "rms") == "layer" else 1
    norms = (2 * per_norm * model.n_blocks + model.get("final_norm", True)) * model.d_model
    routers = model.n_blocks * model.d_model * model.n_experts if model.n_experts > 1 else 0
    return norms + routers


def training_flops(model, n_tokens: int) -> int:
    """6 N_active D: forward and backward, attention scores, router and padding left out."""
    return 6 * n_active(model) * n_tokens


def matmul_flops_per_token(model, seq_len: int) -> dict[str, int]:
    """FLOPs of one token's matmuls, forward and twice backward, by part: what MFU counts.

    `parameters` leaves out the embedding, which is looked up; `attention` is scores and values over rows of seq_len.
    """
    d, n_blocks, n_experts = model.d_model, model.n_blocks, model.n_experts
    return {
        "parameters": 6 * (n_active(model) - d * model.vocab_size),
        "attention": 12 * n_blocks * d * seq_len,
        "router": 6 * n_blocks * d * n_experts if n_experts > 1 else 0,
    }


def _n_parameters(model, n_experts: int) -> int:
    attention = 4 * model.d_model**2
    expert = 3 * model.d_model * model.d_ff
    return 2 * model.d_model * model.vocab_size + model.n_blocks * (attention + n_experts * expert)
