"""Decoder-only Transformer of the paper: pre-norm, RoPE, SwiGLU, a Switch layer in every block when E > 1.

Axis legend: B rows, T positions, N = B T tokens, V vocabulary, D d_model, H heads, K = D / H, F d_ff, E experts.
Modules are pytrees: blocks are stacked along a leading axis of layers by vmap and run by one scan, rematerialised.
Parameters are float32 and cast where they are used; norms, attention, RoPE and router compute in float32.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import reshard

from jmoe import moe, sharding


class Block(nnx.Module):
    def __init__(self, config, rngs: nnx.Rngs):
        d, f, e = config.d_model, config.d_ff, config.n_experts

        def weight(*shape):
            # fan-in is the axis before last; leading axes are experts
            init = nnx.initializers.variance_scaling(
                config.init_scale, "fan_in", "truncated_normal", batch_axis=tuple(range(len(shape) - 2))
            )
            return nnx.Param(init(rngs.params(), shape))

        self.attention_norm = nnx.Param(jnp.ones(d))
        self.qkv = weight(d, 3 * d)
        self.out = weight(d, d)
        self.mlp_norm = nnx.Param(jnp.ones(d))
        lead = (e,) if e > 1 else ()
        if e > 1:
            self.router = weight(d, e)
        self.gate = weight(*lead, d, f)
        self.up = weight(*lead, d, f)
        self.down = weight(*lead, f, d)

    def __call__(self, x_BTD, config, capacity_factor, mesh):
        """Returns x_BTD and the layer's moe.METRICS (empty when E = 1)."""
        use = lambda param: reshard(param[...].astype(x_BTD.dtype), sharding.REPLICATED)
        b, t, d = x_BTD.shape
        h_BTD = rms_norm(x_BTD, self.attention_norm)
        qkv = (h_BTD @ use(self.qkv)).reshape(b, t, 3, config.n_heads, d // config.n_heads)
        heads_BTD = attention(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], config.rope_base).reshape(b, t, d)
        x_BTD += heads_BTD.astype(x_BTD.dtype) @ use(self.out)

        h_ND = rms_norm(x_BTD, self.mlp_norm).reshape(b * t, d)
        if config.n_experts == 1:
            y_ND, metrics = (jax.nn.silu(h_ND @ use(self.gate)) * (h_ND @ use(self.up))) @ use(self.down), {}
        else:
            weights = [w[...].astype(x_BTD.dtype) for w in (self.gate, self.up, self.down)]
            y_ND, metrics = moe.switch(
                h_ND,
                reshard(self.router[...], sharding.REPLICATED),
                *weights,
                group_tokens=config.group_tokens,
                capacity_factor=capacity_factor,
                mesh=mesh,
            )
        return x_BTD + y_ND.reshape(b, t, d), metrics


class Decoder(nnx.Module):
    def __init__(self, config, rngs: nnx.Rngs):
        d, v = config.d_model, config.vocab_size
        init = nnx.initializers.variance_scaling(config.init_scale, "fan_in", "truncated_normal")
        # the embedding's fan-in is taken as d_model, so that it starts at the scale of the other matrices
        self.embed = nnx.Param(init(rngs.params(), (d, v)).T)
        keys = jax.random.split(rngs.params(), config.n_blocks)
        self.blocks = jax.vmap(lambda key: Block(config, nnx.Rngs(params=key)))(keys)
        self.final_norm = nnx.Param(jnp.ones(d))
        self.head = nnx.Param(init(rngs.params(), (d, v)))

    def __call__(self, tokens_BT, config, capacity_factor, mesh):
        """Float32 logits_BTV and moe.METRICS with a leading axis of layers (empty when E = 1).

        capacity_factor=None drops nothing.
        """
        embed_VD = reshard(self.embed[...].astype(config.dtype), sharding.REPLICATED)
        x_BTD = embed_VD.at[tokens_BT].get(out_sharding=sharding.TOKENS)
        run = jax.checkpoint(lambda x, block: block(x, config, capacity_factor, mesh))
        x_BTD, metrics = jax.lax.scan(run, x_BTD, self.blocks)
        x_BTD = rms_norm(x_BTD, self.final_norm)
        logits_BTV = x_BTD @ reshard(self.head[...].astype(x_BTD.dtype), sharding.REPLICATED)
        return logits_BTV.astype(jnp.float32), metrics


def rms_norm(x, scale):
    """x / rms(x) * scale over the last axis, in float32, back in x's dtype."""
    x32 = x.astype(jnp.float32)
    x32 *= jax.lax.rsqrt(jnp.mean(x32**2, axis=-1, keepdims=True) + 1e-6)
    return (x32 * reshard(scale[...], sharding.REPLICATED)).astype(x.dtype)


def rope(x_BTHK, base: float):
    """Rotary position embedding of the halves (Su et al. 2021), in float32."""
    t, k = x_BTHK.shape[1], x_BTHK.shape[3]
    frequency_K = base ** -(jnp.arange(0, k, 2, dtype=jnp.float32) / k)
    angle_THK = (jnp.arange(t, dtype=jnp.float32)[:, None] * frequency_K)[:, None, :]
    first, second = jnp.split(x_BTHK.astype(jnp.float32), 2, axis=-1)
    cos, sin = jnp.cos(angle_THK), jnp.sin(angle_THK)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def attention(q_BTHK, k_BTHK, v_BTHK, rope_base: float):
    """Causal multi-head attention in float32; returns [B, T, H, K]."""
    q, k, v = rope(q_BTHK, rope_base), rope(k_BTHK, rope_base), v_BTHK.astype(jnp.float32)
    score_BHTT = jnp.einsum("bqhk,bshk->bhqs", q, k) / jnp.sqrt(jnp.float32(q.shape[-1]))
    t = q.shape[1]
    causal_TT = jnp.arange(t)[:, None] >= jnp.arange(t)[None, :]
    score_BHTT = jnp.where(causal_TT, score_BHTT, -jnp.inf)
    return jnp.einsum("bhqs,bshk->bqhk", jax.nn.softmax(score_BHTT), v)
