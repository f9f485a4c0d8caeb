"""A run in its workdir: text, schedule, steps, checkpoints and reports. jmoe/train.py trains it.

jmoe/run/evaluation.py measures its losses, and jmoe/run/results.py writes the result of each branch.
"""

from collections.abc import Mapping
from types import MappingProxyType

import jax
import numpy as np
from etils import epath
from jaxtyping import Array, PyTree
from ml_collections import ConfigDict

from jmoe.config import counts
from jmoe.config.schedule import Schedule, Segment
from jmoe.config.schema import columns
from jmoe.errors import UserError
from jmoe.model import kernels
from jmoe.model.loss import Batch
from jmoe.model.parameters import init_params
from jmoe.run import checkpoint, distributed, divergence, snapshot
from jmoe.run.checkpoint import State
from jmoe.run.evaluation import Evaluation
from jmoe.run.first_step import FirstStep
from jmoe.run.metrics import Report
from jmoe.run.record import cpu_threads, make_record
from jmoe.run.results import Results
from jmoe.run.router_health import RouterHealth
from jmoe.run.step import abstract_state, make_optimizer, make_train_step
from jmoe.run.token_means import TokenMeans
from jmoe.storage.files import read_sealed
from jmoe.text import corpus, mixture
from jmoe.text.batches import rows_of_step


class Run:
    """Everything that the segments of a run share.

    Attributes:
      config: The run's config.
      workdir: Its folder.
      mesh: Its mesh.
      schedule: Its steps, batches and learning rates.
      corpus: Its text.
      record: The record of config, corpus and versions, which its checkpoints and results hold.
      evaluation: Measures its losses.
      results: The results of its branches.
      abstract: Abstract parameters and optimizer state, placed on the mesh.
      first_step: Measures the time until the first step.
    """

    def __init__(
        self,
        config: ConfigDict,
        workdir: epath.Path,
        mesh: jax.sharding.Mesh,
        first_step: FirstStep | None = None,
        compiled_steps: Mapping[int, jax.stages.Compiled] = MappingProxyType({}),
    ) -> None:
        """Loads the text, and prepares it if it is not in the cache. The arguments are as of `train.train`.

        Raises:
          UserError: Config, text or workdir can't be used.
        """
        self.first_step = FirstStep() if first_step is None else first_step
        snapshot.check(config)
        self.config = config
        self.workdir = workdir
        self.mesh = mesh
        self.schedule = Schedule(config)
        self.corpus = corpus.load(config.data, config.model.vocab_size)
        self.record = make_record(config, self.corpus.fingerprint)
        if jax.default_backend() == "cpu":
            self.record["cpu_threads"] = cpu_threads()
        self._began_with = read_sealed(workdir / "began_with.json") or {}  # jmoe.load writes it
        self.results = Results(config, workdir, self.schedule, self.corpus, self.record, self._began_with)
        self._kernels: set[str] = set()  # that log_kernels has printed
        kernels.take()  # leaves out those of an earlier run in this process
        self.abstract = abstract_state(config, mesh)
        end_of_text = corpus.mask_token(config.data, self.corpus)
        self._train_step = make_train_step(config, mesh, end_of_text)
        self._compiled_steps = compiled_steps
        self.evaluation = Evaluation(config, mesh, self.corpus, end_of_text)

    def announce(self, missing: list[tuple[Segment, Segment]]) -> None:
        """Prints what the run is going to train (the branches of `missing`), on what text and devices."""
        config = self.config
        model = config.model
        self._note_lowered_twice()
        sizes = f"{counts.n_active(model):,} active of {counts.n_total(model):,} parameters"
        layers = f"{model.n_experts} experts" if model.n_experts > 1 else "dense"
        fields = columns(config)
        if fields:
            layers += f" ({', '.join(f'{name} {value}' for name, value in fields.items())})"
        mesh = ", ".join(f"{axis} {size}" for axis, size in self.mesh.shape.items())
        *_, last_trunk, _ = self.schedule.segments
        n_steps = last_trunk.stop
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

    def _note_lowered_twice(self) -> None:
        """Prints a note where both muP and the law of learning rates lower the rates of larger models."""
        lr_exponent = self.config.optimizer.lr_law.n_active
        if self.config.parametrization == "mup" and lr_exponent:
            distributed.log(
                f"note: config.optimizer.lr_law.n_active={lr_exponent} lowers the learning rate of larger models, as "
                "config.parametrization='mup' does by itself; 0 leaves it to that"
            )

    def log_kernels(self) -> None:
        """Prints the kernels of steps that were traced since the last call, each once for a run."""
        new = [line for line in kernels.take() if line not in self._kernels]
        self._kernels.update(new)
        for line in new:
            distributed.log(f"kernel: {line}")

    def step(
        self, params: PyTree[Array], opt_state: PyTree[Array], batch: Batch, segment: Segment, step: int
    ) -> tuple[PyTree[Array], PyTree[Array], PyTree[Array]]:
        """Launches a training step and returns before it is done, except for the first one.

        Args:
          params: The parameters; the arrays are donated.
          opt_state: The optimizer state; the arrays are donated.
          batch: Tokens [B, T + 1].
          segment: The segment that is trained.
          step: The number of the step, from 0 at the start of the trunk.

        Returns:
          Parameters and optimizer state after the step, and its metrics (step.make_train_step).
        """
        learning_rate = np.float32(self.schedule.learning_rate(step, segment))
        self.first_step.mark("batch")
        train_step = self._compiled_steps.get(batch.shape[0], self._train_step)
        params, opt_state, metrics = train_step(params, opt_state, batch, learning_rate)
        self.first_step.mark("compile")
        self.log_kernels()
        self.first_step.finish(metrics)
        return params, opt_state, metrics

    def report(self, segment: Segment, start: int, peak_flops: float) -> Report:
        """The files and progress of `segment` from step `start` on.

        Args:
          segment: The segment.
          start: The first step to report.
          peak_flops: FLOP/s of a device, for MFU; 0 if unknown.
        """
        saved = checkpoint.saved_record(self.workdir, segment.name, start)
        health = None
        if self.config.router_health and self.config.model.n_experts > 1:
            health = RouterHealth(self.config.model, saved.get("router_health"))

        def rows_of(step: int) -> dict[str, list[int]]:
            return rows_of_step(self.corpus, self.config, self.schedule, step)

        return Report(
            self.config,
            self.workdir / segment.name,
            self.schedule,
            segment,
            start,
            self.results.n_tokens_left(segment, start),
            peak_flops,
            means=TokenMeans(saved.get("token_means")),
            health=health,
            rows_of=rows_of,
        )

    def checkpoints(self, segment: Segment) -> checkpoint.Checkpoints:
        """The segment's checkpoints; the caller closes them. The trunk's keep the steps where branches fork."""
        forks = [] if segment.decays else [other.stop for other in self.schedule.segments if not other.decays]
        remedy = divergence.remedy(self.config, self.schedule.peak)
        n_newest = self.config.keep_newest
        keep_every = self.config.keep_every
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
        abstract_params, _ = self.abstract
        shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract_params)
        init = jax.jit(lambda seed: init_params(self.config, seed), out_shardings=shardings).lower(seed)
        # on a CPU, compiling the optimised random numbers would take longer than training a small model
        options = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else {}
        params = init.compile(options)(seed)
        return State(0, params, jax.jit(make_optimizer(self.config).init)(params))
