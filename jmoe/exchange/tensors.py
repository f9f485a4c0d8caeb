"""Our weights under the names that transformers knows (layout.py says of which architecture), and back.

Matrices are [in, out] here, [out, in] in transformers. Qwen2-MoE scales its shared expert by the sigmoid of a gate: we
write a gate of zeros, whose sigmoid is one half, and twice the down-projection of our shared experts, which is exact.
If we have no shared expert, theirs is all zeros.

They lie in safetensors files, in parts of a few GB with an index beside them.
"""

import json

import ml_dtypes
import numpy as np
from etils import epath

from jmoe.config import weights
from jmoe.config.fields import setting
from jmoe.errors import UserError
from jmoe.exchange.layout import SHARED, SHARED_FF, kind_of

PART_BYTES = 2 * 2**30
DOUBLED = "shared_expert.down_proj.weight"


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


def write(folder: epath.Path, tensors: dict, dtype: str) -> None:
    """Writes NumPy arrays by name, as float32 or bfloat16."""
    from safetensors import numpy as safetensors

    dtype = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    parts, room = [], 0
    for name, array in tensors.items():
        n_bytes = array.size * dtype.itemsize
        if n_bytes > room:
            parts.append([])
            room = PART_BYTES
        parts[-1].append(name)
        room -= n_bytes
    files = [f"model-{i:05}-of-{len(parts):05}.safetensors" for i in range(1, len(parts) + 1)]
    files = files if len(parts) > 1 else ["model.safetensors"]
    folder.mkdir(parents=True, exist_ok=True)
    for file, names in zip(files, parts):
        part = {name: np.ascontiguousarray(tensors[name], dtype) for name in names}
        (folder / file).write_bytes(safetensors.save(part, {"format": "pt"}))
    if len(parts) > 1:
        index = {
            "metadata": {"total_size": sum(array.size for array in tensors.values()) * dtype.itemsize},
            "weight_map": {name: file for file, names in zip(files, parts) for name in names},
        }
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))


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
