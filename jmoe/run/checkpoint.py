"""Orbax checkpoints of one segment: parameters, optimizer state, and a record of the run that wrote them; and which
checkpoint of a workdir is meant, as evaluate, export and generate read it.

Saves are asynchronous and atomic: after a kill or a loss of power a step's folder is complete or absent, and an older
step is deleted only once the new one is on the disk. Checksums of the arrays, kept in the record (jmoe/run/record.py),
reveal what a disk damages later.
"""

import asyncio
import contextlib
import json
import os
import sys

import jax
import orbax.checkpoint as ocp
from etils import epath
from jax.experimental import multihost_utils
from orbax.checkpoint.checkpoint_managers import preservation_policy

from jmoe.config.schema import FIELDS, NEUTRAL
from jmoe.config.schema_types import default_config
from jmoe.errors import Damaged, UserError
from jmoe.model import sharding
from jmoe.run import distributed
from jmoe.run.record import check_record, checksums, cpu_threads, read_arrays, read_record, version_warning
from jmoe.run.step import abstract_state
from jmoe.storage import durable
from jmoe.storage import files as storage
from jmoe.text import tokenizer


class Checkpoints:
    """The checkpoints under `directory`; keeps the newest two and the steps in `keep`, where branches fork.

    `remedy` is what a user may try where the numbers are no longer finite (divergence.remedy).

    Saves of two folders must not overlap: wait() before another one saves.
    """

    _own = set()  # folders that this process saved: restoring one of them is not reported as a resume

    def __init__(self, directory, keep=(), remedy: str = "try a lower config.optimizer.lr_law.constant"):
        kept = [preservation_policy.LatestN(2), preservation_policy.CustomSteps(list(keep))]
        self.directory, self._remedy = directory, remedy
        self._damaged = []  # steps that restore() skipped; the next save sets them aside
        options = ocp.CheckpointManagerOptions(
            preservation_policy=preservation_policy.AnyPreservationPolicy(kept),
            cleanup_tmp_directories=True,
            save_root_metadata=False,
            lightweight_initialize=True,  # lists the other steps where one is damaged
            async_options=ocp.AsyncOptions(barrier_sync_fn=_barrier()),
            temporary_path_class=None if storage.is_remote(directory) else _DurableStep,
        )
        if jax.process_index() == 0 and not storage.is_remote(directory):
            durable.make_folder(directory.parent)
            durable.make_folder(directory)
        make = lambda: ocp.CheckpointManager(directory, options=options)
        try:
            self._manager = storage.retried(make, directory)
        except FileNotFoundError:  # while it removed unfinished saves: on gs:// a folder is gone when empty
            self._manager = storage.retried(make, directory)

    def steps(self) -> list[int]:
        """Steps of the complete checkpoints, ascending, without those that restore() found damaged."""
        return sorted(set(self._manager.all_steps()) - set(self._damaged))

    def save(self, step: int, params, opt_state, record: dict) -> None:
        """Starts a save of the state before `step`; returns once the arrays are copied.

        Raises UserError where the state is not finite (earlier checkpoints stay), and Unavailable where the store did
        not take this save or the one before.
        """
        if step in self.steps():
            return
        sums, finite = checksums({"params": params, "opt_state": opt_state})
        if not finite:
            raise self.diverged(f"the state after step {step - 1} is not finite")
        self._set_aside()
        Checkpoints._own.add(str(self.directory / str(step)))
        storage.ask()
        with storage.outage_named(self.directory):
            self._manager.save(
                step,
                args=ocp.args.Composite(
                    params=ocp.args.StandardSave(params),
                    opt_state=ocp.args.StandardSave(opt_state),
                    record=ocp.args.JsonSave(storage.sealed(record | {"step": step, "checksums": sums})),
                ),
                force=True,  # also a step before the newest, where a budget was added to a longer run
            )

    def restore(self, params, opt_state, record: dict, last: int | None = None):
        """(step, params, opt_state) of the newest sound checkpoint, at or before step `last`; None if there is none.

        The arrays are placed like the abstract trees given. All processes skip a damaged checkpoint, named on stderr.
        Raises UserError where the checkpoint is of another configuration or corpus, and Unavailable or OSError where it
        could not be read, which does not prove damage.
        """
        for step in reversed([step for step in self.steps() if last is None or step <= last]):
            folder = self.directory / str(step)
            written = self._unless_damaged(step, lambda: read_record(folder))
            if written is None:
                continue
            check_record(written, record, str(folder))
            state = self._unless_damaged(step, lambda: read_arrays(folder, written, params=params, opt_state=opt_state))
            if state is not None:
                if str(folder) not in Checkpoints._own:
                    distributed.log(f"resuming from {folder}{version_warning(written, record)}")
                return step, state["params"], state["opt_state"]
        if self._damaged:
            distributed.log(f"WARNING: no sound checkpoint is left in {self.directory}: starting this part over")
            self._set_aside()
        return None

    def diverged(self, what: str) -> UserError:
        """The error for a run whose numbers are no longer finite. It names the newest checkpoint, so it first waits for
        the save in progress."""
        self.wait()
        good = max(self.steps(), default=None)
        return UserError(
            f"{what}; the last good checkpoint is {'none' if good is None else self.directory / str(good)}; "
            f"{self._remedy}"
        )

    def wait(self) -> None:
        """Waits until every save is complete."""
        with storage.outage_named(self.directory):
            self._manager.wait_until_finished()

    def close(self) -> None:
        with storage.outage_named(self.directory):
            self._manager.close()

    def _set_aside(self) -> None:
        """Moves the damaged steps out of the folder of checkpoints into its parent folder; deletes none."""
        if not self._damaged:
            return
        if jax.process_index() == 0:
            for step in self._damaged:
                kept = storage.set_aside(self.directory / str(step), self.directory.parent)
                distributed.log(f"the damaged checkpoint of step {step} is kept as {kept}")
        if jax.process_count() > 1:
            multihost_utils.sync_global_devices("damaged checkpoints are set aside")
        self._damaged = []
        self._manager.reload()

    def _unless_damaged(self, step: int, read):
        """What `read()` returns; None in all processes where any of them found damage."""
        value, reason = None, None
        try:
            value = read()
        except Damaged as error:
            reason = str(error)
        if not distributed.anywhere(reason is not None):
            return value
        self._damaged.append(step)
        what = f"WARNING: the checkpoint {self.directory / str(step)} is damaged and skipped: "
        # each process that saw damage prints what it saw
        distributed.log(what + (reason or "another process could not read it"), by_all=reason is not None)
        return None


class _DurableStep(ocp.path.atomicity.AtomicRenameTemporaryPath):
    """The folder of a step that is being saved, under its temporary name.

    Orbax syncs the arrays and none of its other files. Here all contents reach the disk before the folder gets its
    final name, and that name before the save counts as complete, which is when Orbax deletes older steps.
    """

    async def finalize(self) -> None:
        await asyncio.to_thread(durable.sync_tree, self.get())
        await super().finalize()  # writes Orbax's own marks, which we never read, and renames
        await asyncio.to_thread(durable.sync_tree, self.get_final())
        await asyncio.to_thread(durable.sync_folder, self.get_final().parent)


def _barrier():
    """The barrier at which several processes wait for each other in a save.

    Orbax's barrier waits twenty minutes. A process whose save failed raises its error instead of waiting, since the
    save can no longer complete; the error ends the process, and that ends the others.
    """
    wait = ocp.multihost.get_barrier_sync_fn()

    def meet(*, key: str, timeout_ms: int) -> None:
        if (error := sys.exc_info()[1]) is not None:
            raise error
        wait(key=key, timeout_ms=timeout_ms)

    return meet


def steps_in(directory) -> list[int]:
    """Steps of the complete checkpoints in a folder, ascending; none where it does not exist."""
    try:
        return storage.retried(lambda: sorted(ocp.utils.checkpoint_steps(directory)), directory)
    except FileNotFoundError:  # on gs:// a folder is gone with its last object
        return []


def keep_threads(workdir: epath.Path) -> None:
    """Has XLA compute with as many CPU threads as the run in `workdir` did so far, unless PJRT_NPROC is set. To be
    called before jax makes its devices."""
    folder = workdir / "trunk" / "checkpoints"
    for step in () if "PJRT_NPROC" in os.environ else reversed(steps_in(folder)):
        # damaged: restore() names it
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
            n = json.loads(storage.read_bytes(folder / str(step) / "record" / "metadata")).get("cpu_threads")
            if n and n != cpu_threads():
                os.environ["PJRT_NPROC"] = str(int(n))
                print(f"{workdir}: goes on with {n} CPU threads, as before, for the same bits", file=sys.stderr)
            return


def find(workdir: epath.Path, segment: str | None, step: int | None) -> epath.Path:
    """The folder of the checkpoint of that segment and step, by default the newest of the last branch. Where there is
    none, UserError names the checkpoints that exist."""
    folders = workdir.iterdir() if workdir.exists() else ()
    steps = {folder.name: listed for folder in folders if (listed := steps_in(folder / "checkpoints"))}
    if not steps:
        raise UserError(f"--workdir={workdir} holds no checkpoint")
    known = "; ".join(f"{name}: {', '.join(map(str, listed))}" for name, listed in sorted(steps.items()))
    fitting = [name for name in steps if segment in (None, name) and step in (None, *steps[name])]
    if not fitting:
        asked = f"--segment={segment} " * (segment is not None) + f"--step={step} " * (step is not None)
        raise UserError(f"{asked}has no checkpoint in {workdir}; there are {known}")
    # the largest budget, or the trunk where there is no branch
    segment = max(fitting, key=lambda name: (name != "trunk", int(name.rpartition("-")[2]) if "-" in name else 0))
    return workdir / segment / "checkpoints" / str(steps[segment][-1] if step is None else step)


def read(folder: epath.Path, change=lambda config: None, devices=None) -> tuple:
    """(record, config, mesh, parameters) of a checkpoint. The config is the one that it was trained with but for the
    mesh, as `change` leaves it before the parameters are read; its mesh is over `devices`, by default all.

    UserError where the checkpoint is of another program, or damaged: it names the one before, which is not taken
    unasked, since only the trainer comes to the same end from there.
    """
    try:
        record = read_record(folder)
        config = default_config(FIELDS)
        config.update_from_flattened_dict(NEUTRAL)  # what the fields are that the record leaves out
        config.update({name: value for name, value in record["config"].items() if name != "mesh"})
        config.data.fingerprint = record["corpus_fingerprint"]
        change(config)
        mesh = sharding.make_mesh(config, devices)
        with jax.set_mesh(mesh):
            params, _ = abstract_state(config, mesh)
            return record, config, mesh, read_arrays(folder, record, params=params)["params"]
    except Damaged as error:
        before = [step for step in steps_in(folder.parent) if step < int(folder.name)]
        segment = folder.parent.parent.name
        hint = f"; --segment={segment} --step={before[-1]} is the one before" if before else ""
        raise UserError(f"the checkpoint {folder} is damaged: {error}{hint}") from None


def on_host(workdir: epath.Path, segment: str | None, step: int | None, check=lambda model: None) -> tuple:
    """(folder, record, config, parameters as NumPy arrays) of a checkpoint, for work on one device.

    UserError for no such segment or step, as `read`, or as `check` of config.model, before the parameters are read.
    """
    folder = find(workdir, segment, step)
    record, config, _, params = read(folder, lambda config: check(config.model), jax.devices()[:1])
    return folder, record, config, jax.device_get(params)


def tokenizer_of(config, path: str | None = None) -> tokenizer.Tokenizer:
    """The run's tokenizer; `path` names it where its file is no longer at config.data.tokenizer. UserError where it is
    missing or damaged, or has more tokens than the model."""
    made = tokenizer.load(path or config.data.tokenizer, config.data.end_of_text)
    if made.vocab_size > config.model.vocab_size:
        raise UserError(f"the tokenizer {made.name} has {made.vocab_size} tokens, the model {config.model.vocab_size}")
    return made
