"""Orbax checkpoints of one segment: parameters, optimizer state, and a record of the run that wrote them.

Also finds and reads a checkpoint of a workdir, for evaluate, export and generate.

Saves are asynchronous and atomic: after a kill or a loss of power a step's folder is complete or absent, and an older
step is deleted only once the new one is on the disk. Checksums of the arrays, kept in the record (jmoe/run/record.py),
reveal what a disk damages later.
"""

import asyncio
import contextlib
import functools
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jaxtyping import Array, PyTree, Shaped
from ml_collections import ConfigDict
from orbax.checkpoint.checkpoint_managers import preservation_policy

from jmoe.config.schema import config_of_record
from jmoe.errors import Damaged, UserError, first_few
from jmoe.model import sharding
from jmoe.run import distributed
from jmoe.run.record import check_record, checksums, cpu_threads, read_arrays, read_record, version_warning
from jmoe.run.step import abstract_state
from jmoe.storage import durable, owner_check, retries
from jmoe.storage import files as storage
from jmoe.text import tokenizer

_T = TypeVar("_T")


class State(NamedTuple):
    """The state of a run before a step."""

    step: int  # the next one; as many are done
    params: PyTree[Array]
    opt_state: PyTree[Array]


class Loaded(NamedTuple):
    """A checkpoint in memory. The config is the one that it was trained with, apart from the mesh and other changes."""

    record: dict[str, Any]
    config: ConfigDict
    mesh: jax.sharding.Mesh
    params: PyTree[Array]


class OnHost(NamedTuple):
    """A checkpoint as NumPy arrays, and the folder that it is in."""

    folder: epath.Path
    record: dict[str, Any]
    config: ConfigDict
    params: PyTree[Shaped[np.ndarray, "..."]]


class Checkpoints:
    """The checkpoints of one segment. It keeps the newest ones, some for good, and those where branches fork.

    Saves of two folders must not overlap: call wait() before another one saves.
    """

    _saved_here: set[str] = set()  # folders that this process saved: restoring one is not reported as a resume

    def __init__(
        self,
        directory: epath.Path,
        forks: Iterable[int] = (),
        remedy: str = "try a lower config.optimizer.lr_law.constant",
        n_newest: int = 2,
        keep_every: int = 0,
    ) -> None:
        """Opens the folder, and creates it if it is missing.

        Args:
          directory: The folder of the checkpoints.
          forks: Steps to keep, where branches fork.
          remedy: What a user may try where the numbers are no longer finite (divergence.remedy).
          n_newest: How many of the newest to keep.
          keep_every: Keeps those whose step is a multiple of it; 0 for none.
        """
        self.directory = directory
        self._remedy = remedy
        self._damaged: list[int] = []  # steps that restore() skipped; the next save sets them aside
        policies = [preservation_policy.LatestN(n_newest), preservation_policy.CustomSteps(list(forks))]
        if keep_every:
            policies.append(preservation_policy.EveryNSteps(keep_every))
        options = ocp.CheckpointManagerOptions(
            preservation_policy=preservation_policy.AnyPreservationPolicy(policies),
            cleanup_tmp_directories=True,
            save_root_metadata=False,
            lightweight_initialize=True,  # so that it lists the other steps although one is damaged
            async_options=ocp.AsyncOptions(barrier_sync_fn=_barrier()),
            temporary_path_class=None if storage.is_remote(directory) else _DurableStep,
        )
        if jax.process_index() == 0 and not storage.is_remote(directory):
            durable.make_folder(directory.parent)
            durable.make_folder(directory)

        def open_manager() -> ocp.CheckpointManager:
            return ocp.CheckpointManager(directory, options=options)

        try:
            self._manager = retries.retried(open_manager, directory)
        except FileNotFoundError:  # while it removed unfinished saves: on gs:// a folder is gone when empty
            self._manager = retries.retried(open_manager, directory)

    def steps(self) -> list[int]:
        """Steps of the complete checkpoints, ascending, without those that restore() found damaged."""
        return sorted(set(self._manager.all_steps()) - set(self._damaged))

    def save(self, step: int, params: PyTree[Array], opt_state: PyTree[Array], record: dict[str, Any]) -> None:
        """Starts a save of the state before `step`; returns once the arrays are copied.

        Raises:
          UserError: The state is not finite; earlier checkpoints stay.
          Unavailable: The store did not accept this save or the previous one.
        """
        if step in self.steps():
            return
        sums, finite = checksums({"params": params, "opt_state": opt_state})
        if not finite:
            raise self.diverged(f"the state after step {step - 1} is not finite")
        self._set_aside()
        Checkpoints._saved_here.add(str(self.directory / str(step)))
        owner_check.check_owner()
        with retries.outage_named(self.directory):
            self._manager.save(
                step,
                args=ocp.args.Composite(
                    params=ocp.args.StandardSave(params),
                    opt_state=ocp.args.StandardSave(opt_state),
                    record=ocp.args.JsonSave(storage.sealed(record | {"step": step, "checksums": sums})),
                ),
                force=True,  # also a step before the newest, where a budget was added to a longer run
            )

    def restore(
        self,
        params: PyTree[jax.ShapeDtypeStruct],
        opt_state: PyTree[jax.ShapeDtypeStruct],
        record: dict[str, Any],
        last: int | None = None,
    ) -> State | None:
        """Restores the newest sound checkpoint. All processes skip a damaged one, and name it on stderr.

        Args:
          params: Abstract parameters; the arrays are placed like them.
          opt_state: Abstract optimizer state, likewise.
          record: The record of this run.
          last: The last step to restore; None for any.

        Returns:
          The state; None if there is no checkpoint.

        Raises:
          UserError: The checkpoint is of another configuration or corpus.
          Unavailable, OSError: It could not be read, which does not prove damage.
        """
        for step in reversed([step for step in self.steps() if last is None or step <= last]):
            folder = self.directory / str(step)
            written = self._unless_damaged(step, functools.partial(read_record, folder))
            if written is None:
                continue
            check_record(written, record, str(folder))
            read = functools.partial(read_arrays, folder, written, params=params, opt_state=opt_state)
            trees = self._unless_damaged(step, read)
            if trees is not None:
                if str(folder) not in Checkpoints._saved_here:
                    distributed.log(f"resuming from {folder}{version_warning(written, record)}")
                return State(step, trees["params"], trees["opt_state"])
        if self._damaged:
            distributed.log(f"WARNING: no sound checkpoint is left in {self.directory}: starting this part over")
            self._set_aside()
        return None

    def diverged(self, fault: str) -> UserError:
        """The error for a run whose numbers are no longer finite.

        It names the newest checkpoint, so it first waits for the save in progress.
        """
        self.wait()
        newest = max(self.steps(), default=None)
        good = "none" if newest is None else self.directory / str(newest)
        return UserError(f"{fault}; the last good checkpoint is {good}; {self._remedy}")

    def wait(self) -> None:
        """Waits until every save is complete."""
        with retries.outage_named(self.directory):
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits for saves, and frees Orbax's threads."""
        with retries.outage_named(self.directory):
            self._manager.close()

    def _set_aside(self) -> None:
        """Moves the damaged steps out of the folder of checkpoints into its parent folder; deletes none."""
        if not self._damaged:
            return
        if jax.process_index() == 0:
            for step in self._damaged:
                path = storage.set_aside(self.directory / str(step), self.directory.parent)
                distributed.log(f"the damaged checkpoint of step {step} is kept as {path}")
        distributed.meet()
        self._damaged = []
        self._manager.reload()

    def _unless_damaged(self, step: int, read: Callable[[], _T]) -> _T | None:
        """The result of `read()`; None in all processes if any of them found damage."""
        value = None
        reason = None
        try:
            value = read()
        except Damaged as error:
            reason = str(error)
        if not distributed.anywhere(reason is not None):
            return value
        self._damaged.append(step)
        warning = f"WARNING: the checkpoint {self.directory / str(step)} is damaged and skipped"
        # each process that saw damage prints what it saw
        distributed.log(f"{warning}: {reason or 'another process could not read it'}", by_all=reason is not None)
        return None


class _DurableStep(ocp.path.atomicity.AtomicRenameTemporaryPath):
    """The folder of a step that is being saved, under its temporary name.

    Orbax syncs the arrays and none of its other files. Here all contents reach the disk before the folder gets its
    final name, and that name before the save counts as complete, which is when Orbax deletes older steps.
    """

    async def finalize(self) -> None:
        """Syncs, renames, and syncs the new name."""
        await asyncio.to_thread(durable.sync_tree, self.get())
        await super().finalize()  # writes Orbax's own marks, which we never read, and renames
        await asyncio.to_thread(durable.sync_tree, self.get_final())
        await asyncio.to_thread(durable.sync_folder, self.get_final().parent)


def _barrier() -> Callable[..., None]:
    """The barrier at which several processes wait for each other in a save.

    Orbax's barrier waits twenty minutes. A process whose save failed raises its error instead of waiting, since the
    save can no longer complete; the error ends the process, and that ends the others.
    """
    wait = ocp.multihost.get_barrier_sync_fn()

    def meet(*, key: str, timeout_ms: int) -> None:
        error = sys.exc_info()[1]
        if error is not None:
            raise error
        wait(key=key, timeout_ms=timeout_ms)

    return meet


def steps_in(directory: epath.Path) -> list[int]:
    """Steps of the complete checkpoints in a folder, ascending; none where it does not exist."""
    try:
        return retries.retried(lambda: sorted(ocp.utils.checkpoint_steps(directory)), directory)
    except FileNotFoundError:  # on gs:// a folder is gone with its last object
        return []


def saved_record(workdir: epath.Path, segment: str, step: int) -> dict[str, Any]:
    """The record of a segment's checkpoint of `step`, with what Report.saved gave it; {} if there is none."""
    directory = workdir / segment / "checkpoints"
    if step not in steps_in(directory):
        return {}
    return read_record(directory / str(step))


def keep_threads(workdir: epath.Path) -> None:
    """Makes XLA compute with as many CPU threads as the run in `workdir` did so far, unless PJRT_NPROC is set.

    Called before jax makes its devices.
    """
    if "PJRT_NPROC" in os.environ:
        return
    folder = workdir / "trunk" / "checkpoints"
    for step in reversed(steps_in(folder)):
        # damaged: restore() names it
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
            record = json.loads(storage.read_bytes(folder / str(step) / "record" / "metadata"))
            n_threads = record.get("cpu_threads")
            if n_threads and n_threads != cpu_threads():
                os.environ["PJRT_NPROC"] = str(int(n_threads))
                print(f"{workdir}: keeps {n_threads} CPU threads so that results stay bit-identical", file=sys.stderr)
            return


def find(workdir: epath.Path, segment: str | None, step: int | None) -> epath.Path:
    """Finds a checkpoint of a workdir.

    Args:
      workdir: The run's folder.
      segment: "trunk" or "branch-N"; None for the last branch that has a checkpoint.
      step: The step of the checkpoint; None for the newest.

    Returns:
      The checkpoint's folder.

    Raises:
      UserError: There is none; the error names the checkpoints that exist.
    """
    folders = workdir.iterdir() if workdir.exists() else ()
    steps_by_segment = {folder.name: steps_in(folder / "checkpoints") for folder in folders}
    steps_by_segment = {name: steps for name, steps in steps_by_segment.items() if steps}
    if not steps_by_segment:
        raise UserError(f"--workdir={workdir} holds no checkpoint")
    fitting = [name for name, steps in steps_by_segment.items() if segment in (None, name) and step in (None, *steps)]
    if not fitting:
        raise UserError(_not_found(workdir, segment, step, steps_by_segment))
    segment = max(fitting, key=_budget)
    if step is None:
        step = steps_by_segment[segment][-1]
    return workdir / segment / "checkpoints" / str(step)


def _budget(segment: str) -> tuple[bool, int]:
    """Sorts segments by their budgets, the trunk first."""
    return segment != "trunk", int(segment.rpartition("-")[2]) if "-" in segment else 0


def _not_found(
    workdir: epath.Path, segment: str | None, step: int | None, steps_by_segment: dict[str, list[int]]
) -> str:
    """The error for a segment or step that has no checkpoint."""
    known = "; ".join(f"{name}: {first_few(steps)}" for name, steps in sorted(steps_by_segment.items()))
    flags = []
    if segment is not None:
        flags.append(f"--segment={segment} ")
    if step is not None:
        flags.append(f"--step={step} ")
    return f"{''.join(flags)}has no checkpoint in {workdir}; there are {known}"


def read(
    folder: epath.Path,
    change: Callable[[ConfigDict], None] = lambda config: None,
    devices: Sequence[jax.Device] | None = None,
) -> Loaded:
    """Reads the parameters of a checkpoint.

    Args:
      folder: The checkpoint's folder.
      change: Changes the config in place before the parameters are read.
      devices: Devices of the mesh; all by default.

    Raises:
      UserError: The checkpoint is of another program, or damaged. The error names the previous checkpoint, which must
        be asked for, since only the trainer comes to the same end from there.
    """
    try:
        record = read_record(folder)
        config = config_of_record(record["config"])
        config.data.fingerprint = record["corpus_fingerprint"]
        change(config)
        mesh = sharding.make_mesh(config, devices)
        with jax.set_mesh(mesh):
            params, _ = abstract_state(config, mesh)
            return Loaded(record, config, mesh, read_arrays(folder, record, params=params)["params"])
    except Damaged as error:
        earlier = [step for step in steps_in(folder.parent) if step < int(folder.name)]
        segment = folder.parent.parent.name
        hint = f"; --segment={segment} --step={earlier[-1]} is the previous one" if earlier else ""
        raise UserError(f"the checkpoint {folder} is damaged: {error}{hint}") from None


def on_host(
    workdir: epath.Path,
    segment: str | None,
    step: int | None,
    check: Callable[[ConfigDict], None] = lambda model: None,
) -> OnHost:
    """Reads a checkpoint for work on one device.

    Args:
      workdir: The run's folder.
      segment: As `find`.
      step: As `find`.
      check: Called with config.model before the parameters are read; may raise UserError.

    Raises:
      UserError: As `find` and `read`.
    """
    folder = find(workdir, segment, step)
    record, config, _, params = read(folder, lambda config: check(config.model), jax.devices()[:1])
    return OnHost(folder, record, config, jax.device_get(params))


def tokenizer_of(config: ConfigDict, path: str | None = None) -> tokenizer.Tokenizer:
    """Loads the run's tokenizer.

    Args:
      config: The run's config.
      path: The tokenizer's file, where it is no longer at config.data.tokenizer.

    Raises:
      UserError: The tokenizer is missing or damaged, or has more tokens than the model.
    """
    loaded = tokenizer.load(path or config.data.tokenizer, config.data.end_of_text)
    if loaded.vocab_size > config.model.vocab_size:
        raise UserError(
            f"the tokenizer {loaded.name} has {loaded.vocab_size} tokens, the model {config.model.vocab_size}"
        )
    return loaded
