"""Orbax checkpoints of one segment: parameters, optimizer state, and a record of the run that wrote them.

Saves are asynchronous and atomic: after a kill a step's folder is complete or absent. Checksums of the arrays, kept in
the record (jmoe/run/record.py), reveal what a disk damages later.
"""

import contextlib
import re
import sys

import jax
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils
from orbax.checkpoint.checkpoint_managers import preservation_policy

from jmoe.errors import Damaged, UserError
from jmoe.run import processes
from jmoe.run.record import check_record, checksums, version_warning
from jmoe.storage import files as storage
from jmoe.storage.files import sealed

# What a completed read raises where a file is missing or is not in its format ...
DAMAGE = (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError, LookupError, TypeError, AttributeError)
# ... and the words that TensorStore begins such an error with.
FAULTY = ("DATA_LOSS", "FAILED_PRECONDITION", "INVALID_ARGUMENT", "NOT_FOUND", "OUT_OF_RANGE")
ANSWERS = ("404", "416")  # HTTP codes of a store that has no such object, or fewer bytes of it


class Checkpoints:
    """The checkpoints under `directory`; keeps the newest two and the steps in `keep`, where branches fork.

    Saves of two folders must not overlap: wait() before another one saves.
    """

    _own = set()  # folders that this process saved: restoring one of them is not reported as a resume

    def __init__(self, directory, keep=()):
        policy = preservation_policy.AnyPreservationPolicy(
            [preservation_policy.LatestN(2), preservation_policy.CustomSteps(list(keep))]
        )
        self.directory = directory
        self._damaged = []  # steps that restore() skipped; the next save sets them aside
        options = ocp.CheckpointManagerOptions(
            preservation_policy=policy,
            cleanup_tmp_directories=True,
            save_root_metadata=False,
            lightweight_initialize=True,  # lists the other steps where one is damaged
            async_options=ocp.AsyncOptions(barrier_sync_fn=_barrier()),
        )
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
                    record=ocp.args.JsonSave(sealed(record | {"step": step, "checksums": sums})),
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
                    processes.log(f"resuming from {folder}{version_warning(written, record)}")
                return step, state["params"], state["opt_state"]
        if self._damaged:
            processes.log(f"WARNING: no sound checkpoint is left in {self.directory}: starting this part over")
            self._set_aside()
        return None

    def diverged(self, what: str) -> UserError:
        """The error for a run whose numbers are no longer finite. It names the newest checkpoint, so it first waits for
        the save in progress."""
        self.wait()
        good = max(self.steps(), default=None)
        return UserError(
            f"{what}; the last good checkpoint is {'none' if good is None else self.directory / str(good)}; try "
            "a lower config.optimizer.lr_law.constant or a longer config.optimizer.warmup_tokens"
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
                processes.log(f"the damaged checkpoint of step {step} is kept as {kept}")
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
        if not processes.anywhere(reason is not None):
            return value
        self._damaged.append(step)
        what = f"WARNING: the checkpoint {self.directory / str(step)} is damaged and skipped: "
        # each process that saw damage prints what it saw
        processes.log(what + (reason or "another process could not read it"), by_all=reason is not None)
        return None


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


def read_record(folder) -> dict:
    """The record of the checkpoint `folder`; Damaged where it is missing or altered."""
    read = lambda: ocp.JsonCheckpointHandler().restore(folder / "record", args=ocp.args.JsonRestore())
    record = _read(read, folder)
    if not isinstance(record, dict) or record != sealed(record):
        raise Damaged("its record is altered or was written without checksums")
    if str(record["step"]) != folder.name:
        raise Damaged(f"it holds step {record['step']}")
    return record


def read_arrays(folder, record: dict, **trees) -> dict:
    """The trees of arrays called `params` and `opt_state` in the checkpoint `folder`, placed like the abstract ones.

    Damaged where arrays are missing or are not what was saved; UserError where the checkpoint is of other arrays than
    the abstract trees, which is no damage.
    """
    arguments = {name: ocp.args.StandardRestore(tree) for name, tree in trees.items()}
    read = lambda name: ocp.StandardCheckpointHandler().restore(folder / name, args=arguments[name])
    try:
        restored = {name: _read(lambda: read(name), folder) for name in trees}
        sums, _ = checksums(restored)
        if wrong := [name for name in sums if sums[name] != record["checksums"].get(name)]:
            raise Damaged(f"{len(wrong)} of {len(sums)} arrays are not what was saved, {wrong[0]} first")
    except Damaged:  # what does not fit cannot be read either
        _check_fit(folder, record, trees)
        raise
    return restored


def _check_fit(folder, record: dict, trees) -> None:
    """UserError naming the first few arrays in which the checkpoint `folder` differs from the abstract trees."""
    wrong = []
    for name, tree in trees.items():
        with contextlib.suppress(Damaged):  # then nothing is known of this tree
            saved = _read(lambda: ocp.StandardCheckpointHandler().metadata(folder / name).tree, folder)
            there, here = _kinds(saved, name), _kinds(tree, name)
            paths = [path for path in there | here if there.get(path) != here.get(path)]
            wrong += [
                f"{path} is {there.get(path, 'missing')} there and {here.get(path, 'missing')} here" for path in paths
            ]
    if wrong:
        more = f", and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise UserError(
            f"{folder} holds other arrays than this program trains: {'; '.join(wrong[:3])}{more}. It is left as it is: "
            f"use the program that wrote it (jmoe {record['jmoe']}), or another --workdir"
        )


def _kinds(tree, name: str) -> dict[str, str]:
    """Type and shape of each array of a tree by its path, as in the checksums; "empty" for a node without arrays."""
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda node: not jax.tree.leaves(node))
    kind = lambda leaf: f"{leaf.dtype}{list(leaf.shape)}" if hasattr(leaf, "shape") else "empty"
    return {f"{name}/{jax.tree_util.keystr(path, simple=True, separator='/')}": kind(leaf) for path, leaf in leaves}


def _read(read, folder):
    """`read()`. An error becomes Damaged only where it proves damage: the disk or the store answered that a file is
    missing, or it gave bytes that are not in the file's format."""

    def call():
        try:
            return read()
        except Exception as error:
            if type(error) is not Exception or error.__cause__ is None:
                raise
            raise error.__cause__ from None  # Orbax wraps the failed read of an array in a bare Exception

    try:
        return storage.retried(call, folder)
    except Exception as error:  # noqa: BLE001  each layer of storage raises its own
        text = " ".join(str(error).split())
        word = re.match(r"([A-Z_]{5,}): ", text)  # TensorStore's
        code = re.search(r"http_response_code='(\d+)'", text)
        no_answer = word and word[1] not in FAULTY or code and code[1] not in ANSWERS or text.startswith("Bad Request")
        if no_answer or not isinstance(error, DAMAGE):
            raise
        raise Damaged(f"{type(error).__name__}: {text[:200]}") from None
