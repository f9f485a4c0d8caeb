"""Architectures beyond the paper's, for laws that tell them apart: finer experts, shared ones, dense blocks before the
mixture, grouped queries; and the best of a grid of them.

Each architecture leaves one continuous size: its width, and with it depth, heads and all counts. optimum.solve finds
the best size of each at each number of experts, whatever the law reads of it; the best of the grid has the least loss.

Axes: as in architecture.py; everything broadcasts with the number of experts.
"""

import dataclasses

import numpy as np

from fit import optimum
from fit.architecture import ATTENTION, EXPERT, Architecture


@dataclasses.dataclass(frozen=True)
class Mixture(Architecture):
    """Every expert as wide as the dense layer is split into `split` narrower ones, of which a token uses `used` times
    as many (used = 1: as much width as the dense layer has); `shared` of those are the same for all tokens.

    n_dense: blocks before the mixture that are dense. kv_share: heads of keys and values over heads of queries.
    """

    split: int = 1
    shared: int = 0
    n_dense: int = 0
    kv_share: float = 1.0
    used: float = 1.0

    def n_active(self, d_model, n_blocks=None):
        """Parameters that a token uses."""
        return self.n_total(d_model, self.used, n_blocks)

    def n_total(self, d_model, n_experts, n_blocks=None):
        """All parameters; n_experts counts whole ones."""
        n_blocks = d_model / self.width_per_block if n_blocks is None else n_blocks
        whole = super().n_total(d_model, n_experts, n_blocks)
        grouped = ATTENTION / 2 * (1 - self.kv_share) * n_blocks
        dense = EXPERT * (n_experts - 1) * np.minimum(self.n_dense, n_blocks)
        return whole - (grouped + dense) * d_model**2

    @property
    def active_weights(self):
        """Weights of a block of the mixture that a token uses, in d_model^2."""
        return ATTENTION * (1 + self.kv_share) / 2 + EXPERT * self.used

    def d_model(self, n_active):
        """The (real) width whose n_active this is, any shape: in closed form unless dense blocks weigh otherwise."""
        if self.n_dense == 0 or self.used == 1:
            return super().d_model(n_active)
        near = np.log(super().d_model(n_active))  # all blocks counted as the mixture's
        excess = lambda log_d: self.n_active(np.exp(log_d)) - n_active
        return np.exp(optimum.root(excess, near - 5, near + 5))

    def kv_elements(self, d_model, kv_tokens, n_blocks=None):
        """Elements of the cache: keys and values of the heads that have them."""
        return self.kv_share * super().kv_elements(d_model, kv_tokens, n_blocks)

    def columns(self, d_model, n_experts, embedding=True):
        """What a law may read."""
        top_k = float(self.split * self.used)
        fine = dict(top_k=top_k, granularity=float(self.split), shared_share=self.shared / top_k)
        return super().columns(d_model, n_experts, embedding) | fine | dict(sparsity=1 - self.used / n_experts)


def best(law, architectures, constraints, experts):
    """(Optima, architecture, index) of the law's least loss over the grid; (None, first architecture, None) where
    nothing is feasible. Numbers of experts below what an architecture uses are left out."""
    found, experts = None, np.asarray(experts, float)
    for architecture in architectures:
        enough = experts[experts >= architecture.used]
        solved = optimum.solve(law, enough, architecture, constraints)
        if solved.feasible.any():
            i = int(np.nanargmin(solved.loss))
            if found is None or solved.loss[i] < found[0].loss[found[2]]:
                found = solved, architecture, i
    return found or (None, architectures[0], None)
