"""Orbax checkpoints of one segment: parameters, optimizer state, and a record of the run that wrote them.

Saves are asynchronous and atomic: a step directory is there whole or not at all.
"""

import json

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import preservation_policy

from jmoe.cli import UserError

# A later start may change these: they say where and how long, not what each step computes.
FREE_FIELDS = (
    "n_tokens",
    "mesh",
    "log_every",
    "checkpoint_every",
    "data.fingerprint",
    "data.path",
    "data.validation_path",
)  # the corpus itself is compared by its fingerprint


class Checkpoints:
    """The checkpoints under `directory`; keeps the newest two and the steps in `keep`, where branches fork."""

    def __init__(self, directory, keep=()):
        policy = preservation_policy.AnyPreservationPolicy(
            [preservation_policy.LatestN(2), preservation_policy.CustomSteps(list(keep))]
        )
        self.directory = directory
        self._manager = ocp.CheckpointManager(
            directory, options=ocp.CheckpointManagerOptions(preservation_policy=policy, cleanup_tmp_directories=True)
        )

    def steps(self) -> list[int]:
        """Steps of the whole checkpoints, ascending."""
        return sorted(self._manager.all_steps())

    def save(self, step: int, params, opt_state, record: dict) -> None:
        """Starts a save of the state before `step`; returns once the arrays are copied."""
        if step in self.steps():
            return
        self._manager.save(
            step,
            args=ocp.args.Composite(
                params=ocp.args.StandardSave(params),
                opt_state=ocp.args.StandardSave(opt_state),
                record=ocp.args.JsonSave(record),
            ),
        )

    def restore(self, step: int, params, opt_state, record: dict):
        """(params, opt_state) at `step`, placed like the abstract trees given.

        Raises:
          UserError: the checkpoint was written under another configuration or corpus; the differences are named.
        """
        written = self._manager.restore(step, args=ocp.args.Composite(record=ocp.args.JsonRestore())).record
        check_record(written, record, f"{self.directory}/{step}")
        state = self._manager.restore(
            step,
            args=ocp.args.Composite(
                params=ocp.args.StandardRestore(params), opt_state=ocp.args.StandardRestore(opt_state)
            ),
        )
        return state.params, state.opt_state

    def wait(self) -> None:
        """Until every save is whole on disk."""
        self._manager.wait_until_finished()

    def close(self) -> None:
        self._manager.close()


def make_record(config, fingerprint: str) -> dict:
    """What a checkpoint says of its run, in JSON types."""
    from jmoe import __version__

    return {
        "config": json.loads(config.to_json()),
        "corpus_fingerprint": fingerprint,
        "jmoe": __version__,
        "jax": jax.__version__,
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


def _flat(tree: dict, prefix: str = "") -> dict:
    flat = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
