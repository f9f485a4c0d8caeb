"""The fields of flags such as --shape=vocab_size:32000,kv_share:0.25 and --mesh=expert:8,remat:dots."""

import dataclasses

from fit.model.layout import REMATS
from fit.model.serving import BATCHES
from fit.options import Options, choice, number, numbers, switch, whole

MOST_BLOCKS = 1000  # of any model


@dataclasses.dataclass(kw_only=True)
class LawShapeFields(Options):
    """Fields of --shape that every command with laws takes: sizes of models, where they differ from the law's own."""

    vocab_size: int | None = whole(
        "tokens in the vocabulary, of which FLOPs, memory and prices count embedding and head; the law sees the blocks "
        "as with its own",
        least=1,
    )
    width_per_block: int | None = whole("d_model / n_blocks, which is also d_model / n_heads", least=1)


@dataclasses.dataclass(kw_only=True)
class ModelShapeFields(LawShapeFields):
    """How models are built, where that differs from the law's own models."""

    kv_share: float | None = number(
        "key-value heads per query head; below 1 saves cache and attention", least=1e-3, most=1
    )
    dense_blocks: int | None = whole("dense blocks before a mixture's other blocks", most=MOST_BLOCKS)
    used: tuple[float, ...] | None = numbers(
        "expert width that a token uses, in widths of the dense layer; laws that read sparsity or top_k choose among "
        "several: used:1,used:2"
    )
    granularity: float | None = number(
        "how many times narrower an expert is than the dense layer; a token uses as many times more", least=1
    )
    shared_experts: int | None = whole("experts that all tokens use, of those that a token uses")
    paper: bool = switch(
        "by its name alone: whole blocks and heads of the law's own shape, in place of the widths, heads and experts "
        "that hardware likes, on a mesh of --chips that the trainer starts"
    )


@dataclasses.dataclass(kw_only=True)
class MeshFields(Options):
    """How the chips share the training."""

    expert: int | None = whole("of --chips, those that share one copy of the experts", least=1)
    model: int | None = whole("of --chips, those that share each head and expert", least=1)
    remat: str | None = choice(f"what the backward pass computes again: {', '.join(REMATS)}", None, REMATS)


@dataclasses.dataclass(kw_only=True)
class BytesFields(Options):
    """Bytes of what is served."""

    weights: float = number("bytes of a weight; 2 is bfloat16, and the default", 2.0)
    cache: float = number("bytes of an element of the key-value cache; 2 is the default", 2.0)


@dataclasses.dataclass(kw_only=True)
class ServeFields(Options):
    """How fast the model decodes at least."""

    tokens_per_second: float | None = number(
        "tokens per second, all sequences of a batch together, on --devices chips of the kind of --chips"
    )
    batch: int = whole(f"sequences decoded at once; {BATCHES[-1]} is the default", BATCHES[-1], least=1)
