"""Tensors by name in safetensors files, in parts of a few GB with an index beside them, as transformers has them."""

import contextlib
import json

import ml_dtypes
import numpy as np
from etils import epath

from jmoe.errors import UserError

PART_BYTES = 2 * 2**30


def write(folder: epath.Path, tensors: dict, dtype: str) -> None:
    """Writes NumPy arrays by name, as float32 or bfloat16."""
    from safetensors import numpy as safetensors

    dtype = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    parts, size = [[]], 0
    for name, array in tensors.items():
        if parts[-1] and size + array.size * dtype.itemsize > PART_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(name)
        size += array.size * dtype.itemsize
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


@contextlib.contextmanager
def reader(files: list):
    """Yields a function that returns the tensor of a name as a float32 array, or None if there is none. UserError where
    a file is not a safetensors file."""
    from safetensors import SafetensorError, safe_open

    with contextlib.ExitStack() as stack:
        file_of = {}
        for path in files:
            try:
                opened = stack.enter_context(safe_open(str(path), framework="flax"))
            except (SafetensorError, OSError) as error:
                raise UserError(f"{path} cannot be read: {error}") from None
            file_of |= dict.fromkeys(opened.keys(), opened)
        yield lambda name: np.asarray(file_of[name].get_tensor(name), np.float32) if name in file_of else None
