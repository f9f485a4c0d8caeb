"""Models that others published, read from their config.json (Hugging Face's names) or from published.json beside this.

Counts are as the laws count: with embedding and head, without norms, biases and routers.
"""

import json
import os
import pathlib
from typing import Any

from fit.aliases import Array, Json, Numbers
from fit.errors import UserError
from fit.shape.architecture import Architecture
from fit.words.printable import printable

PUBLISHED: dict[str, Json] = json.loads((pathlib.Path(__file__).parent / "published.json").read_text(encoding="utf-8"))
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")  # what configs call the number of experts
LATENT = (
    "its latent attention is counted exactly, and planned as grouped queries of as many weights and as large a cache"
)
WINDOW = "its windows of attention are counted as the whole context: its cache is smaller"
AHEAD = "its layers that predict further tokens are not counted"
LINEAR = "its blocks of linear attention are counted as those of full attention"


class Known:
    """attention: weights of a block's attention; cache: numbers that a token leaves in a block's cache; d_expert: width
    of an expert, of a dense block where there are none; notes: sentences on what is not counted exactly. split: how
    many experts a token uses, which together are taken for one dense layer; whole_experts: how many times the experts'
    weights are those, the laws' number of experts. Other names are those of the trainer's config.model.

    config: the model's config.json. Raises UserError where it is none of a language model; path: what that calls it."""

    def __init__(self, name: str, config: Json, path: str) -> None:
        def number(*names: str, default: int | None = None) -> int:
            value, least = next((config[n] for n in names if config.get(n) is not None), default), +(default != 0)
            if value is None:
                raise UserError(f"{path}: has no {names[0]}, so it is no config.json of a language model")
            if type(value) is not int or not least <= value < 1e9:
                found = json.dumps(value)
                raise UserError(f"{path}: {names[0]} is {found}, expected a whole number from {least} up")
            return value

        d, blocks, heads = (number(n) for n in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
        n_experts = number(*EXPERTS, default=0)
        top_k = number("num_experts_per_tok", "experts_per_token") if n_experts else 1
        d_ff = number("intermediate_size")
        self.d_expert = number("moe_intermediate_size", default=d_ff) if n_experts else d_ff
        shared = number("n_shared_experts", default=0)
        shared = shared or number("shared_expert_intermediate_size", default=0) // self.d_expert
        n_dense = number("first_k_dense_replace", default=0) or len(config.get("mlp_only_layers") or ())
        self.name, self.d_model, self.n_blocks, self.notes = name, d, blocks, []
        if latent := number("kv_lora_rank", default=0):
            names = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
            (nope, rope, size), narrow = map(number, names), number("q_lora_rank", default=0)
            queries = heads * (nope + rope)
            attention = (narrow * (d + queries) if narrow else d * queries) + d * (latent + rope)
            attention, self.cache = attention + latent * heads * (nope + size) + heads * size * d, latent + rope
            self.notes.append(LATENT)
        else:
            size, with_keys = number("head_dim", default=d // heads), number("num_key_value_heads", default=heads)
            attention, self.cache = 2 * d * size * (heads + with_keys), 2 * with_keys * size
        kinds = set(config.get("layer_types") or ())
        self.notes += [WINDOW] * ("sliding_attention" in kinds)
        self.notes += [LINEAR] * bool(kinds - {"sliding_attention", "full_attention"})
        self.notes += [AHEAD] * bool(number("num_nextn_predict_layers", default=0))
        if not top_k <= max(n_experts, 1) or n_dense >= blocks:
            raise UserError(f"{path}: a token chooses {top_k} of {n_experts} experts, in {blocks - n_dense} blocks")
        if not n_experts:
            n_experts, shared, n_dense = 1, 0, 0
        self.n_experts, self.top_k, self.n_shared_experts, self.n_dense_blocks = n_experts, top_k, shared, n_dense
        self.head_dim, self.attention, self.split = size, attention, top_k + shared
        self.vocab_size, self.tied_embeddings = number("vocab_size"), bool(config.get("tie_word_embeddings", False))
        self.whole_experts = (n_experts + shared) / self.split
        outside = self.vocab_size * (1 if self.tied_embeddings else 2) * d + blocks * attention + 3 * d * n_dense * d_ff
        expert = 3 * d * (blocks - n_dense) * self.d_expert  # of one in each mixture
        self.n_active, self.n_total = outside + expert * self.split, outside + expert * (n_experts + shared)

    def architecture(
        self, vocab_size: int | None = None, width_per_block: int | None = None, trained: bool = False
    ) -> Architecture:
        """The Architecture of its ratios."""
        grouped = self.cache / (2 * self.d_model)  # heads of keys and values by their size, over d_model
        queries = self.attention / (2 * self.d_model**2) - grouped
        built: Json = dict(attention=queries, kv_share=grouped / queries, head_dim=self.head_dim, trained=trained)
        built |= dict(split=self.split, shared=self.n_shared_experts, n_dense=self.n_dense_blocks)
        width = width_per_block or round(self.d_model / self.n_blocks)
        ff = self.split * self.d_expert / self.d_model
        return Architecture(vocab_size or self.vocab_size, width, True, ff=ff, tied=self.tied_embeddings, **built)

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
    return Known(name, config.get("text_config") or config, path)
