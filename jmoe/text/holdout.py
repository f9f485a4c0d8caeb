"""Which documents are held out: about 1% of the text's bytes, chosen by hash.

Axis legend: n documents, in the order of the sources; equal ones may be among them.
"""

import hashlib

import numpy as np


def choose(documents, given, listed: bool, rules: str):
    """Keeps the first of equal documents, and holds out some of those kept.

    Holds out one document in a hundred, by its hash alone, if that makes 0.5% to 2% of the text's bytes. Otherwise the
    documents are too few or too unequal: it takes them in the order of their hashes, those already chosen first, as
    long as they fit into 1% of the bytes; if they fill less than half of that, it adds the tail of the next document.

    `documents` is a structured array [n] with sha256 and bytes, `given` [n] marks those of config.data.validation_path,
    and `listed` says that no others are held out. `rules` is what the tokens depend on besides the documents.

    Returns kept [n], held_out [n] (bool), cut (None or the index of a document and the bytes of its tail), fingerprint.
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
    how = b"filled" if filled else b""  # empty for a split by hash alone, so that older fingerprints stay as they are
    return kept, held_out, cut, hashlib.sha256(rules.encode() + lines.tobytes() + how).hexdigest()[:16]


def _fill(order, sizes, share: int):
    """held_out [n], the first documents of `order` that fit into `share` bytes together, and cut as in `choose`."""
    ends = np.cumsum(sizes[order])
    n_uncut = int(np.searchsorted(ends, share, "right"))
    held_out = np.zeros(len(sizes), bool)
    held_out[order[:n_uncut]] = True
    rest = share - (int(ends[n_uncut - 1]) if n_uncut else 0)
    return held_out, (int(order[n_uncut]), rest) if n_uncut < len(order) and 2 * rest > share else None


def cut_at(document: bytes, tail: int) -> int:
    """Where a tail of about `tail` bytes begins: after a line's end or a space, else between two characters."""
    start = len(document) - tail
    for mark in (b"\n", b" "):
        if (at := document.find(mark, start, start + tail // 2)) >= 0:
            return at + 1
    while start < len(document) - 1 and 0x80 <= document[start] < 0xC0:  # within a character of UTF-8
        start += 1
    return start
