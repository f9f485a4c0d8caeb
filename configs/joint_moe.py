"""The recipe of Joint MoE Scaling Laws (Ludziejewski et al., ICML 2025, Sec. 5.1 and App. A), at the paper's sizes.

One model of App. H, trunk and branches (d_model 512, E = 8: 79M active, 211M in total):

    python -m jmoe.train --config=configs/joint_moe.py --workdir=DIR \\
        --config.model.d_model=512 --config.model.n_experts=8 \\
        --config.n_tokens='(500_000_000, 1_000_000_000, 2_000_000_000)'

n_blocks = n_heads = d_model / 64 and d_ff = 3 d_model follow from d_model. Everything is counted in tokens. GPT-2's
vocabulary is downloaded once. Without a network give its file, --config.data.tokenizer=/PATH/vocab.bpe, or try bytes.

Each line defines a field: its default, its allowed values, what it means, and its marks (jmoe/config/schema_types.py).
Other configs are written as their difference from this one.
"""

from ml_collections import ConfigDict, FieldReference

from jmoe.config import schema_types
from jmoe.config.schema_types import (
    BOOL,
    COLUMN,
    FREE,
    NEUTRAL,
    NOT_NEGATIVE,
    POSITIVE,
    TEXT,
    Field,
    integer,
    number,
    one_of,
)

FIELDS = {
    "seed": Field(0, integer(0, 2**32 - 1)),
    "n_tokens": Field(
        (2_000_000_000,),
        schema_types.BUDGETS,
        "training budgets: they share a trunk, and each has a decay branch",
        FREE,
    ),
    "model.d_model": Field(512, integer(1)),
    "model.n_blocks": Field(lambda model: model.get_oneway_ref("d_model") // 64, integer(1)),
    "model.n_heads": Field(lambda model: model.get_oneway_ref("d_model") // 64, integer(1)),
    "model.n_kv_heads": Field(
        0, integer(0), "key-value heads, each shared by n_heads / n_kv_heads query heads; 0: n_heads", COLUMN | NEUTRAL
    ),
    "model.head_dim": Field(0, integer(0), "0: d_model / n_heads", COLUMN | NEUTRAL),
    "model.qk_norm": Field(
        "none",
        one_of("none", "head", "projection"),
        'RMSNorm of queries and keys before RoPE, over each "head" as in Qwen3, or over the whole '
        '"projection" as in OLMoE',
        COLUMN | NEUTRAL,
    ),
    "model.tied_embeddings": Field(False, BOOL, "True: the head is the transposed embedding", COLUMN | NEUTRAL),
    "model.d_ff": Field(lambda model: model.get_oneway_ref("d_model") * 3, integer(1)),
    "model.vocab_size": Field(50_257, integer(1)),
    "model.n_experts": Field(1, integer(1)),
    "model.top_k": Field(1, integer(1), "experts that a token chooses", COLUMN | NEUTRAL),
    "model.normalize_gates": Field(
        True, BOOL, "divide a token's gates by their sum if it chooses more than one expert", NEUTRAL
    ),
    "model.d_expert": Field(0, integer(0), "width of an expert; 0: d_ff", COLUMN | NEUTRAL),
    "model.n_shared_experts": Field(
        0, integer(0), "experts that every token uses, besides those that it chooses", COLUMN | NEUTRAL
    ),
    "model.n_dense_blocks": Field(
        0,
        integer(0),
        "number of the first blocks that have a dense layer of d_ff instead of a mixture",
        COLUMN | NEUTRAL,
    ),
    "model.scores": Field(
        "softmax",
        one_of("softmax", "sigmoid"),
        'router score function: "softmax" or "sigmoid"',
        COLUMN | NEUTRAL,
    ),
    "model.balance": Field(
        "loss",
        one_of("loss", "bias"),
        'how to balance the load of the experts: "loss" adds loss.load_balance times a loss, "bias" adds a '
        "bias to the scores that choose experts, and no loss",
        COLUMN | NEUTRAL,
    ),
    "model.capacity_factor": Field(
        lambda model: FieldReference(1.0),  # a number stays what a flag may set where a config sets None
        schema_types.CAPACITY,
        "in training; None drops nothing, and takes more time; evaluation drops nothing",
    ),
    "model.group_tokens": Field(
        8_192, integer(1), "tokens that share one capacity; part of the model, independent of the mesh"
    ),
    "model.rope_base": Field(10_000.0, number(" above 1, at most 1e12", lambda x: 1 < x <= 1e12)),
    "model.init_scale": Field(0.1, schema_types.SCALE),
    "model.norm": Field(
        "layer",
        one_of("layer", "rms"),
        '"layer": LayerNorm with bias, as in the authors\' code; "rms": RMSNorm',
        neutral="rms",
    ),
    "model.final_norm": Field(False, BOOL, "an RMSNorm before the head; the authors' code has none", neutral=True),
    "model.dtype": Field("bfloat16", one_of("bfloat16", "float32"), "attention, RoPE, router and norms stay float32"),
    "model.attention": Field(
        "float32",
        one_of("float32", "flash"),
        '"flash": the backend\'s attention kernel, with inputs rounded to bfloat16',
    ),
    "loss.load_balance": Field(0.01, NOT_NEGATIVE),
    "loss.router_z": Field(0.001, NOT_NEGATIVE),
    "loss.logit_z": Field(
        0.0,
        NOT_NEGATIVE,
        "weight of a loss on the square of the final logits' log sum exp, which keeps them from drifting; PaLM 1e-4",
        NEUTRAL,
    ),
    # a run's text is known by its fingerprint, so a later start may name it differently, by another path for example
    "data.path": Field(
        "",
        TEXT,
        "empty: Python's standard library; else a glob of .txt, .jsonl or .parquet, a folder that "
        "jmoe.prepare made, or tfds:NAME/CONFIG:SPLIT",
        FREE,
    ),
    "data.mixture": Field(
        (),
        schema_types.MIXTURE,
        "text by weights, instead of data.path: each path as there; weights count in thousandths of their sum",
        FREE | NEUTRAL,
    ),
    "data.validation_path": Field("", TEXT, "files or TFDS; empty: 1% of the text, held out by hash", FREE),
    "data.validation_sets": Field(
        "",
        schema_types.NAMED_PATHS,
        'more text to evaluate on, each with a name: "books=DIR/books/*.txt;code=DIR/code"; of text that is '
        "trained on too, the held-out part",
        FREE | NEUTRAL,
    ),
    "data.text_field": Field("text", TEXT, "field with the text in .jsonl, .parquet and TFDS", FREE),
    "data.tokenizer": Field(
        "gpt2", TEXT, '"gpt2", "bytes", or the path of a tokenizer.json or of GPT-2\'s vocab.bpe', FREE
    ),
    "data.end_of_text": Field(
        "", TEXT, "the token that ends a document, if a tokenizer.json does not make that clear", FREE
    ),
    "data.fingerprint": Field("", TEXT, "the only corpus to accept; empty: any", FREE),
    "data.seq_len": Field(512, integer(1)),
    "data.document_mask": Field(
        False,
        BOOL,
        "True: a token sees only its own document, and positions restart at each; it ends at the end-of-text token",
        NEUTRAL,
    ),
    "data.validation_tokens": Field(1_048_576, integer(1)),
    "data.max_epochs": Field(
        1.0, POSITIVE, "how many times the training text may be read; laws assume at most once", FREE | NEUTRAL
    ),
    "data.on_bad_document": Field(
        "fail",
        one_of("fail", "skip"),
        '"fail": stop and name what is not text (not UTF-8, null characters); "skip": omit and count it',
        FREE | NEUTRAL,
    ),
    "batch_tokens": Field(
        ((0, 65_536), (500_000_000, 131_072), (1_000_000_000, 262_144)), schema_types.RAMP, "(from token, batch)"
    ),
    "microbatch_tokens": Field(
        0,
        integer(0),
        "tokens processed at once, to save memory; a batch's gradients are summed; 0: all",
        FREE | NEUTRAL,
    ),
    # Eq. 10: peak = exp(constant + n_active ln(n_active) + n_experts ln(n_experts)), unrounded as in the authors' code
    "optimizer.lr_law.constant": Field(8.391640956234012, number("")),
    "optimizer.lr_law.n_active": Field(-0.8121798244457074, number("")),
    "optimizer.lr_law.n_experts": Field(-0.25, number("")),
    "optimizer.lr_law.n_tokens": Field(
        0.0, number(""), "as n_experts: exponent of the largest budget in n_tokens; Eq. 10 has none", NEUTRAL
    ),
    "optimizer.lr_law.batch_tokens": Field(
        0.0, number(""), "exponent of the tokens in the last batch of that budget; Eq. 10 has none", NEUTRAL
    ),
    "optimizer.warmup_tokens": Field(130_000_000, NOT_NEGATIVE),
    "optimizer.decay_fraction": Field(
        0.2,
        number(" between 0 and 1", lambda x: 0 < x < 1),
        "last part of each budget, over which the rate falls linearly to zero",
    ),
    "optimizer.name": Field(
        "adamw",
        one_of("adamw", "muon"),
        '"muon": Muon for the matrices of the blocks, AdamW for the rest',
        COLUMN | NEUTRAL,
    ),
    "optimizer.b1": Field(0.9, schema_types.BETA),
    "optimizer.b2": Field(0.999, schema_types.BETA),
    "optimizer.weight_decay": Field(0.1, NOT_NEGATIVE),
    "optimizer.bias_rate": Field(
        0.001,
        number(" from 0 to 1", lambda x: 0 <= x <= 1),
        'with model.balance = "bias": by how much a step raises or lowers an expert\'s bias',
        NEUTRAL,
    ),
    "optimizer.grad_clip": Field(0.1, schema_types.POSITIVE_OR_INF),
    "optimizer.skip_above": Field(
        0.0,
        number(", 0 or above 1", lambda x: x == 0 or x > 1),
        "skip a step whose gradient norm is more than this many times the median of the last 128; 0: skip none",
        NEUTRAL,
    ),
    "parametrization": Field(
        "standard",
        one_of("standard", "mup"),
        '"mup": initial values and rates by which one learning rate suits all widths and depths',
        COLUMN | NEUTRAL,
    ),
    "mup_base.d_model": Field(
        512,
        integer(1),
        'mup_base: the model for which "mup" equals "standard", and for which the rate was tuned',
        NEUTRAL,
    ),
    "mup_base.n_blocks": Field(8, integer(1), marks=NEUTRAL),
    "mup_base.head_dim": Field(64, integer(1), marks=NEUTRAL),
    "mesh.expert": Field(1, integer(1), "devices that share one copy of the experts", FREE),
    "mesh.model": Field(1, integer(1), "devices that share each head and expert; the rest are data parallel", FREE),
    "remat": Field(
        "full",
        one_of("none", "dots", "full"),
        'what the backward pass recomputes: "none", "dots" (all but matmuls) or "full"',
        FREE,
    ),
    "unroll": Field(
        False, BOOL, "True: compile each layer separately; compiling takes longer, and steps move less memory", FREE
    ),
    # of one device, if jmoe/cost/chips.py does not list it or you know better; 0: as listed there
    "chip.flops": Field(
        0.0, NOT_NEGATIVE, "a device's peak dense bfloat16 FLOP/s, for MFU; 0: as in jmoe/cost/chips.py", FREE | NEUTRAL
    ),
    "chip.capacity": Field(
        0.0, NOT_NEGATIVE, "bytes of a device's memory; 0: as in jmoe/cost/chips.py", FREE | NEUTRAL
    ),
    "chip.bandwidth": Field(
        0.0, NOT_NEGATIVE, "bytes per second of that memory; 0: as in jmoe/cost/chips.py", FREE | NEUTRAL
    ),
    "chip.network": Field(
        0.0,
        NOT_NEGATIVE,
        "bytes per second out of a device, over all fast links; 0: as in jmoe/cost/chips.py",
        FREE | NEUTRAL,
    ),
    "log_every": Field(10, integer(1), "steps between two lines of metrics", FREE),
    "profile_steps": Field(
        (), schema_types.STEPS, "(first, last): trace steps first to last - 1 of each segment that has them", FREE
    ),
    "checkpoint_every": Field(500, integer(1), "steps between checkpoints", FREE),
    "checkpoint_minutes": Field(
        0.0,
        NOT_NEGATIVE,
        "minutes between checkpoints, in place of checkpoint_every; 0: by steps",
        FREE | NEUTRAL,
    ),
    "keep_newest": Field(2, integer(1), "newest checkpoints to keep", FREE | NEUTRAL),
    "keep_every": Field(
        0, integer(0), "steps between checkpoints that are saved and never deleted; 0: none", FREE | NEUTRAL
    ),
    "eval_every": Field(
        0, integer(0), "steps between validation losses during training; 0: only at the end of a branch", FREE | NEUTRAL
    ),
    "snapshot_every": Field(
        0,
        integer(0),
        "steps between exports for transformers, SEGMENT/snapshots/STEP, for programs beside the training; 0: none",
        FREE | NEUTRAL,
    ),
    "router_health": Field(
        False,
        BOOL,
        "True: of each layer, log how many experts no token chose in 100 steps, and warn if the layer collapses",
        FREE | NEUTRAL,
    ),
    # what a plan predicts of this run, and of which model and tokens; `fit plan --emit_config` writes it
    "predicted.loss": Field(
        0.0,
        NOT_NEGATIVE,
        "predicted validation loss, which the end of the run is compared with; 0: none",
        FREE | NEUTRAL,
    ),
    "predicted.low": Field(0.0, NOT_NEGATIVE, "lower end of its interval; 0: there is none", FREE | NEUTRAL),
    "predicted.high": Field(0.0, NOT_NEGATIVE, "upper end of its interval; 0: there is none", FREE | NEUTRAL),
    "predicted.share": Field(
        0.0, number(" from 0 to 1", lambda x: 0 <= x <= 1), "share of runs that end in the interval", FREE | NEUTRAL
    ),
    "predicted.law": Field("", TEXT, "the law that predicts it", FREE | NEUTRAL),
    "predicted.n_active": Field(
        0, integer(0), "active parameters of the model that it is predicted for", FREE | NEUTRAL
    ),
    "predicted.n_tokens": Field(0, integer(0), "training tokens that it is predicted for", FREE | NEUTRAL),
    "wandb": Field(
        "",
        TEXT,
        "Weights & Biases project that also gets the metrics; WANDB_MODE=offline keeps them local",
        FREE | NEUTRAL,
    ),
}


def get_config() -> ConfigDict:
    """Returns the default of every field."""
    return schema_types.default_config(FIELDS)
