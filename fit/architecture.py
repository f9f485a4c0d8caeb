"""From a width and a number of experts to counts: parameters, cache, FLOPs.

Decoder with an untied embedding and head, multi-head attention (4 d^2 weights a block) and a SwiGLU feed-forward layer
of width 3 d (9 d^2 weights an expert), one expert active (App. A):

  n_active = 2 d V + 13 n_blocks d^2     n_total = 2 d V + (4 + 9 E) n_blocks d^2     n_blocks = d / width_per_block
"""

import dataclasses

import numpy as np

TRAINING, INFERENCE = 6, 2  # FLOPs of one token for each active parameter
ATTENTION, EXPERT = 4, 9  # weights of a block's attention and of one of its experts, in d^2
EXPERTS = (1, 2, 4, 8, 16, 32)  # the paper's
OF_EXPERTS = ("n_experts", "n_total", "sparsity")  # columns that change with the number of experts
# columns of the architecture: a token uses one expert, as wide as the dense layer, and none that all tokens use
WHOLE_EXPERTS = dict(top_k=1.0, granularity=1.0, shared_share=0.0)
# Sec. 5.1.1: (from this many tokens seen, tokens in a batch)
BATCH_RAMP = ((0, 65_536), (500_000_000, 131_072), (1_000_000_000, 262_144))


def training_flops(n_active, n_tokens):
    """6 N D."""
    return TRAINING * n_active * n_tokens


@dataclasses.dataclass(frozen=True)
class Architecture:
    """vocab_size in tokens; width_per_block: d_model / n_blocks, which is d_model / n_heads too; final_norm: whether a
    norm stands before the head. Defaults: the paper's.

    Counts are of any width, whole blocks or not, unless n_blocks is given; exact integers where all arguments are.
    """

    vocab_size: int = 50257
    width_per_block: int = 64
    final_norm: bool = False

    @property
    def active_weights(self):
        """Weights of a block that a token uses, in d_model^2."""
        return ATTENTION + EXPERT

    def n_active(self, d_model, n_blocks=None):
        """Active parameters (Eq. 12): no norms, no router."""
        return self.n_total(d_model, 1, n_blocks)

    def n_total(self, d_model, n_experts, n_blocks=None):
        """All parameters (Eq. 11)."""
        n_blocks = d_model / self.width_per_block if n_blocks is None else n_blocks
        return 2 * d_model * self.vocab_size + (ATTENTION + EXPERT * n_experts) * n_blocks * d_model**2

    def d_model(self, n_active):
        """The (real) width whose n_active this is: the positive root of Eq. 12, by Cardano's formula, any shape."""
        # t^3 + p t = q with one real root; in hyperbolic form it loses no digits.
        p = 2 * self.vocab_size * self.width_per_block / self.active_weights
        q = np.asarray(n_active, float) * self.width_per_block / self.active_weights
        return 2 * np.sqrt(p / 3) * np.sinh(np.arcsinh(1.5 * q / p * np.sqrt(3 / p)) / 3)

    def kv_elements(self, d_model, kv_tokens, n_blocks=None):
        """Elements of the key-value cache of kv_tokens tokens: 2 T n_blocks d_model (Sec. 4.3)."""
        n_blocks = d_model / self.width_per_block if n_blocks is None else n_blocks
        return 2 * kv_tokens * n_blocks * d_model

    def columns(self, d_model, n_experts, embedding=True):
        """What a law may read of a model, by the names of its columns; shapes broadcast together. embedding: whether
        the counts are with embedding and head."""
        n_experts = np.asarray(n_experts, float)
        less = 0 if embedding else 2 * d_model * self.vocab_size
        counts = dict(n_active=self.n_active(d_model) - less, n_total=self.n_total(d_model, n_experts) - less)
        return counts | dict(n_experts=n_experts, sparsity=1 - 1 / n_experts) | WHOLE_EXPERTS


PAPER = Architecture()


@dataclasses.dataclass(frozen=True)
class Model:
    """A decoder that can be built: whole blocks, one head a block, width a multiple of width_per_block."""

    architecture: Architecture
    n_blocks: int
    n_experts: int

    @property
    def d_model(self):
        return self.n_blocks * self.architecture.width_per_block

    @property
    def n_active(self):
        return self.architecture.n_active(self.d_model, self.n_blocks)

    @property
    def n_total(self):
        return self.architecture.n_total(self.d_model, self.n_experts, self.n_blocks)

    @property
    def router(self):
        """Weights of the routers: one a block where there are experts."""
        return self.n_blocks * self.d_model * self.n_experts if self.n_experts > 1 else 0

    @property
    def exact_parameters(self):
        """Every weight: n_total, two norms with bias a block, perhaps one before the head, and the routers."""
        return self.n_total + (4 * self.n_blocks + self.architecture.final_norm) * self.d_model + self.router

    def kv_elements(self, kv_tokens):
        """Elements of the key-value cache of kv_tokens tokens."""
        return self.architecture.kv_elements(self.d_model, kv_tokens, self.n_blocks)

    def exact_flops_per_token(self, sequence):
        """FLOPs of one token's forward pass at `sequence` tokens of context: two a weight it is multiplied with (the
        embedding is looked up, not multiplied), scores and values of attention over the whole context, and the
        router."""
        weights = self.n_active - self.d_model * self.architecture.vocab_size
        return 2 * (weights + self.router) + 4 * self.n_blocks * self.d_model * sequence
