"""The whole train step, dense against mixtures of experts of equal active parameters:

    python -m benchmarks.train_step [--size=cpu|gpu] [--json=PATH]

`gpu` is for one accelerator of 80 GB: bfloat16, rows of 2,048 tokens, 384M active parameters (64M of them the
embedding), the backend's flash attention; dense and E = 8. `cpu` is small and float32, with E of 1, 8 and 32.

The models take turns step by step in one process (jmoe.step.make_train_step: optimizer and donation included). Then
ten bare steps of the dense model take turns with ten as jmoe.train runs them: text by jmoe/text/batches.py, learning
rate, metrics fetched one step late.
"""

import itertools
import os
import statistics
import tempfile
import time

import jax
import numpy as np
from absl import app, flags

from benchmarks import measure
from configs import joint_moe
from jmoe.cost import chips, counts
from jmoe.model import sharding
from jmoe.model.decoder import init_params
from jmoe.run.schedule import Schedule
from jmoe.run.step import make_optimizer, make_train_step
from jmoe.text import corpus
from jmoe.text.batches import training_batches

SIZE = flags.DEFINE_enum("size", None, ["cpu", "gpu"], "Which models; default: by the device at hand.")
LOOP = 10  # steps at a time that the loop is compared over

NOTES = """\
model FLOPs of a token = 6 (active parameters but the embedding) + 12 n_blocks d_model T + 6 n_blocks d_model E for the
router: matmuls forward and twice backward, attention over whole rows, no padding, no recomputation (counts.py).
MFU = model FLOPs x tokens / (seconds x peak); GFLOP/s where no peak is published. x dense: median of the rounds'
ratios. memory GiB: arguments and temporaries of the compiled step."""


def cpu_config():
    config = joint_moe.get_config()
    config.model.d_model = 128
    config.model.n_blocks = 4
    config.model.vocab_size = 1024
    config.model.dtype = "float32"
    config.data.seq_len = 256
    config.batch_tokens = ((0, 8_192),)
    config.unroll = True
    return config, (1, 8, 32)


def gpu_config():
    config = joint_moe.get_config()
    config.model.d_model = 1280
    config.model.n_blocks = 12
    config.model.n_heads = 10  # of 128
    config.model.vocab_size = 50_304
    config.model.attention = "flash"
    config.data.seq_len = 2_048
    config.batch_tokens = ((0, 65_536),)
    config.remat, config.unroll = "dots", True
    return config, (1, 8)


def main(_):
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.92")  # of a GPU; jax would take three quarters
    device = jax.devices()[0]
    small = SIZE.value == "cpu" if SIZE.value else device.platform == "cpu"
    base, experts = cpu_config() if small else gpu_config()
    mesh = sharding.make_mesh(base, [device])
    n_tokens, chip = base.batch_tokens[0][1], chips.of_device(device)
    with jax.set_mesh(mesh):
        models, arms, memory = {}, {}, {}
        for e in experts:
            config = base.copy_and_resolve_references()
            config.model.n_experts = e
            models[f"E={e}"] = config
            arms[f"E={e}"], compiled = stepper(config, mesh)
            sizes = compiled.memory_analysis()
            memory[f"E={e}"] = sizes.argument_size_in_bytes + sizes.temp_size_in_bytes
        seconds, cpu = measure.in_turn(arms, measure.ROUNDS.value)
    rows = []
    for name, config in models.items():
        median = statistics.median(seconds[name])
        rate = sum(counts.matmul_flops_per_token(config.model, config.data.seq_len).values()) * n_tokens / median
        rows.append(
            {
                "model": name,
                "n_active": counts.n_active(config.model),
                "n_total": counts.n_total(config.model),
                "ms": median * 1e3,
                "x dense": measure.ratio(seconds, name, "E=1"),
                "x dense, CPU time": measure.ratio(cpu, name, "E=1"),
                "tokens/s": n_tokens / median,
                "MFU" if chip else "GFLOP/s": rate / chip.flops if chip else rate / 1e9,
                "memory GiB": memory[name] / 2**30,
            }
        )
    peak = (device.memory_stats() or {}).get("peak_bytes_in_use")
    notes = NOTES + (f"\nallocator's peak with all models at once: {peak / 2**30:.2f} GiB" if peak else "")
    del arms
    with jax.set_mesh(mesh):
        notes += "\n" + loop(models["E=1"], mesh)
    measure.show(rows, notes, measure.JSON.value)


def start(config):
    """[params, opt_state] of a new model."""
    params = jax.jit(lambda: init_params(config))()
    return [params, jax.jit(make_optimizer(config.optimizer).init)(params)]


def stepper(config, mesh):
    """A function that runs one more step of the model on the same batch, and the compiled step."""
    state = start(config)
    n_rows, rate = config.batch_tokens[0][1] // config.data.seq_len, np.float32(1e-4)
    rng = np.random.default_rng(0)
    batch = rng.integers(config.model.vocab_size, size=(n_rows, config.data.seq_len + 1), dtype=np.int32)
    batch = jax.device_put(batch, jax.NamedSharding(mesh, sharding.TOKENS))
    compiled = make_train_step(config, mesh).lower(*state, batch, rate).compile()

    def step():
        *state[:], metrics = compiled(*state, batch, rate)
        return metrics

    return step, compiled


def loop(config, mesh) -> str:
    """What the trainer's loop adds to the bare step: time outside of it and waiting for input, as shares."""
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
        bare_step, _ = stepper(config, mesh)
        train_step = make_train_step(config, mesh)
        state, steps, waits = start(config), itertools.count(), []

        def bare():
            return [bare_step() for _ in range(LOOP)][-1]

        def looped():
            pending = None
            for step in itertools.islice(steps, LOOP):
                begin = time.perf_counter()
                batch = next(batches)
                waits.append(time.perf_counter() - begin)
                rate = np.float32(schedule.learning_rate(step, segment))
                *state[:], metrics = train_step(*state, batch, rate)
                if pending is not None:
                    jax.tree.map(lambda x: x.tolist(), jax.device_get(pending))
                pending = metrics
            return pending

        seconds, cpu = measure.in_turn({"bare": bare, "looped": looped}, max(5, measure.ROUNDS.value // 2), settle=True)
        timed = [wait for i, wait in enumerate(waits) if i // LOOP and i // LOOP % 2 == 0]  # every other call
    return (
        f"the trainer's loop, E=1: {measure.ratio(seconds, 'looped', 'bare') - 1:+.2%} over {LOOP} bare steps, "
        f"{measure.ratio(cpu, 'looped', 'bare') - 1:+.2%} in CPU time "
        f"({statistics.median(seconds['bare']) / LOOP * 1e3:.1f} ms each), waiting for input "
        f"{sum(timed) / sum(seconds['looped']):.2%} of the time"
    )


if __name__ == "__main__":
    app.run(main)
