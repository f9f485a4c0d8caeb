"""Reports on a segment while it runs: metrics.jsonl, speed.jsonl, TensorBoard events, traces, and its progress.

metrics.jsonl has what was computed and is the same however often the run was killed. With config.optimizer.skip_above a
step that was skipped has a line, too, with the rows of its batch, `skipped_rows`. speed.jsonl has how fast:

  tokens_per_second  over the steps since the previous line
  mfu                model FLOPs utilisation: tokens_per_second x counts.matmul_flops_per_token / (devices x peak FLOP/s
                     of one): active parameters only, no padding slots, no recomputation; left out on a CPU
  input_wait         share of the time that the loop waited for its next batch
  memory_bytes       most memory that a device had in use so far; on CPU, the process
  save_seconds       that the loop waited for saves since the previous line, where there was a save
  seconds            since the segment was started or resumed
"""

import contextlib
import hashlib
import json
import os
import pathlib
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from types import TracebackType
from typing import IO, Any, NamedTuple

import jax
from etils import epath
from jaxtyping import Array, PyTree
from ml_collections import ConfigDict
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tqdm import tqdm

from jmoe.config import counts
from jmoe.config.schedule import Schedule, Segment
from jmoe.config.schema import record_of
from jmoe.errors import Interrupted, UserError, first_few
from jmoe.run import distributed
from jmoe.run.router_health import RouterHealth
from jmoe.run.token_means import TokenMeans
from jmoe.storage.durable import named
from jmoe.storage.files import copy_files, is_remote, lines_before_damage, read_lines, write_whole
from jmoe.storage.owner_check import check_owner

LINE_SECONDS = 60.0  # from one line to the next where progress is not shown on a terminal


class _Mark(NamedTuple):
    """A moment of the run, from which a rate is measured."""

    time: float  # seconds, monotonic
    n_tokens: int


class Report:
    """Writes all that a segment reports of its steps [start, segment.stop); the loop tells it what happens, in order.

    Its files are closed when the `with` block ends, also by UserError or Interrupted. After any other error they are
    left as they are: the store or the disk may be what failed.
    """

    def __init__(  # noqa: PLR0913  a caller makes it once
        self,
        config: ConfigDict,
        folder: epath.Path,
        schedule: Schedule,
        segment: Segment,
        start: int,
        n_tokens_left: int,
        peak_flops: float,
        *,
        means: TokenMeans,
        health: RouterHealth | None = None,
        rows_of: Callable[[int], dict[str, list[int]]] = lambda step: {},
    ) -> None:
        """Opens the files, and shows the progress so far.

        Args:
          config: The run's config.
          folder: The segment's folder.
          schedule: The run's schedule.
          segment: What is trained.
          start: The first step of `segment` that is trained now.
          n_tokens_left: Tokens that the run trains from there on, for the time left.
          peak_flops: bfloat16 FLOP/s of a device, 0 if unknown.
          means: The means over the steps of `segment` before `start`.
          health: The counts of config.router_health.
          rows_of: The rows of a step's batch, for steps that are skipped (batches.rows_of_step).
        """
        self._means = means
        self._health = health
        self._rows_of = rows_of
        self._folder = folder
        self._schedule = schedule
        self._segment = segment
        self._log_every = config.log_every
        first = segment.start if segment.decays else 0  # the pieces of the trunk share a folder
        self.log = Log(folder, start, segment.stop, config, first)
        self._trace = contextlib.ExitStack()
        self._traced_steps = range(*(config.profile_steps or (0, 0)))
        self._is_first = jax.process_index() == 0  # which alone shows progress: a bar on a terminal, else lines
        self._bar = tqdm(
            total=segment.stop,
            initial=start,
            desc=segment.name,
            unit=" steps",
            disable=None if self._is_first else True,
            leave=False,
        )
        flops_per_token = sum(counts.matmul_flops_per_token(config.model, config.data.seq_len).values())
        self._mfu_of_rate = 0.0  # MFU for each token a second; 0 if it is unknown
        if peak_flops:
            self._mfu_of_rate = flops_per_token / (jax.device_count() * peak_flops)
        n_tokens = schedule.tokens_at(start)
        self._began = time.monotonic()
        self._wait = 0.0  # seconds that the loop waited for input since the last line of speed.jsonl
        self._save = 0.0  # seconds that it waited for saves since then
        self._n_tokens_at_end = n_tokens + n_tokens_left
        self._last_speed = _Mark(self._began, n_tokens)  # at the last line of speed.jsonl
        self._last_progress = self._last_speed  # at the last line of progress

    def __enter__(self) -> "Report":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()
        if kind is None or issubclass(kind, (UserError, Interrupted)):
            self._trace.close()
            self.log.close()

    @contextlib.contextmanager
    def waiting(self) -> Generator[None]:
        """Counts the time that the `with` block takes as waiting for input."""
        began = time.monotonic()
        yield
        self._wait += time.monotonic() - began

    @contextlib.contextmanager
    def saving(self) -> Generator[None]:
        """Counts the time that the `with` block takes as waiting for a save."""
        began = time.monotonic()
        yield
        self._save += time.monotonic() - began

    @contextlib.contextmanager
    def paused(self) -> Generator[None]:
        """Leaves the time that the `with` block takes out of speed.jsonl."""
        began = time.monotonic()
        before = self._last_speed
        yield
        self._last_speed = before._replace(time=before.time + time.monotonic() - began)

    def starting(self, step: int) -> None:
        """Called when `step` is about to be launched."""
        if self._traced_steps and step == self._traced_steps.start:
            self._trace.enter_context(_trace(self._folder))

    def started(self, step: int, metrics: PyTree[Array]) -> None:
        """Called when `step` was launched; `metrics` will be ready when it is done."""
        if step + 1 == min(self._traced_steps.stop, self._segment.stop):
            jax.block_until_ready(metrics)
            self._trace.close()
        self._bar.update()

    def finished(self, step: int, values: dict[str, Any]) -> None:
        """Called when `step` is done, once for each step.

        Writes every config.log_every steps, steps with a validation loss, and steps that were skipped.

        Args:
          step: The step.
          values: Its metrics as Python numbers.
        """
        n_tokens = self._schedule.tokens_at(step + 1)
        self._means.add(n_tokens - self._schedule.tokens_at(step), values)
        values = self._with_router_health(step, values)
        if values.pop("skipped", 0):
            values["skipped_rows"] = self._rows_of(step)
            distributed.log(_skipping(step, self._segment, values))
        is_last = step == self._segment.stop - 1
        if step % self._log_every == 0 or is_last or "validation_loss" in values or "skipped_rows" in values:
            learning_rate = self._schedule.learning_rate(step, self._segment)
            speed = self._speed(n_tokens)
            self.log.write(step, {"n_tokens": n_tokens, "learning_rate": learning_rate} | values, speed)
            mfu = f", MFU {speed['mfu']:.1%}" if "mfu" in speed else ""
            shown = f"loss {values['cross_entropy']:.3f}, {speed['tokens_per_second']:,.0f} tokens/s{mfu}"
            self._bar.set_postfix_str(shown, refresh=False)
        self._print_progress(step, n_tokens, values["cross_entropy"])

    def saved(self) -> dict[str, Any]:
        """The state of this report for a checkpoint's record, so that a run that resumes writes the same lines."""
        saved = {"token_means": self._means.state()}
        if self._health is not None:
            saved["router_health"] = self._health.state()
        return saved

    def _with_router_health(self, step: int, values: dict[str, Any]) -> dict[str, Any]:
        """The metrics of a step, with RouterHealth's summary of its layers instead of the counts of choices."""
        chosen_LE = values.get("chosen")
        if self._health is None or chosen_LE is None:
            return values
        values = {name: value for name, value in values.items() if name != "chosen"}
        by_layer, warning = self._health.add(step, chosen_LE)
        if warning:
            distributed.log(warning)
        if not by_layer:
            return values
        totals = {"unchosen": sum(by_layer["unchosen"]), "collapsed_layers": sum(by_layer["collapsed"])}
        return values | totals | {"layers": values["layers"] | by_layer}

    def _print_progress(self, step: int, n_tokens: int, loss: float) -> None:
        """Prints a line of progress every LINE_SECONDS if there is no bar."""
        now = time.monotonic()
        last = self._last_progress
        if self._is_first and self._bar.disable and now - last.time >= LINE_SECONDS:
            rate = (n_tokens - last.n_tokens) / max(now - last.time, 1e-9)
            self._last_progress = _Mark(now, n_tokens)
            distributed.log(
                f"{self._segment.name}: step {step + 1} of {self._segment.stop}, {n_tokens:,} tokens, loss "
                f"{loss:.4f}, {rate:,.0f} tokens/s, "
                f"{tqdm.format_interval((self._n_tokens_at_end - n_tokens) / rate)} left"
            )

    def _speed(self, n_tokens: int) -> dict[str, float]:
        """The fields of speed.jsonl after `n_tokens` of the run."""
        now = time.monotonic()
        elapsed = max(now - self._last_speed.time, 1e-9)
        rate = (n_tokens - self._last_speed.n_tokens) / elapsed
        speed = {"tokens_per_second": round(rate, 1)}
        if self._mfu_of_rate:
            speed["mfu"] = round(rate * self._mfu_of_rate, 4)
        speed |= {"input_wait": round(self._wait / elapsed, 4), "memory_bytes": _memory_bytes()}
        if self._save:
            speed["save_seconds"] = round(self._save, 4)
        self._wait = 0.0
        self._save = 0.0
        self._last_speed = _Mark(now, n_tokens)
        return speed | {"seconds": round(now - self._began, 3)}


def _skipping(step: int, segment: Segment, values: dict[str, Any]) -> str:
    """The line on a step that was skipped."""
    by_source = values["skipped_rows"].items()
    rows = first_few((f"{source} {first_few(rows)}".strip() for source, rows in by_source), 4, "; ")
    return (
        f"WARNING: skipped step {step} of {segment.name}: its gradient norm of {values['grad_norm']:.4g} is "
        f"{values['grad_norm'] / values['grad_norm_median']:.1f} times the median, {values['grad_norm_median']:.4g}; "
        f"{values['skipped_steps']} steps skipped so far; its rows of the training text: {rows}"
    )


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


def _memory_bytes() -> int:
    """The most memory that a device had in use so far; on CPU, the process."""
    stats = [device.memory_stats() for device in jax.local_devices()]
    if all(stats):
        return max(device_stats["peak_bytes_in_use"] for device_stats in stats)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@contextlib.contextmanager
def _trace(folder: epath.Path) -> Generator[None]:
    """Traces what runs in the `with` block, for TensorBoard's profiler and Perfetto, into `folder`."""
    with tempfile.TemporaryDirectory(prefix="jmoe-trace-") as scratch:
        with jax.profiler.trace(scratch):
            yield
        copy_files(scratch, folder)
