"""One run in its workdir: its text and schedule, where it continues, a result for each branch. jmoe/train.py trains it.

Losses are in nats per token.
"""

import json
import time
from typing import Any

import jax
import numpy as np
from etils import epath
from jaxtyping import Array, PyTree
from ml_collections import ConfigDict

from jmoe import __version__
from jmoe.config import counts
from jmoe.config.schema import columns, setting, setting_of_run
from jmoe.cost import chips
from jmoe.errors import Damaged, UserError
from jmoe.model import kernels, sharding
from jmoe.model.loss import Batch
from jmoe.model.parameters import init_params
from jmoe.run import checkpoint, distributed, divergence, prediction, snapshot
from jmoe.run.checkpoint import State
from jmoe.run.first_step import FirstStep
from jmoe.run.metrics import Report
from jmoe.run.record import check_record, cpu_threads, make_record, read_record
from jmoe.run.router_health import RouterHealth
from jmoe.run.schedule import Schedule, Segment
from jmoe.run.step import abstract_state, losses_of_sources, make_eval_step, make_optimizer, make_train_step
from jmoe.run.token_means import TokenMeans
from jmoe.storage.files import read_lines, read_sealed, sealed, write_whole
from jmoe.text import corpus, mixture
from jmoe.text.batches import rows_of_step, validation_sources

MOSTLY_SKIPPED = 0.5  # of the steps of a decay: more are worth a warning
LossAndPositions = tuple[float, dict[str, float]]  # as step.mean_losses returns it


class Run:
    """What the segments of a run share.

    Attributes:
      config: The run's config.
      workdir: Its folder.
      mesh: Its mesh.
      schedule: Its steps, batches and learning rates.
      corpus: Its text.
      record: What checkpoints and results say of config, corpus and versions.
      results: Result by branch, in the order of budgets; None for a branch that is not finished.
      abstract: Abstract parameters and optimizer state, placed on the mesh.
      first_step: Measures the time until the first step.
    """

    def __init__(
        self, config: ConfigDict, workdir: epath.Path, mesh: jax.sharding.Mesh, first_step: FirstStep | None = None
    ) -> None:
        """Loads the text, and prepares it if it is not in the cache.

        Raises:
          UserError: Config, text or workdir can't be used.
        """
        self.first_step = FirstStep() if first_step is None else first_step
        snapshot.check(config)
        self.config = config
        self.workdir = workdir
        self.mesh = mesh
        self.schedule = Schedule(config)
        self.results: dict[str, dict[str, Any] | None] = {
            segment.name: None for segment in self.schedule.segments if segment.decays
        }
        self.corpus = corpus.load(config.data, config.model.vocab_size)
        self.record = make_record(config, self.corpus.fingerprint)
        if jax.default_backend() == "cpu":
            self.record["cpu_threads"] = cpu_threads()
        self._warned_of: set[str] = set()  # branches whose result.json is damaged
        self._began_with = read_sealed(workdir / "began_with.json") or {}  # jmoe.load writes it
        self._kernels: set[str] = set()  # that log_kernels has printed
        kernels.take()  # those of a run before this one in the process
        self.abstract = abstract_state(config, mesh)
        end_of_text = corpus.mask_token(config.data, self.corpus)
        self._train_step = make_train_step(config, mesh, end_of_text)
        self._eval_step = make_eval_step(config, mesh, end_of_text)
        self._validation: dict[str, mixture.TrainingText] = {"validation_loss": self.corpus}
        for name, text in corpus.validation_sets(config.data, config.model.vocab_size, self.corpus).items():
            self._validation[f"validation_loss/{name}"] = text
            warning = mixture.check_held_out(text, config)
            if warning:
                distributed.log(f"{name}: {warning}")

    def missing(self) -> list[tuple[Segment, Segment]]:
        """(trunk, branch) of each branch that is not finished, by its result.json; the trunk ends where it forks.

        Raises:
          UserError: A result was made under another configuration or corpus.
        """
        # segments alternate: the trunk up to a fork, its branch, the trunk up to the next fork, ...
        trunks = self.schedule.segments[::2]
        branches = self.schedule.segments[1::2]
        self.results = {branch.name: self._result(branch) for branch in branches}
        pairs = zip(trunks, branches, strict=True)
        return [(trunk, branch) for trunk, branch in pairs if self.results[branch.name] is None]

    def announce(self, missing: list[tuple[Segment, Segment]]) -> None:
        """Prints what the run is going to train (the branches of `missing`), on what text and devices."""
        config = self.config
        model = config.model
        lr_exponent = config.optimizer.lr_law.n_active
        if config.get("parametrization") == "mup" and lr_exponent:
            distributed.log(
                f"note: config.optimizer.lr_law.n_active={lr_exponent} lowers the learning rate of larger models, as "
                "config.parametrization='mup' does by itself; 0 leaves it to that"
            )
        sizes = f"{counts.n_active(model):,} active of {counts.n_total(model):,} parameters"
        layers = f"{model.n_experts} experts" if model.n_experts > 1 else "dense"
        fields = columns(config)
        if fields:
            layers += f" ({', '.join(f'{name} {value}' for name, value in fields.items())})"
        mesh = ", ".join(f"{axis} {size}" for axis, size in self.mesh.shape.items())
        n_steps = self.schedule.segments[-2].stop
        branch_tokens = ", ".join(f"{self.schedule.tokens_at(branch.stop):,}" for _, branch in missing)
        parts = self.corpus.parts
        n_training_tokens = sum(len(part.corpus.train) for part in parts)
        shares = "".join(f", {part.share / mixture.PERIOD:.1%} {part.name}" for part in parts if part.name)
        distributed.log(
            f"{self.workdir}: {sizes} ({layers}, d_model {model.d_model}, {model.n_blocks} blocks); trunk of "
            f"{n_steps:,} steps, {self.schedule.tokens_at(n_steps):,} tokens, and {len(missing)} of "
            f"{len(config.n_tokens)} branches, to {branch_tokens} tokens; corpus "
            f"{self.corpus.fingerprint} of {n_training_tokens:,} training tokens{shares}; "
            f"{self.mesh.size} x {jax.devices()[0].device_kind} ({mesh})"
        )

    def trace_evaluation(self) -> None:
        """Traces the evaluation, so that its kernels are known, or one is missed, before anything is trained.

        Raises:
          UserError: On a GPU, the package with the kernels is missing or does not fit.
        """
        seq_len = self.config.data.seq_len
        n_rows = self.config.batch_tokens[0][1] // seq_len
        of_rows = jax.NamedSharding(self.mesh, sharding.tokens(self.mesh))
        rows = jax.ShapeDtypeStruct((n_rows, seq_len + 1), np.int32, sharding=of_rows)
        weights = jax.ShapeDtypeStruct((n_rows,), np.float32, sharding=of_rows)
        params, _ = self.abstract
        self._eval_step.trace(params, rows, weights)

    def log_kernels(self) -> None:
        """Prints which kernels the steps call that were traced since the last call, each once for a run."""
        new = [line for line in kernels.take() if line not in self._kernels]
        self._kernels.update(new)
        for line in new:
            distributed.log(f"kernel: {line}")

    def step(
        self, params: PyTree[Array], opt_state: PyTree[Array], batch: Batch, segment: Segment, step: int
    ) -> tuple[PyTree[Array], PyTree[Array], PyTree[Array]]:
        """Launches `step` of `segment`: the parameters and optimizer state after it, whose arrays are donated, and its
        metrics."""
        learning_rate = np.float32(self.schedule.learning_rate(step, segment))
        self.first_step.mark("batch")
        params, opt_state, metrics = self._train_step(params, opt_state, batch, learning_rate)
        self.first_step.mark("compile")
        self.log_kernels()
        self.first_step.finish(metrics)
        return params, opt_state, metrics

    def report(self, segment: Segment, start: int) -> Report:
        """The files and progress of `segment` from step `start` on."""
        chip = chips.of_device(jax.devices()[0], self.config.get("chip"))
        saved = self._reported_until(segment, start)
        health = None
        if setting_of_run(self.config, "router_health") and self.config.model.n_experts > 1:
            health = RouterHealth(self.config.model, saved.get("router_health"))

        def rows_of(step: int) -> dict[str, list[int]]:
            return rows_of_step(self.corpus, self.config, self.schedule, step)

        return Report(
            self.config,
            self.workdir / segment.name,
            self.schedule,
            segment,
            start,
            self._n_tokens_left(segment, start),
            chip.flops if chip else 0.0,
            means=TokenMeans(saved.get("token_means")),
            health=health,
            rows_of=rows_of,
        )

    def _reported_until(self, segment: Segment, step: int) -> dict[str, Any]:
        """The record of the segment's checkpoint of `step`, with what Report.saved gave it; {} if there is none."""
        folder = self.workdir / segment.name / "checkpoints"
        if step not in checkpoint.steps_in(folder):
            return {}
        return read_record(folder / str(step))

    def _n_tokens_left(self, segment: Segment, start: int) -> int:
        """Tokens that the run trains from step `start` of `segment` on."""
        index = self.schedule.segments.index(segment)
        later = [other for other in self.schedule.segments[index + 1 :] if not self.results.get(other.name)]
        pieces = [(start, segment.stop)] + [(other.start, other.stop) for other in later]
        return sum(self.schedule.tokens_at(stop) - self.schedule.tokens_at(first) for first, stop in pieces)

    def _result(self, branch: Segment) -> dict[str, Any] | None:
        """The branch's result; None if it is not finished or damaged, and then the last checkpoint gives it again."""
        path = self.workdir / branch.name / "result.json"
        try:
            result = read_sealed(path)
        except Damaged as error:
            if branch.name not in self._warned_of:  # results are read again once the workdir is this trainer's
                distributed.log(f"WARNING: {error}; it is made again from the last checkpoint")
            self._warned_of.add(branch.name)
            return None
        if result is not None:
            check_record(result["record"], self.record, str(path))
        return result

    def finish(self, branch: Segment, params: PyTree[Array], began: float) -> None:
        """Evaluates a branch and writes its result.

        Args:
          branch: The branch.
          params: Its last parameters.
          began: When its training began, by time.monotonic().
        """
        losses = self.evaluated(params)
        loss, loss_by_position = losses.pop("validation_loss")
        result = self._result_columns(branch, loss, loss_by_position)
        result |= {"seconds": round(time.monotonic() - began, 1), "record": self.record}
        result |= {name: mean for name, (mean, _) in losses.items()}
        result |= self._began_with
        self.results[branch.name] = result
        if jax.process_index() == 0:
            write_whole(self.workdir / branch.name / "result.json", json.dumps(sealed(result), indent=1))
        n_tokens = result["n_tokens"]
        distributed.log(f"{branch.name}: validation loss {loss:.4f} nats per token after {n_tokens} tokens")
        skipped_share = result.get("skipped_decay_share", 0.0)
        if skipped_share > MOSTLY_SKIPPED:
            distributed.log(
                f"WARNING: {branch.name}: {skipped_share:.0%} of the steps of its decay were skipped "
                f"(config.optimizer.skip_above={self.config.optimizer.skip_above:g}), so its loss is not that of a "
                "decayed run; a larger skip_above, or a lower learning rate, in another --workdir"
            )

    def _result_columns(self, branch: Segment, loss: float, loss_by_position: dict[str, float]) -> dict[str, Any]:
        """A branch's result without its time and record: one row of runs.csv."""
        model = self.config.model
        n_tokens = self.schedule.tokens_at(branch.stop)
        means = TokenMeans(self._reported_until(branch, branch.stop).get("token_means"))
        readings = mixture.readings(self.corpus, self.config, n_tokens)
        sources = [reading for reading in readings if reading.part.name]
        return {
            "n_active": counts.n_active(model),
            "n_total": counts.n_total(model),
            "n_tokens": n_tokens,
            "n_experts": model.n_experts,
            "loss": loss,
            "train_loss": means.mean("cross_entropy"),
            "drop_rate": means.mean("drop_rate"),
            "d_model": model.d_model,
            "n_blocks": model.n_blocks,
            "width_per_block": model.d_model / model.n_blocks,
            "vocab_size": model.vocab_size,
            "seq_len": self.config.data.seq_len,
            "final_norm": bool(setting(model, "final_norm")),
            **columns(self.config),
            "flops": counts.training_flops(counts.n_active(model), n_tokens),
            "peak_learning_rate": self.schedule.peak,
            "batch_tokens": self.schedule.batch_at(branch.stop - 1),
            "seed": self.config.seed,
            "unique_tokens": sum(min(reading.n_read, reading.n_distinct) for reading in readings),
            "epochs": max(reading.n_read / reading.n_distinct for reading in readings),
            **{f"share/{reading.part.name}": reading.n_read / n_tokens for reading in sources},
            **{f"epochs/{reading.part.name}": reading.n_read / reading.n_distinct for reading in sources},
            **{name: round(value, 6) for name, value in loss_by_position.items()},
            **self._skipped(branch),
            **prediction.columns(self.config, n_tokens),
            "validation_tokens": mixture.n_validation_tokens(self.corpus, self.config),
            "corpus_fingerprint": self.corpus.fingerprint,
            "jmoe_version": __version__,
            "jax_version": jax.__version__,
            "device": jax.devices()[0].device_kind,
            "n_devices": jax.device_count(),
        }

    def _skipped(self, branch: Segment) -> dict[str, float]:
        """The columns of config.optimizer.skip_above; none where no step could be skipped."""
        if not setting_of_run(self.config, "optimizer.skip_above"):
            return {}
        lines = read_lines(self.workdir / branch.name / "metrics.jsonl")  # with the last step, and each skipped one
        n_skipped = sum("skipped_rows" in line for line in lines)
        return {
            "skipped_steps": lines[-1]["skipped_steps"] if lines else 0,
            "skipped_decay_share": round(n_skipped / (branch.stop - branch.start), 6),
        }

    def compare_with_prediction(self) -> None:
        """Prints the measured loss against what a plan predicted, where the config holds the prediction."""
        results = [result for result in self.results.values() if result is not None]
        sentence = prediction.comparison(self.config, results)
        if sentence:
            distributed.log(sentence)

    def losses_and_perplexities(self, params: PyTree[Array]) -> dict[str, float]:
        """The losses of `evaluated`, and the perplexity of each: "perplexity/NAME" of "validation_loss/NAME"."""
        losses = {name: loss for name, (loss, _) in self.evaluated(params).items()}
        perplexities = {
            name.replace("validation_loss", "perplexity", 1): float(np.exp(np.float64(loss)))
            for name, loss in losses.items()
        }
        return losses | perplexities

    def evaluated(self, params: PyTree[Array]) -> dict[str, LossAndPositions]:
        """Losses on each of the validation sets, nothing dropped; of a mixture also on each of its sources.

        Returns:
          step.mean_losses by column of the result, such as "validation_loss/NAME".
        """
        losses: dict[str, LossAndPositions] = {}
        for column, text in self._validation.items():
            sources = validation_sources(text, self.config, self.mesh)
            losses[column], loss_by_source = losses_of_sources(self._eval_step, params, sources)
            # a validation set of the same name is the same source with more held-out text: it comes later and replaces
            # this loss
            losses |= {f"validation_loss/{source}": (loss, {}) for source, loss in loss_by_source.items()}
        self.log_kernels()
        return losses

    def checkpoints(self, segment: Segment) -> checkpoint.Checkpoints:
        """The segment's checkpoints; the caller closes them. The trunk's keep the steps where branches fork."""
        forks = [] if segment.decays else [other.stop for other in self.schedule.segments if not other.decays]
        remedy = divergence.remedy(self.config, self.schedule.peak)
        n_newest = setting_of_run(self.config, "keep_newest")
        keep_every = setting_of_run(self.config, "keep_every")
        folder = self.workdir / segment.name / "checkpoints"
        return checkpoint.Checkpoints(folder, forks, remedy, n_newest, keep_every)

    def export_snapshot(self, segment: Segment, step: int, params: PyTree[Array]) -> None:
        """Writes the parameters after `step` steps as SEGMENT/snapshots/STEP, for transformers."""
        record = self.record | {"step": step, "n_tokens": self.schedule.tokens_at(step)}
        snapshot.write(self.workdir / segment.name / "snapshots" / str(step), params, self.config, record)

    def initial(self) -> State:
        """The state before the first step.

        Raises:
          UserError: The run began with weights from elsewhere.
        """
        if self._began_with:
            raise UserError(
                f"{self.workdir} began with the weights of {self._began_with['began_with']}, and no checkpoint of "
                "its trunk is left: load them again by jmoe.load"
            )
        seed = np.uint32(self.config.seed % 2**32)
        shardings = jax.tree.map(lambda leaf: leaf.sharding, self.abstract[0])
        init = jax.jit(lambda seed: init_params(self.config, seed), out_shardings=shardings).lower(seed)
        # on a CPU, compiling the optimised random numbers would take longer than training a small model
        options = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else {}
        params = init.compile(options)(seed)
        return State(0, params, jax.jit(make_optimizer(self.config).init)(params))
