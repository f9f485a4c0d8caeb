"""How devices train a model: the mesh, the batch, rematerialization."""

import dataclasses
import functools
from collections.abc import Mapping

import numpy as np

from fit.aliases import Array, Numbers

REMATS = ("full", "dots", "none")  # values of config.remat: all, all but the products, or nothing is computed again


@dataclasses.dataclass(frozen=True)
class Layout:
    """How devices train a model. A field may be a number or an array; fields broadcast together.

    Attributes:
      batch_tokens: tokens of a step, of all devices.
      sequence: tokens in a row.
      data, expert, model, pipeline: devices of the mesh's axes.
      microbatch_tokens: tokens at once, of all devices; 0 means the whole batch.
      remat: as config.remat, or an array of such texts.
      slots: slots of the experts over tokens' choices: the capacity factor, 1 where no token is dropped.
      buffer: where no token is dropped, rows of the arrays that are sent to experts over tokens' choices; 0 means
        experts with `slots`.
      imbalance: load of the busiest device of the expert axis over its fair share.
      flash: whether attention keeps no scores.
      domain: devices that the fast network joins; 0 means as many as the chip's kind has.
    """

    batch_tokens: Numbers
    sequence: Numbers
    data: Numbers = 1
    expert: Numbers = 1
    model: Numbers = 1
    pipeline: Numbers = 1
    microbatch_tokens: Numbers = 0
    remat: str | Array = "full"
    slots: Numbers = 1.0
    buffer: Numbers = 0.0
    imbalance: Numbers = 1.0
    flash: bool | Array = True
    domain: Numbers = 0

    @functools.cached_property
    def n_devices(self) -> Numbers:
        """Devices of the mesh."""
        return self.data * self.expert * self.model * self.pipeline

    @functools.cached_property
    def tokens_per_device(self) -> Numbers:
        """Tokens of a step over devices: each device's share of the work, whatever axis divides it."""
        return self.batch_tokens / self.n_devices

    @functools.cached_property
    def n_microbatches(self) -> Numbers:
        """Parts of a batch that are worked on one after the other."""
        at_once = np.where(np.greater(self.microbatch_tokens, 0), self.microbatch_tokens, self.batch_tokens)
        return np.maximum(1.0, self.batch_tokens / at_once)

    def of_remat(self, values: Mapping[str, float]) -> Numbers:
        """The value of each layout's remat."""
        if isinstance(self.remat, str):
            return values[self.remat]
        return np.array([values[name] for name in REMATS])[self._remat_index]

    @functools.cached_property
    def _remat_index(self) -> Array:
        """Index of each layout's remat in REMATS."""
        return np.argmax(np.asarray(self.remat)[..., None] == np.array(REMATS), axis=-1)
