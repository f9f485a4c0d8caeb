"""Whether a step fits into a device's memory: what the compiler reserves, and what would help where it does not."""

import contextlib
import math
import os
import re

import jax
import jax.numpy as jnp

from jmoe.config import check
from jmoe.cost.chips import GiB
from jmoe.cost.topologies import kernels_for
from jmoe.errors import Failure, UserError
from jmoe.model import sharding
from jmoe.run.step import abstract_state, make_train_step


class DoesNotFit(Exception):
    """The compiler found no way to fit the program into the chip's memory."""


def compile_step(config, devices):
    """Compiles the train step of `config` at its largest batch for `devices`; returns the mesh and a
    jax.stages.Compiled. UserError for a config that is invalid or does not divide over the devices; DoesNotFit."""
    check.check_config(config)
    mesh = sharding.make_mesh(config, devices)
    seq_len = config.data.seq_len
    n_rows = max(batch for _, batch in config.batch_tokens) // seq_len
    tokens = jax.NamedSharding(mesh, sharding.TOKENS)
    with jax.set_mesh(mesh), kernels_for(devices[0]):
        params, opt_state = abstract_state(config, mesh)
        batch = jax.ShapeDtypeStruct((n_rows, seq_len + 1), jnp.int32, sharding=tokens)
        rate = jax.ShapeDtypeStruct((), jnp.float32)
        lowered = make_train_step(config, mesh).lower(params, opt_state, batch, rate)
        try:
            return mesh, lowered.compile()
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            used = re.search(r"Used [\d.]+\w* of [\d.]+\w* hbm[^\n]*?(?=\.\s|\n|$)", str(error))
            reason = used[0] if used else str(error).split("\n")[0].removeprefix("RESOURCE_EXHAUSTED: ")
            raise DoesNotFit(reason) from None


def of_step(compiled) -> dict[str, int]:
    """Bytes that a compiled step takes on each device, by part, and `peak`, their sum."""
    sizes = compiled.memory_analysis()
    memory = {
        "arguments": sizes.argument_size_in_bytes,
        "outputs_not_donated": sizes.output_size_in_bytes - sizes.alias_size_in_bytes,
        "temporaries": sizes.temp_size_in_bytes,
        "program": sizes.generated_code_size_in_bytes,
    }
    return memory | {"peak": sum(memory.values())}


def microbatches(config, n_devices: int) -> list[int]:
    """The smaller microbatches, in tokens, that `config` could use on `n_devices`, each half of the one before."""
    largest = max(batch for _, batch in config.batch_tokens)
    size = check.microbatch_tokens(config) or largest
    common = math.gcd(*(batch for _, batch in config.batch_tokens))
    sizes, size = [], common if common < size else size // 2
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


def with_microbatches(config, n_tokens: int):
    """The config with another config.microbatch_tokens."""
    other = config.copy_and_resolve_references()
    with other.unlocked():
        other.microbatch_tokens = n_tokens
    return other


@contextlib.contextmanager
def explained(config, mesh):
    """Turns a device's or the host's lack of memory into Failure, one sentence that says what would help."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise Failure(_sentence(str(error), config, mesh)) from error


def _sentence(error: str, config, mesh) -> str:
    asked = re.search(r"allocat\w*:? ([\d.]+ ?[KMGT]?i?[bB]?\w*)", error)
    device = jax.local_devices()[0]
    size = lambda array: math.prod(array.sharding.shard_shape(array.shape)) * array.dtype.itemsize
    if stats := device.memory_stats():
        limit = stats.get("bytes_limit", 0)
    else:  # a CPU, which has the machine's, or 0 where the system does not say
        limit = 0
        with contextlib.suppress(ValueError, OSError):
            limit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    state = sum(map(size, jax.tree.leaves(abstract_state(config, mesh))))
    what = f"out of memory allocating {asked[1] if asked else 'what the step takes'} on {device.device_kind}"
    each = f"of {gib(limit)}" if limit else "of unknown memory"
    if limit and state > limit:
        return (
            f"{what}: parameters and optimizer state alone take {gib(state)} {each} on each device; they spread over "
            "more devices, or over these by config.mesh, else take a smaller model"
        )
    try:
        peak = of_step(compile_step(config, list(mesh.devices.flat))[1])["peak"]
        predicted = f"takes {gib(peak)} {each}"
    except DoesNotFit as refused:
        predicted = f"does not fit ({refused})"
    except Exception:  # noqa: BLE001  a compiler that is out of memory itself
        predicted = f"takes more than the {gib(state)} of parameters and optimizer state {each}"
    helps = [] if config.remat == "full" else ["--config.remat=full"]
    helps += [f"--config.microbatch_tokens={size}" for size in microbatches(config, mesh.size)[:1]]
    helps.append("a mesh of more devices")
    return (
        f"{what}: by jmoe.compile the step {predicted} on each device, of which parameters and optimizer state "
        f"{gib(state)}; {', '.join(helps[:-1]) + ' or ' * (len(helps) > 1) + helps[-1]} would take less"
    )


def gib(n_bytes: float) -> str:
    """Three digits in GiB or, below a hundredth, in MiB."""
    if n_bytes >= 1_000 * GiB:
        return f"{n_bytes / GiB:,.0f} GiB"
    return f"{n_bytes / GiB:.3g} GiB" if n_bytes >= GiB / 100 else f"{n_bytes / 2**20:.3g} MiB"
