"""Trains one trunk and its decay branches: python -m jmoe.train --config=configs/NAME.py --workdir=DIR.

Started again, it resumes from the last checkpoint and skips finished branches. Each branch ends with a validation loss
and `DIR/branch-N/result.json`, which becomes one row of runs.csv. Losses are in nats per token.
"""

if __name__ == "__main__":
    from jmoe import startup

    startup.begin()

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from types import MappingProxyType
from typing import Any

import jax
from absl import flags
from etils import epath
from ml_collections import ConfigDict

from jmoe import cli
from jmoe.config.check import check_config
from jmoe.config.schedule import Segment
from jmoe.config.schema import complete
from jmoe.cost import chips, memory
from jmoe.errors import Interrupted
from jmoe.model import sharding
from jmoe.run import checkpoint, distributed
from jmoe.run.announce import announce
from jmoe.run.checkpoint import Checkpoints, State
from jmoe.run.first_step import FirstStep
from jmoe.run.late_metrics import LateMetrics
from jmoe.run.run import Run
from jmoe.run.timetable import Timetable
from jmoe.storage import files as storage
from jmoe.text import mixture
from jmoe.text.batches import training_batches


def main(_: list[str]) -> None:
    config = cli.read_config()
    keep_compiled()
    checkpoint.keep_threads(storage.absolute(flags.FLAGS.workdir))
    with distributed.joined(), distributed.stop_signal() as stop_signal:
        train(config, flags.FLAGS.workdir, stop_signal)


def keep_compiled() -> None:
    """Keeps compiled programs in the cache for later starts, unless JAX_COMPILATION_CACHE_DIR names a place for them.

    That place may be on gs://. Of several hosts the first one writes, and all read.
    """
    if jax.config.jax_compilation_cache_dir is None:
        jax.config.update("jax_compilation_cache_dir", str(storage.cache_dir() / "compiled"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


def train(
    config: ConfigDict,
    workdir: str | epath.Path,
    stop_signal: Callable[[], int] = lambda: 0,
    compiled_steps: Mapping[int, jax.stages.Compiled] = MappingProxyType({}),
) -> list[dict[str, Any] | None]:
    """Trains every segment of `config` that is not finished.

    Args:
      config: The run's config; fields that it is older than are added to it.
      workdir: Its folder, local or gs://, created if missing.
      stop_signal: Called once a step; returns the signal for which to save and stop, or 0.
      compiled_steps: Steps of the config compiled beforehand, by rows of a batch; others are compiled when they come.

    Returns:
      The results of the branches.

    Raises:
      UserError: Config, corpus or workdir can't be used, or the loss is not finite.
      Interrupted: `stop_signal()` gave a signal; the state is saved.
    """
    check_config(complete(config))
    first_step = FirstStep()
    workdir = storage.make_workdir(workdir)
    storage.refuse_links(workdir)
    mesh = sharding.make_mesh(config)
    with jax.set_mesh(mesh), memory.explained(config, mesh):
        run = Run(config, workdir, mesh, first_step, compiled_steps)
        missing = run.results.missing()
        if not missing:
            distributed.log(f"{workdir}: all {len(run.results.of_branch)} branches are done")
            run.results.compare_with_prediction()
            return list(run.results.of_branch.values())
        _, last_branch = missing[-1]
        warning = mixture.check(run.corpus, config, run.schedule, last_branch)
        if warning:
            distributed.log(warning)
        with distributed.owned(workdir):
            missing = run.results.missing()  # again: another trainer may have finished some meanwhile
            announce(run, missing)
            abstract_params, _ = run.abstract
            run.evaluation.trace(abstract_params)
            run.train_step.log_kernels()
            first_step.mark("text")
            for trunk, branch in missing:
                _train_branch(run, trunk, branch, stop_signal)
            run.results.compare_with_prediction()
    return list(run.results.of_branch.values())


def _train_branch(run: Run, trunk: Segment, branch: Segment, stop_signal: Callable[[], int]) -> None:
    """Trains a branch to its end, and first the trunk up to its fork where the branch has no checkpoint."""
    began = time.monotonic()
    with closing(run.checkpoints(branch)) as checkpoints:
        abstract_params, abstract_opt_state = run.abstract
        state = checkpoints.restore(abstract_params, abstract_opt_state, run.record)
        if state is None:
            state = _train_trunk(run, trunk, stop_signal)
        _, params, _ = train_segment(run, branch, state, checkpoints, stop_signal)
    run.results.finish(branch, run.evaluation.losses(params), began)


def _train_trunk(run: Run, trunk: Segment, stop_signal: Callable[[], int]) -> State:
    """Trains the trunk up to the end of a segment, from its newest checkpoint there or before."""
    with closing(run.checkpoints(trunk)) as checkpoints:
        abstract_params, abstract_opt_state = run.abstract
        state = checkpoints.restore(abstract_params, abstract_opt_state, run.record, trunk.stop)
        if state is None:
            state = run.initial()
        return train_segment(run, trunk, state, checkpoints, stop_signal)


def train_segment(
    run: Run, segment: Segment, state: State, checkpoints: Checkpoints, stop_signal: Callable[[], int]
) -> State:
    """Trains a segment to its end, where the state is saved.

    A step is launched before the previous one is done. Its metrics are fetched when the next step is launched, and
    before anything is evaluated, saved or exported.

    Args:
      run: The run.
      segment: What to train.
      state: Where to begin: the number of steps done, parameters and optimizer state, whose arrays are donated.
      checkpoints: The segment's checkpoints.
      stop_signal: As in `train`.

    Returns:
      The state at the end.

    Raises:
      UserError: The loss is not finite.
      Interrupted: `stop_signal()` gave a signal; the state is saved.
    """
    start, params, opt_state = state
    run.train_step.first_step.mark("state")  # restoring or making the state ends here
    batches = training_batches(run.corpus, run.config, run.schedule, run.mesh, segment, start)
    timetable = Timetable(run.config, segment, start, stop_signal)
    if timetable.export_was_missed():
        run.export_snapshot(segment, start, params)
    chip = chips.of_device(jax.devices()[0], run.config.chip)
    peak_flops = chip.flops if chip else 0.0
    with run.report(segment, start, peak_flops) as report, run.trace(segment) as trace:
        late_metrics = LateMetrics(report, segment, checkpoints)
        for step in range(start, segment.stop):
            with report.speed.waiting():
                batch = next(batches)
            trace.launching(step)
            params, opt_state, metrics = run.train_step(params, opt_state, batch, segment, step)
            trace.launched(step, metrics)
            late_metrics.launched(step, metrics)
            due = timetable.after(step + 1, params)
            if not due:
                continue  # the next step is launched before this one's metrics are fetched
            losses = {}
            if due.evaluation:
                jax.block_until_ready(params)  # the pause begins after the step, whose time counts
                with report.speed.paused():
                    losses = run.evaluation.losses(params).metrics()
            late_metrics.finish(losses)
            if due.save:
                report.log.sync()  # before the checkpoint: a run that resumes from it needs the metrics until there
                record = run.record | {"n_tokens": run.schedule.tokens_at(step + 1)} | report.metrics.state()
                with report.speed.saving():
                    checkpoints.save(step + 1, params, opt_state, record)
                timetable.saved(step + 1)
            if due.stop:
                checkpoints.wait()
                raise Interrupted(
                    f"stopped by signal {due.stop}; saved step {step + 1} of {segment.name}; the same command resumes",
                    due.stop,
                )
            if due.export:
                with report.speed.paused():
                    run.export_snapshot(segment, step + 1, params)
    checkpoints.wait()
    return State(segment.stop, params, opt_state)


if __name__ == "__main__":
    cli.define_config()
    flags.DEFINE_string(
        "workdir", None, "Directory of this run, local or gs://: checkpoints, metrics, results.", required=True
    )
    cli.run(main, config_sections=())
