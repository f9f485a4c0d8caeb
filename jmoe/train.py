"""Trains one trunk and its decay branches: python -m jmoe.train --config=configs/NAME.py --workdir=DIR.

Started again it goes on from the last checkpoint and skips what is done. Each branch ends with a validation loss and
`DIR/branch-N/result.json`, the row that runs.csv is made of. Losses are in nats per token.
"""

import json
import sys
import time

import jax
import numpy as np
from absl import flags
from etils import epath
from ml_collections import config_flags
from tqdm import tqdm

from jmoe import __version__, checkpoint, cli, corpus, counts, data, processes, sharding, storage
from jmoe.model import check_model
from jmoe.observe import Log, Profile, Speed, progress
from jmoe.schedule import Schedule
from jmoe.step import abstract_state, init_params, make_eval_step, make_optimizer, make_train_step, mean_loss
from jmoe.storage import read_lines, write_whole

CONFIG = config_flags.DEFINE_config_file(
    "config",
    None,
    "Configuration, e.g. configs/quickstart.py; override a field by --config.model.n_experts=8.",
    lock_config=True,
)
WORKDIR = flags.DEFINE_string("workdir", None, "Directory of this run, local or gs://: checkpoints, metrics, results.")


def main(_):
    config = cli.read_config(CONFIG)
    with processes.joined(), processes.stop_signal() as stop_signal:
        train(config, storage.make_workdir(WORKDIR.value), stop_signal)


def train(config, workdir: epath.Path, stop_signal=lambda: 0) -> list[dict]:
    """Runs every segment of `config` that is not done yet; returns the results of the branches.

    Raises:
      UserError: a config, corpus or workdir that can't be used. Interrupted: `stop_signal()` gave a signal number.
    """
    check_model(config.model)
    schedule = Schedule(config)
    mesh = sharding.make_mesh(config)
    text = corpus.load(config.data, config.model.vocab_size)
    record = checkpoint.make_record(config, text.fingerprint)
    with jax.set_mesh(mesh):
        run = _Run(config, workdir, schedule, mesh, text, record, stop_signal)
        results = []
        for trunk, branch in zip(schedule.segments[::2], schedule.segments[1::2]):
            result = run.result(branch)
            if result is None:
                result = run.branch(trunk, branch)
            results.append(result)
        return results


class _Run:
    """One workdir being worked on: everything that the segments share."""

    def __init__(self, config, workdir, schedule, mesh, text, record, stop_signal):
        self.config, self.workdir, self.schedule, self.mesh = config, workdir, schedule, mesh
        self.text, self.record, self.stop_signal = text, record, stop_signal
        self.train_step, self.eval_step = make_train_step(config, mesh), make_eval_step(config, mesh)
        self.abstract = abstract_state(config, mesh)
        self.placement = jax.tree.map(lambda a: a.sharding, self.abstract[0])
        self.init_opt_state = jax.jit(make_optimizer(config.optimizer).init)

    def result(self, branch):
        """The finished branch's result, or None.

        Raises:
          UserError: it was made under another configuration or corpus.
        """
        path = self.workdir / branch.name / "result.json"
        if not path.exists():
            return None
        result = json.loads(path.read_text())
        checkpoint.check_record(result["record"], self.record, str(path))
        return result

    def branch(self, trunk, branch) -> dict:
        """Trains `branch`, and `trunk` before it where that is not done; writes and returns the result."""
        started = time.monotonic()
        saved = self._checkpoints(branch)
        step, *state = self._restore(saved) or (branch.start, *self._trunk(trunk))
        params, _ = self._steps(branch, step, state, saved)
        loss = mean_loss(self.eval_step, params, data.validation_batches(self.text, self.config, self.mesh))
        saved.close()
        metrics = read_lines(self.workdir / branch.name / "metrics.jsonl")
        mean = lambda name: float(np.mean([line[name] for line in metrics if name in line] or [0.0]))
        n_tokens, model = self.schedule.tokens_at(branch.stop), self.config.model
        result = {
            "n_active": counts.n_active(model),
            "n_total": counts.n_total(model),
            "n_tokens": n_tokens,
            "n_experts": model.n_experts,
            "loss": loss,
            "train_loss": mean("cross_entropy"),
            "drop_rate": mean("drop_rate"),
            "d_model": model.d_model,
            "n_blocks": model.n_blocks,
            "flops": counts.training_flops(model, n_tokens),
            "peak_learning_rate": self.schedule.peak,
            "seed": self.config.seed,
            "corpus_fingerprint": self.text.fingerprint,
            "jmoe_version": __version__,
            "jax_version": jax.__version__,
            "device": jax.devices()[0].device_kind,
            "n_devices": jax.device_count(),
            "seconds": round(time.monotonic() - started, 1),
            "record": self.record,
        }
        if jax.process_index() == 0:
            write_whole(self.workdir / branch.name / "result.json", json.dumps(result, indent=1))
        self._say(f"{branch.name}: validation loss {loss:.4f} nats per token after {n_tokens} tokens")
        return result

    def _trunk(self, trunk):
        """The state at the trunk's end, from the nearest checkpoint at or before it, else from the beginning."""
        saved = self._checkpoints(trunk)
        if restored := self._restore(saved, trunk.stop):
            step, *state = restored
        else:
            params = self._init()
            step, state = 0, (params, self.init_opt_state(params))
        state = self._steps(trunk, step, state, saved)
        saved.close()
        return state

    def _init(self):
        init = jax.jit(lambda: init_params(self.config), out_shardings=self.placement).lower()
        # on CPU the optimised random numbers would take longer to compile than a small model to train
        cheap = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else {}
        return init.compile(cheap)()

    def _steps(self, segment, start: int, state, saved):
        """Steps [start, segment.stop), checkpoints on the way and at the end; returns (params, opt_state)."""
        params, opt_state = state
        schedule, config = self.schedule, self.config
        folder = self.workdir / segment.name
        log, bar, profile = Log(folder, start), progress(segment, start), Profile(config, folder, segment.stop)
        speed = Speed(config, schedule.tokens_at(start))
        pending = None  # metrics are fetched one step late, so that the device never waits for the host

        def settle():
            if pending is None:
                return
            step, metrics = pending
            values = jax.tree.map(lambda x: x.tolist(), jax.device_get(metrics))
            if not np.isfinite(values["loss"]) or not np.isfinite(values["grad_norm"]):
                raise saved.diverged(
                    f"non-finite loss at step {step} of {segment.name} (loss {values['loss']}, gradient norm "
                    f"{values['grad_norm']})"
                )
            if step % config.log_every == 0 or step == segment.stop - 1:
                n_tokens = schedule.tokens_at(step + 1)
                rate = schedule.learning_rate(step, segment)
                measured = speed.measure(n_tokens)
                log.write(step, {"n_tokens": n_tokens, "learning_rate": rate} | values, measured)
                bar.set_postfix_str(
                    f"loss {values['cross_entropy']:.3f}, {measured['tokens_per_second']:,.0f} tokens/s"
                    + (f", MFU {measured['mfu']:.1%}" if "mfu" in measured else ""),
                    refresh=False,
                )

        batches = data.training_batches(self.text, config, schedule, self.mesh, segment, start)
        for step, batch in zip(range(start, segment.stop), speed.waited(batches)):
            rate = np.float32(schedule.learning_rate(step, segment))
            profile.before(step)
            params, opt_state, metrics = self.train_step(params, opt_state, batch, rate)
            profile.after(step, metrics)
            settle()
            pending = step, metrics
            bar.update()
            signum = self.stop_signal()
            if signum or ((step + 1) % config.checkpoint_every == 0 and step + 1 < segment.stop):
                settle()
                pending = None
                log.sync()
                saved.save(step + 1, params, opt_state, self._record_at(step + 1))
            if signum:
                saved.wait()
                raise cli.Interrupted(
                    f"stopped by signal {signum}; saved step {step + 1} of {segment.name}; the same command resumes",
                    signum,
                )
        settle()
        bar.close()
        log.close()
        saved.save(segment.stop, params, opt_state, self._record_at(segment.stop))
        saved.wait()
        return params, opt_state

    def _checkpoints(self, segment):
        keep = () if segment.decays else [s.stop for s in self.schedule.segments if not s.decays]
        return checkpoint.Checkpoints(self.workdir / segment.name / "checkpoints", keep)

    def _record_at(self, step: int) -> dict:
        """The record with the position in the data: tokens seen before `step`."""
        return self.record | {"n_tokens": self.schedule.tokens_at(step)}

    def _restore(self, saved, last: int | None = None):
        return saved.restore(*self.abstract, self.record, last)

    def _say(self, text: str) -> None:
        if jax.process_index() == 0:
            tqdm.write(text, file=sys.stderr)


def run():
    flags.mark_flags_as_required(["config", "workdir"])
    cli.run(main)


if __name__ == "__main__":
    run()
