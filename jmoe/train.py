"""Trains one trunk and its decay branches: python -m jmoe.train --config=configs/NAME.py --workdir=DIR.

Started again, it resumes from the last checkpoint and skips finished branches. Each branch ends with a validation loss
and `DIR/branch-N/result.json`, which becomes one row of runs.csv. Losses are in nats per token.
"""

if __name__ == "__main__":
    from jmoe import startup

    startup.begin()

import time
from contextlib import closing

import jax
import numpy as np
from absl import flags
from etils import epath

from jmoe import cli
from jmoe.config.check import check_config
from jmoe.cost import chips, memory
from jmoe.errors import Interrupted
from jmoe.model import sharding
from jmoe.run import checkpoint, distributed
from jmoe.run.metrics import Report
from jmoe.run.run import Run
from jmoe.storage import files as storage
from jmoe.text import mixture
from jmoe.text.batches import training_batches


def main(_):
    config = cli.read_config()
    checkpoint.keep_threads(storage.absolute(flags.FLAGS.workdir))
    with distributed.joined(), distributed.stop_signal() as stop_signal:
        train(config, flags.FLAGS.workdir, stop_signal)


def train(config, workdir: str | epath.Path, stop_signal=lambda: 0) -> list[dict]:
    """Trains every segment of `config` that is not finished; returns the results of the branches.

    Raises UserError where config, corpus or workdir can't be used, and Interrupted where `stop_signal()` gave a signal.
    """
    check_config(config)
    workdir = storage.make_workdir(workdir)
    mesh = sharding.make_mesh(config)
    with jax.set_mesh(mesh), memory.explained(config, mesh):
        run = Run(config, workdir, mesh)
        if not (missing := run.missing()):
            distributed.log(f"{workdir}: all {len(run.results)} branches are done")
            run.compare_with_prediction()
            return list(run.results.values())
        if warning := mixture.check(run.corpus, config, run.schedule, missing[-1][1]):
            distributed.log(warning)
        with distributed.owned(workdir):
            missing = run.missing()  # again: another trainer may have finished some meanwhile
            run.announce(missing)
            for trunk, branch in missing:
                began = time.monotonic()
                with closing(run.checkpoints(branch)) as checkpoints:
                    if (state := checkpoints.restore(*run.abstract, run.record)) is None:
                        with closing(run.checkpoints(trunk)) as of_trunk:
                            state = of_trunk.restore(*run.abstract, run.record, trunk.stop) or run.initial()
                            state = train_segment(run, trunk, state, of_trunk, stop_signal)
                    _, params, _ = train_segment(run, branch, state, checkpoints, stop_signal)
                run.finish(branch, params, began)
            run.compare_with_prediction()
    return list(run.results.values())


def train_segment(run: Run, segment, state, checkpoints, stop_signal) -> tuple:
    """Trains `segment` from `state`, (step, params, opt_state), to its end; returns the state there, which is saved.

    Metrics are fetched one step late, so that the device never waits for the host. Raises UserError where the loss is
    not finite, and Interrupted, once the state is saved, where `stop_signal()` gave a signal.
    """
    config, schedule = run.config, run.schedule
    start, params, opt_state = state
    batches = training_batches(run.corpus, config, schedule, run.mesh, segment, start)
    chip = chips.of_device(jax.devices()[0], config.get("chip"))
    with Report(run, segment, start, chip.flops if chip else 0.0) as report:
        pending = None  # (step, metrics) of the step before, unless they were fetched
        for step in range(start, segment.stop):
            with report.waiting():
                batch = next(batches)
            learning_rate = np.float32(schedule.learning_rate(step, segment))
            report.starting(step)
            params, opt_state, metrics = run.train_step(params, opt_state, batch, learning_rate)
            report.started(step, metrics)
            if pending:
                report.finished(pending[0], fetched(*pending, segment, checkpoints))
            pending = step, metrics

            losses = {}
            if config.get("eval_every", 0) and (step + 1) % config.eval_every == 0:
                jax.block_until_ready(params)
                with report.paused():
                    losses = {name: loss for name, (loss, _) in run.evaluated(params).items()}
            signum = stop_signal()
            saves = signum or (step + 1) % config.checkpoint_every == 0 or step + 1 == segment.stop
            if losses or saves:
                report.finished(step, fetched(step, metrics, segment, checkpoints) | losses)
                pending = None
            if saves:
                report.log.sync()
                record = run.record | {"n_tokens": schedule.tokens_at(step + 1)}
                checkpoints.save(step + 1, params, opt_state, record)
            if signum:
                checkpoints.wait()
                raise Interrupted(
                    f"stopped by signal {signum}; saved step {step + 1} of {segment.name}; the same command resumes",
                    signum,
                )
    checkpoints.wait()
    return segment.stop, params, opt_state


def fetched(step: int, metrics, segment, checkpoints) -> dict:
    """The metrics of `step` as Python numbers, once it is done; UserError where loss or gradient is not finite."""
    values = jax.tree.map(lambda x: x.tolist(), jax.device_get(metrics))
    if not np.isfinite(values["loss"]) or not np.isfinite(values["grad_norm"]):
        raise checkpoints.diverged(
            f"non-finite loss at step {step} of {segment.name} (loss {values['loss']}, gradient norm "
            f"{values['grad_norm']})"
        )
    return values


if __name__ == "__main__":
    cli.define_config()
    flags.DEFINE_string(
        "workdir", None, "Directory of this run, local or gs://: checkpoints, metrics, results.", required=True
    )
    cli.run(main, config_sections=())
