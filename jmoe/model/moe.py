"""The mixture of experts as the papers define it, token by token, without anything that makes it fast.

Read this to learn what the layer computes; the tests hold the fast ones (jmoe/model/moe_capacity.py, moe_dropless.py)
to it. Its cost is that of every expert for every token.

Axes (jmoe/model/__init__.py): A choices of a token, D, E, F, G groups, S tokens of a group.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def reference_moe(
    x_GSD: Float[Array, "G S D"],
    router_DE: Float[Array, "D E"],
    gate_EDF: Float[Array, "E D F"],
    up_EDF: Float[Array, "E D F"],
    down_EFD: Float[Array, "E F D"],
    top_k: int,
    capacity: int | None,
) -> Float[Array, "G S D"]:
    """y_GSD: each token's `top_k` experts, weighted by their shares of the chosen experts' probabilities.

    Switch Transformer (Fedus et al. 2021, Eq. 1-3) for top_k = 1, where the weight is the probability itself; GShard
    (Lepikhin et al. 2020, Alg. 1) for more. The experts are SwiGLU (Shazeer 2020).

    Args:
      capacity: choices that an expert serves in a group, first choices before second ones, earlier tokens before later
        ones; those beyond it add nothing. None: all of them.
    """
    n_experts = router_DE.shape[1]
    probability_GSE = jax.nn.softmax(x_GSD @ router_DE)
    gate_GSA, expert_GSA = jax.lax.top_k(probability_GSE, top_k)
    if top_k > 1:
        gate_GSA /= jnp.sum(gate_GSA, axis=-1, keepdims=True)

    chosen_GSAE = jax.nn.one_hot(expert_GSA, n_experts)
    if capacity is not None:
        # how many choices of the expert come before this one
        in_turn_GASE = chosen_GSAE.swapaxes(1, 2)
        flat_GJE = in_turn_GASE.reshape(len(x_GSD), -1, n_experts)
        before_GJE = jnp.cumsum(flat_GJE, axis=1) - flat_GJE
        fits_GJE = flat_GJE * (before_GJE < capacity)
        chosen_GSAE = fits_GJE.reshape(in_turn_GASE.shape).swapaxes(1, 2)
    weight_GSE = jnp.einsum("gsa,gsae->gse", gate_GSA, chosen_GSAE)

    hidden_GSEF = jax.nn.silu(jnp.einsum("gsd,edf->gsef", x_GSD, gate_EDF)) * jnp.einsum("gsd,edf->gsef", x_GSD, up_EDF)
    output_GSED = jnp.einsum("gsef,efd->gsed", hidden_GSEF, down_EFD)
    return jnp.einsum("gse,gsed->gsd", weight_GSE, output_GSED)
