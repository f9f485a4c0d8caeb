"""Measures the validation losses of a run: on its held-out text, each source of a mixture, and each validation set.

No token is dropped. Losses are in nats per token.
"""

import dataclasses

import jax
import numpy as np
from jaxtyping import Array, PyTree
from ml_collections import ConfigDict

from jmoe.model import sharding
from jmoe.run import distributed
from jmoe.run.step import losses_of_sources, make_eval_step
from jmoe.text import corpus, mixture
from jmoe.text.batches import validation_sources
from jmoe.text.training_text import TrainingText


@dataclasses.dataclass(frozen=True)
class Losses:
    """Validation losses.

    Attributes:
      loss: On the held-out text of the run.
      by_position: The same by the position in a row, {"loss_FIRST_LAST": loss}.
      by_name: On each source of a mixture and each validation set, by its name.
    """

    loss: float
    by_position: dict[str, float]
    by_name: dict[str, float]

    def columns(self) -> dict[str, float]:
        """The losses of `by_name` by their names in results, "validation_loss/NAME"."""
        return {f"validation_loss/{name}": loss for name, loss in self.by_name.items()}

    def metrics(self) -> dict[str, float]:
        """All losses by their names in metrics.jsonl, then the perplexity of each, "perplexity/NAME"."""
        losses = {"validation_loss": self.loss} | self.columns()
        perplexities = {
            name.replace("validation_loss", "perplexity", 1): float(np.exp(np.float64(loss)))
            for name, loss in losses.items()
        }
        return losses | perplexities


class Evaluation:
    """Measures the losses of a run."""

    def __init__(
        self,
        config: ConfigDict,
        mesh: jax.sharding.Mesh,
        text: TrainingText,
        end_of_text: int | None,
    ) -> None:
        """Loads the validation sets, and prepares those that are not in the cache.

        Args:
          config: The run's config.
          mesh: Its mesh.
          text: Its text.
          end_of_text: As of step.make_eval_step.

        Raises:
          UserError: As corpus.validation_sets; or a set has less than a row of text.
        """
        self._config = config
        self._mesh = mesh
        self._text = text
        self._step = make_eval_step(config, mesh, end_of_text)
        self._compiled_step = distributed.compiled_together(self._step)
        self._sets = corpus.validation_sets(config.data, config.model.vocab_size, text)
        for name, text_of_set in self._sets.items():
            warning = mixture.check_held_out(text_of_set, config)
            if warning:
                distributed.log(f"validation_loss/{name}: {warning}")

    def trace(self, params: PyTree[jax.ShapeDtypeStruct]) -> None:
        """Traces the evaluation of parameters of these shapes, so that its kernels are known before the first step.

        Raises:
          UserError: On a GPU, the package with the kernels is missing or does not fit.
        """
        seq_len = self._config.data.seq_len
        n_rows = self._config.batch_tokens[0][1] // seq_len
        of_rows = jax.NamedSharding(self._mesh, sharding.tokens(self._mesh))
        rows = jax.ShapeDtypeStruct((n_rows, seq_len + 1), np.int32, sharding=of_rows)
        weights = jax.ShapeDtypeStruct((n_rows,), np.float32, sharding=of_rows)
        self._step.trace(params, rows, weights)

    def losses(self, params: PyTree[Array]) -> Losses:
        """The losses of these parameters. UserError where one is not finite."""
        (loss, by_position), by_name = self._losses_on(self._text, params)
        for name, text in self._sets.items():
            # a set that has a source's name holds more of that source's held-out text, and replaces its loss
            (by_name[name], _), _ = self._losses_on(text, params)
        return Losses(loss, by_position, by_name)

    def _losses_on(
        self, text: TrainingText, params: PyTree[Array]
    ) -> tuple[tuple[float, dict[str, float]], dict[str, float]]:
        """As step.losses_of_sources."""
        return losses_of_sources(self._compiled_step, params, validation_sources(text, self._config, self._mesh))
