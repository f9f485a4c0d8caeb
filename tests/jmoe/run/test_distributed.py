"""Several processes of one run wait for each other, however much longer one of them takes."""

import os
import sys

import helpers

from jmoe.storage import ownership

LATE = 40  # seconds: ten more than a collective of CPUs waits
LOCKED = """
import sys
from etils import epath
from jmoe.run import distributed
with distributed.joined(), distributed.owned(epath.Path(sys.argv[1])):
    pass
"""
COMPILES = """
import sys, time
import jax, numpy as np
from jax.experimental import multihost_utils
from jmoe.run import distributed

def slow(x):
    time.sleep(float(sys.argv[1]) * jax.process_index())  # while it is traced
    return x.sum()

with distributed.joined():
    everywhere = jax.NamedSharding(jax.make_mesh((jax.device_count(),), ("data",)), jax.P("data"))
    run = distributed.compiled_together(jax.jit(slow))
    for n_rows in (2, 2):
        x = multihost_utils.host_local_array_to_global_array(np.ones(n_rows), everywhere.mesh, everywhere.spec)
        assert run(x) == 2 * n_rows
"""


def start(monkeypatch, code, *arguments):
    monkeypatch.setattr(helpers, "command", lambda module, *flags: [sys.executable, "-c", code, *flags])
    return helpers.start("", *arguments, n_processes=2)


def ended_well(processes) -> None:
    said = [process.communicate(timeout=300)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said


def test_all_wait_while_the_first_waits_for_another_trainer(tmp_path, monkeypatch):
    monkeypatch.setenv("JMOE_OWNER_PATIENCE", "300")
    with ownership.hold(tmp_path / "train.lock", "jmoe.train"):
        processes = start(monkeypatch, LOCKED, os.fspath(tmp_path))
        helpers.wait_until(lambda: False, processes, LATE + 5.0)
    ended_well(processes)


def test_all_wait_until_each_has_compiled(monkeypatch):
    ended_well(start(monkeypatch, COMPILES, str(LATE)))
