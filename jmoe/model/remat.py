"""config.remat: which results of the forward pass are saved for the backward pass."""

from collections.abc import Callable
from typing import Any

import jax

from jmoe.model import attention, grouped_product

KERNELS = ("pallas_call", "dot_product_attention_fwd_wrapper", "ragged_dot_general")


def products(primitive: Any, *_: Any, **params: Any) -> bool:
    """The remat policy that saves results of products with weights, attention kernels and exchanges between devices.

    A product with a weight has no batch axis, or the experts' axis; attention's own products have two, rows and heads.
    """
    if primitive.name == "dot_general":
        (batch_axes, _) = params["dimension_numbers"][1]
        return len(batch_axes) <= 1
    if primitive.name == "name":
        return params["name"] in (attention.SAVED, grouped_product.SAVED)
    return primitive.name == "all_to_all" or primitive.name in KERNELS


POLICIES = {"dots": products, "full": jax.checkpoint_policies.nothing_saveable}
REMAT = ("none", *POLICIES)


def with_remat(function: Callable, remat: str) -> Callable:
    """`function`, of which the backward pass recomputes what config.remat says.

    "none" is no jax.checkpoint at all: that would save the same results, each through an operation of its own.
    """
    if remat == "none":
        return function
    return jax.checkpoint(function, policy=POLICIES[remat])
