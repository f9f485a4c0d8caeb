"""The architecture of transformers that computes what a model of ours does: its config.json from our fields, and back.

Llama if E = 1, Qwen2-MoE if E > 1; Qwen3 and Qwen3-MoE if each head's queries and keys have a norm, OLMoE (always a
mixture) if all heads share one. All have RMSNorm, RoPE of halves, SwiGLU and grouped queries; their routers give
softmax probabilities, normalised over the chosen experts or not. None can have a LayerNorm, or lack the norm before
the head. They drop no token.
"""

from ml_collections import ConfigDict

from jmoe.config import weights
from jmoe.config.fields import setting
from jmoe.errors import UserError

EPSILON = 1e-6  # of norms.norm without a bias
SHARED_FF = 8  # width of a shared expert that is all zeros: torch warns of 0, and a server may spread it over devices
FREE = ("architectures", "max_position_embeddings", "rope_theta", "rope_parameters", "tie_word_embeddings")
QWEN3 = {"attention_bias": False, "use_sliding_window": False}
QWEN2 = {"qkv_bias": False, "use_sliding_window": False, "shared_expert_intermediate_size": SHARED_FF}
QWEN2_LACKS = {"qkv_bias": True, "num_experts_per_tok": 4, "shared_expert_intermediate_size": 5632}
# (mixture, config.model.qk_norm): model_type, further keys with the values that compute what jmoe does, and what
# transformers assumes for a key that config.json lacks, where that is not our value
KINDS = {
    (False, "none"): ("llama", {"attention_bias": False, "mlp_bias": False}, {}),
    (False, "head"): ("qwen3", QWEN3, {"num_key_value_heads": 32, "head_dim": 128}),
    (True, "none"): ("qwen2_moe", QWEN2, QWEN2_LACKS),
    (True, "head"): ("qwen3_moe", QWEN3, {"num_key_value_heads": 4, "num_experts_per_tok": 8}),
    (True, "projection"): (
        "olmoe",
        {"attention_bias": False, "clip_qkv": None},
        {"num_experts_per_tok": 8, "rms_norm_eps": 1e-5},
    ),
}
SHARED = True, "none"  # the kind that has a shared expert


def kind_of(model) -> tuple[bool, str]:
    """The key of KINDS for a config.model."""
    return model.n_experts > 1, setting(model, "qk_norm")


def check(model) -> None:
    """Raises UserError for a model that no architecture of transformers computes, naming the fields and the flags."""
    ours, kind = said(model), kind_of(model)
    if kind not in KINDS:
        raise UserError(f"config.model.qk_norm={kind[1]!r} has no equal among the dense models of transformers")
    needed = {"norm": "rms", "final_norm": True, "scores": "softmax", "balance": "loss"}
    needed |= {"n_shared_experts": 0} if kind != SHARED else {}
    needed |= {"n_dense_blocks": 0, "head_dim": 0} if kind[1] == "projection" else {}
    if wrong := {name: value for name, value in needed.items() if ours[name] != value}:
        fields = " and ".join(f"config.model.{name}={ours[name]!r}" for name in wrong)
        flags = " ".join(f"--config.model.{name}={value}" for name, value in wrong.items())
        raise UserError(
            f"{fields} has no equal among the architectures of transformers that have qk_norm={kind[1]!r}; a model "
            f"trained with {flags} can be exported"
        )


def said(model) -> dict:
    """The fields of config.model that say what a model computes, equal for all that compute the same: n_kv_heads and
    head_dim are 0 if they follow from others, d_expert is 0 if d_ff is the width of all layers."""
    names = ("d_model", "n_blocks", "n_heads", "vocab_size", "n_experts", "rope_base", "final_norm")
    others = ("qk_norm", "tied_embeddings", "norm", "top_k", "n_dense_blocks", "n_shared_experts", "scores", "balance")
    fields = {name: model[name] for name in names} | {name: setting(model, name) for name in others}
    n_heads, n_kv_heads, head_dim = weights.heads(model)
    fields["n_kv_heads"] = n_kv_heads if n_kv_heads != n_heads else 0
    fields["head_dim"] = head_dim if head_dim != model.d_model / n_heads else 0
    fields["normalize_gates"] = setting(model, "normalize_gates") or fields["top_k"] == 1
    width = setting(model, "d_expert") or model.d_ff
    unlike = fields["n_dense_blocks"] and width != model.d_ff
    return fields | {"d_ff": model.d_ff if unlike else width, "d_expert": width if unlike else 0}


def config_json(model, seq_len: int) -> dict:
    """config.json of `model` but for the dtype and the tokenizer's ids. UserError for what `check` refuses."""
    check(model)
    n_heads, n_kv_heads, head_dim = weights.heads(model)
    kind, also, _ = KINDS[kind_of(model)]
    values = {
        "architectures": [f"{kind.title().replace('_', '')}ForCausalLM"],
        "model_type": kind,
        "vocab_size": model.vocab_size,
        "hidden_size": model.d_model,
        "intermediate_size": model.d_ff,
        "num_hidden_layers": model.n_blocks,
        "num_attention_heads": n_heads,
        "num_key_value_heads": n_kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": seq_len,
        "rope_theta": model.rope_base,
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rope_base},
        "hidden_act": "silu",
        "rms_norm_eps": EPSILON,
        "tie_word_embeddings": setting(model, "tied_embeddings"),
    } | also
    if model.n_experts == 1:
        return values
    width, top_k = setting(model, "d_expert") or model.d_ff, setting(model, "top_k")
    values |= {
        "num_experts": model.n_experts,
        "num_experts_per_tok": top_k,
        "norm_topk_prob": top_k > 1 and setting(model, "normalize_gates"),
    }
    if kind == "olmoe":
        return values | {"intermediate_size": width}
    if n_shared := setting(model, "n_shared_experts"):
        values["shared_expert_intermediate_size"] = n_shared * width
    dense = list(range(setting(model, "n_dense_blocks")))
    return values | {"moe_intermediate_size": width, "decoder_sparse_step": 1, "mlp_only_layers": dense}


def model_fields(values: dict) -> dict:
    """The fields of config.model that a config.json means, in the form of `said`. UserError, which names the value, for
    another architecture or a value that our model does not compute."""
    kinds = {kind: (*which, lacking) for which, (kind, _, lacking) in KINDS.items()}
    if values.get("model_type") not in kinds:
        raise UserError(f"config.json: model_type={values.get('model_type')!r} must be {' or '.join(kinds)}")
    mixture, qk_norm, lacking = kinds[values["model_type"]]
    values = lacking | {name: value for name, value in values.items() if value is not None}
    if "num_local_experts" in values:  # as transformers 5 writes a Qwen3-MoE
        values.setdefault("num_experts", values["num_local_experts"])
    rope = values.get("rope_parameters") or values.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise UserError(f"config.json: rope_type={kind!r} must be 'default'")
    n_dense = len(values.get("mlp_only_layers", ())) if mixture else 0
    expert = "moe_intermediate_size" if mixture and qk_norm != "projection" else "intermediate_size"
    # how many of our shared experts their single one is equal to
    width, total = values.get("moe_intermediate_size", 0), values.get("shared_expert_intermediate_size", SHARED_FF)
    n_shared = total // width if total != SHARED_FF and width and total % width == 0 else 0
    try:
        fields = {
            "d_model": values["hidden_size"],
            "n_blocks": values["num_hidden_layers"],
            "n_heads": values["num_attention_heads"],
            "n_kv_heads": values.get("num_key_value_heads", 0),
            "head_dim": values.get("head_dim", 0),
            "qk_norm": qk_norm,
            "tied_embeddings": values.get("tie_word_embeddings", False),
            "d_ff": values["intermediate_size" if n_dense else expert],
            "d_expert": values[expert] if n_dense else 0,
            "vocab_size": values["vocab_size"],
            "n_experts": values["num_experts"] if mixture else 1,
            "top_k": values.get("num_experts_per_tok", 1) if mixture else 1,
            "normalize_gates": mixture and values.get("norm_topk_prob", False),
            "n_shared_experts": n_shared if mixture else 0,
            "n_dense_blocks": n_dense,
            "rope_base": float(rope.get("rope_theta", values.get("rope_theta", 10_000.0))),
            "norm": "rms",
            "final_norm": True,
        }
    except KeyError as error:
        raise UserError(f"config.json: {error.args[0]} is missing") from None
    model = ConfigDict(fields)
    ours = config_json(model, 0)
    free = FREE + (("intermediate_size",) if mixture and not n_dense else ())
    for name in ours.keys() - set(free):
        if (value := values.get(name, ours[name])) != ours[name]:
            raise UserError(f"config.json: {name}={value!r} must be {ours[name]!r} in a model that jmoe can train")
    return said(model)
