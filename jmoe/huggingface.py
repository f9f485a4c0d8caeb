"""Our models as transformers has them, and back: fields as a config.json, weights under its names.

Llama if E = 1, Qwen2-MoE if E > 1; Qwen3 and Qwen3-MoE if each head's queries and keys have a norm, OLMoE (always a
mixture) if all heads share one. All have RMSNorm, RoPE of halves, SwiGLU and grouped queries; their routers give
softmax probabilities, normalised over the chosen experts or not. None can have a LayerNorm, or lack the norm before
the head. They drop no token.

Matrices are [in, out] here, [out, in] in transformers. Qwen2-MoE scales its shared expert by the sigmoid of a gate: we
write a gate of zeros, whose sigmoid is one half, and twice the down-projection of our shared experts, which is exact.
If we have no shared expert, theirs is all zeros.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Float
from ml_collections import ConfigDict

from jmoe.config import counts
from jmoe.errors import UserError
from jmoe.model.transformer import STACKS, describe

EPSILON = 1e-6  # of attention.norm without a bias
SHARED_FF = 8  # width of a shared expert that is all zeros: torch warns of 0, and a server may spread it over devices
FREE = ("architectures", "max_position_embeddings", "rope_theta", "rope_parameters", "tie_word_embeddings")
QWEN3 = {"attention_bias": False, "use_sliding_window": False}
QWEN2 = {"qkv_bias": False, "use_sliding_window": False, "shared_expert_intermediate_size": SHARED_FF}
QWEN2_LACKS = {"qkv_bias": True, "num_experts_per_tok": 4, "shared_expert_intermediate_size": 5632}


@dataclasses.dataclass(frozen=True)
class Architecture:
    """An architecture of transformers.

    Attributes:
      model_type: Its name in config.json.
      fixed: Further keys with the values that compute what jmoe does.
      defaults: What transformers assumes for a key that config.json lacks, where that is not our value.
    """

    model_type: str
    fixed: Mapping[str, Any]
    defaults: Mapping[str, Any]


KINDS = {  # by (mixture, config.model.qk_norm)
    (False, "none"): Architecture("llama", {"attention_bias": False, "mlp_bias": False}, {}),
    (False, "head"): Architecture("qwen3", QWEN3, {"num_key_value_heads": 32, "head_dim": 128}),
    (True, "none"): Architecture("qwen2_moe", QWEN2, QWEN2_LACKS),
    (True, "head"): Architecture("qwen3_moe", QWEN3, {"num_key_value_heads": 4, "num_experts_per_tok": 8}),
    (True, "projection"): Architecture(
        "olmoe",
        {"attention_bias": False, "clip_qkv": None},
        {"num_experts_per_tok": 8, "rms_norm_eps": 1e-5},
    ),
}
SHARED = (True, "none")  # the kind that has a shared expert
DOUBLED = "shared_expert.down_proj.weight"
MLP = ("gate", "up", "down")


def kind_of(model: ConfigDict) -> tuple[bool, str]:
    """The key of KINDS for a config.model."""
    return model.n_experts > 1, model.qk_norm


def check(model: ConfigDict) -> None:
    """Raises UserError for a model that no architecture of transformers computes, naming the fields and the flags."""
    ours = comparable_fields(model)
    kind = kind_of(model)
    _, qk_norm = kind
    if kind not in KINDS:
        raise UserError(f"config.model.qk_norm={qk_norm!r} has no equal among the dense models of transformers")
    needed = {"norm": "rms", "final_norm": True, "scores": "softmax", "balance": "loss"}
    if kind != SHARED:
        needed["n_shared_experts"] = 0
    if qk_norm == "projection":
        needed |= {"n_dense_blocks": 0, "head_dim": 0}
    wrong = {name: value for name, value in needed.items() if ours[name] != value}
    if wrong:
        fields = " and ".join(f"config.model.{name}={ours[name]!r}" for name in wrong)
        flags = " ".join(f"--config.model.{name}={value}" for name, value in wrong.items())
        raise UserError(
            f"{fields} has no equal among the architectures of transformers that have qk_norm={qk_norm!r}; a model "
            f"trained with {flags} can be exported"
        )


def comparable_fields(model: ConfigDict) -> dict[str, Any]:
    """The fields of config.model that say what a model computes, equal for all that compute the same.

    n_kv_heads and head_dim are 0 if they follow from others, d_expert is 0 if d_ff is the width of all layers.
    """
    sizes = ("d_model", "n_blocks", "n_heads", "vocab_size", "n_experts", "top_k", "n_dense_blocks", "n_shared_experts")
    others = ("rope_base", "final_norm", "qk_norm", "tied_embeddings", "norm", "scores", "balance")
    fields = {name: model[name] for name in (*sizes, *others)}
    n_heads, n_kv_heads, head_dim = counts.heads(model)
    fields["n_kv_heads"] = n_kv_heads if n_kv_heads != n_heads else 0
    fields["head_dim"] = head_dim if head_dim != model.d_model / n_heads else 0
    fields["normalize_gates"] = model.normalize_gates or fields["top_k"] == 1
    width = model.d_expert or model.d_ff
    if fields["n_dense_blocks"] and width != model.d_ff:
        return fields | {"d_ff": model.d_ff, "d_expert": width}
    return fields | {"d_ff": width, "d_expert": 0}


def config_json(model: ConfigDict, seq_len: int) -> dict[str, Any]:
    """config.json of `model` but for the dtype and the tokenizer's ids. UserError for what `check` refuses."""
    check(model)
    n_heads, n_kv_heads, head_dim = counts.heads(model)
    architecture = KINDS[kind_of(model)]
    model_type = architecture.model_type
    values = {
        "architectures": [f"{model_type.title().replace('_', '')}ForCausalLM"],
        "model_type": model_type,
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
        "tie_word_embeddings": model.tied_embeddings,
    } | dict(architecture.fixed)
    if model.n_experts == 1:
        return values
    width = model.d_expert or model.d_ff
    top_k = model.top_k
    values |= {
        "num_experts": model.n_experts,
        "num_experts_per_tok": top_k,
        "norm_topk_prob": top_k > 1 and model.normalize_gates,
    }
    if model_type == "olmoe":
        return values | {"intermediate_size": width}
    n_shared = model.n_shared_experts
    if n_shared:
        values["shared_expert_intermediate_size"] = n_shared * width
    dense = list(range(model.n_dense_blocks))
    return values | {"moe_intermediate_size": width, "decoder_sparse_step": 1, "mlp_only_layers": dense}


def model_fields(values: dict[str, Any]) -> dict[str, Any]:
    """The fields of config.model that a config.json means, in the form of `comparable_fields`.

    Raises:
      UserError: Another architecture, or a value that our model does not compute; names the value.
    """
    kinds = {architecture.model_type: kind for kind, architecture in KINDS.items()}
    if values.get("model_type") not in kinds:
        raise UserError(f"config.json: model_type={values.get('model_type')!r} must be {' or '.join(kinds)}")
    kind = kinds[values["model_type"]]
    mixture, qk_norm = kind
    values = dict(KINDS[kind].defaults) | {name: value for name, value in values.items() if value is not None}
    if "num_local_experts" in values:  # as transformers 5 writes a Qwen3-MoE
        values.setdefault("num_experts", values["num_local_experts"])
    rope = values.get("rope_parameters") or values.get("rope_scaling") or {}
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if rope_type != "default":
        raise UserError(f"config.json: rope_type={rope_type!r} must be 'default'")
    n_dense = len(values.get("mlp_only_layers", ())) if mixture else 0
    expert = "moe_intermediate_size" if mixture and qk_norm != "projection" else "intermediate_size"
    # how many of our shared experts their single one is equal to
    width = values.get("moe_intermediate_size", 0)
    shared_width = values.get("shared_expert_intermediate_size", SHARED_FF)
    is_multiple = shared_width != SHARED_FF and width and shared_width % width == 0
    n_shared = shared_width // width if is_multiple else 0
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
            "scores": "softmax",
            "balance": "loss",
        }
    except KeyError as error:
        raise UserError(f"config.json: {error.args[0]} is missing") from None
    model = ConfigDict(fields)
    ours = config_json(model, 0)
    free = set(FREE)
    if mixture and not n_dense:
        free.add("intermediate_size")
    for name in ours.keys() - free:
        value = values.get(name, ours[name])
        if value != ours[name]:
            raise UserError(f"config.json: {name}={value!r} must be {ours[name]!r} in a model that jmoe can train")
    return comparable_fields(model)


def _views(params: dict, model: ConfigDict) -> Iterator[tuple[str, np.ndarray]]:
    """(name in transformers, our weight as a view of the shape that it has there) of each weight in a tree of ours."""
    yield "model.embed_tokens.weight", params["embed"]
    layer = 0
    for stack in STACKS:
        if stack not in params:
            continue
        for i in range(len(params[stack]["attention"]["out"])):
            block = jax.tree.map(lambda weight, i=i: weight[i], params[stack])
            for name, view in _views_of_block(block, model):
                yield f"model.layers.{layer}.{name}.weight", view
            layer += 1
    yield "model.norm.weight", params["final_norm"]["scale"]
    if "head" in params:
        yield "lm_head.weight", params["head"].T


def _views_of_block(block: dict, model: ConfigDict) -> Iterator[tuple[str, np.ndarray]]:
    """The same for one block, with names inside of the block."""
    d = model.d_model
    attention = block["attention"]
    mlp = block["mlp"]
    yield "input_layernorm", block["attention_norm"]["scale"]
    for ours in ("q", "kv", "qkv"):
        if ours in attention:
            for part, name in enumerate(ours):
                yield f"self_attn.{name}_proj", attention[ours][:, part].reshape(d, -1).T
    for name in ("q_norm", "k_norm"):
        if name in attention:
            yield f"self_attn.{name}", attention[name].reshape(-1)
    yield "self_attn.o_proj", attention["out"].reshape(-1, d).T
    yield "post_attention_layernorm", block["mlp_norm"]["scale"]
    if "router" not in mlp:
        for name in MLP:
            yield f"mlp.{name}_proj", mlp[name].T
        return
    yield "mlp.gate", mlp["router"].T
    for name in MLP:
        if "shared" in mlp:
            yield f"mlp.shared_expert.{name}_proj", mlp["shared"][name].T
        for expert in range(model.n_experts):
            yield f"mlp.experts.{expert}.{name}_proj", mlp["experts"][name][expert].T


def _zeros(model: ConfigDict) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(name, shape) of the tensors of shared experts that are zeros: the gates, and all of those that we have not."""
    if kind_of(model) != SHARED:
        return
    shapes = {"_gate": (1, model.d_model)}
    if not model.n_shared_experts:
        into = (SHARED_FF, model.d_model)
        shapes = {".gate_proj": into, ".up_proj": into, ".down_proj": into[::-1]} | shapes
    for layer in range(model.n_dense_blocks, model.n_blocks):
        for name, shape in shapes.items():
            yield f"model.layers.{layer}.mlp.shared_expert{name}.weight", shape


def tensors(params: dict, model: ConfigDict) -> Iterator[tuple[str, np.ndarray]]:
    """(name, array) of each tensor of transformers, from our tree of NumPy arrays; one at a time."""
    for name, ours in _views(params, model):
        yield name, ours * 2 if name.endswith(DOUBLED) else ours
    for name, shape in _zeros(model):
        yield name, np.zeros(shape, np.float32)


def params(read: Callable[[str], Float[np.ndarray, "..."] | None], model: ConfigDict) -> dict:
    """Our tree in float32.

    Args:
      read: Gives the tensor of a name in transformers, or None.
      model: config.model, or a ConfigDict of model_fields.

    Raises:
      UserError: A tensor is missing or of another shape, or a shared expert has a gate, or an output where we have
        none.
    """
    # a config.json says nothing of initial values, which set no shape
    described = describe(ConfigDict({"init_scale": 1.0} | model.to_dict()))
    tree = jax.tree.map(lambda description: np.zeros(description.shape, np.float32), described)
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
        matters = model.n_shared_experts or ".down_proj" in name  # if that is zero, so is the output
        array = read(name) if matters else None
        if array is not None and np.any(array):
            raise UserError(f"the tensor {name} is not zero: a shared expert of jmoe's has no gate")
    return tree


def upcycled(dense: dict, initial: dict) -> dict:
    """Makes a mixture from our tree of a dense model.

    Each expert copies the dense layer; the routers are those of `initial`, a new mixture's tree. Sparse upcycling
    (Komatsuzaki et al. 2023). At first a gate near 1 / E scales the dense layer's output.
    """
    dense_mlp = dense["blocks"]["mlp"]
    new_mlp = initial["blocks"]["mlp"]
    experts = {}
    for name in MLP:
        experts[name] = np.broadcast_to(dense_mlp[name][:, None], new_mlp["experts"][name].shape)
    return dense | {"blocks": dense["blocks"] | {"mlp": {"router": new_mlp["router"], "experts": experts}}}


def reader(files: list) -> Callable[[str], Float[np.ndarray, "..."] | None]:
    """A function that returns the tensor of a name as a float32 array, or None if there is none.

    Raises:
      UserError: A file is not a safetensors file.
    """
    from safetensors import SafetensorError, safe_open

    file_of = {}
    for path in files:
        try:
            opened = safe_open(str(path), framework="flax")
        except (SafetensorError, OSError) as error:
            raise UserError(f"{path} cannot be read: {error}") from None
        file_of |= dict.fromkeys(opened.keys(), opened)

    def read(name: str) -> Float[np.ndarray, "..."] | None:
        if name not in file_of:
            return None
        return np.asarray(file_of[name].get_tensor(name), np.float32)

    return read
