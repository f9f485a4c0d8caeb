"""What a segment says while it runs: metrics.jsonl, speed.jsonl, TensorBoard events, traces, and its progress.

metrics.jsonl holds what was computed and is the same however often the run was killed. speed.jsonl holds how fast:

  tokens_per_second  over the steps since the line before
  mfu                model FLOPs utilisation: tokens_per_second x counts.matmul_flops_per_token / (devices x peak FLOP/s
                     of one): active parameters only, no padding slots, no recomputation; left out on a CPU
  input_wait         share of the time that the loop waited for its next batch
  memory_bytes       most memory that a device had in use so far; on CPU, the process
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

import jax
from etils import epath
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tqdm import tqdm

from jmoe.config import counts
from jmoe.config.schema import record_of
from jmoe.errors import Interrupted, UserError
from jmoe.run import distributed
from jmoe.storage.durable import named
from jmoe.storage.files import check_owner, copy_files, is_remote, lines_before_damage, read_lines, write_whole

LINE_SECONDS = 60.0  # from one line to the next where progress is not shown on a terminal


class Report:
    """All that a segment says of its steps [start, segment.stop); the loop tells it what happens, in order.

    Its files are closed when the `with` block ends, also by UserError or Interrupted. After any other error they are
    left as they are: the store or the disk may be what failed.
    """

    def __init__(self, run, segment, start: int, peak_flops: float):
        """`run`: the run.Run whose `segment` goes on at step `start`. peak_flops: FLOP/s of a device, 0 if unknown."""
        config, folder = run.config, run.workdir / segment.name
        self._schedule, self._segment, self._log_every = run.schedule, segment, config.log_every
        first = segment.start if segment.decays else 0  # the pieces of the trunk share a folder
        self.log, self._folder = Log(folder, start, segment.stop, config, first), folder
        self._trace, self._traced = contextlib.ExitStack(), range(*(config.profile_steps or (0, 0)))
        self._is_first = jax.process_index() == 0  # which alone shows progress: a bar on a terminal, else lines
        steps = dict(total=segment.stop, initial=start, desc=segment.name, unit=" steps")
        self._bar = tqdm(**steps, disable=None if self._is_first else True, leave=False)
        flops = sum(counts.matmul_flops_per_token(config.model, config.data.seq_len).values())
        self._mfu_of_rate = flops / (jax.device_count() * peak_flops) if peak_flops else 0.0
        n_tokens, self._began, self._wait = run.schedule.tokens_at(start), time.monotonic(), 0.0
        self._end = n_tokens + run.to_go(segment, start)
        self._measured = self._told = self._began, n_tokens  # of the last line of speed.jsonl, and of progress

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self._bar.close()
        if kind is None or issubclass(kind, (UserError, Interrupted)):
            self._trace.close()
            self.log.close()

    @contextlib.contextmanager
    def waiting(self):
        """Counts the time that the `with` block takes as waiting for input."""
        began = time.monotonic()
        yield
        self._wait += time.monotonic() - began

    @contextlib.contextmanager
    def paused(self):
        """Leaves the time that the `with` block takes out of speed.jsonl."""
        began, (last, n_tokens) = time.monotonic(), self._measured
        yield
        self._measured = last + time.monotonic() - began, n_tokens

    def starting(self, step: int) -> None:
        """`step` is about to be launched."""
        if self._traced and step == self._traced.start:
            self._trace.enter_context(_trace(self._folder))

    def started(self, step: int, metrics) -> None:
        """`step` was launched; `metrics`, arrays, will be ready when it is done."""
        if step + 1 == min(self._traced.stop, self._segment.stop):
            jax.block_until_ready(metrics)
            self._trace.close()
        self._bar.update()

    def finished(self, step: int, values: dict) -> None:
        """`step` is done, with these metrics as Python numbers; those of every config.log_every steps are written, and
        those with a validation loss."""
        n_tokens = self._schedule.tokens_at(step + 1)
        if step % self._log_every == 0 or step == self._segment.stop - 1 or "validation_loss" in values:
            rate = self._schedule.learning_rate(step, self._segment)
            speed = self._speed(n_tokens)
            self.log.write(step, {"n_tokens": n_tokens, "learning_rate": rate} | values, speed)
            mfu = f", MFU {speed['mfu']:.1%}" if "mfu" in speed else ""
            shown = f"loss {values['cross_entropy']:.3f}, {speed['tokens_per_second']:,.0f} tokens/s{mfu}"
            self._bar.set_postfix_str(shown, refresh=False)
        now, (last, tokens_then) = time.monotonic(), self._told
        if self._is_first and self._bar.disable and now - last >= LINE_SECONDS:
            rate = (n_tokens - tokens_then) / max(now - last, 1e-9)
            self._told = now, n_tokens
            distributed.log(
                f"{self._segment.name}: step {step + 1} of {self._segment.stop}, {n_tokens:,} tokens, loss "
                f"{values['cross_entropy']:.4f}, {rate:,.0f} tokens/s, "
                f"{tqdm.format_interval((self._end - n_tokens) / rate)} left"
            )

    def _speed(self, n_tokens: int) -> dict:
        """The fields of speed.jsonl after `n_tokens` of the run."""
        now, (last, tokens_then) = time.monotonic(), self._measured
        elapsed = max(now - last, 1e-9)
        rate = (n_tokens - tokens_then) / elapsed
        speed = {"tokens_per_second": round(rate, 1)}
        if self._mfu_of_rate:
            speed["mfu"] = round(rate * self._mfu_of_rate, 4)
        speed |= {"input_wait": round(self._wait / elapsed, 4), "memory_bytes": _memory_bytes()}
        self._wait, self._measured = 0.0, (now, n_tokens)
        return speed | {"seconds": round(now - self._began, 3)}


class Log:
    """The files of one segment, written by the first process, for steps [start, stop).

    Lines at or after step `start` are cut off, so that no step appears twice. But where a trunk went further than
    `stop` before, for a larger budget, the files hold these steps already: then nothing is cut off or written.
    """

    def __init__(self, folder: epath.Path, start: int, stop: int, config, first: int = 0):
        """`first`: the step of the segment's first line."""
        self._files, self._wandb, self._open = {}, None, contextlib.ExitStack()
        if jax.process_index() or any(line["step"] >= stop for line in lines_before_damage(folder / "metrics.jsonl")):
            return
        folder.mkdir(parents=True, exist_ok=True)
        # objects cannot be appended to: the files are written on this machine, and sync() copies them
        scratch = tempfile.TemporaryDirectory(prefix="jmoe-log-") if is_remote(folder) else None
        self._scratch, self._folder = scratch and self._open.enter_context(scratch), folder
        local = pathlib.Path(self._scratch or folder)
        for name in ("metrics", "speed"):
            kept = lines_before(folder / f"{name}.jsonl", first, start, config.log_every)
            write_whole(local / f"{name}.jsonl", "".join(json.dumps(line) + "\n" for line in kept))
            self._files[name] = self._open.enter_context(open(local / f"{name}.jsonl", "a", buffering=1))
        if config.get("wandb"):
            self._wandb = _wandb_run(config, folder, local)
            self._open.callback(self._wandb.finish)
        self._events = EventFileWriter(str(local), flush_secs=10)
        self._open.callback(self._events.close)
        begun = event_pb2.SessionLog(status=event_pb2.SessionLog.START)  # TensorBoard drops older events after it
        self._events.add_event(event_pb2.Event(wall_time=time.time(), step=start, session_log=begun))

    def write(self, step: int, metrics: dict, speed: dict) -> None:
        """Writes one step's values; `layers` are lists in JSONL and a scalar for each layer in TensorBoard."""
        if not self._files:
            return
        check_owner()
        for name, values in (("metrics", metrics), ("speed", speed)):
            with named(self._files[name].name):
                self._files[name].write(json.dumps({"step": step} | values) + "\n")
        scalars = {name: value for name, value in metrics.items() if name != "layers"}
        scalars |= {f"speed/{name}": value for name, value in speed.items()}
        for name, values in metrics.get("layers", {}).items():
            scalars |= {f"layers/{name}/{i:02d}": value for i, value in enumerate(values)}
        if self._wandb:
            self._wandb.log(scalars, step=step)
        values = [summary_pb2.Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        summary = summary_pb2.Summary(value=values)
        self._events.add_event(event_pb2.Event(wall_time=time.time(), step=step, summary=summary))

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
        self.sync()
        self._open.close()


def lines_before(path: epath.Path, first: int, start: int, log_every: int) -> list[dict]:
    """The lines of the steps [first, start), in a file that has a line for every `log_every` steps at least. They were
    synced before the checkpoint was written; damage after them, as a loss of power leaves, is cut off with the rest.
    UserError where one of them may be damaged."""
    lines = lines_before_damage(path)
    last_needed = (start - 1) // log_every * log_every
    if last_needed >= first and not any(line["step"] >= last_needed for line in lines):
        lines = read_lines(path)  # names the line that is damaged, if one is
    return [line for line in lines if line["step"] < start]


def _wandb_run(config, folder: epath.Path, local: pathlib.Path):
    """The segment's wandb run in the project config.wandb; a resumed segment continues its run. wandb reads all other
    settings from the environment."""
    import wandb

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
    stats = [device.memory_stats() for device in jax.local_devices()]
    if all(stats):
        return max(s["peak_bytes_in_use"] for s in stats)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@contextlib.contextmanager
def _trace(folder: epath.Path):
    """Traces what runs in the `with` block, for TensorBoard's profiler and Perfetto, into `folder`."""
    with tempfile.TemporaryDirectory(prefix="jmoe-trace-") as scratch:
        with jax.profiler.trace(scratch):
            yield
        copy_files(scratch, folder)
