"""Parameters and FLOPs of a config.model, counted as the paper counts them (Eq. 11-12, App. A.2). Plain Python."""

import math

from jmoe.config import weights
from jmoe.config.schema import setting


def n_active(model, embedding: bool = True) -> int:
    """Parameters that one token uses, without norms and router (Eq. 12); with embedding and head if `embedding`."""
    experts = n_exact(model, roles=("expert",))
    return n_total(model, embedding) - experts + experts // model.n_experts * setting(model, "top_k")


def n_total(model, embedding: bool = True) -> int:
    """All parameters, without norms and routers (Eq. 11); with embedding and head if `embedding`."""
    ends = ("embedding", "head") if embedding else ()  # one matrix, of role "head", where they are tied
    return n_exact(model, roles=(*ends, *weights.MATRICES))


def n_exact(model, mesh: dict[str, int] | None = None, roles=()) -> int:
    """All parameters, norms and routers too; given a mesh's sizes by axis, only those that each device stores; given
    roles of weights.Weight, only theirs."""
    stored = lambda w: w.size // math.prod((mesh or {}).get(axis, 1) for axis in w.axes)
    return sum(n * stored(w) for n, w in weights.each(model) if not roles or w.role in roles)


def training_flops(n_active: int, n_tokens: int) -> int:
    """6 N_active D: forward and backward, attention scores, router and padding left out."""
    return 6 * n_active * n_tokens


def kv_elements(model, n_tokens: int) -> int:
    """Numbers in a cache of the keys and values of n_tokens tokens (Sec. 4.3)."""
    _, n_kv_heads, head_dim = weights.heads(model)
    return 2 * n_tokens * model.n_blocks * n_kv_heads * head_dim


def matmul_flops_per_token(model, seq_len: int) -> dict[str, int]:
    """FLOPs of one token's matmuls, forward and twice backward, by part: what MFU counts.

    `parameters` leaves out the embedding, which is looked up; `attention` is scores and values over rows of seq_len.
    """
    n_heads, _, head_dim = weights.heads(model)
    return {
        "parameters": training_flops(n_active(model) - n_exact(model, roles=("embedding",)), 1),
        "attention": 12 * model.n_blocks * n_heads * head_dim * seq_len,
        "router": training_flops(n_exact(model, roles=("router",)), 1),
    }
