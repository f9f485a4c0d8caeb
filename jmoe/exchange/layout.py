"""Our weights under the names that transformers knows: Llama where E = 1, Qwen2-MoE where E > 1, and back.

Both have RMSNorm, RoPE of halves, SwiGLU and an untied head; Qwen2-MoE's router gives the softmax probability of its
choice without normalising it again, as ours does; its shared expert is all zeros. Neither can say a LayerNorm, or a
model without a norm before its head. Both drop no token.

Axis legend: L layers, D d_model, H heads, K = D / H, F d_ff, E experts, V vocabulary. Matrices are [in, out] in ours,
[out, in] in transformers'.
"""

import numpy as np
from ml_collections import ConfigDict

from jmoe.errors import UserError
from jmoe.model import weights

EPSILON = 1e-6  # of decoder.rms_norm
SHARED_FF = 8  # of the shared expert: torch warns of 0, and a server may spread it over devices
# keys of config.json that say what computes; where a file lacks one, transformers takes our value but for these
LACKING = {"qkv_bias": True, "num_experts_per_tok": 4, "shared_expert_intermediate_size": 5632}
FREE = ("architectures", "max_position_embeddings", "rope_theta", "rope_parameters", "tie_word_embeddings")


def check(model) -> None:
    """Raises UserError for a model that no architecture of transformers computes, naming the field."""
    for name, value, needed in (("norm", model.get("norm", "rms"), "rms"), ("final_norm", model.final_norm, True)):
        if value != needed:
            raise UserError(
                f"config.model.{name}={value!r} has no equal among the architectures of transformers; models trained "
                f"with --config.model.norm=rms --config.model.final_norm=True can be exported"
            )


def config_json(model, seq_len: int) -> dict:
    """config.json of `model` but for the dtype and the tokenizer's ids.

    Raises:
      UserError: what `check` refuses.
    """
    check(model)
    values = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": model.vocab_size,
        "hidden_size": model.d_model,
        "intermediate_size": model.d_ff,
        "num_hidden_layers": model.n_blocks,
        "num_attention_heads": model.n_heads,
        "num_key_value_heads": model.n_heads,
        "head_dim": model.d_model // model.n_heads,
        "max_position_embeddings": seq_len,
        "rope_theta": model.rope_base,
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rope_base},
        "hidden_act": "silu",
        "rms_norm_eps": EPSILON,
        "tie_word_embeddings": False,
    }
    if model.n_experts == 1:
        return values | {"attention_bias": False, "mlp_bias": False}
    return values | {
        "architectures": ["Qwen2MoeForCausalLM"],
        "model_type": "qwen2_moe",
        "qkv_bias": False,
        "num_experts": model.n_experts,
        "num_experts_per_tok": 1,
        "norm_topk_prob": False,
        "moe_intermediate_size": model.d_ff,
        "shared_expert_intermediate_size": SHARED_FF,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "use_sliding_window": False,
    }


def model_fields(values: dict) -> dict:
    """The fields of config.model that a config.json means.

    Raises:
      UserError: another architecture, or a value that our model does not compute, with its name.
    """
    kinds = "llama", "qwen2_moe"
    if values.get("model_type") not in kinds:
        raise UserError(f"config.json: model_type={values.get('model_type')!r} must be {' or '.join(kinds)}")
    mixture = values["model_type"] == "qwen2_moe"
    rope = values.get("rope_parameters") or values.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise UserError(f"config.json: rope_type={kind!r} must be 'default'")
    try:
        fields = {
            "d_model": values["hidden_size"],
            "n_blocks": values["num_hidden_layers"],
            "n_heads": values["num_attention_heads"],
            "d_ff": values["moe_intermediate_size" if mixture else "intermediate_size"],
            "vocab_size": values["vocab_size"],
            "n_experts": values["num_experts"] if mixture else 1,
            "rope_base": float(rope.get("rope_theta", values.get("rope_theta", 10_000.0))),
            "norm": "rms",
            "final_norm": True,
        }
    except KeyError as error:
        raise UserError(f"config.json: {error.args[0]} is missing") from None
    ours = config_json(ConfigDict(fields), 0)
    free = FREE + (("intermediate_size",) if mixture else ())
    for name in ours.keys() - set(free):
        value = values.get(name)
        value = LACKING.get(name, ours[name]) if value is None else value
        if value != ours[name]:
            raise UserError(f"config.json: {name}={value!r} must be {ours[name]!r} in a model that jmoe can train")
    return fields


def _places(model):
    """(name in transformers, our weight, index into it) of every tensor."""
    yield "model.embed_tokens.weight", "embed", ()
    for layer in range(model.n_blocks):
        prefix = f"model.layers.{layer}"
        yield f"{prefix}.input_layernorm.weight", "attention_norm", (layer,)
        for i, name in enumerate("qkv"):
            yield f"{prefix}.self_attn.{name}_proj.weight", "qkv", (layer, slice(None), i)
        yield f"{prefix}.self_attn.o_proj.weight", "out", (layer,)
        yield f"{prefix}.post_attention_layernorm.weight", "mlp_norm", (layer,)
        if model.n_experts > 1:
            yield f"{prefix}.mlp.gate.weight", "router", (layer,)
        for name in ("gate", "up", "down"):
            if model.n_experts == 1:
                yield f"{prefix}.mlp.{name}_proj.weight", name, (layer,)
            for expert in range(model.n_experts) if model.n_experts > 1 else ():
                yield f"{prefix}.mlp.experts.{expert}.{name}_proj.weight", name, (layer, expert)
    yield "model.norm.weight", "final_norm", ()
    yield "lm_head.weight", "head", ()


def _theirs(weight, name: str, d_model: int):
    """One of our weights as transformers has it: a matrix [out, in], whose heads are not an axis of their own."""
    if name == "embed" or weight.ndim == 1:
        return weight
    return weight.reshape((-1, d_model) if name == "out" else (d_model, -1) if name == "qkv" else weight.shape).T


def tensors(params: dict, model):
    """(name, array) of each tensor of transformers, from our tree of NumPy arrays; one at a time."""
    d = model.d_model
    flat = params | params["blocks"]
    for name, ours, index in _places(model):
        yield name, _theirs(flat[ours][index], ours, d)
    for layer in range(model.n_blocks) if model.n_experts > 1 else ():
        prefix = f"model.layers.{layer}.mlp.shared_expert"
        for theirs, shape in (("gate", (SHARED_FF, d)), ("up", (SHARED_FF, d)), ("down", (d, SHARED_FF))):
            yield f"{prefix}.{theirs}_proj.weight", np.zeros(shape, np.float32)
        yield f"{prefix}_gate.weight", np.zeros((1, d), np.float32)


def params(read, model) -> dict:
    """Our tree in float32.

    Args:
      read: gives the tensor of a name in transformers, or None.
      model: config.model, or a ConfigDict of model_fields.

    Raises:
      UserError: a tensor that is missing or of another shape, or a shared expert that does something.
    """
    table = weights.table(model)
    empty = lambda weight, *lead: np.empty((*lead, *weight.shape), np.float32)
    tree = {name: empty(weight) for name, weight in table.items() if name != "blocks"}
    tree["blocks"] = {name: empty(weight, model.n_blocks) for name, weight in table["blocks"].items()}
    flat = tree | tree["blocks"]
    for name, ours, index in _places(model):
        target, array = flat[ours][index], read(name)
        if array is None and name == "lm_head.weight":
            array = read("model.embed_tokens.weight")  # tied
        if array is None:
            raise UserError(f"the tensor {name} is missing")
        needed = _theirs(target, ours, model.d_model).shape
        if array.shape != needed:
            raise UserError(f"the tensor {name} has shape {array.shape}; its config.json says {needed}")
        flat[ours][index] = (array.T if array.ndim == 2 and ours != "embed" else array).reshape(target.shape)
    for layer in range(model.n_blocks) if model.n_experts > 1 else ():
        name = f"model.layers.{layer}.mlp.shared_expert.down_proj.weight"
        if (array := read(name)) is not None and np.any(array):
            raise UserError(f"the tensor {name} is not zero: jmoe's mixtures have no shared expert")
    return tree


def upcycled(dense: dict, fresh: dict) -> dict:
    """A mixture out of a dense model: each expert a copy of the dense layer, the routers as in a new model.

    Sparse upcycling (Komatsuzaki et al. 2023). A gate near 1 / E then scales what the dense layer gave.

    Args:
      dense: our tree of the dense model. fresh: that of a new mixture.
    """
    blocks = {
        name: np.broadcast_to(weight[:, None], fresh["blocks"][name].shape)
        if name in ("gate", "up", "down")
        else weight
        for name, weight in dense["blocks"].items()
    }
    return dense | {"blocks": blocks | {"router": fresh["blocks"]["router"]}}
