"""Parameters and FLOPs of a config.model, counted as the paper counts them (Eq. 11-12, App. A.2). Plain Python."""

from jmoe.model import weights

COUNTED = "embedding", "head", "attention", "dense", "expert"  # norms and routers are not


def n_active(model) -> int:
    """Parameters that one token uses, embedding and head included, norms and router not (Eq. 12)."""
    return sum(n * w.size // (model.n_experts if w.role == "expert" else 1) for n, w in _counted(model))


def n_total(model) -> int:
    """All parameters, embedding and head included, norms and router not (Eq. 11)."""
    return sum(n * w.size for n, w in _counted(model))


def n_exact(model, mesh: dict[str, int] | None = None) -> int:
    """Every parameter, norms and routers too; those that each device keeps, given a mesh's sizes by axis."""
    return sum(n * (w.size_on_device(mesh) if mesh else w.size) for n, w in weights.each(model))


def training_flops(n_active: int, n_tokens: int) -> int:
    """6 N_active D: forward and backward, attention scores, router and padding left out."""
    return 6 * n_active * n_tokens


def matmul_flops_per_token(model, seq_len: int) -> dict[str, int]:
    """FLOPs of one token's matmuls, forward and twice backward, by part: what MFU counts.

    `parameters` leaves out the embedding, which is looked up; `attention` is scores and values over rows of seq_len.
    """
    of_role = lambda role: sum(n * w.size for n, w in weights.each(model) if w.role == role)
    return {
        "parameters": training_flops(n_active(model) - of_role("embedding"), 1),
        "attention": 12 * model.n_blocks * model.d_model * seq_len,
        "router": training_flops(of_role("router"), 1),
    }


def _counted(model):
    return [(n, weight) for n, weight in weights.each(model) if weight.role in COUNTED]
