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
from jmoe.exchange.layout import SHARED, SHARED_FF

PART_BYTES = 2 * 2**30


def _places(model):
    """(name in transformers, our weight, index into it) of every tensor; a weight of the blocks is (stack, name)."""
    yield "model.embed_tokens.weight", "embed", ()
    layer = 0
    for stack, n_blocks in weights.stacks(model).items():
        table = weights.table(model)[stack]
        for i in range(n_blocks):
            prefix = f"model.layers.{layer}"
            for name, ours, index in _places_of_block(model, table):
                yield f"{prefix}.{name}.weight", (stack, ours), (i, *index)
            layer += 1
    yield "model.norm.weight", "final_norm", ()
    if "head" in weights.table(model):
        yield "lm_head.weight", "head", ()


def _places_of_block(model, table):
    """The same for one block whose weights are `table`, with names inside of the block."""
    yield "input_layernorm", "attention_norm", ()
    names = {"q": ("q",), "kv": ("k", "v"), "qkv": ("q", "k", "v")}
    for ours in [name for name in names if name in table]:
        for i, name in enumerate(names[ours]):
            yield f"self_attn.{name}_proj", ours, (slice(None), i)
    for name in [name for name in ("q_norm", "k_norm") if name in table]:
        yield f"self_attn.{name}", name, ()
    yield "self_attn.o_proj", "out", ()
    yield "post_attention_layernorm", "mlp_norm", ()
    if "router" in table:
        yield "mlp.gate", "router", ()
    for name in ("gate", "up", "down"):
        if f"shared_{name}" in table:
            yield f"mlp.shared_expert.{name}_proj", f"shared_{name}", ()
        if "router" not in table:
            yield f"mlp.{name}_proj", name, ()
        for expert in range(model.n_experts) if "router" in table else ():
            yield f"mlp.experts.{expert}.{name}_proj", name, (expert,)


def _ours(params: dict, place):
    """The weight of a place in our tree."""
    return params[place] if isinstance(place, str) else params[place[0]][place[1]]


def _theirs(weight, place, d_model: int):
    """One of our weights as transformers has it: a matrix [out, in], whose heads are not an axis of their own."""
    name = place if isinstance(place, str) else place[1]
    if name == "embed":
        return weight
    if name.endswith("_norm"):
        return weight.reshape(-1)
    weight = weight * 2 if "shared_down" in place else weight  # its gate, sigmoid(0), halves it
    into_heads = name in ("q", "kv", "qkv")
    return weight.reshape((-1, d_model) if name == "out" else (d_model, -1) if into_heads else weight.shape).T


def _with_shared_expert(model):
    """The layers in which the architecture has a shared expert."""
    kind = model.n_experts > 1, setting(model, "qk_norm")
    return range(setting(model, "n_dense_blocks"), model.n_blocks) if kind == SHARED else ()


def tensors(params: dict, model):
    """(name, array) of each tensor of transformers, from our tree of NumPy arrays; one at a time."""
    d = model.d_model
    for name, place, index in _places(model):
        yield name, _theirs(_ours(params, place)[index], place, d)
    for layer in _with_shared_expert(model):
        prefix = f"model.layers.{layer}.mlp.shared_expert"
        none = (("gate", (SHARED_FF, d)), ("up", (SHARED_FF, d)), ("down", (d, SHARED_FF)))
        for theirs, shape in () if setting(model, "n_shared_experts") else none:
            yield f"{prefix}.{theirs}_proj.weight", np.zeros(shape, np.float32)
        yield f"{prefix}_gate.weight", np.zeros((1, d), np.float32)


def params(read, model) -> dict:
    """Our tree in float32. `read` gives the tensor of a name in transformers, or None; `model` is config.model, or a
    ConfigDict of model_fields. UserError where a tensor is missing or of another shape, or a shared expert has a gate,
    or an output where we have none."""
    table = weights.table(model)
    empty = lambda weight, *lead: np.zeros((*lead, *weight.shape), np.float32)
    stacks = weights.stacks(model)
    tree = {name: empty(weight) for name, weight in table.items() if name not in stacks}
    for stack, n_blocks in stacks.items():
        tree[stack] = {name: empty(weight, n_blocks) for name, weight in table[stack].items()}
    for name, place, index in _places(model):
        target, array = _ours(tree, place)[index], read(name)
        if array is None and name == "lm_head.weight":
            array = read("model.embed_tokens.weight")  # tied
        if array is None:
            raise UserError(f"the tensor {name} is missing")
        needed = _theirs(target, place, model.d_model).shape
        if array.shape != needed:
            raise UserError(f"the tensor {name} has shape {array.shape}; its config.json says {needed}")
        array = array.T if array.ndim == 2 and place != "embed" else array
        _ours(tree, place)[index] = array.reshape(target.shape) / (2 if "shared_down" in place else 1)
    must_be_zero = "_gate" if setting(model, "n_shared_experts") else ".down_proj"
    for layer in _with_shared_expert(model):
        name = f"model.layers.{layer}.mlp.shared_expert{must_be_zero}.weight"
        if (array := read(name)) is not None and np.any(array):
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
