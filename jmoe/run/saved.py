"""The checkpoints of a workdir as evaluate, export and generate read them: which one, its config, its parameters; and
how many CPU threads a run goes on with."""

import contextlib
import json
import os
import sys

import jax
from etils import epath

from jmoe.config.field import default
from jmoe.config.fields import FIELDS, neutral
from jmoe.errors import Damaged, UserError
from jmoe.model import sharding
from jmoe.run import checkpoint
from jmoe.run.record import cpu_threads
from jmoe.run.step import abstract_state
from jmoe.storage.files import read_bytes
from jmoe.text import tokenizer


def keep_threads(workdir: epath.Path) -> None:
    """Has XLA compute with as many CPU threads as the run in `workdir` did so far, unless PJRT_NPROC is set. To be
    called before jax makes its devices."""
    folder = workdir / "trunk" / "checkpoints"
    for step in () if "PJRT_NPROC" in os.environ else reversed(checkpoint.steps_in(folder)):
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):  # damaged: restore() names it
            n = json.loads(read_bytes(folder / str(step) / "record" / "metadata")).get("cpu_threads")
            if n and n != cpu_threads():
                os.environ["PJRT_NPROC"] = str(int(n))
                print(f"{workdir}: goes on with {n} CPU threads, as before, for the same bits", file=sys.stderr)
            return


def find(workdir: epath.Path, segment: str | None, step: int | None) -> epath.Path:
    """The folder of the checkpoint of that segment and step, by default the newest of the last branch. Where there is
    none, UserError names the checkpoints that exist."""
    folders = workdir.iterdir() if workdir.exists() else ()
    steps = {folder.name: listed for folder in folders if (listed := checkpoint.steps_in(folder / "checkpoints"))}
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
        record = checkpoint.read_record(folder)
        config = neutral(default(FIELDS))  # for fields that the record leaves out
        config.update({name: value for name, value in record["config"].items() if name != "mesh"})
        config.data.fingerprint = record["corpus_fingerprint"]
        change(config)
        mesh = sharding.make_mesh(config, devices)
        with jax.set_mesh(mesh):
            params, _ = abstract_state(config, mesh)
            return record, config, mesh, checkpoint.read_arrays(folder, record, params=params)["params"]
    except Damaged as error:
        before = [step for step in checkpoint.steps_in(folder.parent) if step < int(folder.name)]
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
