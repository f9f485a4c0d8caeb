"""Decoder-only Transformer: pre-norm blocks of attention and a dense layer or a mixture of experts.

Axes (jmoe/model/__init__.py): B, D, K, N, T, V.
Modules are pytrees: blocks are stacked along a leading axis of layers by vmap and run by one scan, rematerialised.
Calls run inside sharding.per_device, on a device's own part of rows, heads, d_ff and experts. Parameters are float32
and cast where they are used; norms, attention (but for "flash"), RoPE and router compute in float32.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jmoe.model import dispatch, sharding, weights
from jmoe.model.attention import attention

INIT_CUT = 0.2  # initial weights lie within it, whatever their standard deviation, as in the authors' code


def products(primitive, *_, **params) -> bool:
    """The policy that saves what products with weights, attention kernels and exchanges between devices give.

    A product with a weight has no batch axis, or that of the experts; attention's own have two, rows and heads.
    """
    if primitive.name == "dot_general":
        return len(params["dimension_numbers"][1][0]) <= 1
    return primitive.name in ("pallas_call", "dot_product_attention_fwd_wrapper", "all_to_all")


REMAT = {  # what the backward pass finds saved: config.remat
    "none": jax.checkpoint_policies.everything_saveable,
    "dots": products,
    "full": jax.checkpoint_policies.nothing_saveable,
}


def init_params(config, seed=None) -> dict:
    """Float32 parameters as a plain tree with the names of weights.table; the same on any mesh.

    A `seed` given as a traced uint32 stands for config.seed, so that seeds share one compiled program.
    """
    seed = np.uint32(config.seed % 2**32) if seed is None else seed
    return nnx.to_pure_dict(nnx.state(Decoder(config.model, nnx.Rngs(params=jax.random.key(seed)))))


def decode(params, tokens_BT, config, capacity_factor):
    """x_BTD before the head, head_DV, and routing.METRICS with a leading axis of layers.

    params: this device's part of init_params' tree. capacity_factor=None drops nothing.
    """
    # cast once, outside the blocks: their scan would move float32 weights in both passes, and float32 gradients
    cast = lambda weight, x: x if weight.float32 else x.astype(config.model.dtype)
    params = jax.tree.map(cast, weights.table(config.model), params, is_leaf=lambda x: isinstance(x, weights.Weight))
    graphdef, state = nnx.split(nnx.eval_shape(lambda: Decoder(config.model, nnx.Rngs(params=0))))
    nnx.replace_by_pure_dict(state, params)
    return nnx.merge(graphdef, state)(tokens_BT, config.model, capacity_factor, config.remat, config.unroll)


def initial(weight: weights.Weight, rngs: nnx.Rngs, scale: float):
    """A normal of variance scale / fan_in (App. A) cut at +-INIT_CUT, or the weight's constant."""
    if not weight.fan_in:
        return nnx.Param(jnp.full(weight.shape, weight.constant))
    std = (scale / weight.fan_in) ** 0.5
    return nnx.Param(std * jax.random.truncated_normal(rngs.params(), -INIT_CUT / std, INIT_CUT / std, weight.shape))


class Block(nnx.Module):
    def __init__(self, model, rngs: nnx.Rngs):
        for name, weight in weights.table(model)["blocks"].items():
            setattr(self, name, initial(weight, rngs, model.init_scale))

    def norm(self, name, x_BTD):
        """LayerNorm with bias, or RMSNorm where the block has no bias."""
        bias = getattr(self, f"{name}_bias", None)
        scale = getattr(self, name)[...]
        return rms_norm(x_BTD, scale) if bias is None else layer_norm(x_BTD, scale, bias[...])

    def __call__(self, x_BTD, model, capacity_factor):
        """x_BTD, and this device's routing.METRICS of the layer: none when E = 1 or nothing is dropped."""
        table = weights.table(model)["blocks"]
        gathered = lambda names, over=("data",): [
            sharding.gathered(getattr(self, name)[...], table[name].axes, over) for name in names
        ]
        y_ND = attention(self.norm("attention_norm", x_BTD), *gathered(["qkv", "out"]), model)
        x_BTD += sharding.total(y_ND, ("model",)).reshape(x_BTD.shape)

        h_ND, mlp, metrics = self.norm("mlp_norm", x_BTD).reshape(y_ND.shape), ["gate", "up", "down"], {}
        if model.n_experts == 1:
            y_ND = dispatch.swiglu(h_ND, *gathered(mlp))
        elif capacity_factor is None:
            y_ND = dispatch.dropless(h_ND, self.router[...], gathered(mlp, ("data", "expert")))
        else:
            options = dict(group_tokens=model.group_tokens, capacity_factor=capacity_factor)
            y_ND, metrics = dispatch.mixture(h_ND, self.router[...], gathered(mlp), **options)
        return x_BTD + sharding.total(y_ND, ("model",)).reshape(x_BTD.shape), metrics


class Decoder(nnx.Module):
    def __init__(self, model, rngs: nnx.Rngs):
        for name, weight in weights.table(model).items():
            if name == "blocks":
                keys = jax.random.split(rngs.params(), model.n_blocks)
                self.blocks = jax.vmap(lambda key: Block(model, nnx.Rngs(params=key)))(keys)
            else:
                setattr(self, name, initial(weight, rngs, model.init_scale))

    def __call__(self, tokens_BT, model, capacity_factor, remat, unroll):
        """What `decode` returns, by parameters in the types that they are used in."""
        table = weights.table(model)
        gathered = lambda name: sharding.gathered(getattr(self, name)[...], table[name].axes)
        x_BTD = gathered("embed")[tokens_BT]
        run = lambda x_BTD, block: block(x_BTD, model, capacity_factor)
        x_BTD, metrics = jax.lax.scan(jax.checkpoint(run, policy=REMAT[remat]), x_BTD, self.blocks, unroll=unroll)
        if "final_norm" in table:
            x_BTD = rms_norm(x_BTD, self.final_norm[...])
        return x_BTD, gathered("head"), metrics


def rms_norm(x, scale):
    """x / rms(x) * scale over the last axis, in float32, back in x's dtype."""
    x32 = x.astype(jnp.float32)
    x32 *= jax.lax.rsqrt(jnp.mean(x32**2, axis=-1, keepdims=True) + 1e-6)
    return (x32 * scale).astype(x.dtype)


def layer_norm(x, scale, bias):
    """(x - mean(x)) / std(x) * scale + bias over the last axis, in float32, back in x's dtype."""
    x32 = x.astype(jnp.float32)
    x32 -= jnp.mean(x32, axis=-1, keepdims=True)
    x32 *= jax.lax.rsqrt(jnp.mean(x32**2, axis=-1, keepdims=True) + 1e-5)
    return (x32 * scale + bias).astype(x.dtype)
