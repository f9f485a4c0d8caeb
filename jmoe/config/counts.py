"""Parameters and FLOPs of a config.model, counted as the paper counts them (Eq. 11-12, App. A.2). Plain Python.

The launcher counts without JAX, so the sizes of jmoe/model/transformer.py's parameters stand here a second time.
tests/jmoe/config/test_counts.py compares both.
"""

import dataclasses
import math
from collections.abc import Collection, Mapping

from ml_collections import ConfigDict

MATRICES = ("attention", "dense", "expert")  # roles of the blocks' weights that map one vector to another


@dataclasses.dataclass(frozen=True)
class Arrays:
    """Equal arrays of the model.

    Attributes:
      n_arrays: how many there are.
      shape: of one array.
      axes: the mesh axes that an array is stored spread over; "data", which divides d_model, as row_axes says.
      role: as in jmoe/model/param.py.
    """

    n_arrays: int
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    role: str

    def n_elements(self, mesh: Mapping[str, int], d_model: int) -> int:
        """Elements of all arrays that one device of a mesh stores; `mesh`: sizes by axis."""
        axes = set(self.axes)
        if "data" in axes:
            axes.update(row_axes(self.axes, d_model, mesh))
        n_devices = math.prod(mesh.get(axis, 1) for axis in axes)
        return self.n_arrays * (math.prod(self.shape) // n_devices)


def row_axes(axes: Collection[str | None], size: int, mesh: Mapping[str, int]) -> tuple[str, ...]:
    """The mesh axes that an axis of a parameter is stored spread over where its module says "data".

    These are all axes whose devices have different rows. The expert axis is none of them where it spreads experts, or
    where the size does not divide over both.

    Args:
      axes: the axes of the parameter, as its module names them.
      size: of the axis that is spread over "data".
      mesh: sizes by axis.
    """
    n_expert = mesh.get("expert", 1)
    if n_expert == 1 or "expert" in axes or size % (mesh.get("data", 1) * n_expert):
        return ("data",)
    return ("data", "expert")


def heads(model: ConfigDict) -> tuple[int, int, int]:
    """(heads of queries, heads of keys and values, size of a head) of config.model."""
    head_dim = model.head_dim or model.d_model // model.n_heads
    n_kv_heads = model.n_kv_heads or model.n_heads
    return model.n_heads, n_kv_heads, head_dim


def arrays(model: ConfigDict) -> list[Arrays]:
    """Every parameter of config.model."""
    d = model.d_model
    v = model.vocab_size
    tied = model.tied_embeddings
    n_dense = model.n_blocks if model.n_experts == 1 else model.n_dense_blocks
    n_mixtures = model.n_blocks - n_dense
    per_norm = 2 if model.norm == "layer" else 1  # a scale, and LayerNorm's bias
    n_norms = 2 * per_norm * model.n_blocks + (1 if model.final_norm else 0)

    parameters = [Arrays(1, (v, d), ("data",), "head" if tied else "embedding")]
    if not tied:
        parameters.append(Arrays(1, (d, v), ("data",), "head"))
    parameters.append(Arrays(n_norms, (d,), (), "norm"))
    parameters += _attention(model)
    parameters += _mlp(n_dense, d, model.d_ff, "dense")
    if n_mixtures:
        width = model.d_expert or model.d_ff
        n_shared = model.n_shared_experts
        parameters.append(Arrays(n_mixtures, (d, model.n_experts), (), "router"))
        if model.balance == "bias":
            parameters.append(Arrays(n_mixtures, (model.n_experts,), (), "bias"))
        parameters += _mlp(n_mixtures, d, width, "expert", model.n_experts)
        if n_shared:
            parameters += _mlp(n_mixtures, d, n_shared * width, "dense")
    return parameters


def _attention(model: ConfigDict) -> list[Arrays]:
    n = model.n_blocks
    d = model.d_model
    n_heads, n_kv_heads, head_dim = heads(model)
    axes = ("data", "model")
    parameters = [
        Arrays(n, (d, n_heads, head_dim), axes, "attention"),  # queries
        Arrays(2 * n, (d, n_kv_heads, head_dim), axes, "attention"),  # keys, values
        Arrays(n, (n_heads, head_dim, d), axes, "attention"),
    ]
    qk_norm = model.qk_norm
    if qk_norm == "head":
        parameters.append(Arrays(2 * n, (head_dim,), (), "norm"))
    elif qk_norm == "projection":
        parameters.append(Arrays(n, (n_heads, head_dim), ("model",), "norm"))
        parameters.append(Arrays(n, (n_kv_heads, head_dim), ("model",), "norm"))
    return parameters


def _mlp(n_layers: int, d: int, width: int, role: str, n_experts: int = 0) -> list[Arrays]:
    """SwiGLU's gate, up and down: of a dense layer, or of `n_experts`."""
    if n_experts:
        return [Arrays(3 * n_layers, (n_experts, d, width), ("expert", "data", "model"), role)]
    return [Arrays(3 * n_layers, (d, width), ("data", "model"), role)]


def n_active(model: ConfigDict, embedding: bool = True) -> int:
    """Parameters that one token uses, without norms and router (Eq. 12); with embedding and head if `embedding`."""
    n_in_experts = n_exact(model, roles=("expert",))
    n_chosen = n_in_experts // model.n_experts * model.top_k
    return n_total(model, embedding) - n_in_experts + n_chosen


def n_total(model: ConfigDict, embedding: bool = True) -> int:
    """All parameters, without norms and routers (Eq. 11); with embedding and head if `embedding`."""
    # a tied embedding is one matrix, of role "head"
    roles = ("embedding", "head", *MATRICES) if embedding else MATRICES
    return n_exact(model, roles=roles)


def n_exact(model: ConfigDict, mesh: Mapping[str, int] | None = None, roles: Collection[str] = ()) -> int:
    """All parameters, norms and routers too.

    Args:
      model: config.model.
      mesh: sizes by axis; counts only what each device stores.
      roles: counts only parameters of these roles of jmoe/model/param.py.
    """
    sizes = {} if mesh is None else mesh
    d = model.d_model
    return sum(array.n_elements(sizes, d) for array in arrays(model) if not roles or array.role in roles)


def training_flops(n_active: int, n_tokens: int) -> int:
    """6 N_active D: forward and backward, attention scores, router and padding left out."""
    return 6 * n_active * n_tokens


def kv_elements(model: ConfigDict, n_tokens: int) -> int:
    """Numbers in a cache of the keys and values of n_tokens tokens (Sec. 4.3)."""
    _, n_kv_heads, head_dim = heads(model)
    return 2 * n_tokens * model.n_blocks * n_kv_heads * head_dim


def matmul_flops_per_token(model: ConfigDict, seq_len: int) -> dict[str, int]:
    """FLOPs of one token's matmuls, forward and twice backward, by part: what MFU counts.

    `parameters` leaves out the embedding, which is looked up; `attention` is scores and values over rows of seq_len.
    """
    n_heads, _, head_dim = heads(model)
    return {
        "parameters": training_flops(n_active(model) - n_exact(model, roles=("embedding",)), 1),
        "attention": 12 * model.n_blocks * n_heads * head_dim * seq_len,
        "router": training_flops(n_exact(model, roles=("router",)), 1),
    }
