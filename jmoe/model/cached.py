"""Runs the decoder on a few positions at a time and keeps the keys and values of earlier ones. Drops no token.

Axes (jmoe/model/__init__.py): D, H, K, P, T new positions, U positions of the cache, V. One row, on one device.
"""

import functools

import jax
import jax.numpy as jnp
import ml_collections

from jmoe.config import weights
from jmoe.model import attention
from jmoe.model.decoder import cast, feed_forward
from jmoe.model.norms import norm, rms_norm

PROMPT_POSITIONS = 64  # of a prompt, processed at once
CACHE_POSITIONS = 256  # a cache's length is a multiple of this, so that few lengths are compiled


def new_cache(model, n_positions: int):
    """Empty keys and values, [blocks, U, P, K] each, for at least `n_positions`."""
    n = -(-(n_positions + PROMPT_POSITIONS) // CACHE_POSITIONS) * CACHE_POSITIONS
    shape = model.n_blocks, n, *weights.heads(model)[1:]
    return jnp.zeros(shape, jnp.float32), jnp.zeros(shape, jnp.float32)


@functools.partial(jax.jit, static_argnames="model", donate_argnames="cache")
def forward(params, cache, tokens_T, start, model):
    """Float32 logits_TV of tokens at positions start, start + 1, ..., and the cache with their keys and values.

    params: as decoder.cast gives them. model: a FrozenConfigDict of config.model. What the cache holds from `start` on
    does not matter.
    """
    run = lambda x_TD, layer: _block(x_TD, *layer, start, model)
    x_TD, stacks, first = params["embed"][tokens_T], [], 0
    for stack, n in weights.stacks(model).items():
        part = jax.tree.map(lambda kept, first=first, n=n: kept[first : first + n], cache)
        x_TD, part = jax.lax.scan(run, x_TD, (params[stack], part))
        stacks, first = [*stacks, part], first + n
    cache = jax.tree.map(lambda *parts: jnp.concatenate(parts), *stacks)
    if "final_norm" in params:
        x_TD = rms_norm(x_TD, params["final_norm"])
    head_DV = params["head"] if "head" in params else params["embed"].T
    return jnp.matmul(x_TD, head_DV, preferred_element_type=jnp.float32), cache


def _block(x_TD, block, cache, start, model):
    normed = lambda name, x_TD: norm(x_TD, block[name], block.get(f"{name}_bias"))
    h_TD = normed("attention_norm", x_TD)
    q_BTHK, *new = attention.queries_keys_values(h_TD[None], block, model, start)
    k_UPK, v_UPK = (jax.lax.dynamic_update_slice(kept, x[0], (start, 0, 0)) for kept, x in zip(cache, new))
    y_THK = attention.exact(q_BTHK, k_UPK[None], v_UPK[None], start)[0]
    x_TD += y_THK.astype(x_TD.dtype).reshape(len(x_TD), -1) @ block["out"].reshape(-1, model.d_model)

    taken = lambda names, over: [block[name] for name in names]
    y_TD, _ = feed_forward(normed("mlp_norm", x_TD), block, taken, model, training=False)
    return x_TD + y_TD, (k_UPK, v_UPK)


def read_prompt(params, cache, tokens, model):
    """(logits_V after the last of the tokens, cache)."""
    for start in range(0, len(tokens), PROMPT_POSITIONS):
        part = jnp.asarray(tokens[start : start + PROMPT_POSITIONS])
        last = len(part) - 1
        # the padding's keys and values lie after `last`, where later tokens overwrite them
        part = jnp.pad(part, (0, PROMPT_POSITIONS - len(part)))
        logits_TV, cache = forward(params, cache, part, start, model)
    return logits_TV[last], cache


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

    model: config.model. params: decoder.init_params' tree, on the host or one device.
    """
    model = ml_collections.FrozenConfigDict(model)
    params, cache = cast(jax.device_put(params), model), new_cache(model, len(prompt) + n)
    logits_V, cache = read_prompt(params, cache, prompt, model)
    for i in range(n):
        token = choose(logits_V, jax.random.fold_in(jax.random.key(seed), i), temperature, top_p)
        yield int(token)
        if i + 1 < n:
            logits_TV, cache = forward(params, cache, token[None], len(prompt) + i, model)
            logits_V = logits_TV[0]
