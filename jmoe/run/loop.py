"""The loop of one run in its workdir: trunk and decay branches, their checkpoints, and a result for each branch.

`steps` is a generator that asks its caller to make each train step. So it serves one model (jmoe/train.py) and several
that share a compiled step (jmoe/run/together.py). Losses are in nats per token.
"""

import contextlib
import json
import time

import jax
import numpy as np
from etils import epath

from jmoe import __version__
from jmoe.config.fields import columns, setting
from jmoe.cost import counts
from jmoe.errors import Damaged, Interrupted, UserError
from jmoe.model.decoder import init_params
from jmoe.run import checkpoint, processes
from jmoe.run.metrics import Log, Profile, Progress, Speed
from jmoe.run.record import check_record, cpu_threads, make_record
from jmoe.run.schedule import Schedule
from jmoe.run.step import abstract_state, make_optimizer, mean_loss
from jmoe.storage.files import read_lines, read_sealed, sealed, write_whole
from jmoe.text import corpus, supply
from jmoe.text.batches import training_batches, validation_batches


def steps(config, workdir: epath.Path, mesh, eval_step, stop_signal):
    """A generator that does all of a run but its train steps, which its caller makes.

    It yields (state, batch [B, T + 1], learning rate), and the caller sends (the state after the step, a function that
    waits for the step's metrics and returns them). A state unpacks to (params, opt_state). Returns the results.
    """
    run = _Run(config, workdir, mesh, eval_step, stop_signal)
    segments = run.schedule.segments
    branches = segments[1::2]
    if all(results := list(map(run.result, branches))):
        processes.log(f"{workdir}: all {len(results)} branches are done")
        return results
    last = max(i for i, result in enumerate(results) if result is None)
    if warning := supply.check(run.corpus, config, run.schedule, branches[last]):
        processes.log(warning)
    with processes.owned(workdir):
        results = list(map(run.result, branches))  # again: another trainer may have finished some meanwhile
        run.announce([branch for branch, result in zip(branches, results) if result is None])
        for i, (trunk, branch) in enumerate(zip(segments[::2], branches)):
            if results[i] is None:
                results[i] = yield from run.branch(trunk, branch)
    return results


class _Run:
    """What the segments of a run share."""

    def __init__(self, config, workdir, mesh, eval_step, stop_signal):
        self.config, self.workdir, self.mesh = config, workdir, mesh
        self.eval_step, self.stop_signal = eval_step, stop_signal
        self.schedule = Schedule(config)
        self.corpus = corpus.load(config.data, config.model.vocab_size)
        self.record = make_record(config, self.corpus.fingerprint)
        if jax.default_backend() == "cpu":
            self.record["cpu_threads"] = cpu_threads()
        self.began_with = read_sealed(workdir / "began_with.json") or {}  # jmoe.load writes it
        self.abstract = abstract_state(config, mesh)
        self.placement = jax.tree.map(lambda a: a.sharding, self.abstract[0])
        self.validation = {"validation_loss": self.corpus}
        for name, texts in corpus.validation_sets(config.data, config.model.vocab_size).items():
            self.validation[f"validation_loss/{name}"] = texts
            if warning := supply.check_held_out(texts, config):
                processes.log(f"{name}: {warning}")
        self.init_opt_state = jax.jit(make_optimizer(config.optimizer).init)

    def announce(self, missing) -> None:
        """Prints what the run is going to train (the branches that are `missing`), on what text and devices."""
        model, schedule, config = self.config.model, self.schedule, self.config
        self._missing = {branch.name for branch in missing}
        sizes = f"{counts.n_active(model):,} active of {counts.n_total(model):,} parameters"
        mixture = f"{model.n_experts} experts" if model.n_experts > 1 else "dense"
        if fields := columns(model):
            mixture += f" ({', '.join(f'{name} {value}' for name, value in fields.items())})"
        mesh = ", ".join(f"{axis} {size}" for axis, size in self.mesh.shape.items())
        trunk = schedule.segments[-2].stop
        processes.log(
            f"{self.workdir}: {sizes} ({mixture}, d_model {model.d_model}, {model.n_blocks} blocks); trunk of "
            f"{trunk:,} steps, {schedule.tokens_at(trunk):,} tokens, and {len(missing)} of {len(config.n_tokens)} "
            f"branches, to {', '.join(f'{schedule.tokens_at(branch.stop):,}' for branch in missing)} tokens; corpus "
            f"{self.corpus.fingerprint} of {len(self.corpus.train):,} training tokens; {self.mesh.size} x "
            f"{jax.devices()[0].device_kind} ({mesh})"
        )

    def _to_go(self, segment, start: int) -> int:
        """Tokens that the run trains from step `start` of `segment` on."""
        later = self.schedule.segments[self.schedule.segments.index(segment) + 1 :]
        pieces = [(start, segment.stop)] + [(s.start, s.stop) for s in later if not s.decays or s.name in self._missing]
        return sum(self.schedule.tokens_at(stop) - self.schedule.tokens_at(first) for first, stop in pieces)

    def result(self, branch):
        """The branch's result, or None if it is not finished or the result is damaged: the last checkpoint gives it
        again. UserError where the result was made under another configuration or corpus."""
        path = self.workdir / branch.name / "result.json"
        try:
            result = read_sealed(path)
        except Damaged as error:
            processes.log(f"WARNING: {error}; it is made again from the last checkpoint")
            return None
        if result is not None:
            check_record(result["record"], self.record, str(path))
        return result

    def branch(self, trunk, branch):
        """Trains `branch`, and `trunk` before it unless that is done; writes and returns the result."""
        started = time.monotonic()
        with contextlib.closing(self._checkpoints(branch)) as saved:
            step, *state = self._restore(saved) or (branch.start, *(yield from self._trunk(trunk)))
            params, _ = yield from self._steps(branch, step, state, saved)
        losses = self._losses(params)
        loss = losses.pop("validation_loss")
        metrics = read_lines(self.workdir / branch.name / "metrics.jsonl")
        mean = lambda name: float(np.mean([line[name] for line in metrics if name in line] or [0.0]))
        n_tokens, model = self.schedule.tokens_at(branch.stop), self.config.model
        n_training_tokens = supply.n_training_tokens(self.corpus, self.config)
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
            "width_per_block": model.d_model / model.n_blocks,
            "vocab_size": model.vocab_size,
            "seq_len": self.config.data.seq_len,
            "final_norm": bool(setting(model, "final_norm")),
            **columns(model),
            "flops": counts.training_flops(counts.n_active(model), n_tokens),
            "peak_learning_rate": self.schedule.peak,
            "seed": self.config.seed,
            "unique_tokens": min(n_tokens, n_training_tokens),
            "epochs": n_tokens / n_training_tokens,
            "validation_tokens": supply.n_validation_tokens(self.corpus, self.config),
            "corpus_fingerprint": self.corpus.fingerprint,
            "jmoe_version": __version__,
            "jax_version": jax.__version__,
            "device": jax.devices()[0].device_kind,
            "n_devices": jax.device_count(),
            "seconds": round(time.monotonic() - started, 1),
            "record": self.record,
        }
        result |= losses | self.began_with
        if jax.process_index() == 0:
            write_whole(self.workdir / branch.name / "result.json", json.dumps(sealed(result), indent=1))
        processes.log(f"{branch.name}: validation loss {loss:.4f} nats per token after {n_tokens} tokens")
        return result

    def _losses(self, params) -> dict[str, float]:
        """The loss on each of the validation sets, nothing dropped."""
        batches = lambda texts: validation_batches(texts, self.config, self.mesh)
        return {name: mean_loss(self.eval_step, params, batches(texts)) for name, texts in self.validation.items()}

    def _trunk(self, trunk):
        """The state at the trunk's end, from the nearest checkpoint at or before it, else from the beginning."""
        with contextlib.closing(self._checkpoints(trunk)) as saved:
            if restored := self._restore(saved, trunk.stop):
                step, *state = restored
            elif self.began_with:
                raise UserError(
                    f"{self.workdir} began with the weights of {self.began_with['began_with']}, and no checkpoint of "
                    "its trunk is left: load them again by jmoe.load"
                )
            else:
                params = self._init()
                step, state = 0, (params, self.init_opt_state(params))
            return (yield from self._steps(trunk, step, state, saved))

    def _init(self):
        seed = np.uint32(self.config.seed % 2**32)
        init = jax.jit(lambda seed: init_params(self.config, seed), out_shardings=self.placement).lower(seed)
        # on a CPU, compiling the optimised random numbers would take longer than training a small model
        cheap = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else {}
        return init.compile(cheap)(seed)

    def _steps(self, segment, start: int, state, saved):
        """Makes steps [start, segment.stop) and saves checkpoints on the way and at the end; returns the last state."""
        log = Log(self.workdir / segment.name, start, segment.stop, self.config)
        try:
            with Progress(segment, start, self.schedule.tokens_at(start), self._to_go(segment, start)) as bar:
                state = yield from self._logged_steps(segment, start, state, saved, log, bar)
        except (UserError, Interrupted):  # other runs of this process may go on, so the log's files are closed
            log.close()
            raise
        log.close()
        saved.save(segment.stop, *state, self._record_at(segment.stop))
        saved.wait()
        return state

    def _logged_steps(self, segment, start: int, state, saved, log, bar):
        schedule, config = self.schedule, self.config
        profile = Profile(config, self.workdir / segment.name, segment.stop)
        speed = Speed(config, schedule.tokens_at(start))
        pending = None  # metrics are fetched one step late, so that the device never waits for the host
        losses = {}  # validation losses after the pending step, where it is evaluated

        def settle():  # waits for the metrics of the pending step, checks and logs them
            if pending is None:
                return
            step, metrics = pending
            values = jax.tree.map(lambda x: x.tolist(), metrics())
            if not np.isfinite(values["loss"]) or not np.isfinite(values["grad_norm"]):
                raise saved.diverged(
                    f"non-finite loss at step {step} of {segment.name} (loss {values['loss']}, gradient norm "
                    f"{values['grad_norm']})"
                )
            n_tokens, measured = schedule.tokens_at(step + 1), None
            if step % config.log_every == 0 or step == segment.stop - 1 or losses:
                rate = schedule.learning_rate(step, segment)
                measured = speed.measure(n_tokens)
                log.write(step, {"n_tokens": n_tokens, "learning_rate": rate} | values | losses, measured)
            bar.finished(step, n_tokens, values["cross_entropy"], measured)

        batches = training_batches(self.corpus, config, schedule, self.mesh, segment, start)
        for step, batch in zip(range(start, segment.stop), speed.waited(batches)):
            rate = np.float32(schedule.learning_rate(step, segment))
            profile.before(step)
            state, metrics = yield state, batch, rate
            profile.after(step, metrics)
            settle()
            pending = step, metrics
            bar.advance()
            if (every := config.get("eval_every", 0)) and (step + 1) % every == 0:
                params, _ = state
                jax.block_until_ready(params)
                with speed.stopped():
                    losses = self._losses(params)
                settle()
                pending, losses = None, {}
            signum = self.stop_signal()
            if signum or ((step + 1) % config.checkpoint_every == 0 and step + 1 < segment.stop):
                settle()
                pending = None
                log.sync()
                saved.save(step + 1, *state, self._record_at(step + 1))
            if signum:
                saved.wait()
                raise Interrupted(
                    f"stopped by signal {signum}; saved step {step + 1} of {segment.name}; the same command resumes",
                    signum,
                )
        settle()
        return state

    def _checkpoints(self, segment):
        keep = () if segment.decays else [s.stop for s in self.schedule.segments if not s.decays]
        return checkpoint.Checkpoints(self.workdir / segment.name / "checkpoints", keep)

    def _record_at(self, step: int) -> dict:
        """The record with the position in the data: tokens seen before `step`."""
        return self.record | {"n_tokens": self.schedule.tokens_at(step)}

    def _restore(self, saved, last: int | None = None):
        return saved.restore(*self.abstract, self.record, last)
