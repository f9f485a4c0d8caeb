"""Decoder-only Transformer: pre-norm blocks of attention and a dense layer or a mixture of experts.

Axes (jmoe/model/__init__.py): B, D, K, N, T, V.
Modules are pytrees: vmap stacks blocks along a leading axis of layers, and a scan runs each stack with remat. Calls run
inside sharding.per_device, on a device's own part of rows, heads, d_ff and experts. Parameters are float32 and are cast
before the blocks run; norms, attention (but for "flash"), RoPE and router compute in float32.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jmoe.config import weights
from jmoe.config.fields import setting
from jmoe.model import dispatch, routing, sharding
from jmoe.model.attention import ATTENTION, attention
from jmoe.model.norms import norm, rms_norm

INIT_CUT = 0.2  # initial weights lie in +-INIT_CUT whatever their standard deviation, as in the authors' code


def products(primitive, *_, **params) -> bool:
    """The remat policy that saves results of products with weights, attention kernels and exchanges between devices.

    A product with a weight has no batch axis, or the experts' axis; attention's own products have two, rows and heads.
    """
    if primitive.name == "dot_general":
        return len(params["dimension_numbers"][1][0]) <= 1
    return primitive.name in ("pallas_call", "dot_product_attention_fwd_wrapper", "all_to_all")


REMAT = {  # config.remat: which results are saved for the backward pass
    "none": jax.checkpoint_policies.everything_saveable,
    "dots": products,
    "full": jax.checkpoint_policies.nothing_saveable,
}


def init_params(config, seed=None) -> dict:
    """Float32 parameters as a plain tree with the names of weights.table; the same on any mesh.

    A `seed`, given as a traced uint32, replaces config.seed, so that all seeds share one compiled program.
    """
    seed = np.uint32(config.seed % 2**32) if seed is None else seed
    stacks, scale = weights.stacks(config.model), config.model.init_scale

    def drawn(table, rngs):
        return {
            name: stack(name, weight, rngs.params()) if name in stacks else initial(weight, rngs, scale)
            for name, weight in table.items()
        }

    def stack(name, table, key):
        return jax.vmap(lambda key: drawn(table, nnx.Rngs(params=key)))(jax.random.split(key, stacks[name]))

    return drawn(weights.table(config.model), nnx.Rngs(params=jax.random.key(seed)))


def decode(params, tokens_BT, config, training):
    """x_BTD before the head, head_DV, and routing.METRICS with a leading axis of the layers that have a mixture.

    params: this device's part of init_params' tree. Without `training` nothing is dropped.
    """
    # cast once, outside the blocks: else their scan would move weights in both passes, and gradients, in float32
    decoder = Decoder(cast(params, config.model))
    return decoder(tokens_BT, config.model, training, config.remat, config.unroll)


def cast(params, model):
    """Each parameter, cast to the type in which the model computes with it."""
    one = lambda weight, x: x if weight.float32 else x.astype(model.dtype)
    return jax.tree.map(one, weights.table(model), params, is_leaf=lambda x: isinstance(x, weights.Weight))


def initial(weight: weights.Weight, rngs: nnx.Rngs, scale: float):
    """A normal of variance scale / fan_in (App. A) cut at +-INIT_CUT, or the weight's constant."""
    if not weight.fan_in:
        return jnp.full(weight.shape, weight.constant, jnp.float32)
    std = (scale / weight.fan_in) ** 0.5
    return std * jax.random.truncated_normal(rngs.params(), -INIT_CUT / std, INIT_CUT / std, weight.shape)


def feed_forward(h_ND, names, taken, model, training):
    """y_ND of normed rows, to be summed over the model axis, and this device's routing.METRICS, {} for a dense layer.

    names: of the block's weights; the layer is a mixture if "router" is among them. taken(names, over): those weights,
    gathered along the mesh axes `over`; for (), as they are stored. Without `training` nothing is dropped.
    """
    mlp, gather_over = ["gate", "up", "down"], ("data",)
    if "router" not in names:
        return dispatch.swiglu(h_ND, *taken(mlp, gather_over)), {}
    choice = {name: setting(model, field) for name, field in routing.FIELDS.items()}
    choice["bias_E"] = taken(["router_bias"], ())[0] if "router_bias" in names else None
    (router_DE,) = taken(["router"], ())
    capacity_factor = model.capacity_factor if training else None
    groups = dict(group_tokens=model.group_tokens) if training else {}
    if capacity_factor is None:
        y_ND, metrics = dispatch.dropless(h_ND, router_DE, taken(mlp, ("data", "expert")), **groups, **choice)
    else:
        y_ND, metrics = dispatch.mixture(
            h_ND, router_DE, taken(mlp, gather_over), capacity_factor=capacity_factor, **groups, **choice
        )
    if "shared_gate" in names:
        y_ND += dispatch.swiglu(h_ND, *taken([f"shared_{name}" for name in mlp], gather_over))
    return y_ND, metrics


class Block(nnx.Module):
    def __init__(self, params: dict):
        for name, x in params.items():
            setattr(self, name, nnx.Param(x))

    def norm(self, name, x_BTD):
        """LayerNorm with bias, or RMSNorm where the block has no bias."""
        bias = getattr(self, f"{name}_bias", None)
        return norm(x_BTD, getattr(self, name)[...], None if bias is None else bias[...])

    def __call__(self, x_BTD, table, model, training):
        """x_BTD after the block, and this device's routing.METRICS of it. table: the block's Weights by name."""

        def gathered(names, over=("data",)):
            values = [getattr(self, name)[...] for name in names]
            return [sharding.gathered(x, table[n].axes, over) for n, x in zip(names, values)] if over else values

        names = [name for name in ATTENTION if name in table]
        y_ND = attention(self.norm("attention_norm", x_BTD), dict(zip(names, gathered(names))), model)
        x_BTD += sharding.total(y_ND, ("model",)).reshape(x_BTD.shape)

        h_ND = self.norm("mlp_norm", x_BTD).reshape(y_ND.shape)
        y_ND, metrics = feed_forward(h_ND, table, gathered, model, training)
        return x_BTD + sharding.total(y_ND, ("model",)).reshape(x_BTD.shape), metrics


class Decoder(nnx.Module):
    def __init__(self, params: dict):
        for name, x in params.items():
            setattr(self, name, Block(x) if isinstance(x, dict) else nnx.Param(x))

    def __call__(self, tokens_BT, model, training, remat, unroll):
        """What `decode` returns; the parameters are already cast."""
        table = weights.table(model)
        gathered = lambda name: sharding.gathered(getattr(self, name)[...], table[name].axes)
        embed_VD = gathered("embed")
        x_BTD = embed_VD[tokens_BT]
        for stack in weights.stacks(model):
            run = lambda x_BTD, block, table=table[stack]: block(x_BTD, table, model, training)
            run = jax.checkpoint(run, policy=REMAT[remat])
            x_BTD, metrics = jax.lax.scan(run, x_BTD, getattr(self, stack), unroll=unroll)
        if "final_norm" in table:
            x_BTD = rms_norm(x_BTD, self.final_norm[...])
        return x_BTD, gathered("head") if "head" in table else embed_VD.T, metrics
