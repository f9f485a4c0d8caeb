"""Snapshots of a run in training, exported for transformers: SEGMENT/snapshots/STEP, every config.snapshot_every steps.

Other programs, such as lm-evaluation-harness, read them in a process of their own. config.json is written last: a
folder that has one is complete.
"""

import functools
import os
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from etils import epath
from jaxtyping import Array, PyTree, Shaped
from ml_collections import ConfigDict

from jmoe import export, huggingface
from jmoe.model import sharding
from jmoe.model.transformer import STACKS
from jmoe.run import checkpoint, distributed
from jmoe.storage import owner_check


def check(config: ConfigDict) -> None:
    """Checks that the run can make the snapshots that its config asks for.

    Raises:
      UserError: transformers cannot compute the model, or the tokenizer is missing.
    """
    if config.snapshot_every:
        huggingface.check(config.model)
        checkpoint.tokenizer_of(config)


def write(folder: epath.Path, params: PyTree[Array], config: ConfigDict, record: dict[str, Any]) -> None:
    """Writes the parameters as a folder for transformers, unless it is complete. All processes must call it.

    The first process holds the whole model in its memory while it writes: 4 bytes for each parameter.

    Args:
      folder: The folder.
      params: The parameters, on the run's mesh.
      config: The run's config.
      record: The run's record, with `step` and `n_tokens`.
    """
    is_first = jax.process_index() == 0
    if distributed.anywhere(is_first and (folder / "config.json").exists()):
        return
    began = time.monotonic()
    params_on_host = on_first_host(params)
    if is_first:
        owner_check.check_owner()
        export.write_folder(folder, params_on_host, config, record, config.model.dtype)
    distributed.meet()
    distributed.log(f"wrote the snapshot {os.fspath(folder)} in {time.monotonic() - began:.1f} s")


def on_first_host(params: PyTree[Array]) -> PyTree[Shaped[np.ndarray, "..."]]:
    """Copies parameters to the first process, one layer of a stack at a time; other processes get empty arrays.

    A layer of a weight must fit into the memory of each device.
    """
    replicate, replicate_layer = _replicators(jax.sharding.get_mesh())
    is_first = jax.process_index() == 0

    def local(whole: Array) -> Shaped[np.ndarray, "..."]:
        whole.block_until_ready()
        return np.array(whole.addressable_data(0)) if is_first else np.empty(0, whole.dtype)

    def stacked(x: Array) -> Shaped[np.ndarray, "L ..."]:
        return np.stack([local(replicate_layer(x, np.int32(i))) for i in range(x.shape[0])])

    on_host = {}
    for name, branch in params.items():
        if name in STACKS:
            on_host[name] = jax.tree.map(stacked, branch)
        else:
            on_host[name] = jax.tree.map(lambda x: local(replicate(x)), branch)
    return on_host


@functools.cache
def _replicators(mesh: jax.sharding.Mesh) -> tuple[Callable[[Array], Array], Callable[[Array, np.int32], Array]]:
    """Compiled functions that put an array, or the i-th layer of a stack, on every device of a mesh."""
    everywhere = jax.NamedSharding(mesh, sharding.REPLICATED)

    def layer(x: Array, i: Array) -> Array:
        return jax.lax.dynamic_index_in_dim(x, i, keepdims=False)

    return jax.jit(lambda x: x, out_shardings=everywhere), jax.jit(layer, out_shardings=everywhere)
