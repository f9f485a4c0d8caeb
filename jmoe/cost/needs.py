"""Warns of a compiled step that moves many more bytes, or computes many more FLOPs, than its model needs.

What a model needs is an estimate from its config, good to a factor of about 1.5. That is enough to find a step that the
compiler made badly, which moves ten times as much. All numbers are per device and step.
"""

import dataclasses

import jax.numpy as jnp
from ml_collections import ConfigDict

from jmoe.config import counts
from jmoe.cost.program import Program

WARN_ABOVE = 3.0  # times what the model needs

PASSES_OF_BLOCK = 3.5  # how often an array of a block is read or written, forward and backward without recomputing
# of a parameter, in float32: itself and two moments are read and written, its gradient is written and read
OPTIMIZER_BYTES = 32


@dataclasses.dataclass(frozen=True)
class Needs:
    """The FLOPs and bytes that a step of the model needs on one device."""

    flops: int
    bytes: int


def needs_of(config: ConfigDict, n_devices: int) -> Needs:
    """FLOPs and bytes of main memory that one step of `config` needs on each of `n_devices`."""
    model = config.model
    n_tokens = max(batch for _, batch in config.batch_tokens)
    device_tokens = n_tokens // n_devices * config.mesh.model  # those of the model axis share theirs
    recomputed = 1 if config.remat == "full" else 0
    flops = sum(counts.matmul_flops_per_token(model, config.data.seq_len).values()) * n_tokens // n_devices
    total = _optimizer_bytes(config, n_devices) + _weight_bytes(config, n_tokens, recomputed)
    total += device_tokens * (_block_bytes(config) * (PASSES_OF_BLOCK + recomputed) + _head_bytes(model))
    return Needs(flops=flops * (3 + recomputed) // 3, bytes=int(total))


def _optimizer_bytes(config: ConfigDict, n_devices: int) -> int:
    """Bytes of parameters and moments, which are stored spread over all devices."""
    return OPTIMIZER_BYTES * counts.n_exact(config.model) // n_devices


def _weight_bytes(config: ConfigDict, n_tokens: int, recomputed: int) -> int:
    """Bytes of weights in the model's dtype, as each microbatch reads them in every pass and writes their gradient."""
    mesh = {"data": 1, "expert": config.mesh.expert, "model": config.mesh.model}
    n_microbatches = n_tokens // (config.microbatch_tokens or n_tokens)
    passes = 5 + recomputed  # cast, forward, both gradients, the gradient of the weights written
    width = jnp.dtype(config.model.dtype).itemsize
    return passes * n_microbatches * width * counts.n_exact(config.model, mesh)


def _block_bytes(config: ConfigDict) -> float:
    """Bytes of one token in all blocks, forward: norms, residuals, attention and its heads, rows and hidden units."""
    model = config.model
    n_heads, _, head_dim = counts.heads(model)
    width = jnp.dtype(model.dtype).itemsize
    n_dense = model.n_blocks if model.n_experts == 1 else model.n_dense_blocks
    n_mixtures = model.n_blocks - n_dense
    attention = 12 * model.d_model + 8 * n_heads * head_dim // config.mesh.model
    scores = 0
    if model.attention == "float32":  # written and read by several passes
        scores = 4 * 4 * n_heads // config.mesh.model * config.data.seq_len
    dense = 4 * model.d_model + 6 * model.d_ff // config.mesh.model
    d_expert = model.d_expert
    hidden = (d_expert if d_expert else model.d_ff) // config.mesh.model
    experts_of_token = model.top_k + model.n_shared_experts
    mixture = experts_of_token * (6 * model.d_model + 6 * hidden) + 8 * model.n_experts
    return model.n_blocks * (attention * width + scores) + width * (n_dense * dense + n_mixtures * mixture)


def _head_bytes(model: ConfigDict) -> int:
    """Bytes of one token's logits in float32, forward and backward, each computed twice, a piece at a time."""
    return 6 * 4 * model.vocab_size


def warnings(config: ConfigDict, program: Program, n_devices: int) -> list[str]:
    """Warnings about FLOPs and bytes that exceed WARN_ABOVE times the need, with the operation that takes most.

    Args:
      config: The run's config.
      program: The step of that config, compiled for `n_devices`.
      n_devices: Devices of the mesh.
    """
    needs = needs_of(config, n_devices)
    flops = program.matmul_flops() + program.elementwise_flops()
    sentences = []
    for verb, unit, value, needed, by_source in (
        ("moves", "B", program.main_memory_bytes(), needs.bytes, program.bytes_by_source),
        ("computes", "FLOPs", flops, needs.flops, program.flops_by_source),
    ):
        if value <= WARN_ABOVE * needed:
            continue
        source, most = max(by_source().items(), key=lambda item: item[1])
        sentences.append(
            f"the step {verb} {value:.3g} {unit}, {value / needed:.1f} times the {needed:.3g} {unit} that its model "
            f"needs; most, {most:.3g} {unit}, by {source}"
        )
    return sentences
