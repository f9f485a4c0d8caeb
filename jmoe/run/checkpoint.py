"""Orbax checkpoints of one segment: parameters, optimizer state, and a record of the run that wrote them.

Saves are asynchronous and atomic: a step directory is there whole or not at all. What a disk does to it afterwards is
found by checksums of the values, which lie in the record, are computed on the devices and are the same on any mesh.
"""

import re
import sys

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils
from orbax.checkpoint.checkpoint_managers import preservation_policy
from tqdm import tqdm

from jmoe.errors import Damaged, UserError
from jmoe.run.check import record_of
from jmoe.run.checksums import checksums
from jmoe.storage import files as storage
from jmoe.storage.files import sealed

# A later start may change these: they say where and how long, not what each step computes.
FREE_FIELDS = (
    "n_tokens",
    "mesh",
    "remat",
    "unroll",
    "microbatch_tokens",
    "chip",
    "log_every",
    "profile_steps",
    "checkpoint_every",
    "data.end_of_text",
    "data.fingerprint",
    "data.max_epochs",
    "data.on_bad_document",
    "data.path",
    "data.text_field",
    "data.tokenizer",
    "data.validation_path",
)  # the corpus itself is compared by its fingerprint
VERSIONS = ("jmoe", "jax", "orbax")
# errors of a read that was completed: nothing is there, or what is there is not in its format ...
DAMAGE = (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError, LookupError, TypeError, AttributeError)
# ... as TensorStore says it
FAULTY = ("DATA_LOSS", "FAILED_PRECONDITION", "INVALID_ARGUMENT", "NOT_FOUND", "OUT_OF_RANGE")
ELSEWHERE = "another process could not read it"


class Checkpoints:
    """The checkpoints under `directory`; keeps the newest two and the steps in `keep`, where branches fork."""

    _saving = None  # of all in this process, the one that saved last: saves of two managers must not overlap
    _own = set()  # what this process saved: to read that again is no resume

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
            lightweight_initialize=True,  # a damaged step must not keep the others from being listed
            async_options=ocp.AsyncOptions(barrier_sync_fn=_barrier()),
        )
        self._manager = storage.retried(lambda: ocp.CheckpointManager(directory, options=options), directory)

    def steps(self) -> list[int]:
        """Steps of the whole checkpoints, ascending, without those that restore() found damaged."""
        return sorted(set(self._manager.all_steps()) - set(self._damaged))

    def save(self, step: int, params, opt_state, record: dict) -> None:
        """Starts a save of the state before `step`; returns once the arrays are copied.

        Raises:
          UserError: the state is not finite; the checkpoints there are stay as they are. Unavailable: the store did not
            take this save or the one before.
        """
        if step in self.steps():
            return
        sums, finite = checksums({"params": params, "opt_state": opt_state})
        if not finite:
            raise self.diverged(f"the state after step {step - 1} is not finite")
        if Checkpoints._saving not in (None, self):
            Checkpoints._saving.wait()
        Checkpoints._saving = self
        self._set_aside()
        Checkpoints._own.add(str(self.directory / str(step)))
        with storage.outage_told(self.directory):
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

        The arrays are placed like the abstract trees given. Each damaged checkpoint is named on stderr with the reason.
        With several processes all of them take the same one.

        Raises:
          UserError: the checkpoint was written under another configuration or corpus; the differences are named.
          Unavailable, OSError: it could not be read, which says nothing of what it holds.
        """
        for step in reversed([step for step in self.steps() if last is None or step <= last]):
            where = self.directory / str(step)
            written = self._sound(step, lambda: read_record(where))
            if written is None:
                continue
            check_record(written, record, str(where))
            state = self._sound(step, lambda: read_arrays(where, written, params=params, opt_state=opt_state))
            if state is not None:
                if str(where) not in Checkpoints._own:
                    _say(f"resuming from {where}{_newer_versions(written, record)}")
                return step, state["params"], state["opt_state"]
        if self._damaged:
            _say(f"WARNING: no sound checkpoint is left in {self.directory}: starting this part over")
        return None

    def diverged(self, what: str) -> UserError:
        """The sentence for a run whose numbers are no longer finite; what is being saved is whole before it is told."""
        self.wait()
        good = max(self.steps(), default=None)
        return UserError(
            f"{what}; the last good checkpoint is {'none' if good is None else self.directory / str(good)}; try "
            "a lower config.optimizer.lr_law.constant or a longer config.optimizer.warmup_tokens"
        )

    def wait(self) -> None:
        """Until every save is whole on disk."""
        with storage.outage_told(self.directory):
            self._manager.wait_until_finished()

    def close(self) -> None:
        with storage.outage_told(self.directory):
            self._manager.close()
        if Checkpoints._saving is self:
            Checkpoints._saving = None

    def _set_aside(self) -> None:
        """Moves the steps found damaged out of the way of new ones, beside the checkpoints; none is deleted."""
        if not self._damaged:
            return
        if jax.process_index() == 0:
            for step in self._damaged:
                kept = storage.set_aside(self.directory / str(step), self.directory.parent)
                _say(f"the damaged checkpoint of step {step} is kept as {kept}")
        if jax.process_count() > 1:
            multihost_utils.sync_global_devices("damaged checkpoints are set aside")
        self._damaged = []
        self._manager.reload()

    def _sound(self, step: int, read):
        """`read()`, or None on every process where it finds damage on any of them."""
        value, reason = None, None
        try:
            value = read()
        except Damaged as error:
            reason = str(error)
        if jax.process_count() > 1 and not np.all(multihost_utils.process_allgather(reason is None)):
            reason = reason or ELSEWHERE
        if reason is None:
            return value
        self._damaged.append(step)
        everywhere = reason != ELSEWHERE  # a process that saw the damage itself tells what it saw
        _say(f"WARNING: the checkpoint {self.directory / str(step)} is damaged and skipped: {reason}", everywhere)
        return None


def _barrier():
    """Where the saves of several processes wait for each other, for twenty minutes; not one that has just failed, for
    which the others would wait in vain: there its error is raised, which ends this process and so the others."""
    wait = ocp.multihost.get_barrier_sync_fn()

    def meet(*, key: str, timeout_ms: int) -> None:
        if (error := sys.exc_info()[1]) is not None:
            raise error
        wait(key=key, timeout_ms=timeout_ms)

    return meet


def steps_in(directory) -> list[int]:
    """Steps of the whole checkpoints in a folder, ascending; none where it does not exist."""
    steps = lambda: sorted(ocp.utils.checkpoint_steps(directory)) if directory.exists() else []
    return storage.retried(steps, directory)


def read_record(folder) -> dict:
    """The record of the checkpoint `folder`, as it was written.

    Raises:
      Damaged: it is missing or altered.
    """
    read = lambda: ocp.JsonCheckpointHandler().restore(folder / "record", args=ocp.args.JsonRestore())
    record = _read(read, folder)
    if not isinstance(record, dict) or record != sealed(record):
        raise Damaged("its record is altered or was written without checksums")
    if str(record["step"]) != folder.name:
        raise Damaged(f"it holds step {record['step']}")
    return record


def read_arrays(folder, record: dict, **trees) -> dict:
    """The trees of arrays called `params` and `opt_state` in the checkpoint `folder`, placed like the abstract ones.

    Raises:
      Damaged: arrays are missing, or their values are not those that were saved; the first one is named.
    """

    def read(name):
        return ocp.StandardCheckpointHandler().restore(folder / name, args=ocp.args.StandardRestore(trees[name]))

    restored = {name: _read(lambda: read(name), folder) for name in trees}
    sums, _ = checksums(restored)
    if wrong := [name for name in sums if sums[name] != record["checksums"].get(name)]:
        raise Damaged(f"{len(wrong)} of {len(sums)} arrays are not what was saved, {wrong[0]} first")
    return restored


def _read(read, folder):
    """`read()`; Damaged for an error that proves damage, and no other: one that a completed read gives.

    That is: the disk or the store answers that something is not there, or what it gave is not what its format says.
    """
    try:
        return storage.retried(read, folder)
    except Exception as error:  # noqa: BLE001  each layer of storage raises its own
        text = " ".join(str(error).split())
        word = re.match(r"([A-Z_]{5,}): ", text)  # TensorStore's
        if word and word[1] not in FAULTY or text.startswith("Bad Request") or not isinstance(error, DAMAGE):
            raise
        raise Damaged(f"{type(error).__name__}: {text[:200]}") from None


def make_record(config, fingerprint: str) -> dict:
    """What a checkpoint says of its run, in JSON types."""
    from jmoe import __version__

    return {
        "config": record_of(config),
        "corpus_fingerprint": fingerprint,
        "jmoe": __version__,
        "jax": jax.__version__,
        "orbax": ocp.__version__,
    }


def check_record(written: dict, present: dict, where: str) -> None:
    """Raises UserError naming each field in which two records describe different mathematics."""
    old, new = _flat(written["config"]), _flat(present["config"])
    names = sorted(
        name for name in old.keys() | new.keys() if old.get(name) != new.get(name) and not name.startswith(FREE_FIELDS)
    )
    differences = [f"config.{name} was {old.get(name)}, is {new.get(name)}" for name in names]
    if written["corpus_fingerprint"] != present["corpus_fingerprint"]:
        differences.append(f"the corpus was {written['corpus_fingerprint']}, is {present['corpus_fingerprint']}")
    if differences:
        raise UserError(
            f"{where} belongs to another run: {'; '.join(differences)}. Take another --workdir or the "
            "values it began with"
        )


def _newer_versions(written: dict, present: dict) -> str:
    """A warning where the packages are not those that wrote the checkpoint, else nothing."""
    changed = [f"{name} {written[name]}, now {present[name]}" for name in VERSIONS if written[name] != present[name]]
    return f"; WARNING: it was written by {'; '.join(changed)}: the last bits may differ from there" if changed else ""


def _flat(tree: dict, prefix: str = "") -> dict:
    flat = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _say(text: str, everywhere: bool = False) -> None:
    if everywhere or jax.process_index() == 0:
        tqdm.write(text, file=sys.stderr)
