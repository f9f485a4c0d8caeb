"""The compiled steps of the study: loaded from the files of study_executables, else compiled while a model trains."""

import concurrent.futures
import pathlib
from typing import Any

import jax
from ml_collections import ConfigDict

from benchmarks.accelerator import study_executables
from jmoe.cost import memory


class Steps:
    """The compiled steps of all models.

    Attributes:
      comparison: of a loaded step with the same one compiled here, as study_executables.compare; None if there is none.
    """

    def __init__(self, pool: concurrent.futures.Executor, folder: pathlib.Path) -> None:
        """Steps that files of the folder hold are loaded; others are compiled in the pool."""
        self.comparison: dict[str, Any] | None = None
        self._pool = pool
        self._folder = folder
        self._loads = folder.exists()
        self._step_of_config: dict[str, list[concurrent.futures.Future]] = {}  # by name of the model
        self._tried: ConfigDict | None = None
        if not self._loads:
            print(f"{folder}: no compiled steps, so they are compiled here", flush=True)

    def begin(self, model: str, configs: list[ConfigDict]) -> None:
        """Begins to load or compile the steps of a model, one for each config, unless that has begun."""
        if model not in self._step_of_config:
            self._step_of_config[model] = [self._pool.submit(self._step, config) for config in configs]

    def has_begun(self, model: str) -> bool:
        """Whether the steps of a model are there or on their way."""
        return model in self._step_of_config

    def of(self, model: str) -> dict[int, jax.stages.Compiled]:
        """The steps of a model by the rows of their batches, for which this waits. Those that failed are printed."""
        steps = {}
        for future in self._step_of_config[model]:
            if future.exception():
                print(f"{model}: a step was not compiled beforehand: {future.exception()}", flush=True)
            else:
                n_rows, step = future.result()
                steps[n_rows] = step
        return steps

    def try_one(self, config: ConfigDict) -> None:
        """Runs the loaded step of a config once, and begins to compile the same one here, for compare().

        So a file that loads and does not run costs no training.
        """
        if not self._loads:
            return
        try:
            study_executables.first_loss(config, self._load(config))
        except Exception as error:  # noqa: BLE001  jaxlib's own kinds of error
            self._refuse(f"{type(error).__name__}: {error}")
            return
        self._tried = config
        self._fresh = self._pool.submit(compile_step, config)

    def compare(self) -> None:
        """Times the step that was tried beside the one compiled here, if one was; once.

        If it is too slow, all steps are compiled here from now on.
        """
        if self._tried is None:
            return
        config = self._tried
        self._tried = None
        self.comparison = study_executables.compare(config, self._load(config), self._fresh.result())
        print(f"a loaded step beside the same one compiled here: {self.comparison}", flush=True)
        if not self.comparison["usable"]:
            self._refuse("too slow, or of another loss")

    def _refuse(self, reason: str) -> None:
        print(f"{self._folder}: {reason}; all steps are compiled here", flush=True)
        self._loads = False
        self._step_of_config.clear()

    def _step(self, config: ConfigDict) -> tuple[int, jax.stages.Compiled]:
        """The rows of the batch, and the step."""
        n_rows = config.batch_tokens[0][1] // config.data.seq_len
        if self._loads:
            try:
                return n_rows, self._load(config)
            except Exception as error:  # noqa: BLE001  jaxlib's own kinds of error
                print(f"a step is compiled here: {type(error).__name__}: {error}", flush=True)
        return n_rows, compile_step(config)

    def _load(self, config: ConfigDict) -> jax.stages.Compiled:
        return study_executables.load(self._folder, config, jax.devices()[0])


def compile_step(config: ConfigDict) -> jax.stages.Compiled:
    """Compiles the step of a config, also into the compilation cache."""
    _, compiled = memory.compile_step(config, jax.devices()[:1])
    return compiled
