"""A triad and the architecture that it determines, by the algebra of Wan et al. (2026, arXiv 2603.21862).

A triad describes an architecture: M, the FLOPs of one token (forward and backward), N_a, its active parameters, and N,
all of them; embedding, head, norms and routers left out. C = M D is the budget. Per layer (App. A): attention has
2 d head_dim (n_heads + n_kv_heads) weights, a dense block 3 d d_dense (d_dense = 3 d), an expert 3 d d_expert. With
n_dense dense blocks, n_moe blocks of n_experts routed experts of which a token uses top_k, and n_shared that all use:

  N_a = 2 d head_dim (n_heads + n_kv_heads) L + 3 d d_dense n_dense + 3 d d_expert (top_k + n_shared) n_moe
  N   = N_a + 3 d d_expert (n_experts - top_k) n_moe          L = n_dense + n_moe
  M   = 6 N_a + 6 seq_len n_heads head_dim L                  attention is causal: half of each row's scores

ModelShape (fit/model/shape.py) counts the same, where vocab_size is 0. `invert` solves for the depths.
The paper prints Eq. 3 with one L too many after N_a; its App. Eq. 11-12 are as above. A counter that takes attention
over whole rows, like the trainer's, has 12 instead of the second 6 in M.

Axes: everything broadcasts together.
"""

import dataclasses

from fit.aliases import Numbers
from fit.model.shape import ModelShape

Triad = tuple[Numbers, Numbers, Numbers]


def of_shape(shape: ModelShape, seq_len: Numbers) -> Triad:
    """(M, N_a, N) of a shape whose vocab_size is 0, so that embedding and head do not count."""
    return shape.flops_per_token(seq_len), shape.n_active, shape.n_total


def of_ratios(m: Numbers, m_over_active: Numbers, total_over_active: Numbers) -> Triad:
    """(M, N_a, N) of M, M/N_a and N/N_a."""
    n_active = m / m_over_active
    return m, n_active, n_active * total_over_active


def family(
    n_heads: int, head_dim: int, n_kv_heads: int, n_experts: int = 288, top_k: int = 8, n_shared_experts: int = 1
) -> ModelShape:
    """The fixed sizes of a search: heads and experts. Its widths and depths are 0. The defaults are the paper's."""
    return ModelShape(
        d_model=0,
        n_blocks=0,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        d_ff=0,
        vocab_size=0,
        n_experts=n_experts,
        top_k=top_k,
        n_shared_experts=n_shared_experts,
    )


def sized(fixed: ModelShape, d_model: Numbers, n_dense: Numbers, n_moe: Numbers, d_expert: Numbers) -> ModelShape:
    """The shape of a family with these widths and depths, whole or not, and d_ff = 3 d_model."""
    return dataclasses.replace(
        fixed, d_model=d_model, d_ff=3 * d_model, n_blocks=n_dense + n_moe, n_dense_blocks=n_dense, d_expert=d_expert
    )


def largest_total_over_active(fixed: ModelShape) -> Numbers:
    """What N/N_a of a family stays below: N/N_a where all parameters are experts'."""
    return (fixed.n_experts + fixed.n_shared_experts) / (fixed.top_k + fixed.n_shared_experts)


def invert(
    triad: Triad, d_model: Numbers, fixed: ModelShape, seq_len: int
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Finds the architecture of a triad (the module's equations, solved for depths and expert width).

    Args:
      triad: (M, N_a, N).
      d_model: its width.
      fixed: the family that it is of.
      seq_len: tokens of context.

    Returns:
      (L, n_dense, n_moe, d_expert), real numbers.
    """
    m, n_active, n_total = triad
    block = sized(fixed, d_model, 1, 0, 0)
    n_blocks = (m - 6 * n_active) / (6 * seq_len * fixed.query_units)
    # d_expert n_moe
    all_expert_widths = (n_total - n_active) / (3 * d_model * (fixed.n_experts - fixed.top_k))
    active_experts = 3 * d_model * (fixed.top_k + fixed.n_shared_experts) * all_expert_widths
    n_dense = (n_active - block.attention_weights * n_blocks - active_experts) / block.layer_weights
    n_moe = n_blocks - n_dense
    return n_blocks, n_dense, n_moe, all_expert_widths / n_moe
