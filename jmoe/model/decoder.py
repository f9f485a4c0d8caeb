"""Decoder-only Transformer: pre-norm blocks of attention and a dense layer or a mixture of experts.

Axes (jmoe/model/__init__.py): B, D, K, N, P, T (when generating, new positions), U (positions of the cache), V.
Modules are made from (config.model, rngs) and are pytrees: vmap stacks blocks along a leading axis of layers, a scan
runs each stack with remat. Steps and checkpoints hold a plain tree of the parameters, by the names of weights.table.
Calls run inside sharding.per_device, on a device's own part of rows, heads, d_ff and experts. Parameters are float32
and are cast before the blocks run; norms, attention (but for "flash"), RoPE and router compute in float32.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from ml_collections import FrozenConfigDict

from jmoe.config import weights
from jmoe.config.schema import setting
from jmoe.model import dispatch, grouped_product, mup, routing, sharding
from jmoe.model.attention import ATTENTION, attention, norm

PROMPT_POSITIONS = 64  # of a prompt, processed at once
CACHE_POSITIONS = 256  # a cache's length is a multiple of this, so that few lengths are compiled
INIT_CUT = 0.2  # initial weights lie in +-INIT_CUT whatever their standard deviation, as in the authors' code


def products(primitive, *_, **params) -> bool:
    """The remat policy that saves results of products with weights, attention kernels and exchanges between devices.

    A product with a weight has no batch axis, or the experts' axis; attention's own products have two, rows and heads.
    """
    if primitive.name == "dot_general":
        return len(params["dimension_numbers"][1][0]) <= 1
    if primitive.name == "name":
        return params["name"] == grouped_product.SAVED
    kernels = "pallas_call", "dot_product_attention_fwd_wrapper", "ragged_dot_general"
    return primitive.name in (*kernels, "all_to_all")


REMAT = {  # config.remat: which results are saved for the backward pass
    "none": jax.checkpoint_policies.everything_saveable,
    "dots": products,
    "full": jax.checkpoint_policies.nothing_saveable,
}


def parameter(weight: weights.Weight, scale: float, rngs: nnx.Rngs) -> nnx.Param:
    """A normal of variance scale / fan_in (App. A) cut at +-INIT_CUT, or the weight's constant; float32."""
    if weight.fan_in:
        std = (scale / weight.fan_in) ** 0.5
        x = std * jax.random.truncated_normal(rngs.params(), -INIT_CUT / std, INIT_CUT / std, weight.shape)
    else:
        x = jnp.full(weight.shape, weight.constant, jnp.float32)
    return nnx.Param(x, out_sharding=weight.axes, eager_sharding=False)  # placed by who makes the model


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def lookup(embed_VD: jax.Array, tokens_BT: jax.Array, vocab_size: int) -> jax.Array:
    """x_BTD, the embedding of each token.

    JAX's own gradient adds a token's rows to each other in their own type: in bfloat16 the sum of a common token stops
    growing after a few hundred rows. This one adds them in float32 and rounds each sum once.
    """
    return embed_VD[tokens_BT]


def _lookup_fwd(embed_VD, tokens_BT, vocab_size):
    return embed_VD[tokens_BT], tokens_BT


def _lookup_bwd(vocab_size, tokens_BT, dx_BTD):
    zeros_VD = jnp.zeros((vocab_size, dx_BTD.shape[-1]), jnp.float32)
    dembed_VD = zeros_VD.at[tokens_BT].add(dx_BTD.astype(jnp.float32))
    return dembed_VD.astype(dx_BTD.dtype), None


lookup.defvjp(_lookup_fwd, _lookup_bwd)


class Block(nnx.Module):
    """A block of the stack with that name in weights.stacks, or all of that stack, along a leading axis of layers."""

    def __init__(self, model, stack: str, rngs: nnx.Rngs):
        self.model = model
        for name, weight in weights.table(model)[stack].items():
            setattr(self, name, parameter(weight, model.init_scale, rngs))

    def __call__(self, x_BTD, training: bool, start=0, cache=None):
        """x_BTD after the block, this device's routing.METRICS of it, and the cache with the new keys and values.

        Without `training` nothing is dropped. start, cache: as in attention.attention.
        """
        projections = {name: sharding.gathered(getattr(self, name)) for name in ATTENTION if hasattr(self, name)}
        y_ND, cache = attention(self._norm("attention_norm", x_BTD), projections, self.model, start, cache)
        x_BTD += sharding.total(y_ND, ("model",)).reshape(x_BTD.shape)
        y_ND, metrics = self._feed_forward(self._norm("mlp_norm", x_BTD).reshape(y_ND.shape), training)
        return x_BTD + sharding.total(y_ND, ("model",)).reshape(x_BTD.shape), metrics, cache

    def _norm(self, name, x_BTD):
        """LayerNorm with bias, or RMSNorm where the block has no bias."""
        bias = getattr(self, f"{name}_bias", None)
        return norm(x_BTD, getattr(self, name)[...], None if bias is None else bias[...])

    def _feed_forward(self, h_ND, training):
        """y_ND of normed rows, to be summed over the model axis, and routing.METRICS, {} for a dense layer."""
        model = self.model
        swiglu = lambda prefix="": [sharding.gathered(getattr(self, prefix + name)) for name in ("gate", "up", "down")]
        if not hasattr(self, "router"):
            return dispatch.swiglu(h_ND, *swiglu()), {}
        choice = {name: setting(model, field) for name, field in routing.FIELDS.items()}
        choice["bias_E"] = self.router_bias[...] if hasattr(self, "router_bias") else None
        if training:
            choice |= dict(group_tokens=model.group_tokens, capacity_factor=model.capacity_factor)
        y_ND, metrics = dispatch.mixture(h_ND, self.router[...], swiglu(), **choice)
        if hasattr(self, "shared_gate"):
            y_ND += dispatch.swiglu(h_ND, *swiglu("shared_"))
        return y_ND, metrics


class Decoder(nnx.Module):
    def __init__(self, model, rngs: nnx.Rngs):
        """model: config.model. The same `rngs` give the same float32 parameters on any mesh."""
        self.model = FrozenConfigDict(model)
        for name, weight in weights.table(model).items():
            if n_blocks := weights.stacks(model).get(name):
                block = lambda key: Block(self.model, name, nnx.Rngs(params=key))
                stacked = nnx.vmap(block, transform_metadata={nnx.PARTITION_NAME: None})
                setattr(self, name, stacked(jax.random.split(rngs.params(), n_blocks)))
            else:
                setattr(self, name, parameter(weight, model.init_scale, rngs))

    def __call__(self, tokens_BT, training: bool, remat: str = "full", unroll: bool = False, start=0, caches=None):
        """x_BTD before the head, head_DV, routing.METRICS along an axis of the layers that have a mixture, and caches.

        Without `training` nothing is dropped. remat, unroll: as in config. caches: (k_BUPK, v_BUPK) by stack, with a
        leading axis of layers; the tokens are then at positions start, start + 1, ...
        """

        def run(x_BTD, layer):
            block, cache = layer
            x_BTD, metrics, cache = block(x_BTD, training, start, cache)
            return x_BTD, (metrics, cache)

        embed_VD = sharding.gathered(self.embed)
        x_BTD = lookup(embed_VD, tokens_BT, self.model.vocab_size)
        caches = dict(caches or {})
        run = jax.checkpoint(run, policy=REMAT[remat])
        for stack in weights.stacks(self.model):
            layers = getattr(self, stack), caches.get(stack)
            x_BTD, (metrics, caches[stack]) = jax.lax.scan(run, x_BTD, layers, unroll=unroll)
        if hasattr(self, "final_norm"):
            x_BTD = norm(x_BTD, self.final_norm[...])
        return x_BTD, sharding.gathered(self.head) if hasattr(self, "head") else embed_VD.T, metrics, caches


def init_params(config, seed=None) -> dict:
    """Float32 parameters as a plain tree with the names of weights.table; the same on any mesh.

    A `seed`, given as a traced uint32, replaces config.seed, so that all seeds share one compiled program.
    """
    seed = np.uint32(config.seed % 2**32) if seed is None else seed
    decoder = Decoder(config.model, nnx.Rngs(params=jax.random.key(seed)))
    params = nnx.to_pure_dict(nnx.state(decoder, nnx.Param))
    factors = mup.factors(config)
    return jax.tree.map(jnp.multiply, params, factors[0]) if factors else params


def with_params(params: dict, model) -> Decoder:
    """The Decoder of config.model with the tree `params`, as `cast` gives it."""
    return nnx.merge(_structure(FrozenConfigDict(model)), nnx.State(params))


@functools.cache
def _structure(model: FrozenConfigDict) -> nnx.GraphDef:
    return nnx.graphdef(nnx.eval_shape(lambda: Decoder(model, nnx.Rngs(params=0))))


def cast(params, model):
    """Each parameter, cast to the type in which the model computes with it."""
    one = lambda weight, x: x if weight.float32 else x.astype(model.dtype)
    return jax.tree.map(one, weights.table(model), params)


def decode(params, tokens_BT, config, training):
    """x_BTD before the head, head_DV, and routing.METRICS with a leading axis of the layers that have a mixture.

    params: this device's part of init_params' tree. Without `training` nothing is dropped.
    """
    # cast once, outside the blocks: else their scan would move weights in both passes, and gradients, in float32
    run = with_params(cast(params, config.model), config.model)
    return run(tokens_BT, training, config.remat, config.unroll)[:3]


def new_caches(model, n_positions: int) -> dict:
    """Empty (k_BUPK, v_BUPK) of one row by stack of weights.stacks, for at least `n_positions`."""
    n = -(-(n_positions + PROMPT_POSITIONS) // CACHE_POSITIONS) * CACHE_POSITIONS
    empty = lambda n_blocks: jnp.zeros((n_blocks, 1, n, *weights.heads(model)[1:]), jnp.float32)
    return {stack: (empty(n_blocks), empty(n_blocks)) for stack, n_blocks in weights.stacks(model).items()}


@functools.partial(jax.jit, static_argnames="model", donate_argnames="caches")
def forward(params, caches, tokens_T, start, model):
    """Float32 logits_TV of a row's tokens at positions start, start + 1, ..., and caches with their keys and values.

    params: as `cast` gives them, on one device. model: a FrozenConfigDict of config.model. What the caches hold from
    `start` on does not matter.
    """
    run = with_params(params, model)
    x_BTD, head_DV, _, caches = run(tokens_T[None], training=False, start=start, caches=caches)
    return jnp.matmul(x_BTD[0], head_DV, preferred_element_type=jnp.float32), caches


def read_prompt(params, caches, tokens, model):
    """(logits_V after the last of the tokens, caches)."""
    for start in range(0, len(tokens), PROMPT_POSITIONS):
        part = jnp.asarray(tokens[start : start + PROMPT_POSITIONS])
        last = len(part) - 1
        # the padding's keys and values lie after `last`, where later tokens overwrite them
        part = jnp.pad(part, (0, PROMPT_POSITIONS - len(part)))
        logits_TV, caches = forward(params, caches, part, start, model)
    return logits_TV[last], caches


@jax.jit
def choose(logits_V, key, temperature, top_p):
    """The next token: drawn from the likeliest tokens that hold `top_p` of the probability; temperature 0: the
    likeliest one."""
    order_V = jnp.argsort(-logits_V)
    sorted_V = logits_V[order_V] / jnp.maximum(temperature, 1e-6)
    probability_V = jax.nn.softmax(sorted_V)
    before_V = jnp.cumsum(probability_V) - probability_V
    drawn = order_V[jax.random.categorical(key, jnp.where(before_V < top_p, sorted_V, -jnp.inf))]
    return jnp.where(temperature > 0, drawn, jnp.argmax(logits_V))


def tokens_after(prompt, params, model, n: int, *, temperature: float = 0.0, top_p: float = 1.0, seed: int = 0):
    """Yields n tokens that follow `prompt`, which has at least one token; the same seed yields the same tokens.

    model: config.model. params: init_params' tree, on the host or one device.
    """
    model = FrozenConfigDict(model)
    params, caches = cast(jax.device_put(params), model), new_caches(model, len(prompt) + n)
    logits_V, caches = read_prompt(params, caches, prompt, model)
    for i in range(n):
        token = choose(logits_V, jax.random.fold_in(jax.random.key(seed), i), temperature, top_p)
        yield int(token)
        if i + 1 < n:
            logits_TV, caches = forward(params, caches, token[None], len(prompt) + i, model)
            logits_V = logits_TV[0]
