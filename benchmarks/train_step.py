"""The whole train step, of dense models and of mixtures of experts with equal active parameters:

    python -m benchmarks.train_step [--size=toy|cpu|gpu] [--models=8 --models=64,8] [--json=PATH]

`gpu` is for one accelerator of 80 GB: bfloat16, rows of 2,048 tokens, 384M active parameters (64M of them the
embedding), the backend's flash attention; dense and E = 8. `cpu` is small and float32, with E of 1, 8 and 32. A model
that does not fit has a row without times. `toy` takes seconds and does not measure speed.

The models take turns step by step in one process, with optimizer and donation (make_train_step of jmoe/run/step.py).
Then ten bare steps of the first model, calls of the same jitted function on one batch of the same text, take turns with
ten steps of the trainer's loop: text by jmoe/text/batches.py, learning rate, metrics fetched one step late.
"""

import contextlib
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator

import jax
import numpy as np
from absl import app, flags
from ml_collections import ConfigDict

from benchmarks import measure
from configs import joint_moe
from jmoe.config import counts
from jmoe.config.schedule import Schedule
from jmoe.cost import chips, memory
from jmoe.cost.chips import GiB
from jmoe.cost.memory import DoesNotFit
from jmoe.model import sharding
from jmoe.model.parameters import init_params
from jmoe.model.remat import REMAT as REMATS
from jmoe.run.step import make_optimizer, make_train_step
from jmoe.text import corpus
from jmoe.text.batches import training_batches

SIZE = flags.DEFINE_enum("size", None, ["toy", "cpu", "gpu"], "Models to run. Default: by the device at hand.")
MODELS = flags.DEFINE_multi_string(
    "models", [], "E, or E,k for k of E experts of a k-th of the width. Default: by --size. Ratios are to the first."
)
N_TOKENS = flags.DEFINE_integer("n_tokens", 0, "Tokens of a batch. 0: by --size.")
REMAT = flags.DEFINE_enum("remat", None, list(REMATS), "config.remat. Default: by --size.")
UNROLL = flags.DEFINE_bool("unroll", True, "config.unroll.")
DROPLESS = flags.DEFINE_bool("dropless", False, "config.model.capacity_factor=None: mixtures drop nothing.")
COMPARE_LOOP = flags.DEFINE_bool("loop", True, "Also compare the first model's bare steps with the trainer's loop.")
LOOP = 10  # steps in each call when the loop is compared with bare steps

NOTES = """\
model FLOPs of a token = 6 (active parameters but the embedding) + 12 n_blocks d_model T + 6 n_blocks d_model E for the
router: matmuls forward and twice backward, attention over whole rows, no padding, no recomputation (counts.py).
MFU = model FLOPs x tokens / (seconds x published peak), GFLOP/s of the same. x first: median of the rounds' ratios.
predicted GiB: jmoe.compile's estimate; allocated GiB: the allocator's peak, where one model ran alone."""


def cpu_config() -> tuple[ConfigDict, tuple[int, ...]]:
    """Returns the config of --size=cpu, and its numbers of experts."""
    config = joint_moe.get_config()
    config.model.d_model = 128
    config.model.n_blocks = 4
    config.model.vocab_size = 1024
    config.model.dtype = "float32"
    config.data.seq_len = 256
    config.batch_tokens = ((0, 8_192),)
    config.unroll = True
    return config, (1, 8, 32)


def toy_config() -> tuple[ConfigDict, tuple[int, ...]]:
    """Returns the config of --size=toy, and its numbers of experts."""
    config, experts = cpu_config()
    config.model.d_model = 32
    config.model.n_blocks = 2
    config.model.n_heads = 2
    config.model.vocab_size = 320
    config.model.group_tokens = 512
    config.data.seq_len = 64
    config.batch_tokens = ((0, 1_024),)
    return config, experts


def gpu_config() -> tuple[ConfigDict, tuple[int, ...]]:
    """Returns the config of --size=gpu, and its numbers of experts."""
    config = joint_moe.get_config()
    config.model.d_model = 1280
    config.model.n_blocks = 12
    config.model.n_heads = 10  # of 128
    config.model.vocab_size = 50_304
    config.model.attention = "flash"
    config.data.seq_len = 2_048
    config.batch_tokens = ((0, 65_536),)
    config.remat = "dots"
    config.unroll = True
    return config, (1, 8)


def main(_: object) -> None:
    """Times the steps, and prints a row for each model."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.92")  # of a GPU's memory; jax would take three quarters
    device = jax.devices()[0]
    models = chosen(SIZE.value or ("cpu" if device.platform == "cpu" else "gpu"))
    mesh = sharding.make_mesh(next(iter(models.values())), [device])
    arms = {}
    predicted = {}
    seconds = {}
    cpu = {}
    with jax.set_mesh(mesh):
        for name, config in models.items():
            with contextlib.suppress(DoesNotFit), fitting():
                arms[name], compiled = stepper(config, mesh)
                predicted[name] = memory.of_step(compiled)["peak"] / GiB
        with contextlib.suppress(DoesNotFit), fitting():
            seconds, cpu = measure.in_turn(arms, measure.ROUNDS.value)
    chip = chips.of_device(device)
    peak = (device.memory_stats() or {}).get("peak_bytes_in_use")
    first = next(iter(models))
    rows = []
    for name, config in models.items():
        n_tokens = config.batch_tokens[0][1]
        row = {
            "model": name,
            "n_active": counts.n_active(config.model),
            "n_total": counts.n_total(config.model),
            "batch": n_tokens,
            "remat": config.remat,
            "unrolled": config.unroll,
            "predicted GiB": predicted.get(name),
            "allocated GiB": peak / GiB if peak and len(models) == 1 else None,
        } | dict.fromkeys(("ms", "x first", "x first, CPU time", "tokens/s", "GFLOP/s", "MFU"))
        if name in seconds:
            median = statistics.median(seconds[name])
            rate = sum(counts.matmul_flops_per_token(config.model, config.data.seq_len).values()) * n_tokens / median
            row |= {
                "ms": median * 1e3,
                "x first": measure.ratio(seconds, name, first) if first in seconds else None,
                "x first, CPU time": measure.ratio(cpu, name, first) if first in seconds else None,
                "tokens/s": n_tokens / median,
                "GFLOP/s": rate / 1e9,
                "MFU": rate / chip.flops if chip else None,
            }
        rows.append(row)
    notes = NOTES
    if peak:
        notes += f"\nallocator's peak with all models at once: {peak / GiB:.2f} GiB"
    arms.clear()
    if COMPARE_LOOP.value and first in seconds:
        with jax.set_mesh(mesh):
            notes += "\n" + loop(models[first], mesh)
    measure.show(rows, notes, measure.JSON.value)


@contextlib.contextmanager
def fitting() -> Iterator[None]:
    """Raises DoesNotFit if the device has too little memory."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise DoesNotFit(str(error).split("\n")[0]) from error


def chosen(size: str) -> dict[str, ConfigDict]:
    """Returns the configs of --models at this --size by name, with the changes of the other flags."""
    base, experts = {"toy": toy_config, "cpu": cpu_config, "gpu": gpu_config}[size]()
    base.remat = REMAT.value or base.remat
    base.unroll = UNROLL.value
    if N_TOKENS.value:
        base.batch_tokens = ((0, N_TOKENS.value),)
    names = MODELS.value or [str(n_experts) for n_experts in experts]
    configs = dict(with_experts(base, name) for name in names)
    if not DROPLESS.value:
        return configs
    for config in configs.values():
        config.model.capacity_factor = None
    return {f"{name} dropless": config for name, config in configs.items()}


def with_experts(base: ConfigDict, experts: str) -> tuple[str, ConfigDict]:
    """Returns a name and a copy of `base` with experts of "E", or of "E,k": k of E experts of a k-th of the width."""
    config = base.copy_and_resolve_references()
    n_experts, _, top_k = experts.partition(",")
    config.model.n_experts = int(n_experts)
    if not top_k:
        return f"E={n_experts}", config
    config.model.top_k = int(top_k)
    config.model.d_expert = config.model.d_ff // config.model.top_k
    return f"E={n_experts} k={top_k}", config


def start(config: ConfigDict) -> list:
    """Returns [params, opt_state] of a new model."""
    params = jax.jit(lambda: init_params(config))()
    return [params, jax.jit(make_optimizer(config).init)(params)]


def stepper(
    config: ConfigDict, mesh: jax.sharding.Mesh, compiled: jax.stages.Compiled | None = None
) -> tuple[Callable[[], dict], jax.stages.Compiled]:
    """Returns a function that runs one more step of the model on the same batch, and the compiled step."""
    state = start(config)
    n_rows = config.batch_tokens[0][1] // config.data.seq_len
    rate = np.float32(1e-4)
    rng = np.random.default_rng(0)
    batch = rng.integers(config.model.vocab_size, size=(n_rows, config.data.seq_len + 1), dtype=np.int32)
    batch = jax.device_put(batch, jax.NamedSharding(mesh, sharding.TOKENS))
    if compiled is None:
        compiled = make_train_step(config, mesh).lower(*state, batch, rate).compile()

    def step() -> dict:
        *state[:], metrics = compiled(*state, batch, rate)
        return metrics

    return step, compiled


def loop(config: ConfigDict, mesh: jax.sharding.Mesh) -> str:
    """Returns what the trainer's loop adds to the bare step: time outside of it and waiting for input, as shares."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["JMOE_CACHE"] = config.data.path = cache
        text = np.random.default_rng(0).integers(97, 123, size=2**22, dtype=np.uint8).tobytes()
        for name in ("train", "validation"):
            with open(os.path.join(cache, f"{name}.txt"), "wb") as file:
                file.write(text[: 2**22 if name == "train" else 2**16])
        config.data.path = os.path.join(cache, "train.txt")
        config.data.validation_path = os.path.join(cache, "validation.txt")
        config.data.tokenizer = "bytes"
        config.optimizer.warmup_tokens = 0
        config.n_tokens = (10_000 * config.batch_tokens[0][1],)
        text = corpus.load(config.data, config.model.vocab_size)
        schedule = Schedule(config)
        segment = schedule.segments[0]
        batches = training_batches(text, config, schedule, mesh, segment, 0)
        # a compiled program, or another text, would differ from the loop by more than the loop's own cost
        train_step = make_train_step(config, mesh)
        batch = next(batches)
        rate = np.float32(1e-4)
        bare_state = start(config)
        state = start(config)
        steps = itertools.count()
        waits = []

        def bare() -> dict:
            for _ in range(LOOP):
                *bare_state[:], metrics = train_step(*bare_state, batch, rate)
            return metrics

        def looped() -> dict | None:
            pending = None
            for step in itertools.islice(steps, LOOP):
                begin = time.perf_counter()
                rows = next(batches)
                waits.append(time.perf_counter() - begin)
                learning_rate = np.float32(schedule.learning_rate(step, segment))
                *state[:], metrics = train_step(*state, rows, learning_rate)
                if pending is not None:
                    jax.tree.map(lambda x: x.tolist(), jax.device_get(pending))
                pending = metrics
            return pending

        arms = {"bare": bare, "looped": looped}
        seconds, cpu = measure.in_turn(arms, max(5, measure.ROUNDS.value // 2), settle=True)
        timed = [wait for i, wait in enumerate(waits) if i // LOOP and i // LOOP % 2 == 0]  # every other call
        threads = "; ".join(f"{name} {_by_thread(arm)}" for name, arm in arms.items())
    return (
        f"the trainer's loop: {measure.ratio(seconds, 'looped', 'bare') - 1:+.2%} over {LOOP} bare steps, "
        f"{measure.ratio(cpu, 'looped', 'bare') - 1:+.2%} in CPU time "
        f"({statistics.median(seconds['bare']) / LOOP * 1e3:.1f} ms each), waiting for input "
        f"{sum(timed) / sum(seconds['looped']):.2%} of the time\nCPU ms of a step by thread, in one call: {threads}"
    )


def _by_thread(arm: Callable[[], object]) -> str:
    """Returns the CPU milliseconds of each step of one call, by the name of the thread."""
    before = measure.thread_seconds()
    jax.block_until_ready(arm())
    used = measure.thread_seconds() - before
    return ", ".join(f"{name} {seconds / LOOP * 1e3:.2f}" for name, seconds in used.most_common(5))


if __name__ == "__main__":
    app.run(main)
