"""The text of a run: prepared tokens of one source (Corpus), or of several that are mixed (Mixture).

Axis legend: N tokens, V tokens of the vocabulary.
"""

import bisect
import dataclasses
import functools
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64, UInt

from jmoe.text import manifest as manifest_lib

PERIOD = 1000  # rows, after which a mixture takes the sources in the same order again


class Tokens:
    """Shards as one flat array of tokens: len() and slices of step 1."""

    def __init__(self, shards: list[UInt[np.ndarray, " N"]]) -> None:
        self._shards = shards
        self._ends = np.cumsum([len(shard) for shard in shards]).tolist()

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, part: slice) -> UInt[np.ndarray, " N"]:
        start, stop, _ = part.indices(len(self))
        i = bisect.bisect_right(self._ends, start)
        pieces = []
        while start < stop:
            shard = self._shards[i]
            first = start - (self._ends[i] - len(shard))
            pieces.append(shard[first : first + stop - start])
            start += len(pieces[-1])
            i += 1
        # an empty slice of the first shard: without pieces the result still has the right dtype
        return pieces[0] if len(pieces) == 1 else np.concatenate([self._shards[0][:0], *pieces])


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Prepared text: memory-mapped tokens, and what identifies them."""

    fingerprint: str
    train: Tokens
    validation: Tokens
    manifest: dict[str, Any]

    @property
    def parts(self) -> tuple["Part", ...]:
        """The sources of its rows: itself alone."""
        return (Part("", PERIOD, self),)

    @property
    def held_out(self) -> tuple["Part", ...]:
        """The sources of the text that is evaluated."""
        return self.parts

    @functools.cached_property
    def token_bytes(self) -> Float64[np.ndarray, " V"]:
        """UTF-8 bytes of held-out text that each token encodes; 0 for an end of text."""
        return manifest_lib.token_bytes(self.manifest)


class Part(NamedTuple):
    """A source of text in a mixture.

    Attributes:
      name: Its name in results (mixture.names); "" for a corpus of one source.
      share: Rows of it in each PERIOD rows.
      corpus: Its text.
      path: Its path in config.data.mixture; "" for a corpus of one source.
    """

    name: str
    share: int
    corpus: Corpus
    path: str = ""


@dataclasses.dataclass(frozen=True)
class Mixture:
    """The text of config.data.mixture."""

    fingerprint: str
    parts: tuple[Part, ...]
    held_out: tuple[Part, ...]  # sources of the text that is evaluated


TrainingText = Corpus | Mixture
