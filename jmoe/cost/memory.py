"""Whether a step fits into a device's memory: what the compiler reserves, and what would help where it does not."""

import contextlib
import math
import os
import re
from collections.abc import Generator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from jmoe.config import check
from jmoe.cost.chips import GiB
from jmoe.cost.topologies import kernels_for
from jmoe.errors import Failure, UserError
from jmoe.model import sharding
from jmoe.run.step import abstract_state, make_train_step


class DoesNotFit(Exception):
    """The compiler found no way to fit the program into the chip's memory."""


def compile_step(config: ConfigDict, devices: Sequence[jax.Device]) -> tuple[jax.sharding.Mesh, jax.stages.Compiled]:
    """Compiles the train step of `config` at its largest batch.

    Args:
      config: The run's config.
      devices: Devices, which need not be here.

    Returns:
      The mesh, and the compiled step.

    Raises:
      UserError: The config is invalid or does not divide over the devices.
      DoesNotFit: The compiler found no way to fit the step into memory.
    """
    check.check_config(config)
    mesh = sharding.make_mesh(config, devices)
    seq_len = config.data.seq_len
    n_rows = max(batch for _, batch in config.batch_tokens) // seq_len
    tokens = jax.NamedSharding(mesh, sharding.tokens(mesh))
    with jax.set_mesh(mesh), kernels_for(devices[0]):
        params, opt_state = abstract_state(config, mesh)
        batch = jax.ShapeDtypeStruct((n_rows, seq_len + 1), jnp.int32, sharding=tokens)
        rate = jax.ShapeDtypeStruct((), jnp.float32)
        masks = config.data.document_mask
        end_of_text = config.model.vocab_size - 1 if masks else None  # any token: the step costs the same
        lowered = make_train_step(config, mesh, end_of_text).lower(params, opt_state, batch, rate)
        try:
            return mesh, lowered.compile()
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            raise DoesNotFit(_reason(str(error))) from None


def _reason(error: str) -> str:
    """The part of a compiler's error that says how much memory is missing."""
    used = re.search(r"Used [\d.]+\w* of [\d.]+\w* hbm[^\n]*?(?=\.\s|\n|$)", error)
    return used[0] if used else error.split("\n")[0].removeprefix("RESOURCE_EXHAUSTED: ")


def of_step(compiled: jax.stages.Compiled) -> dict[str, int]:
    """Bytes that a compiled step takes on each device, by part, and `peak`, their sum."""
    sizes: Any = compiled.memory_analysis()
    memory = {
        "arguments": sizes.argument_size_in_bytes,
        "outputs_not_donated": sizes.output_size_in_bytes - sizes.alias_size_in_bytes,
        "temporaries": sizes.temp_size_in_bytes,
        "program": sizes.generated_code_size_in_bytes,
    }
    return memory | {"peak": sum(memory.values())}


def microbatches(config: ConfigDict, n_devices: int) -> list[int]:
    """The smaller microbatches, in tokens, that `config` could use on `n_devices`, each half of the previous one."""
    batches = [batch for _, batch in config.batch_tokens]
    present = config.microbatch_tokens or max(batches)
    common = math.gcd(*batches)
    size = common if common < present else present // 2
    sizes = []
    while size:
        try:
            other = with_microbatches(config, size)
            check.check_config(other)
            check.check_mesh(other, n_devices)
        except UserError:
            return sizes
        sizes.append(size)
        size //= 2
    return sizes


def with_microbatches(config: ConfigDict, n_tokens: int) -> ConfigDict:
    """A copy of the config with another config.microbatch_tokens."""
    copy = config.copy_and_resolve_references()
    with copy.unlocked():
        copy.microbatch_tokens = n_tokens
    return copy


@contextlib.contextmanager
def explained(config: ConfigDict, mesh: jax.sharding.Mesh) -> Generator[None]:
    """Turns a lack of memory, of a device or the host, within the `with` block into a sentence on what would help.

    Raises:
      Failure: The memory ran out.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise Failure(_sentence(str(error), config, mesh)) from error


def _sentence(error: str, config: ConfigDict, mesh: jax.sharding.Mesh) -> str:
    """The sentence on what ran out of memory, how much the step takes, and what would take less."""
    allocation = re.search(r"allocat\w*:? ([\d.]+ ?[KMGT]?i?[bB]?\w*)", error)
    device = jax.local_devices()[0]
    limit = _memory_limit(device)
    leaves = jax.tree.leaves(abstract_state(config, mesh))
    state_bytes = sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)
    fault = f"out of memory allocating {allocation[1] if allocation else 'what the step takes'} on {device.device_kind}"
    of_limit = f"of {gib(limit)}" if limit else "of unknown memory"
    if limit and state_bytes > limit:
        return (
            f"{fault}: parameters and optimizer state alone take {gib(state_bytes)} {of_limit} on each device; they "
            "spread over more devices, or over these by config.mesh, else take a smaller model"
        )
    try:
        _, compiled = compile_step(config, list(mesh.devices.flat))
        predicted = f"takes {gib(of_step(compiled)['peak'])} {of_limit}"
    except DoesNotFit as refusal:
        predicted = f"does not fit ({refusal})"
    except Exception:  # noqa: BLE001  a compiler that is out of memory itself
        predicted = f"takes more than the {gib(state_bytes)} of parameters and optimizer state {of_limit}"
    remedies = [] if config.remat == "full" else ["--config.remat=full"]
    remedies += [f"--config.microbatch_tokens={size}" for size in microbatches(config, mesh.size)[:1]]
    remedies.append("a mesh of more devices")
    *others, last = remedies
    alternatives = f"{', '.join(others)} or {last}" if others else last
    return (
        f"{fault}: by jmoe.compile the step {predicted} on each device, of which parameters and optimizer state "
        f"{gib(state_bytes)}; {alternatives} would take less"
    )


def _memory_limit(device: jax.Device) -> int:
    """Bytes of memory that a device may use; a CPU has the machine's. 0 where the system does not say."""
    stats = device.memory_stats()
    if stats:
        return stats.get("bytes_limit", 0)
    with contextlib.suppress(ValueError, OSError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 0


def gib(n_bytes: float) -> str:
    """A size as text: three digits in GiB or, below a hundredth, in MiB."""
    if n_bytes >= 1_000 * GiB:
        return f"{n_bytes / GiB:,.0f} GiB"
    return f"{n_bytes / GiB:.3g} GiB" if n_bytes >= GiB / 100 else f"{n_bytes / 2**20:.3g} MiB"
