"""Generates text: runs the decoder on a few positions at a time and keeps the keys and values of earlier ones.

Axes (jmoe/model/__init__.py): D, K, P, T new positions, U positions of the cache, V. One row, on one device.
"""

import functools

import jax
import jax.numpy as jnp
import ml_collections

from jmoe.config import weights
from jmoe.model import decoder

PROMPT_POSITIONS = 64  # of a prompt, processed at once
CACHE_POSITIONS = 256  # a cache's length is a multiple of this, so that few lengths are compiled


def new_caches(model, n_positions: int) -> dict:
    """Empty (k_BUPK, v_BUPK) of one row by stack of weights.stacks, for at least `n_positions`."""
    n = -(-(n_positions + PROMPT_POSITIONS) // CACHE_POSITIONS) * CACHE_POSITIONS
    empty = lambda n_blocks: jnp.zeros((n_blocks, 1, n, *weights.heads(model)[1:]), jnp.float32)
    return {stack: (empty(n_blocks), empty(n_blocks)) for stack, n_blocks in weights.stacks(model).items()}


@functools.partial(jax.jit, static_argnames="model", donate_argnames="caches")
def forward(params, caches, tokens_T, start, model):
    """Float32 logits_TV of tokens at positions start, start + 1, ..., and the caches with their keys and values.

    params: as decoder.cast gives them. model: a FrozenConfigDict of config.model. What the caches hold from `start` on
    does not matter.
    """
    run = decoder.with_params(params, model)
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

    model: config.model. params: decoder.init_params' tree, on the host or one device.
    """
    model = ml_collections.FrozenConfigDict(model)
    params, caches = decoder.cast(jax.device_put(params), model), new_caches(model, len(prompt) + n)
    logits_V, caches = read_prompt(params, caches, prompt, model)
    for i in range(n):
        token = choose(logits_V, jax.random.fold_in(jax.random.key(seed), i), temperature, top_p)
        yield int(token)
        if i + 1 < n:
            logits_TV, caches = forward(params, caches, token[None], len(prompt) + i, model)
            logits_V = logits_TV[0]
