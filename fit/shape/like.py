"""Models that others published, read from their config.json (Hugging Face's names) or from published.json beside this.

Counts are as the laws count: with embedding and head, without norms, biases and routers.
"""

import dataclasses
import json
import os
import pathlib

from fit.aliases import Array, Json, Numbers
from fit.errors import UserError
from fit.shape.architecture import Architecture

PUBLISHED: dict[str, Json] = json.loads((pathlib.Path(__file__).parent / "published.json").read_text(encoding="utf-8"))
NAMES = dict(n_experts=("num_experts", "num_local_experts", "n_routed_experts"), shared=("n_shared_experts",))
NAMES |= dict(top_k=("num_experts_per_tok", "experts_per_token"), n_dense=("first_k_dense_replace",))
LATENT = (
    "its latent attention is counted exactly, and planned as grouped queries of as many weights and as large a cache"
)
WINDOW = "its windows of attention are counted as the whole context: its cache is smaller"
AHEAD = "its layers that predict further tokens are not counted"
LINEAR = "its blocks of linear attention are counted as those of full attention"


@dataclasses.dataclass(frozen=True)
class Known:
    """attention: weights of a block's attention; cache: numbers that a token leaves in a block's cache; d_expert: width
    of an expert, of a dense block where there are none; notes: sentences on what is not counted exactly."""

    name: str
    d_model: int
    n_blocks: int
    n_heads: int
    head_dim: int
    attention: int
    cache: int
    d_ff: int
    d_expert: int
    n_experts: int
    top_k: int
    n_shared_experts: int
    n_dense_blocks: int
    vocab_size: int
    tied_embeddings: bool
    notes: tuple[str, ...]

    @property
    def split(self) -> int:
        """How many experts a token uses: together they are taken for one dense layer."""
        return self.top_k + self.n_shared_experts

    @property
    def whole_experts(self) -> float:
        """How many times the experts' weights are those that a token uses: the laws' number of experts."""
        return (self.n_experts + self.n_shared_experts) / self.split

    def _count(self, experts: int) -> int:
        n_moe = self.n_blocks - self.n_dense_blocks
        wide = self.n_dense_blocks * self.d_ff + n_moe * self.d_expert * experts
        ends = self.vocab_size * (1 if self.tied_embeddings else 2)
        return ends * self.d_model + self.n_blocks * self.attention + 3 * self.d_model * wide

    @property
    def n_active(self) -> int:
        return self._count(self.split)

    @property
    def n_total(self) -> int:
        return self._count(self.n_experts + self.n_shared_experts)

    def architecture(
        self, vocab_size: int | None = None, width_per_block: int | None = None, trained: bool = False
    ) -> Architecture:
        """The Architecture of its ratios."""
        grouped = self.cache / (2 * self.d_model)  # heads of keys and values by their size, over d_model
        queries = self.attention / (2 * self.d_model**2) - grouped
        built: Json = dict(
            attention=queries, kv_share=grouped / queries, head_dim=self.head_dim, tied=self.tied_embeddings
        )
        built |= dict(split=self.split, shared=self.n_shared_experts, n_dense=self.n_dense_blocks, trained=trained)
        width = width_per_block or round(self.d_model / self.n_blocks)
        ff = self.split * self.d_expert / self.d_model
        return Architecture(vocab_size or self.vocab_size, width, True, ff=ff, **built)

    def columns(self, embedding: bool = True, trained: bool = False) -> dict[str, Numbers | Array]:
        """{column: value} of what a law may read; embedding: whether its counts include embedding and head."""
        built = self.architecture(trained=trained)
        less = 0 if embedding else built.ends * self.d_model
        experts = self.n_experts if trained else self.whole_experts
        return dict(n_active=self.n_active - less, n_total=self.n_total - less) | built.structure(experts)


def read(given: str | os.PathLike | Json) -> Known:
    """The model of a published name, of a config.json's path or of its contents. Raises UserError where it is none."""
    if not isinstance(given, dict) and str(given) in PUBLISHED:
        return read(PUBLISHED[str(given)] | dict(name=str(given)))
    path, config = "--like", given
    if not isinstance(given, dict):
        path = f"--like={given}"
        try:
            config = json.loads(pathlib.Path(given).read_text(encoding="utf-8"))
        except OSError:
            raise UserError(f"{path}: no such file, nor a published model; these are {', '.join(PUBLISHED)}") from None
        except ValueError as e:
            raise UserError(f"{path}: is not JSON: {e}") from e
    if not isinstance(config, dict):
        raise UserError(f"{path}: expected a config.json, an object of a model's sizes")
    return _known(
        config.get("text_config") or config, path, str(config.get("name") or config.get("_name_or_path") or given)
    )


def _known(config: Json, path: str, name: str) -> Known:
    def number(names: str | tuple[str, ...], default: int | None = None) -> int:
        names = (names,) if isinstance(names, str) else names
        value = next((config[n] for n in names if config.get(n) is not None), default)
        if value is None:
            raise UserError(f"{path}: has no {names[0]}, so it is no config.json of a language model")
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or not 0 <= value < 1e9
            or (value == 0 and default != 0)
        ):
            raise UserError(
                f"{path}: {names[0]} is {json.dumps(value)}, expected a whole number from {+(default != 0)} up"
            )
        return value

    d, blocks, heads = (number(n) for n in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
    n_experts = number(NAMES["n_experts"], 0)
    top_k = number(NAMES["top_k"]) if n_experts else 1
    d_ff = number("intermediate_size")
    d_expert = number("moe_intermediate_size", d_ff) if n_experts else d_ff
    shared = number(NAMES["shared"], 0) or number("shared_expert_intermediate_size", 0) // d_expert
    n_dense = number(NAMES["n_dense"], 0) or len(config.get("mlp_only_layers") or ())
    notes = []
    if latent := number("kv_lora_rank", 0):
        names = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        (nope, rope, size), narrow = map(number, names), number("q_lora_rank", 0)
        queries = heads * (nope + rope)
        attention = (narrow * (d + queries) if narrow else d * queries) + d * (latent + rope)
        attention, cache = attention + latent * heads * (nope + size) + heads * size * d, latent + rope
        notes.append(LATENT)
    else:
        size, with_keys = number("head_dim", d // heads), number("num_key_value_heads", heads)
        attention, cache = 2 * d * size * (heads + with_keys), 2 * with_keys * size
    kinds = set(config.get("layer_types") or ())
    notes += [WINDOW] * ("sliding_attention" in kinds) + [LINEAR] * bool(
        kinds - {"sliding_attention", "full_attention"}
    )
    notes += [AHEAD] * bool(number("num_nextn_predict_layers", 0))
    if not top_k <= max(n_experts, 1) or n_dense >= blocks:
        raise UserError(f"{path}: a token chooses {top_k} of {n_experts} experts, in {blocks - n_dense} blocks")
    mixture = dict(n_experts=n_experts or 1, top_k=top_k, n_shared_experts=shared if n_experts else 0)
    return Known(
        name,
        d,
        blocks,
        heads,
        size,
        attention,
        cache,
        d_ff,
        d_expert,
        **mixture,
        n_dense_blocks=n_dense if n_experts else 0,
        vocab_size=number("vocab_size"),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        notes=tuple(notes),
    )
