"""Decoder-only Transformer of the paper: pre-norm, RoPE, SwiGLU, a Switch layer in every block when E > 1.

Axis legend: B rows, T positions, N = B T tokens, V vocabulary, D d_model, H heads, K = D / H, F d_ff, E experts.
Modules are pytrees: blocks are stacked along a leading axis of layers by vmap and run by one scan, rematerialised.
Calls run inside sharding.per_device: B, H, F and E count what this device has. Parameters are float32 and cast where
they are used; norms, attention (but for "flash"), RoPE and router compute in float32.
"""

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from jmoe.model import flash, moe, sharding

# of a block; all else is a matrix, multiplied in config.dtype
FLOAT32 = ("attention_norm", "attention_norm_bias", "mlp_norm", "mlp_norm_bias", "router")
INIT_CUT = 0.2  # initial weights lie within it, whatever their standard deviation, as in the authors' code


def products(primitive, *_, **params) -> bool:
    """The policy that saves what weights and attention kernels give, and what other devices sent.

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


def init_weight(key, shape, fan_in: int, scale: float):
    """A normal of variance scale / fan_in cut at +-INIT_CUT (App. A; the cut and each fan-in are the authors' code's)."""
    std = (scale / fan_in) ** 0.5
    return std * jax.random.truncated_normal(key, -INIT_CUT / std, INIT_CUT / std, shape)


class Block(nnx.Module):
    def __init__(self, config, rngs: nnx.Rngs):
        d, f, e, h = config.d_model, config.d_ff, config.n_experts, config.n_heads
        weight = lambda fan_in, *shape: init_weight(rngs.params(), shape, fan_in, config.init_scale)

        self.attention_norm = nnx.Param(jnp.ones(d))
        self.qkv = nnx.Param(weight(d, d, 3 * d).reshape(d, 3, h, d // h))
        self.out = nnx.Param(weight(d, d, d).reshape(h, d // h, d))
        self.mlp_norm = nnx.Param(jnp.ones(d))
        if config.get("norm", "rms") == "layer":
            self.attention_norm_bias = nnx.Param(jnp.zeros(d))
            self.mlp_norm_bias = nnx.Param(jnp.zeros(d))
        lead = (e,) if e > 1 else ()
        if e > 1:
            self.router = nnx.Param(weight(d, d, e))
        self.gate = nnx.Param(weight(d, *lead, d, f))
        self.up = nnx.Param(weight(d, *lead, d, f))
        self.down = nnx.Param(weight(e * f, *lead, f, d))  # the experts' outputs count as one layer's

    def norm(self, name, x_BTD):
        """LayerNorm with bias, or RMSNorm where the block has no bias."""
        bias = getattr(self, f"{name}_bias", None)
        scale = getattr(self, name)[...]
        return rms_norm(x_BTD, scale) if bias is None else layer_norm(x_BTD, scale, bias[...])

    def __call__(self, x_BTD, config, capacity_factor):
        """x_BTD, and the layer's moe.METRICS on this device: none when E = 1 or capacity_factor=None drops nothing."""
        b, t, d = x_BTD.shape
        whole = lambda param, dim: sharding.gather(sharding.vary(param[...], "expert"), dim)

        h_ND = self.norm("attention_norm", x_BTD).reshape(b * t, d)
        qkv_DO, out_OD = whole(self.qkv, 0).reshape(d, -1), whole(self.out, 2).reshape(-1, d)
        qkv = (h_ND @ qkv_DO).reshape(b, t, 3, -1, d // config.n_heads)
        heads_BTHK = attention(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], config.rope_base, config.attention)
        y_ND = heads_BTHK.astype(x_BTD.dtype).reshape(b * t, -1) @ out_OD
        x_BTD += sharding.total(y_ND, ("model",)).reshape(b, t, d)

        h_ND = self.norm("mlp_norm", x_BTD).reshape(b * t, d)
        metrics = {}
        if config.n_experts == 1:
            y_ND = moe.experts(h_ND, whole(self.gate, 0), whole(self.up, 0), whole(self.down, 1))
        else:
            spread = (self.gate, 1), (self.up, 1), (self.down, 2)
            experts = [sharding.gather(param[...], dim) for param, dim in spread]
            if capacity_factor is None:
                experts = [sharding.gather(weight, 0, "expert") for weight in experts]
                y_ND = moe.dropless(h_ND, self.router[...], *experts)
            else:
                options = dict(group_tokens=config.group_tokens, capacity_factor=capacity_factor)
                y_ND, metrics = moe.switch(h_ND, self.router[...], *experts, **options)
        return x_BTD + sharding.total(y_ND, ("model",)).reshape(b, t, d), metrics


class Decoder(nnx.Module):
    def __init__(self, config, rngs: nnx.Rngs):
        d, v = config.d_model, config.vocab_size
        weight = lambda fan_in, *shape: init_weight(rngs.params(), shape, fan_in, config.init_scale)
        self.embed = nnx.Param(weight(1, v, d))  # a token picks one row
        keys = jax.random.split(rngs.params(), config.n_blocks)
        self.blocks = jax.vmap(lambda key: Block(config, nnx.Rngs(params=key)))(keys)
        if config.get("final_norm", True):
            self.final_norm = nnx.Param(jnp.ones(d))
        self.head = nnx.Param(weight(d, d, v))

    def __call__(self, tokens_BT, config, capacity_factor, remat="full", unroll=False):
        """x_BTD before the head, head_DV, and moe.METRICS with a leading axis of layers.

        The blocks' weights but FLOAT32 are taken in config.dtype. capacity_factor=None drops nothing.
        """
        dtype = jnp.dtype(config.dtype)
        whole = lambda param, dim: sharding.gather(sharding.vary(param[...].astype(dtype), "expert"), dim)
        x_BTD = whole(self.embed, 1)[tokens_BT]
        run = lambda x_BTD, block: block(x_BTD, config, capacity_factor)
        x_BTD, metrics = jax.lax.scan(jax.checkpoint(run, policy=REMAT[remat]), x_BTD, self.blocks, unroll=unroll)
        if config.get("final_norm", True):
            x_BTD = rms_norm(x_BTD, self.final_norm[...])
        return x_BTD, whole(self.head, 0), metrics


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


def rope(x_BTHK, base: float):
    """Rotary position embedding of the halves (Su et al. 2021), in float32."""
    t, k = x_BTHK.shape[1], x_BTHK.shape[3]
    frequency_K = base ** -(jnp.arange(0, k, 2, dtype=jnp.float32) / k)
    angle_THK = (jnp.arange(t, dtype=jnp.float32)[:, None] * frequency_K)[:, None, :]
    first, second = jnp.split(x_BTHK.astype(jnp.float32), 2, axis=-1)
    cos, sin = jnp.cos(angle_THK), jnp.sin(angle_THK)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def attention(q_BTHK, k_BTHK, v_BTHK, rope_base: float, kind: str = "float32"):
    """Causal multi-head attention; returns [B, T, H, K].

    `kind` is config.model.attention: "float32", the products too, or "flash" (jmoe/model/flash.py); RoPE is float32 in both.
    """
    q, k, v = rope(q_BTHK, rope_base), rope(k_BTHK, rope_base), v_BTHK.astype(jnp.float32)
    if kind == "flash":
        return flash.attention(q, k, v)
    product = functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)  # else TPUs and GPUs round the inputs
    score_BHTT = product("bqhk,bshk->bhqs", q, k) / jnp.sqrt(jnp.float32(q.shape[-1]))
    t = q.shape[1]
    causal_TT = jnp.arange(t)[:, None] >= jnp.arange(t)[None, :]
    score_BHTT = jnp.where(causal_TT, score_BHTT, -jnp.inf)
    return product("bhqs,bshk->bqhk", jax.nn.softmax(score_BHTT), v)
