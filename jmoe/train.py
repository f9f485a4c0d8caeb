"""Trains one trunk and its decay branches: python -m jmoe.train --config=configs/NAME.py --workdir=DIR.

Started again, it resumes from the last checkpoint and skips finished branches. Each branch ends with a validation loss
and `DIR/branch-N/result.json`, which becomes one row of runs.csv. Losses are in nats per token.
"""

import functools

import jax
from absl import flags
from etils import epath

from jmoe import cli
from jmoe.config.check import check_config
from jmoe.cost import memory
from jmoe.model import sharding
from jmoe.run import loop, processes, saved
from jmoe.run.step import make_eval_step, make_train_step
from jmoe.storage import files as storage


def main(_):
    config = cli.read_config()
    saved.keep_threads(storage.absolute(flags.FLAGS.workdir))
    with processes.joined(), processes.stop_signal() as stop_signal:
        train(config, flags.FLAGS.workdir, stop_signal)


def train(config, workdir: str | epath.Path, stop_signal=lambda: 0) -> list[dict]:
    """Trains every segment of `config` that is not finished; returns the results of the branches.

    Raises UserError where config, corpus or workdir can't be used, and Interrupted where `stop_signal()` gave a signal.
    """
    check_config(config)
    workdir = storage.make_workdir(workdir)
    mesh = sharding.make_mesh(config)
    with jax.set_mesh(mesh), memory.explained(config, mesh):
        train_step, answer = make_train_step(config, mesh), None
        work = loop.steps(config, workdir, mesh, make_eval_step(config, mesh), stop_signal)
        while True:
            try:
                state, batch, learning_rate = work.send(answer)
            except StopIteration as end:
                return end.value
            *state, metrics = train_step(*state, batch, learning_rate)
            answer = state, functools.partial(jax.device_get, metrics)


def run():
    cli.define_config()
    flags.DEFINE_string(
        "workdir", None, "Directory of this run, local or gs://: checkpoints, metrics, results.", required=True
    )
    cli.run(main, config_sections=())


if __name__ == "__main__":
    run()
