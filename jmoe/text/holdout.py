"""Chooses the documents that are held out: about 1% of the text's bytes, by hash.

Axis legend: N documents, in the order of the sources; some may be equal.
"""

import hashlib
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Shaped


class Cut(NamedTuple):
    """A document whose tail is held out: its index, and the bytes of the tail."""

    index: int
    tail: int


class Selection(NamedTuple):
    """The selection of documents: which are unique and which are held out.

    Attributes:
      unique: Whether the document is the first of its equals.
      held_out: Whether the document is held out as a whole.
      cut: The document whose tail is held out too, if any.
      fingerprint: Identifies the documents, the selection and the rules of tokenising, in 16 hex digits.
    """

    unique: Bool[np.ndarray, " N"]
    held_out: Bool[np.ndarray, " N"]
    cut: Cut | None
    fingerprint: str


def choose(
    documents: Shaped[np.ndarray, " N"], is_validation: Bool[np.ndarray, " N"], by_path: bool, rules: str
) -> Selection:
    """Keeps the first of equal documents, and holds out some of those.

    One document in a hundred is held out, by its hash alone, if that makes 0.5% to 2% of the text's bytes. Otherwise
    the documents are too few or too unequal. Then documents are held out in the order of their hashes, those already
    chosen first, while they fit into 1% of the bytes. If they fill less than half of that, the tail of the next one is
    held out as well.

    Args:
      documents: Structured array with the fields `sha256` (S32) and `bytes` (int).
      is_validation: Marks documents of config.data.validation_path.
      by_path: Whether these are all that is held out.
      rules: What the tokens depend on besides the documents.
    """
    unique = np.zeros(len(documents), bool)
    _, order_of_digests = np.unique(documents["sha256"], return_index=True)
    unique[order_of_digests] = True
    digests = documents["sha256"].copy().view(np.uint8).reshape(-1, 32)
    held_out = is_validation.copy()
    cut = None
    suffix = b""  # stays empty for a split by hash alone, so that older fingerprints stay as they are
    if not by_path:
        held_out = unique & (digests[:, :8].copy().view(">u8")[:, 0] % 100 == 0)
        n_bytes = int(documents["bytes"][unique].sum())
        n_bytes_held_out = int(documents["bytes"][held_out].sum())
        if not n_bytes <= 200 * n_bytes_held_out <= 4 * n_bytes:
            suffix = b"filled"
            is_chosen = held_out[order_of_digests]
            order = np.concatenate([order_of_digests[is_chosen], order_of_digests[~is_chosen]])
            held_out, cut = _fill(order, documents["bytes"], max(1, n_bytes // 100))
    letters = np.where(is_validation, ord("v"), ord("t")).astype(np.uint8)
    lines = np.concatenate([letters[:, None], digests], axis=1)[unique]
    fingerprint = hashlib.sha256(rules.encode() + lines.tobytes() + suffix).hexdigest()[:16]
    return Selection(unique, held_out, cut, fingerprint)


def _fill(
    order: Int[np.ndarray, " K"], sizes: Int[np.ndarray, " N"], budget: int
) -> tuple[Bool[np.ndarray, " N"], Cut | None]:
    """Marks the first documents of `order` that fit into `budget` bytes together; and the one to cut, as in `choose`.

    K are the unique documents.
    """
    ends = np.cumsum(sizes[order])
    n_whole = int(np.searchsorted(ends, budget, "right"))
    held_out = np.zeros(len(sizes), bool)
    held_out[order[:n_whole]] = True
    rest = budget - (int(ends[n_whole - 1]) if n_whole else 0)
    if n_whole == len(order) or 2 * rest <= budget:
        return held_out, None
    return held_out, Cut(int(order[n_whole]), rest)


def cut_at(document: bytes, tail: int) -> int:
    """The byte where a tail of about `tail` bytes begins: after a newline or a space, else between two characters."""
    start = len(document) - tail
    for separator in (b"\n", b" "):
        position = document.find(separator, start, start + tail // 2)
        if position >= 0:
            return position + 1
    while start < len(document) - 1 and 0x80 <= document[start] < 0xC0:  # within a character of UTF-8
        start += 1
    return start
