"""The documents of each row, where config.data.document_mask keeps attention within them.

A row is cut from text in which an end of text follows each document. So the tokens alone say where documents begin. The
part of a document that a row begins with counts as a document.

Axes (jmoe/model/__init__.py): B, T.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int


class Documents(NamedTuple):
    """Which document each token belongs to, and where in it.

    Attributes:
      number_BT: how many documents of the row end before the token; an end of text belongs to the document that it
        ends.
      position_BT: how many tokens of the same document come before it in the row.
    """

    number_BT: Int[Array, "B T"]
    position_BT: Int[Array, "B T"]


def find_documents(tokens_BT: Int[Array, "B T"], end_of_text: int) -> Documents:
    """The documents of rows; end_of_text: the token that ends a document."""
    ends_BT = tokens_BT == end_of_text
    begins_BT = jnp.pad(ends_BT[:, :-1], ((0, 0), (1, 0)))  # a token that follows an end of text
    number_BT = jnp.cumsum(begins_BT, axis=1, dtype=jnp.int32)
    place_T = jnp.arange(tokens_BT.shape[1], dtype=jnp.int32)
    first_BT = jax.lax.cummax(jnp.where(begins_BT, place_T, 0), axis=1)
    return Documents(number_BT, place_T - first_BT)
