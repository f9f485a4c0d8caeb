"""From (n_active, n_experts) to width, total parameters, cache, exact counts and learning rate.

Decoder with an untied embedding and head, multi-head attention (4 d^2 weights a block) and a SwiGLU feed-forward layer of
width 3 d (9 d^2 weights an expert), one expert active (App. A):

  n_active = 2 d V + 13 n_blocks d^2        n_total = 2 d V + (4 + 9 E) n_blocks d^2        n_blocks = d / width_per_block
"""

import dataclasses

import numpy as np
from absl import flags

FLOPS_PER_PARAMETER_TRAINING = 6
FLOPS_PER_PARAMETER_INFERENCE = 2


@dataclasses.dataclass(frozen=True)
class Architecture:
    """vocab_size in tokens; width_per_block: d_model / n_blocks, which is d_model / n_heads too; final_norm: whether a
    norm stands before the head. Defaults: the paper's."""

    vocab_size: int = 50257
    width_per_block: int = 64
    final_norm: bool = False

    def n_active(self, d_model):
        """Active parameters (Eq. 12) of any width, whole blocks or not."""
        return 2 * d_model * self.vocab_size + 13 * d_model**3 / self.width_per_block

    def n_total(self, d_model, n_experts):
        """All parameters (Eq. 11)."""
        return 2 * d_model * self.vocab_size + (4 + 9 * n_experts) * d_model**3 / self.width_per_block

    def d_model(self, n_active):
        """The (real) width whose n_active this is: the positive root of Eq. 12, by Cardano's formula, any shape."""
        # t^3 + p t = q with one real root; in hyperbolic form it loses no digits.
        p = 2 * self.vocab_size * self.width_per_block / 13
        q = np.asarray(n_active, float) * self.width_per_block / 13
        return 2 * np.sqrt(p / 3) * np.sinh(np.arcsinh(1.5 * q / p * np.sqrt(3 / p)) / 3)

    def kv_elements(self, d_model, kv_tokens):
        """Elements of the key-value cache of kv_tokens tokens: 2 T n_blocks d_model (Sec. 4.3)."""
        return 2 * kv_tokens * d_model**2 / self.width_per_block


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
        """As the law counts it: no norms, no router (Eq. 12)."""
        return 2 * self.d_model * self.architecture.vocab_size + 13 * self.n_blocks * self.d_model**2

    @property
    def n_total(self):
        """As the law counts it (Eq. 11)."""
        return (
            2 * self.d_model * self.architecture.vocab_size + (4 + 9 * self.n_experts) * self.n_blocks * self.d_model**2
        )

    @property
    def exact_parameters(self):
        """Every weight: n_total, two norms with bias a block, perhaps one before the head, and a router a block where
        there are experts."""
        router = self.n_blocks * self.d_model * self.n_experts if self.n_experts > 1 else 0
        return self.n_total + (4 * self.n_blocks + self.architecture.final_norm) * self.d_model + router

    def kv_elements(self, kv_tokens):
        """Elements of the key-value cache of kv_tokens tokens."""
        return 2 * kv_tokens * self.n_blocks * self.d_model

    def exact_flops_per_token(self, sequence):
        """FLOPs of one token's forward pass at `sequence` tokens of context: two a weight it is multiplied with (the
        embedding is looked up, not multiplied), scores and values of attention over the whole context, and the router."""
        d = self.d_model
        weights = 13 * self.n_blocks * d**2 + d * self.architecture.vocab_size
        router = self.n_blocks * d * self.n_experts if self.n_experts > 1 else 0
        return 2 * (weights + router) + 4 * self.n_blocks * d * sequence


def learning_rate(n_active, n_experts):
    """Peak learning rate of Eq. 10 with the digits of its authors' code, which takes the full active count; the paper's
    text says non-embedding instead, and small models would get 2 to 6 times more."""
    return np.exp(8.391640956234012 - 0.8121798244457074 * np.log(n_active) - 0.25 * np.log(n_experts))


# Sec. 5.1.1: (from this many tokens seen, tokens in a batch)
BATCH_RAMP = ((0, 65_536), (500_000_000, 131_072), (1_000_000_000, 262_144))


def define_flags(f):
    flags.DEFINE_integer(
        "vocab_size",
        None,
        "Tokens in the vocabulary: embedding and head are n_active too. Default: the law's own.",
        lower_bound=1,
        flag_values=f,
    )
    flags.DEFINE_integer(
        "width_per_block",
        None,
        "d_model / n_blocks, and d_model / n_heads. Default: the law's own.",
        lower_bound=1,
        flag_values=f,
    )


def from_flags(f, fitted):
    """The Architecture of the flags, and of the law `fitted` where they say nothing."""
    return fitted.shaped(f.vocab_size, f.width_per_block)
