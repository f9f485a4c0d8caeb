"""A run in its workdir: text, schedule, checkpoints and reports. jmoe/train.py trains it.

jmoe/run/train_step.py launches its steps, jmoe/run/evaluation.py measures its losses, and jmoe/run/results.py writes
the result of each branch.
"""

from collections.abc import Mapping

import jax
import numpy as np
from etils import epath
from jaxtyping import Array, PyTree
from ml_collections import ConfigDict

from jmoe.config.schedule import Schedule, Segment
from jmoe.errors import UserError
from jmoe.model.parameters import init_params
from jmoe.run import checkpoint, divergence, snapshot
from jmoe.run.checkpoint import State
from jmoe.run.evaluation import Evaluation
from jmoe.run.first_step import FirstStep
from jmoe.run.log import Log
from jmoe.run.progress import Progress
from jmoe.run.record import cpu_threads, make_record
from jmoe.run.report import Report
from jmoe.run.results import Results
from jmoe.run.router_health import RouterHealth
from jmoe.run.speed import Speed
from jmoe.run.step import abstract_state, make_optimizer
from jmoe.run.step_metrics import StepMetrics
from jmoe.run.token_means import TokenMeans
from jmoe.run.trace import Trace
from jmoe.run.train_step import TrainStep
from jmoe.storage.files import read_sealed
from jmoe.text import corpus
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
      train_step: Launches its steps.
    """

    def __init__(
        self,
        config: ConfigDict,
        workdir: epath.Path,
        mesh: jax.sharding.Mesh,
        first_step: FirstStep,
        compiled_steps: Mapping[int, jax.stages.Compiled],
    ) -> None:
        """Loads the text, and prepares it if it is not in the cache. The arguments are as of `train.train`.

        Raises:
          UserError: Config, text or workdir can't be used.
        """
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
        self.abstract = abstract_state(config, mesh)
        end_of_text = corpus.mask_token(config.data, self.corpus)
        self.train_step = TrainStep(config, mesh, end_of_text, self.schedule, compiled_steps, first_step)
        self.evaluation = Evaluation(config, mesh, self.corpus, end_of_text)

    def report(self, segment: Segment, start: int, peak_flops: float) -> Report:
        """The files and progress of `segment` from step `start` on.

        Args:
          segment: The segment.
          start: The first step to report.
          peak_flops: FLOP/s of a device, for MFU; 0 if unknown.
        """
        config = self.config
        folder = self.workdir / segment.name
        n_tokens = self.schedule.tokens_at(start)
        first = segment.start if segment.decays else 0  # the pieces of the trunk share a folder
        return Report(
            self.schedule,
            segment,
            config.log_every,
            Log(folder, start, segment.stop, config, first),
            Speed(config, peak_flops, n_tokens),
            self._step_metrics(segment, start),
            Progress(segment, start, n_tokens, self.results.n_tokens_left(segment, start)),
        )

    def _step_metrics(self, segment: Segment, start: int) -> StepMetrics:
        """The sums over the steps of `segment` before step `start`, to be continued."""
        saved = checkpoint.saved_record(self.workdir, segment.name, start)
        health = None
        if self.config.router_health and self.config.model.n_experts > 1:
            health = RouterHealth(self.config.model, saved.get("router_health"))

        def rows_of(step: int) -> dict[str, list[int]]:
            return rows_of_step(self.corpus, self.config, self.schedule, step)

        return StepMetrics(TokenMeans(saved.get("token_means")), health, rows_of)

    def checkpoints(self, segment: Segment) -> checkpoint.Checkpoints:
        """The segment's checkpoints; the caller closes them. The trunk's keep the steps where branches fork."""
        forks = [] if segment.decays else [other.stop for other in self.schedule.segments if not other.decays]
        remedy = divergence.remedy(self.config, self.schedule.peak)
        n_newest = self.config.keep_newest
        keep_every = self.config.keep_every
        folder = self.workdir / segment.name / "checkpoints"
        return checkpoint.Checkpoints(folder, forks, remedy, n_newest, keep_every)

    def trace(self, segment: Segment) -> Trace:
        """The trace of config.profile_steps."""
        return Trace(self.config.profile_steps, self.workdir / segment.name, segment.stop)

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
