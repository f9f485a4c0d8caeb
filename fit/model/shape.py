"""The shape of a model, by the trainer's field names, and all that is counted of it.

A field may be a number or an array. Fields broadcast together, so a grid of shapes is one ModelShape. Counts have the
common shape of the fields that they read.
"""

import dataclasses
import functools

import numpy as np

from fit.aliases import Json, Numbers


@dataclasses.dataclass(frozen=True)
class ModelShape:
    """A decoder with grouped-query attention and SwiGLU layers, dense or in mixtures of experts.

    Attributes:
      d_model, n_blocks, n_heads, n_kv_heads, head_dim, d_ff, vocab_size: as in config.model; none of them is a default.
      n_experts: experts that tokens choose from; 1 is a dense model.
      d_expert: hidden units of an expert; of a dense model it is not read.
      top_k: experts that a token chooses.
      n_shared_experts: experts that all tokens use; need not be whole.
      n_dense_blocks: blocks without a mixture, in a model that has mixtures.
      tied_embeddings: whether the head is the embedding.
      matrices: of a feed-forward layer: 3 (SwiGLU) or 2.
      latent_attention: parameters of one block's projections, where attention is not grouped queries; 0 where it is.
    """

    d_model: Numbers
    n_blocks: Numbers
    n_heads: Numbers
    n_kv_heads: Numbers
    head_dim: Numbers
    d_ff: Numbers
    vocab_size: Numbers
    n_experts: Numbers = 1
    d_expert: Numbers = 0
    top_k: Numbers = 1
    n_shared_experts: Numbers = 0
    n_dense_blocks: Numbers = 0
    tied_embeddings: bool | np.ndarray = False
    matrices: Numbers = 3
    latent_attention: Numbers = 0

    @classmethod
    def of_config(cls, fields: Json) -> "ModelShape":
        """The shape of the fields of config.model, the trainer's defaults filled in. It reads no other fields."""
        n_heads = fields["n_heads"]
        n_experts = fields["n_experts"]
        is_mixture = n_experts > 1
        return cls(
            d_model=fields["d_model"],
            n_blocks=fields["n_blocks"],
            n_heads=n_heads,
            n_kv_heads=fields.get("n_kv_heads") or n_heads,
            head_dim=fields.get("head_dim") or fields["d_model"] // n_heads,
            d_ff=fields["d_ff"],
            vocab_size=fields["vocab_size"],
            n_experts=n_experts,
            d_expert=(fields.get("d_expert") or fields["d_ff"]) if is_mixture else 0,
            top_k=(fields.get("top_k") or 1) if is_mixture else 1,
            n_shared_experts=(fields.get("n_shared_experts") or 0) if is_mixture else 0,
            n_dense_blocks=(fields.get("n_dense_blocks") or 0) if is_mixture else 0,
            tied_embeddings=bool(fields.get("tied_embeddings")),
        )

    @functools.cached_property
    def n_mixtures(self) -> Numbers:
        """Blocks that have a mixture."""
        return _where(self.n_experts > 1, self.n_blocks - self.n_dense_blocks, 0)

    @property
    def query_units(self) -> Numbers:
        """Units of all heads of queries."""
        return self.n_heads * self.head_dim

    @property
    def key_units(self) -> Numbers:
        """Units of all heads of keys; values have as many."""
        return self.n_kv_heads * self.head_dim

    @functools.cached_property
    def attention_weights(self) -> Numbers:
        """Parameters of one block's projections: queries, keys, values and what joins the heads."""
        grouped = 2 * self.d_model * (self.query_units + self.key_units)
        return _where(self.latent_attention > 0, self.latent_attention, grouped)

    @property
    def layer_weights(self) -> Numbers:
        """Parameters of one dense layer."""
        return self.matrices * self.d_model * self.d_ff

    @property
    def expert_weights(self) -> Numbers:
        """Parameters of one expert."""
        return self.matrices * self.d_model * self.d_expert

    @functools.cached_property
    def routed_weights(self) -> Numbers:
        """Parameters of all experts, of all blocks, that tokens choose from."""
        return self.n_mixtures * self.n_experts * self.expert_weights

    @property
    def chosen_weights(self) -> Numbers:
        """Those of routed_weights that one token uses."""
        return self.n_mixtures * self.top_k * self.expert_weights

    @property
    def shared_weights(self) -> Numbers:
        """Parameters of the experts, of all blocks, that all tokens use."""
        return self.n_mixtures * self.n_shared_experts * self.expert_weights

    @property
    def dense_layers(self) -> Numbers:
        """Parameters of the dense layers of all blocks."""
        return (self.n_blocks - self.n_mixtures) * self.layer_weights

    @functools.cached_property
    def dense_weights(self) -> Numbers:
        """Parameters of all blocks that all tokens use, but for routers and norms."""
        return self.attention_weights * self.n_blocks + self.dense_layers + self.shared_weights

    @property
    def routers(self) -> Numbers:
        """Parameters of the routers."""
        return self.n_mixtures * self.d_model * self.n_experts

    @property
    def head(self) -> Numbers:
        """Parameters of the output head."""
        return self.d_model * self.vocab_size

    @functools.cached_property
    def embedding_and_head(self) -> Numbers:
        """Parameters of embedding and head; a tied embedding is one matrix."""
        return _where(self.tied_embeddings, self.head, 2 * self.head)

    @property
    def looked_up(self) -> Numbers:
        """Parameters of an embedding that is only looked up; 0 where it is the head, too."""
        return self.embedding_and_head - self.head

    @property
    def n_total(self) -> Numbers:
        """Parameters without norms and routers (Eq. 11), with embedding and head."""
        return self.dense_weights + self.routed_weights + self.embedding_and_head

    @property
    def n_active(self) -> Numbers:
        """Parameters that one token uses, without norms and routers (Eq. 12), with embedding and head."""
        return self.dense_weights + self.chosen_weights + self.embedding_and_head

    def exact_parameters(self, rms_norms: bool, final_norm: bool) -> Numbers:
        """Every weight, with routers and norms.

        Args:
          rms_norms: whether norms have no bias, and each head's queries and keys have one, too.
          final_norm: whether a norm precedes the head. It has no bias.
        """
        of_block = 2 * (self.d_model + self.head_dim) if rms_norms else 4 * self.d_model
        return self.n_total + self.routers + self.n_blocks * of_block + final_norm * self.d_model

    @property
    def chosen_share(self) -> Numbers:
        """Share of the experts that a token chooses; 1 for a dense model."""
        return _where(self.n_experts > 1, self.top_k / self.n_experts, 1.0)

    def kv_elements(self, n_tokens: Numbers) -> Numbers:
        """Elements of a cache of the keys and values of `n_tokens` tokens."""
        return 2 * self.n_blocks * self.key_units * n_tokens

    def forward_flops(self, sequence: Numbers) -> Numbers:
        """FLOPs of one token's forward pass, with routers, and attention over the whole row of `sequence` tokens."""
        multiplied = self.n_active - self.looked_up + self.routers
        return 2 * multiplied + 4 * self.n_blocks * self.query_units * sequence

    def flops_per_token(self, sequence: Numbers) -> Numbers:
        """Training FLOPs of a token, as MFU counts them here.

        These are 6 for each active parameter but the embedding's, and causal attention. Nothing is computed again, and
        there is no padding.
        """
        active = self.n_active - self.looked_up
        return 6 * active + 6 * self.n_blocks * self.query_units * sequence


def _where(condition: bool | np.ndarray, then: Numbers, other: Numbers) -> Numbers:
    """`then` where the condition holds, else `other`. Of whole numbers it is a whole number, however large."""
    if np.ndim(condition) == 0:
        return then if condition else other
    return np.where(condition, then, other)
