"""The steps of a run as the trainer launches them: their learning rate, and what the first of them tells.

B: rows of a batch; T: tokens of a row.
"""

from collections.abc import Mapping

import jax
import numpy as np
from jaxtyping import Array, PyTree
from ml_collections import ConfigDict

from jmoe.config.schedule import Schedule, Segment
from jmoe.model import kernels
from jmoe.model.loss import Batch
from jmoe.run import distributed
from jmoe.run.first_step import FirstStep
from jmoe.run.step import make_train_step


class TrainStep:
    """Launches the steps of a run.

    Attributes:
      first_step: Measures the time until the first of them is done.
    """

    def __init__(
        self,
        config: ConfigDict,
        mesh: jax.sharding.Mesh,
        end_of_text: int | None,
        schedule: Schedule,
        compiled: Mapping[int, jax.stages.Compiled],
        first_step: FirstStep,
    ) -> None:
        """Builds the step.

        Args:
          config: The run's config.
          mesh: Its mesh.
          end_of_text: As of step.make_train_step.
          schedule: Its learning rates.
          compiled: Steps compiled beforehand, by rows of a batch.
          first_step: Measures the time until the first step is done.
        """
        self.first_step = first_step
        self._schedule = schedule
        self._compiled = compiled
        self._train_step = distributed.compiled_together(make_train_step(config, mesh, end_of_text))
        self._kernels: set[str] = set()  # that log_kernels has printed
        kernels.take()  # leaves out those of an earlier run in this process

    def __call__(
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
        learning_rate = np.float32(self._schedule.learning_rate(step, segment))
        self.first_step.mark("batch")
        train_step = self._compiled.get(batch.shape[0], self._train_step)
        params, opt_state, metrics = train_step(params, opt_state, batch, learning_rate)
        self.first_step.mark("compile")
        self.log_kernels()
        self.first_step.finish(metrics)
        return params, opt_state, metrics

    def log_kernels(self) -> None:
        """Prints the kernels of steps that were traced since the last call, each once for a run."""
        new = [line for line in kernels.take() if line not in self._kernels]
        self._kernels.update(new)
        for line in new:
            distributed.log(f"kernel: {line}")
