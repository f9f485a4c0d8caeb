"""Small models one after another against all of them in one compiled step (jmoe/run/together.py):

    python -m benchmarks.sweep [--together=8] [--json=PATH]

Float32 on a CPU, bfloat16 elsewhere; the models have equal shapes, and seeds and learning rates of their own. A round
is five steps of every model, one model after another, then five steps of all together.
"""

import statistics

import jax
import numpy as np
from absl import app, flags

from benchmarks import measure, train_step
from configs import joint_moe
from jmoe.cost import counts
from jmoe.model import sharding
from jmoe.run import together as together_lib
from jmoe.run.step import make_train_step

TOGETHER = flags.DEFINE_integer("together", 8, "Models in one step.")
EXPERTS = flags.DEFINE_multi_integer("n_experts", [1, 8], "Numbers of experts.")
D_MODEL = flags.DEFINE_integer("d_model", 0, "Width of the models; 0: 64 on a CPU, 128 elsewhere.")
STEPS = 5

NOTES = """\
tokens/s: of all models together, from the median round. x one by one: median of the rounds' ratios of speed."""


def main(_):
    device, n_models, rows = jax.devices()[0], TOGETHER.value, []
    cpu = device.platform == "cpu"
    config = joint_moe.get_config()
    config.model.d_model = D_MODEL.value or (64 if cpu else 128)
    config.model.vocab_size = 512  # with 50k tokens the head of a single model would fill an accelerator
    config.model.dtype = "float32" if cpu else "bfloat16"
    config.model.n_heads = config.model.n_blocks = max(2, config.model.d_model // 64)
    config.model.group_tokens = 1_024
    config.data.seq_len = 128 if cpu else 512
    config.batch_tokens = ((0, 1_024 if cpu else 4_096),)
    for n_experts in EXPERTS.value:
        config.model.n_experts = n_experts
        seconds, cpu = compare(config, device)
        n_tokens = STEPS * n_models * config.batch_tokens[0][1]
        for arm, times in seconds.items():
            rows.append(
                {
                    "models": f"{n_models} of E={n_experts}",
                    "n_active": counts.n_active(config.model),
                    "arm": arm,
                    "ms a step of all": statistics.median(times) / STEPS * 1e3,
                    "tokens/s": n_tokens / statistics.median(times),
                    "x one by one": 1 / measure.ratio(seconds, arm, "one by one"),
                    "x one by one, CPU time": 1 / measure.ratio(cpu, arm, "one by one"),
                }
            )
    measure.show(rows, NOTES, measure.JSON.value)


def compare(config, device) -> tuple[dict, dict]:
    """measure.in_turn of the two ways."""
    mesh = sharding.make_mesh(config, [device])
    n_models, n_rows = TOGETHER.value, config.batch_tokens[0][1] // config.data.seq_len
    rng = np.random.default_rng(0)
    shape = n_models, n_rows, config.data.seq_len + 1
    batches = jax.device_put(rng.integers(config.model.vocab_size, size=shape, dtype=np.int32))
    rates = np.geomspace(1e-4, 1e-3, n_models, dtype=np.float32)
    with jax.set_mesh(mesh):
        one_step, step = make_train_step(config, mesh), together_lib.make_train_step(config, mesh)
        states = []
        for config.seed in range(n_models):
            states.append(train_step.start(config))
        state = jax.tree.map(lambda *leaves: jax.numpy.stack(leaves), *states)
        singles, active = list(batches), np.ones(n_models, bool)

        def one_by_one():
            metrics = []
            for m in range(n_models):
                for _ in range(STEPS):
                    *states[m][:], last = one_step(*states[m], singles[m], rates[m])
                metrics.append(last)
            return metrics

        def together():
            for _ in range(STEPS):
                *state[:], metrics = step(*state, singles, rates, active)
            return metrics

        return measure.in_turn({"one by one": one_by_one, "together": together}, measure.ROUNDS.value)


if __name__ == "__main__":
    app.run(main)
