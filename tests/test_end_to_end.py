"""The loop closed: what fit plans, jmoe trains, and what launch writes, fit reads. Only files pass between them."""

import json
import subprocess
import sys

import jax
import pytest

from configs import quickstart
from fit import __main__ as command_line
from jmoe import cli
from jmoe.config import counts, schema
from jmoe.config.check import check_config
from jmoe.config.schedule import Schedule
from jmoe.model import sharding


def test_a_plan_becomes_a_config_that_the_trainer_takes(tmp_path, capsys):
    """Of the sizes and the rate that it says. Of other plans fit/planning/test_startable.py shows that they start."""
    path = tmp_path / "planned.py"
    flags = ["--law=joint-moe-2025", "--flops=1e22", "--memory_gb=24", "--kv_tokens=16384"]
    assert command_line.run(["plan", *flags, "--json", f"--emit_config={path}"]) == 0
    built = json.loads(capsys.readouterr().out)["buildable"]
    config = cli.load_module(str(path), "planned").get_config().lock()
    check_config(schema.complete(config))
    schedule = Schedule(config)
    sharding.make_mesh(config, jax.devices()[:1])
    assert counts.n_active(config.model) == built["n_active"]
    assert counts.n_total(config.model) == built["n_total"]
    assert counts.n_exact(config.model) == built["exact_parameters"]
    assert schedule.peak == pytest.approx(built["learning_rate"], rel=1e-6)
    assert 0 <= schedule.tokens_at(schedule.segments[-1].stop) - built["n_tokens"] < config.batch_tokens[-1][1]
    assert config.n_tokens == (built["n_tokens"],)


def test_fit_imports_nothing_of_the_rest():
    commands = [f"fit.commands.{name}" for name in ("imports", "laws", "pictures", "plans", "studies", "tasks")]
    names = f"import sys, fit.__main__, {', '.join(commands)}; "
    done = subprocess.run(
        [sys.executable, "-c", names + "print(*sorted({name.split('.')[0] for name in sys.modules}))"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert not {"jmoe", "launch", "configs", "flax", "orbax", "grain"} & set(done.stdout.split())


def test_quickstart_is_the_papers_recipe_but_for_its_size():
    """What the two configs differ in is what quickstart.py says, and no more."""
    from configs import joint_moe

    paper = schema.flat(joint_moe.get_config())
    quick = schema.flat(quickstart.get_config())
    assert paper.keys() == quick.keys()
    differences = {name for name in paper if paper[name] != quick[name]}
    assert "model.capacity_factor" not in differences and "optimizer.decay_fraction" not in differences
    assert {name for name in differences if name.startswith(("loss.", "optimizer."))} == {
        "optimizer.lr_law.constant",
        "optimizer.warmup_tokens",
    }
