"""Our models as transformers has them, and back: fields as a config.json, weights under its names.

Llama if E = 1, Qwen2-MoE if E > 1; Qwen3 and Qwen3-MoE if each head's queries and keys have a norm, OLMoE (always a
mixture) if all heads share one. All have RMSNorm, RoPE of halves, SwiGLU and grouped queries; their routers give
softmax probabilities, normalised over the chosen experts or not. None can have a LayerNorm, or lack the norm before
the head. They drop no token.

Matrices are [in, out] here, [out, in] in transformers. Qwen2-MoE scales its shared expert by the sigmoid of a gate: we
write a gate of zeros, whose sigmoid is one half, and twice the down-projection of our shared experts, which is exact.
If we have no shared expert, theirs is all zeros.
"""

import numpy as np
from ml_collections import ConfigDict

from jmoe.config import weights
from jmoe.config.schema import setting
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
DOUBLED = "shared_expert.down_proj.weight"


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


def _views(params: dict, model):
    """(name in transformers, our weight as a view of the shape that it has there) of each weight in a tree of ours."""
    yield "model.embed_tokens.weight", params["embed"]
    layer = 0
    for stack, n_blocks in weights.stacks(model).items():
        for i in range(n_blocks):
            block = {name: weight[i] for name, weight in params[stack].items()}
            for name, view in _views_of_block(block, model):
                yield f"model.layers.{layer}.{name}.weight", view
            layer += 1
    yield "model.norm.weight", params["final_norm"]
    if "head" in params:
        yield "lm_head.weight", params["head"].T


def _views_of_block(block: dict, model):
    """The same for one block, with names inside of the block."""
    d = model.d_model
    yield "input_layernorm", block["attention_norm"]
    for ours in [name for name in ("q", "kv", "qkv") if name in block]:
        for i, name in enumerate(ours):
            yield f"self_attn.{name}_proj", block[ours][:, i].reshape(d, -1).T
    for name in [name for name in ("q_norm", "k_norm") if name in block]:
        yield f"self_attn.{name}", block[name].reshape(-1)
    yield "self_attn.o_proj", block["out"].reshape(-1, d).T
    yield "post_attention_layernorm", block["mlp_norm"]
    if "router" in block:
        yield "mlp.gate", block["router"].T
    for name in ("gate", "up", "down"):
        if f"shared_{name}" in block:
            yield f"mlp.shared_expert.{name}_proj", block[f"shared_{name}"].T
        if "router" not in block:
            yield f"mlp.{name}_proj", block[name].T
        for expert in range(model.n_experts) if "router" in block else ():
            yield f"mlp.experts.{expert}.{name}_proj", block[name][expert].T


def _zeros(model):
    """(name, shape) of the tensors of shared experts that are zeros: the gates, and all of those that we have not."""
    shapes = {"_gate": (1, model.d_model)}
    if not setting(model, "n_shared_experts"):
        into = (SHARED_FF, model.d_model)
        shapes = {".gate_proj": into, ".up_proj": into, ".down_proj": into[::-1]} | shapes
    for layer in range(setting(model, "n_dense_blocks"), model.n_blocks) if kind_of(model) == SHARED else ():
        for name, shape in shapes.items():
            yield f"model.layers.{layer}.mlp.shared_expert{name}.weight", shape


def tensors(params: dict, model):
    """(name, array) of each tensor of transformers, from our tree of NumPy arrays; one at a time."""
    for name, ours in _views(params, model):
        yield name, ours * 2 if name.endswith(DOUBLED) else ours
    for name, shape in _zeros(model):
        yield name, np.zeros(shape, np.float32)


def params(read, model) -> dict:
    """Our tree in float32. `read` gives the tensor of a name in transformers, or None; `model` is config.model, or a
    ConfigDict of model_fields. UserError where a tensor is missing or of another shape, or a shared expert has a gate,
    or an output where we have none."""
    table, stacks = weights.table(model), weights.stacks(model)
    empty = lambda weight, *lead: np.zeros((*lead, *weight.shape), np.float32)
    tree = {name: empty(weight) for name, weight in table.items() if name not in stacks}
    for stack, n_blocks in stacks.items():
        tree[stack] = {name: empty(weight, n_blocks) for name, weight in table[stack].items()}
    for name, ours in _views(tree, model):
        array = read(name)
        if array is None and name == "lm_head.weight":
            array = read("model.embed_tokens.weight")  # tied
        if array is None:
            raise UserError(f"the tensor {name} is missing")
        if array.shape != ours.shape:
            raise UserError(f"the tensor {name} has shape {array.shape}; its config.json says {ours.shape}")
        ours[...] = array / 2 if name.endswith(DOUBLED) else array
    for name, _ in _zeros(model):
        matters = setting(model, "n_shared_experts") or ".down_proj" in name  # if that is zero, so is the output
        if matters and (array := read(name)) is not None and np.any(array):
            raise UserError(f"the tensor {name} is not zero: a shared expert of jmoe's has no gate")
    return tree


def upcycled(dense: dict, fresh: dict) -> dict:
    """Makes a mixture from our tree of a dense model: each expert copies the dense layer, the routers are those of
    `fresh`, a new mixture's tree.

    Sparse upcycling (Komatsuzaki et al. 2023). At first a gate near 1 / E scales the dense layer's output.
    """
    blocks = dense["blocks"] | {"router": fresh["blocks"]["router"]}
    for name in ("gate", "up", "down"):
        blocks[name] = np.broadcast_to(blocks[name][:, None], fresh["blocks"][name].shape)
    return dense | {"blocks": blocks}


def reader(files: list):
    """A function that returns the tensor of a name as a float32 array, or None if there is none. UserError where a file
    is not a safetensors file."""
    from safetensors import SafetensorError, safe_open

    file_of = {}
    for path in files:
        try:
            opened = safe_open(str(path), framework="flax")
        except (SafetensorError, OSError) as error:
            raise UserError(f"{path} cannot be read: {error}") from None
        file_of |= dict.fromkeys(opened.keys(), opened)
    return lambda name: np.asarray(file_of[name].get_tensor(name), np.float32) if name in file_of else None
