"""Which documents are held out: about 1% of the text, by hash, whatever the sizes of its documents.

Axis legend: n documents, in the order of the sources; equal ones may be among them.
"""

import hashlib

import numpy as np


def choose(documents, given, listed: bool, rules: str):
    """Of equal documents the first is kept; of those kept, some are held out.

    One document in a hundred is held out, by its hash alone, where that makes 0.5% to 2% of the text's bytes. Where
    documents are too few or too unequal for that, they are held out in the order of their hashes, those chosen first,
    as long as they fit into 1% of the bytes; if they fill less than half of it, the next one gives its tail.

    Args:
      documents: structured array [n] with sha256 and bytes.
      given: bool [n], the documents that came by config.data.validation_path.
      listed: held-out documents were given, and no others are held out.
      rules: what the tokens depend on beside the documents, for the fingerprint.

    Returns:
      kept [n], held_out [n] (bool), cut: None or (index of the document to be cut, bytes of its tail), fingerprint.
    """
    kept = np.zeros(len(documents), bool)
    _, by_digest = np.unique(documents["sha256"], return_index=True)
    kept[by_digest] = True
    digests = documents["sha256"].copy().view(np.uint8).reshape(-1, 32)
    held_out, cut, filled = given.copy(), None, False
    if not listed:
        held_out = kept & (digests[:, :8].copy().view(">u8")[:, 0] % 100 == 0)
        total, chosen = (int(documents["bytes"][some].sum()) for some in (kept, held_out))
        if filled := not total <= 200 * chosen <= 4 * total:
            order = np.concatenate([by_digest[held_out[by_digest]], by_digest[~held_out[by_digest]]])
            held_out, cut = _fill(order, documents["bytes"], max(1, total // 100))
    letters = np.where(given, ord("v"), ord("t")).astype(np.uint8)
    lines = np.concatenate([letters[:, None], digests], axis=1)[kept]
    how = b"filled" if filled else b""  # a split by hash alone has the fingerprint of when there was no other
    return kept, held_out, cut, hashlib.sha256(rules.encode() + lines.tobytes() + how).hexdigest()[:16]


def _fill(order, sizes, share: int):
    """held_out [n] and cut: the first documents of `order` that make `share` bytes together."""
    ends = np.cumsum(sizes[order])
    n_whole = int(np.searchsorted(ends, share, "right"))
    held_out = np.zeros(len(sizes), bool)
    held_out[order[:n_whole]] = True
    rest = share - (int(ends[n_whole - 1]) if n_whole else 0)
    return held_out, (int(order[n_whole]), rest) if n_whole < len(order) and 2 * rest > share else None


def cut_at(document: bytes, tail: int) -> int:
    """Where a tail of about `tail` bytes begins: after a line's end or a space, else between two characters."""
    start = len(document) - tail
    for mark in (b"\n", b" "):
        if (found := document.find(mark, start, start + tail // 2)) >= 0:
            return found + 1
    while start < len(document) - 1 and 0x80 <= document[start] < 0xC0:  # within a character of UTF-8
        start += 1
    return start
