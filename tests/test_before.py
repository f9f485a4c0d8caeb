"""What is computed now is what commit 6fca2bb computed, as tests/data/before/make.py stored it.

To the last bit where processor and jaxlib are those that stored it, 0.10.2, else to 1e-5, a case in bfloat16 to 1e-2:
XLA's bits, and where it rounds to bfloat16, depend on both. So losses of one version are bits, and losses of two
versions agree to rounding. Mixtures are compared to rounding on every machine: gates scaled an expert's result then and
scale its hidden units now.
"""

import importlib.util
import json
import pathlib
import tarfile
import types

import numpy as np
import pytest
from etils import epath

from jmoe import train
from jmoe.config.fields import record_of
from jmoe.model import decoder, sharding
from jmoe.run import step
from launch import jobs

FOLDER = pathlib.Path(__file__).parent / "data/before"
spec = importlib.util.spec_from_file_location("make_before", FOLDER / "make.py")
before = importlib.util.module_from_spec(spec)
spec.loader.exec_module(before)

STORED = json.loads((FOLDER / "before.json").read_text())
SAME_MACHINE = before.machine() == STORED["machine"]
# what one of a step's 512 choices makes of a layer's metrics: rounding to bfloat16 may turn it
OF_A_CHOICE = {"drop_rate": 1 / 512, "max_load": 8 / 64 / 4, "min_load": 8 / 64 / 4}  # experts, of a group, groups
JMOE = types.SimpleNamespace(
    sharding=sharding,
    parameter_shardings=lambda config, mesh: sharding.parameter_shardings(mesh, config.model),
    init_params=decoder.init_params,
    make_optimizer=step.make_optimizer,
    make_train_step=step.make_train_step,
    make_eval_step=step.make_eval_step,
)


def compare(now, stored, path="", rtol=1e-5, exact=SAME_MACHINE):
    """Equal trees; unless exact, floats to rtol and hashes of float arrays not at all."""
    if isinstance(stored, dict):
        assert now.keys() == stored.keys(), path
        for name in stored:
            compare(now[name], stored[name], f"{path}/{name}", rtol, exact)
    elif exact:
        assert now == stored, path
    elif isinstance(stored, list) and isinstance(stored[1], str):
        assert now[0] == stored[0], path
        assert now[2] == pytest.approx(stored[2], rel=10 * rtol, abs=1e-7), path
    else:
        atol = 1e-6 + (OF_A_CHOICE.get(path.rpartition("/")[2], 0) if rtol > 1e-5 else 0)
        np.testing.assert_allclose(now, stored, rtol=rtol, atol=atol, err_msg=path)


def how(record_property, case) -> bool:
    """Whether a case is compared to the last bit; says so in the report."""
    bits = "to the last bit"
    now, stored = before.machine(), STORED["machine"]
    other = "; ".join(f"{name} {now[name]}, stored with {stored[name]}" for name in stored if now[name] != stored[name])
    rough = f"to rounding, not to the last bit: {other}"
    if SAME_MACHINE:
        rough = "to rounding, not to the last bit: gates scale hidden units since"
    exact = SAME_MACHINE and case == "dense"
    record_property("table", bits if exact else rough)
    return exact


@pytest.mark.parametrize("case", before.CASES)
def test_a_model_is_trained_as_before(case, record_property):
    exact = how(record_property, case)
    now, stored = json.loads(json.dumps(before.trained(case, JMOE))), STORED["cases"][case]
    rtol = 1e-2 if "bfloat16" in case else 1e-5
    metrics, stored_metrics = now.pop("metrics"), stored.pop("metrics")
    for i, (one, other) in enumerate(zip(metrics, stored_metrics, strict=True)):
        compare(one, other, f"step {i}", rtol, exact)
    compare(now, stored, rtol=rtol, exact=exact)


def test_records_and_job_names_are_as_before():
    assert before.records(record_of) == STORED["records"]
    assert before.names(jobs.load) == STORED["jobs"]


def test_an_old_workdir_is_resumed(tmp_path, record_property):
    """A checkpoint in the middle of the trunk, past the first branch, leads to the results that it led to then."""
    exact = how(record_property, "an old workdir")
    (tmp_path / "text").mkdir()
    config = before.run_config(tmp_path / "text")
    with tarfile.open(FOLDER / "workdir.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    workdir = epath.Path(tmp_path / "workdir")
    first = (workdir / "branch-4096/result.json").read_text()
    train.train(config, workdir)
    assert (workdir / "branch-4096/result.json").read_text() == first
    steps = [json.loads(line)["step"] for line in (workdir / "trunk/metrics.jsonl").read_text().splitlines()]
    assert steps == [*range(26)] and (workdir / "trunk/checkpoints/26").exists()
    compare(before.results(workdir), STORED["results"], exact=exact)
