"""Models that others published, read from their config.json (Hugging Face's names) or from published.json beside this.

Counts are as the laws count: with embedding and head, without norms, biases and routers. What cannot be counted is
refused with the reason: a count that is silently wrong would be planned with.
"""

import dataclasses
import json
import os
import pathlib
from typing import Any

from fit.aliases import Array, Json, Numbers
from fit.errors import UserError
from fit.messages.printable import printable
from fit.shape.architecture import Architecture

PUBLISHED: dict[str, Json] = json.loads((pathlib.Path(__file__).parent / "published.json").read_text(encoding="utf-8"))
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")  # what configs call the number of experts
LATENT = (
    "its latent attention is counted exactly, and planned as grouped queries of as many weights and as large a cache"
)
WINDOW = "its windows of attention are counted as the whole context: its cache is smaller"
AHEAD = "its layers that predict further tokens are not counted"
LINEAR = "its blocks of linear attention keep no cache; plans spread the others' over all blocks"
ALTERNATE = "its dense blocks alternate with its mixtures; plans put them first"
VISION = "its vision tower is not counted"
# Families whose config.json leaves tie_word_embeddings out because they tie by default.
TIED_FAMILIES = ("gemma", "cohere")
# Families whose feed-forward layers have two matrices; the counts assume the three of SwiGLU.
TWO_MATRICES = ("falcon", "gpt_neox", "nemotron", "opt", "phi", "starcoder2")
UNGATED_ACTIVATIONS = ("gelu_new", "gelu_fast", "relu", "relu2")
# Fields of structures that are not counted, with what they stand for.
NOT_COUNTED = {
    "block_configs": "its blocks differ from each other",
    "attn_type_list": "it mixes kinds of attention that are not counted here",
    "hybrid_override_pattern": "it has state-space layers",
    "layers_block_type": "it has state-space layers",
    "attn_layer_period": "it has state-space layers",
    "mamba_d_state": "it has state-space layers",
    "ssm_cfg": "it has state-space layers",
    "state_size": "it has state-space layers",
    "hidden_size_per_layer_input": "it looks up an embedding in each layer",
    "cla_share_factor": "its layers share keys and values",
    "linear_attn_config": "it has linear attention that is not counted here",
}


@dataclasses.dataclass(frozen=True)
class _Attention:
    """A model's attention: weights of all blocks; numbers that a token leaves in the cache of a block, and the blocks
    that have one; size of a head; sentences on what is not counted exactly."""

    weights: int
    cache: int
    cache_blocks: int
    head_dim: int
    notes: tuple[str, ...]


class _Config:
    """Fields of a config.json by name; path: what errors call it."""

    def __init__(self, fields: Json, path: str) -> None:
        self.fields = fields
        self.path = path

    def number(self, *names: str, default: int | None = None) -> int:
        """The first of these fields that is there. Raises UserError where there is none and no default, or it is no
        whole number."""
        value = next((self.fields[name] for name in names if self.fields.get(name) is not None), default)
        least = 0 if default == 0 else 1
        if value is None:
            raise UserError(f"{self.path}: has no {names[0]}, so it is no config.json of a language model")
        if type(value) is not int or not least <= value < 1e9:
            found = json.dumps(value)
            raise UserError(f"{self.path}: {names[0]} is {found}, expected a whole number from {least} up")
        return value

    def text(self, name: str) -> str:
        return str(self.fields.get(name) or "")

    def refuse_what_is_not_counted(self) -> None:
        """Raises UserError, with the reason, for a model whose parameters these counts would get wrong."""
        for name, reason in NOT_COUNTED.items():
            if self.fields.get(name):
                raise UserError(f"{self.path}: {reason} ({name}), so its parameters are not counted")
        family = self.text("model_type")
        activation = self.text("hidden_act")
        if family in TWO_MATRICES or activation in UNGATED_ACTIVATIONS:
            named = family if family in TWO_MATRICES else activation
            raise UserError(
                f"{self.path}: its feed-forward layers have two matrices ({named}), and models are counted with the "
                "three of SwiGLU"
            )


def _layer_types(config: _Config, n_blocks: int) -> list[str]:
    """The kind of attention of each block; [] where all have full attention."""
    interval = config.number("full_attention_interval", default=0)
    if interval:
        return ["linear_attention" if (i + 1) % interval else "full_attention" for i in range(n_blocks)]
    return list(config.fields.get("layer_types") or ())


def _latent_weights(config: _Config, d_model: int, heads: int, latent: int) -> tuple[int, int, int]:
    """(weights of a block, numbers that a token caches, size of a head) of multi-head latent attention."""
    nope = config.number("qk_nope_head_dim")
    rope = config.number("qk_rope_head_dim")
    size = config.number("v_head_dim")
    narrow = config.number("q_lora_rank", default=0)
    all_queries = heads * (nope + rope)
    queries = narrow * (d_model + all_queries) if narrow else d_model * all_queries
    down = d_model * (latent + rope)
    up = latent * heads * (nope + size)
    out = heads * size * d_model
    return queries + down + up + out, latent + rope, size


def _linear_weights(config: _Config, d_model: int) -> int:
    """Weights of a block of gated delta attention: queries, keys, values, gates, two numbers a head, and output."""
    missing = [name for name in ("linear_num_key_heads", "linear_num_value_heads") if name not in config.fields]
    if missing:
        raise UserError(f"{config.path}: it has linear attention whose sizes it does not say ({missing[0]})")
    value_heads = config.number("linear_num_value_heads")
    keys = config.number("linear_num_key_heads") * config.number("linear_key_head_dim")
    values = value_heads * config.number("linear_value_head_dim")
    return d_model * (2 * keys + 2 * values + 2 * value_heads) + values * d_model


def _attention(config: _Config, d_model: int, n_blocks: int) -> _Attention:
    heads = config.number("num_attention_heads")
    latent = config.number("kv_lora_rank", default=0)
    notes = []
    if latent:
        full, cache, head_dim = _latent_weights(config, d_model, heads, latent)
        notes.append(LATENT)
    else:
        head_dim = config.number("head_dim", default=d_model // heads)
        kv_heads = config.number("num_key_value_heads", default=heads)
        gated = config.fields.get("attn_output_gate", config.text("model_type").startswith("qwen3_next"))
        gate = d_model * head_dim * heads if gated else 0
        full = 2 * d_model * head_dim * (heads + kv_heads) + gate
        cache = 2 * kv_heads * head_dim
    kinds = _layer_types(config, n_blocks)
    unknown = set(kinds) - {"sliding_attention", "full_attention", "chunked_attention", "linear_attention"}
    if unknown:
        raise UserError(f"{config.path}: has layers of {min(unknown)}, which are not counted")
    if {"sliding_attention", "chunked_attention"} & set(kinds):
        notes.append(WINDOW)
    n_linear = kinds.count("linear_attention")
    if not n_linear:
        return _Attention(n_blocks * full, cache, n_blocks, head_dim, tuple(notes))
    if len(kinds) != n_blocks:
        raise UserError(f"{config.path}: layer_types has {len(kinds)} entries, expected one for each of {n_blocks}")
    notes.append(LINEAR)
    n_full = n_blocks - n_linear
    weights = n_full * full + n_linear * _linear_weights(config, d_model)
    return _Attention(weights, cache, n_full, head_dim, tuple(notes))


def _mixture_blocks(config: _Config, n_blocks: int) -> list[int]:
    """Indices of the blocks that have a mixture, of a model with experts."""
    listed = config.fields.get("moe_layers")
    if listed:
        return sorted(listed)
    first = config.number("first_k_dense_replace", default=0)
    every = config.number("interleave_moe_layer_step", "decoder_sparse_step", default=1)
    dense = set(config.fields.get("mlp_only_layers") or ())
    return [i for i in range(first, n_blocks) if (i + 1) % every == 0 and i not in dense]


class Known:
    """A published model's counts. Names are those of the trainer's config.model, and these:

    attention: weights of a block's attention, the mean over blocks; cache: numbers that a token leaves in a block that
    has a cache, and cache_blocks how many have one; d_expert: width of an expert, of a dense block where there are
    none; notes: sentences on what is not counted exactly; split: how many experts a token uses, which together are
    taken for one dense layer; whole_experts: how many times the experts' weights are those, the laws' number of
    experts; n_embedding: parameters of the input embedding, which some makers leave out of their counts; n_ahead:
    those of the layers that predict further tokens, which some makers count.

    config: the model's config.json. Raises UserError where it is none of a language model, or cannot be counted; path:
    what errors call it."""

    def __init__(self, name: str, config: Json, path: str) -> None:
        self.name = name
        read = _Config(config, path)
        read.refuse_what_is_not_counted()
        self.d_model = read.number("hidden_size")
        self.n_blocks = read.number("num_hidden_layers")
        attention = _attention(read, self.d_model, self.n_blocks)
        self.attention = attention.weights / self.n_blocks
        self.cache = attention.cache
        self.cache_blocks = attention.cache_blocks
        self.head_dim = attention.head_dim
        self.notes = list(attention.notes)
        self.vocab_size = read.number("vocab_size")
        tied_by_default = read.text("model_type").startswith(TIED_FAMILIES)
        self.tied_embeddings = bool(config.get("tie_word_embeddings", tied_by_default))
        self.n_embedding = self.vocab_size * self.d_model
        self._read_feed_forward(read)
        ends = self.n_embedding * (1 if self.tied_embeddings else 2)
        n_mixtures = self.n_blocks - self.n_dense_blocks
        outside = ends + attention.weights + 3 * self.d_model * self.n_dense_blocks * self.d_ff
        expert = 3 * self.d_model * n_mixtures * self.d_expert  # of one in each mixture
        self.n_active = outside + expert * self.split
        self.n_total = outside + expert * (self.n_experts + self.n_shared_experts)
        self.n_ahead = 0
        ahead = read.number("num_nextn_predict_layers", default=0)
        if ahead:
            self.notes.append(AHEAD)
            experts = 3 * self.d_model * self.d_expert * (self.n_experts + self.n_shared_experts)
            self.n_ahead = ahead * round(self.attention + experts + 2 * self.d_model**2)

    def _read_feed_forward(self, read: _Config) -> None:
        """Sets n_experts, top_k, n_shared_experts, n_dense_blocks, d_ff, d_expert, split and whole_experts."""
        self.n_experts = read.number(*EXPERTS, default=0)
        self.d_ff = read.number("intermediate_size")
        if not self.n_experts:
            self.n_experts, self.top_k, self.n_shared_experts, self.n_dense_blocks = 1, 1, 0, 0
            self.d_expert = self.d_ff
            self.split, self.whole_experts = 1, 1.0
            return
        self.top_k = read.number("num_experts_per_tok", "experts_per_token")
        self.d_expert = read.number("moe_intermediate_size", default=self.d_ff)
        self.d_ff = read.number("intermediate_size_mlp", default=self.d_ff)  # of Llama 4's dense blocks
        shared = read.number("n_shared_experts", default=0)
        if not shared:
            shared = read.number("shared_expert_intermediate_size", default=0) // self.d_expert
        if read.text("model_type").startswith("llama4"):
            shared = 1  # every mixture has one, which its config.json does not say
        self.n_shared_experts = shared
        mixtures = _mixture_blocks(read, self.n_blocks)
        self.n_dense_blocks = self.n_blocks - len(mixtures)
        if self.top_k > self.n_experts or not mixtures:
            raise UserError(
                f"{read.path}: a token chooses {self.top_k} of {self.n_experts} experts, in {len(mixtures)} blocks"
            )
        if self.n_dense_blocks and mixtures[0] < self.n_dense_blocks:
            self.notes.append(ALTERNATE)
        self.split = self.top_k + self.n_shared_experts
        self.whole_experts = (self.n_experts + self.n_shared_experts) / self.split

    @property
    def cache_elements_per_token(self) -> int:
        """Numbers that a token leaves in the caches of all blocks."""
        return self.cache * self.cache_blocks

    def architecture(
        self, vocab_size: int | None = None, width_per_block: int | None = None, trained: bool = False
    ) -> Architecture:
        """The Architecture of its ratios."""
        # heads of keys and values by their size, over d_model, as a mean over blocks
        grouped = self.cache_elements_per_token / self.n_blocks / (2 * self.d_model)
        queries = self.attention / (2 * self.d_model**2) - grouped
        return Architecture(
            vocab_size or self.vocab_size,
            width_per_block or round(self.d_model / self.n_blocks),
            True,
            split=self.split,
            shared=self.n_shared_experts,
            n_dense=self.n_dense_blocks,
            kv_share=grouped / queries,
            attention=queries,
            head_dim=self.head_dim,
            ff=self.split * self.d_expert / self.d_model,
            tied=self.tied_embeddings,
            trained=trained,
        )

    def columns(self, embedding: bool = True, trained: bool = False) -> dict[str, Numbers | Array]:
        """{column: value} of what a law may read; embedding: whether its counts include embedding and head."""
        built = self.architecture(trained=trained)
        less = 0 if embedding else built.ends * self.d_model
        experts = self.n_experts if trained else self.whole_experts
        return dict(n_active=self.n_active - less, n_total=self.n_total - less) | built.structure(experts)


def read(given: str | os.PathLike | Json) -> Known:
    """The model of a published name, of a config.json's path or of its contents. Raises UserError where it is none."""
    config: Any = given
    path = "--like"
    if not isinstance(given, dict):
        path = f"--like={given}"
        try:
            config = PUBLISHED.get(str(given)) or json.loads(pathlib.Path(given).read_text(encoding="utf-8"))
        except OSError:
            raise UserError(f"{path}: no such file, nor a published model; these are {', '.join(PUBLISHED)}") from None
        except ValueError as e:
            raise UserError(f"{path}: is not JSON: {e}") from e
    if not isinstance(config, dict):
        raise UserError(f"{path}: expected a config.json, an object of a model's sizes")
    name = printable(str(config.get("name") or config.get("_name_or_path") or given))
    known = Known(name, config.get("text_config") or config, path)
    if "vision_config" in config:
        known.notes.append(VISION)
    return known
