"""The files of a segment's metrics: metrics.jsonl, speed.jsonl, TensorBoard events, and a run of wandb.

metrics.jsonl has what was computed and is the same however often the run was killed. With config.optimizer.skip_above a
step that was skipped has a line, too, with the rows of its batch, `skipped_rows`. speed.jsonl has the fields of
jmoe/run/speed.py.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import tempfile
import time
from typing import IO, Any

import jax
from etils import epath
from ml_collections import ConfigDict
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from jmoe.config.schema import record_of
from jmoe.storage.durable import named
from jmoe.storage.files import copy_files, is_remote, lines_before_damage, read_lines, write_whole
from jmoe.storage.owner_check import check_owner


class Log:
    """The files of one segment, written by the first process, for steps [start, stop).

    Lines at or after step `start` are cut off, so that no step appears twice. But where a trunk went further than
    `stop` before, for a larger budget, the files have these steps already: then nothing is cut off or written.
    """

    def __init__(self, folder: epath.Path, start: int, stop: int, config: ConfigDict, first: int = 0) -> None:
        """Opens the files.

        Args:
          folder: The segment's folder.
          start: The first step to write.
          stop: The step behind the last one.
          config: The run's config.
          first: The step of the segment's first line.

        Raises:
          UserError: A line before `start` is damaged.
        """
        self._files: dict[str, IO[str]] = {}
        self._wandb: Any = None
        self._open = contextlib.ExitStack()
        written_before = lines_before_damage(folder / "metrics.jsonl") if jax.process_index() == 0 else []
        if jax.process_index() or any(line["step"] >= stop for line in written_before):
            return
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        # objects cannot be appended to: the files are written on this machine, and sync() copies them
        self._scratch: str | None = None
        if is_remote(folder):
            self._scratch = self._open.enter_context(tempfile.TemporaryDirectory(prefix="jmoe-log-"))
        local = pathlib.Path(self._scratch or folder)
        for name in ("metrics", "speed"):
            lines = lines_before(folder / f"{name}.jsonl", first, start, config.log_every)
            write_whole(local / f"{name}.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
            self._files[name] = self._open.enter_context(open(local / f"{name}.jsonl", "a", buffering=1))
        if config.wandb:
            self._wandb = _wandb_run(config, folder, local)
            self._open.callback(self._wandb.finish)
        self._events = EventFileWriter(str(local), flush_secs=10)
        self._open.callback(self._events.close)
        session_log: Any = event_pb2.SessionLog  # ty: ignore[missing-attribute]
        start_of_session = session_log(status=session_log.START)  # TensorBoard drops older events after it
        self._add_event(step=start, session_log=start_of_session)

    def write(self, step: int, metrics: dict[str, Any], speed: dict[str, float]) -> None:
        """Writes one step's values; `layers` are lists in JSONL and a scalar for each layer in TensorBoard."""
        if not self._files:
            return
        check_owner()
        for name, values in (("metrics", metrics), ("speed", speed)):
            file = self._files[name]
            with named(file.name):
                file.write(json.dumps({"step": step} | values) + "\n")
        scalars = {name: value for name, value in metrics.items() if name not in ("layers", "skipped_rows")}
        scalars |= {f"speed/{name}": value for name, value in speed.items()}
        for name, values in metrics.get("layers", {}).items():
            scalars |= {f"layers/{name}/{i:02d}": value for i, value in enumerate(values)}
        if self._wandb:
            self._wandb.log(scalars, step=step)
        summary: Any = summary_pb2.Summary  # ty: ignore[missing-attribute]
        values = [summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        self._add_event(step=step, summary=summary(value=values))

    def _add_event(self, **fields: Any) -> None:
        """Writes a TensorBoard event."""
        self._events.add_event(event_pb2.Event(wall_time=time.time(), **fields))  # ty: ignore[missing-attribute]

    def sync(self) -> None:
        """Brings everything written so far to the disk, or copies it to the object store.

        The loop calls it before each save, so that no crash or kill leaves a checkpoint whose steps are not logged.
        """
        if not self._files:
            return
        with named(self._folder):
            self._events.flush()
        for file in self._files.values():
            with named(file.name):
                file.flush()
                os.fsync(file.fileno())
        if self._scratch:
            copy_files(self._scratch, self._folder)

    def close(self) -> None:
        """Syncs and closes the files."""
        self.sync()
        self._open.close()


def lines_before(path: epath.Path, first: int, start: int, log_every: int) -> list[dict[str, Any]]:
    """Reads the lines of the steps [first, start) of a JSONL file.

    They were synced before the checkpoint was written. Damage after them, as a loss of power leaves, is cut off with
    the later lines.

    Args:
      path: The file.
      first: The step of the segment's first line.
      start: The step behind the last line to read.
      log_every: The file has a line at least every `log_every` steps.

    Raises:
      UserError: One of these lines may be damaged.
    """
    lines = lines_before_damage(path)
    last_needed = (start - 1) // log_every * log_every
    if last_needed >= first and not any(line["step"] >= last_needed for line in lines):
        lines = read_lines(path)  # names the line that is damaged, if one is
    return [line for line in lines if line["step"] < start]


def _wandb_run(config: ConfigDict, folder: epath.Path, local: pathlib.Path) -> Any:
    """The segment's wandb run in the project config.wandb; a resumed segment continues its run.

    wandb reads all other settings from the environment.
    """
    import wandb  # ty: ignore[import-not-found]

    return wandb.init(
        project=config.wandb,
        group=folder.parent.name,
        name=f"{folder.parent.name}/{folder.name}",
        id=hashlib.sha256(str(folder).encode()).hexdigest()[:16],
        resume="allow",
        reinit="create_new",  # the run of a segment that broke off may still be open
        config=record_of(config),
        dir=local,
        settings=wandb.Settings(silent=True),
    )
