"""Models that others published, read from their config.json (Hugging Face's names) or from published.json beside this.

Counts are as the laws count: with embedding and head, without norms, biases and routers. A model that cannot be counted
is refused with the reason, so that no plan rests on a wrong count.
"""

import dataclasses
import json
import os
import pathlib
from typing import Any

from fit.aliases import Array, Json, Numbers
from fit.errors import UserError
from fit.messages.printable import printable
from fit.model.architecture import Architecture
from fit.model.shape import ModelShape

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
# Fields of structures that are not counted, with the name of the structure.
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
    """A model's attention.

    Attributes:
      weights: of all blocks.
      cache: numbers that a token leaves in the cache of one block.
      cache_blocks: blocks that have a cache.
      head_dim: units of a head.
      notes: sentences on what is not counted exactly.
    """

    weights: int
    cache: int
    cache_blocks: int
    head_dim: int
    notes: tuple[str, ...]


class _Config:
    """Fields of a config.json by name. `path` is its name in errors."""

    def __init__(self, fields: Json, path: str) -> None:
        self.fields = fields
        self.path = path

    def number(self, *names: str, default: int | None = None) -> int:
        """The first of these fields that the config has.

        Raises:
          UserError: where it has none and there is no default, or where the field is no whole number.
        """
        value = next((self.fields[name] for name in names if self.fields.get(name) is not None), default)
        least = 0 if default == 0 else 1
        if value is None:
            raise UserError(f"{self.path}: has no {names[0]}, so it is no config.json of a language model")
        if type(value) is not int or not least <= value < 1e9:
            raise UserError(f"{self.path}: {names[0]} is {json.dumps(value)}, expected a whole number from {least} up")
        return value

    def text(self, name: str) -> str:
        """A field as text; empty where the config has none."""
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
    """Counts attention of each kind. Raises UserError for kinds that are not counted."""
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


@dataclasses.dataclass(frozen=True)
class PublishedModel:
    """A published model.

    Attributes:
      name: as the plan names it.
      shape: its fields of config.model and its counts, which leave out norms, biases and routers. Attention that the
        trainer does not have is the mean over blocks. n_experts is 1 for a dense model, and d_expert then d_ff.
      cache: numbers that a token leaves in the cache of one block that has a cache.
      cache_blocks: blocks that have a cache.
      n_ahead: parameters of the layers that predict further tokens, which some makers count.
      notes: sentences on what is not counted exactly.
    """

    name: str
    shape: ModelShape
    cache: int
    cache_blocks: int
    n_ahead: int
    notes: tuple[str, ...]

    @property
    def n_active(self) -> int:
        """Active parameters, with embedding and head."""
        return round(float(self.shape.n_active))

    @property
    def n_total(self) -> int:
        """All parameters, with embedding and head."""
        return round(float(self.shape.n_total))

    @property
    def n_embedding(self) -> int:
        """Parameters of the input embedding, which some makers leave out of their counts."""
        return int(self.shape.head)

    @property
    def n_experts_per_token(self) -> int:
        """Experts that a token uses, shared ones included. The laws take them together for one dense layer."""
        return int(self.shape.top_k + self.shape.n_shared_experts)

    @property
    def whole_experts(self) -> float:
        """The laws' number of experts: all experts' weights over those that a token uses."""
        return float((self.shape.n_experts + self.shape.n_shared_experts) / self.n_experts_per_token)

    @property
    def cache_elements_per_token(self) -> int:
        """Numbers that a token leaves in the caches of all blocks."""
        return self.cache * self.cache_blocks

    def architecture(
        self, vocab_size: int | None = None, width_per_block: int | None = None, counts_routed_experts: bool = False
    ) -> Architecture:
        """The Architecture with this model's ratios.

        Args:
          vocab_size, width_per_block: instead of the model's own.
          counts_routed_experts: how the Architecture counts experts.
        """
        # heads of keys and values by their size, over d_model, as a mean over blocks
        shape = self.shape
        grouped = self.cache_elements_per_token / shape.n_blocks / (2 * shape.d_model)
        queries = shape.attention_weights / (2 * shape.d_model**2) - grouped
        return Architecture(
            vocab_size or int(shape.vocab_size),
            width_per_block or round(shape.d_model / shape.n_blocks),
            True,
            granularity=self.n_experts_per_token,
            shared=int(shape.n_shared_experts),
            n_dense=int(shape.n_dense_blocks),
            kv_share=grouped / queries,
            attention=queries,
            head_dim=int(shape.head_dim),
            ff=self.n_experts_per_token * shape.d_expert / shape.d_model,
            tied=bool(shape.tied_embeddings),
            counts_routed_experts=counts_routed_experts,
        )

    def columns(self, uncounted: Numbers = 0, counts_routed_experts: bool = False) -> dict[str, Numbers | Array]:
        """The columns of the model that a law may read.

        Args:
          uncounted: parameters of embedding and head that the law does not count.
          counts_routed_experts: whether the law's n_experts counts routed experts; else it counts `whole_experts`.
        """
        architecture = self.architecture(counts_routed_experts=counts_routed_experts)
        n_experts = self.shape.n_experts if counts_routed_experts else self.whole_experts
        counts = dict(n_active=self.n_active - uncounted, n_total=self.n_total - uncounted)
        return counts | architecture.structure(n_experts)


def of_config(name: str, config: Json, path: str) -> PublishedModel:
    """The model of a config.json.

    Args:
      name: as the plan names it.
      config: the contents of the model's config.json.
      path: the config's name in errors.

    Raises:
      UserError: where the config is none of a language model, or the model cannot be counted.
    """
    read = _Config(config, path)
    read.refuse_what_is_not_counted()
    d_model = read.number("hidden_size")
    n_blocks = read.number("num_hidden_layers")
    attention = _attention(read, d_model, n_blocks)
    notes = list(attention.notes)
    n_heads = read.number("num_attention_heads")
    cached_units = attention.cache * attention.cache_blocks / n_blocks
    n_kv_heads = max(1, round(cached_units / (2 * attention.head_dim)))  # of attention that the trainer has not, about
    grouped = 2 * d_model * attention.head_dim * (n_heads + n_kv_heads)
    weights = attention.weights / n_blocks
    vocab_size = read.number("vocab_size")
    tied_by_default = read.text("model_type").startswith(TIED_FAMILIES)
    shape = ModelShape(
        d_model=d_model,
        n_blocks=n_blocks,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=attention.head_dim,
        vocab_size=vocab_size,
        tied_embeddings=bool(config.get("tie_word_embeddings", tied_by_default)),
        latent_attention=0 if grouped == weights else weights,
        **_feed_forward(read, n_blocks, notes),
    )
    n_ahead = 0
    n_layers_ahead = read.number("num_nextn_predict_layers", default=0)
    if n_layers_ahead:
        notes.append(AHEAD)
        experts = shape.expert_weights * (shape.n_experts + shape.n_shared_experts)
        n_ahead = n_layers_ahead * round(float(weights + experts + 2 * d_model**2))
    return PublishedModel(name, shape, attention.cache, attention.cache_blocks, n_ahead, tuple(notes))


def _feed_forward(read: _Config, n_blocks: int, notes: list[str]) -> dict[str, int]:
    """The fields of ModelShape on dense layers and experts. What is not counted exactly is added to the notes."""
    n_experts = read.number(*EXPERTS, default=0)
    d_ff = read.number("intermediate_size")
    if not n_experts:
        return dict(d_ff=d_ff, d_expert=d_ff)
    top_k = read.number("num_experts_per_tok", "experts_per_token")
    d_expert = read.number("moe_intermediate_size", default=d_ff)
    n_shared_experts = _shared_experts(read, d_expert)
    mixtures = _mixture_blocks(read, n_blocks)
    n_dense_blocks = n_blocks - len(mixtures)
    if top_k > n_experts or not mixtures:
        raise UserError(f"{read.path}: a token chooses {top_k} of {n_experts} experts, in {len(mixtures)} blocks")
    if n_dense_blocks and mixtures[0] < n_dense_blocks:
        notes.append(ALTERNATE)
    return dict(
        d_ff=read.number("intermediate_size_mlp", default=d_ff),  # of Llama 4's dense blocks
        n_experts=n_experts,
        d_expert=d_expert,
        top_k=top_k,
        n_shared_experts=n_shared_experts,
        n_dense_blocks=n_dense_blocks,
    )


def _shared_experts(read: _Config, d_expert: int) -> int:
    """How many experts all tokens use, in widths of a routed expert."""
    if read.text("model_type").startswith("llama4"):
        return 1  # every mixture has one, which its config.json does not say
    n_shared = read.number("n_shared_experts", default=0)
    return n_shared or read.number("shared_expert_intermediate_size", default=0) // d_expert


def read(model: str | os.PathLike | Json) -> PublishedModel:
    """Reads a model that others published.

    Args:
      model: a name in published.json, the path of a config.json, or the contents of one.

    Raises:
      UserError: where there is no such model or file, or the config is none of a language model.
    """
    config: Any = model
    path = "--like"
    if not isinstance(model, dict):
        path = f"--like={model}"
        try:
            config = PUBLISHED.get(str(model)) or json.loads(pathlib.Path(model).read_text(encoding="utf-8"))
        except OSError:
            raise UserError(f"{path}: no such file, nor a published model; these are {', '.join(PUBLISHED)}") from None
        except ValueError as e:
            raise UserError(f"{path}: is not JSON: {e}") from e
    if not isinstance(config, dict):
        raise UserError(f"{path}: expected a config.json, an object of a model's sizes")
    name = printable(str(config.get("name") or config.get("_name_or_path") or model))
    published = of_config(name, config.get("text_config") or config, path)
    if "vision_config" in config:
        return dataclasses.replace(published, notes=(*published.notes, VISION))
    return published
