"""Text from a model, token by token, with a cache of keys and values.

Axes (jmoe/model/__init__.py): B = 1, K, P, T new positions, U positions of the cache, V.
"""

import functools
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from ml_collections import ConfigDict, FrozenConfigDict

from jmoe.config import counts
from jmoe.model.transformer import STACKS, Cache, cast, with_params

PROMPT_POSITIONS = 64  # of a prompt, processed at once
CACHE_POSITIONS = 256  # a cache's length is a multiple of this, so that few lengths are compiled


def new_caches(model: ConfigDict, n_positions: int) -> dict[str, Cache]:
    """Empty (k_BUPK, v_BUPK) of one row by stack of blocks, for at least `n_positions`."""
    n_cached = -(-(n_positions + PROMPT_POSITIONS) // CACHE_POSITIONS) * CACHE_POSITIONS
    _, n_kv_heads, head_dim = counts.heads(model)
    n_dense = model.n_dense_blocks
    caches = {}
    for stack, n_blocks in zip(STACKS, (n_dense, model.n_blocks - n_dense), strict=True):
        if n_blocks:
            shape = (n_blocks, 1, n_cached, n_kv_heads, head_dim)
            caches[stack] = (jnp.zeros(shape, jnp.float32), jnp.zeros(shape, jnp.float32))
    return caches


@functools.partial(jax.jit, static_argnames="model", donate_argnames="caches")
def forward(
    params: dict,
    caches: dict[str, Cache],
    tokens_T: Int[Array, " T"],
    start: int | Int[Array, ""],
    model: FrozenConfigDict,
) -> tuple[Float[Array, "T V"], dict[str, Cache]]:
    """Float32 logits_TV of a row's tokens at positions start, start + 1, ..., and caches with their keys and values.

    params: as `cast` gives them, on one device. model: a FrozenConfigDict of config.model. What the caches hold from
    `start` on does not matter.
    """
    transformer = with_params(params, model)
    x_BTD, head_DV, _, caches = transformer(tokens_T[None], training=False, start=start, caches=caches)
    return jnp.matmul(x_BTD[0], head_DV, preferred_element_type=jnp.float32), caches


def read_prompt(
    params: dict, caches: dict[str, Cache], tokens: Sequence[int], model: FrozenConfigDict
) -> tuple[Float[Array, " V"], dict[str, Cache]]:
    """(logits_V after the last of the tokens, caches)."""
    for start in range(0, len(tokens), PROMPT_POSITIONS):
        part_T = jnp.asarray(tokens[start : start + PROMPT_POSITIONS])
        last = len(part_T) - 1
        # the padding's keys and values lie after `last`, where later tokens overwrite them
        part_T = jnp.pad(part_T, (0, PROMPT_POSITIONS - len(part_T)))
        logits_TV, caches = forward(params, caches, part_T, start, model)
    return logits_TV[last], caches


@jax.jit
def choose(
    logits_V: Float[Array, " V"], key: Array, temperature: float | Float[Array, ""], top_p: float | Float[Array, ""]
) -> Int[Array, ""]:
    """The next token: drawn from the likeliest tokens that hold `top_p` of the probability; temperature 0: the
    likeliest one."""
    order_V = jnp.argsort(-logits_V)
    sorted_V = logits_V[order_V] / jnp.maximum(temperature, 1e-6)
    probability_V = jax.nn.softmax(sorted_V)
    before_V = jnp.cumsum(probability_V) - probability_V
    drawn = order_V[jax.random.categorical(key, jnp.where(before_V < top_p, sorted_V, -jnp.inf))]
    return jnp.where(temperature > 0, drawn, jnp.argmax(logits_V))


def tokens_after(  # noqa: PLR0913  most are by name
    prompt: Sequence[int],
    params: dict,
    model: ConfigDict,
    n: int,
    *,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
    end_of_text: int | None = None,
) -> Iterator[int]:
    """Yields the tokens that follow a prompt; the same seed yields the same tokens.

    Args:
      prompt: at least one token.
      params: init_params' tree, on the host or one device.
      model: config.model.
      n: how many tokens to yield.
      temperature, top_p: as of `choose`.
      seed: of the draws.
      end_of_text: the token that ends a document, where a token sees only its own document, as in training with
        config.data.document_mask; None: it sees all before it.
    """
    model = FrozenConfigDict(model)
    params = cast(jax.device_put(params), model)
    document = _last_document(prompt, end_of_text)
    caches = new_caches(model, len(document) + n)
    logits_V, caches = read_prompt(params, caches, document, model)
    position = len(document)  # of the next token
    last_token = document[-1]
    for i in range(n):
        key = jax.random.fold_in(jax.random.key(seed), i)
        token = choose(logits_V, key, temperature, top_p)
        if last_token == end_of_text:
            position = 0  # a new document, which writes over what the caches hold
        last_token = int(token)
        yield last_token
        if i + 1 < n:
            logits_TV, caches = forward(params, caches, token[None], position, model)
            logits_V = logits_TV[0]
            position += 1


def _last_document(tokens: Sequence[int], end_of_text: int | None) -> Sequence[int]:
    """The tokens that the last one of these sees: its document, which may end with the last token."""
    for i in range(len(tokens) - 2, -1, -1):
        if tokens[i] == end_of_text:
            return tokens[i + 1 :]
    return tokens
