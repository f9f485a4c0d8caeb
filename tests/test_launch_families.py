"""Many jobs: their configs by families are those that resolving each alone gives, and work grows by little a job."""

import json
import os
import subprocess
import sys

import helpers
import pytest
from etils import epath

from benchmarks import many_jobs
from configs import quickstart
from jmoe import cli
from jmoe.config import counts
from jmoe.config.fields import record_of
from jmoe.errors import UserError
from jmoe.run.schedule import Schedule
from launch import jobs as jobs_lib
from launch import sweepfile

CONFIG = """
from configs import quickstart

def get_config():
    with open({calls!r}, "a") as calls:
        calls.write("x")
    config = quickstart.get_config()
    config.n_tokens = (1_048_576, 2_097_152)
    config.optimizer.lr_law.n_active = 0.0
    config.optimizer.decay_fraction = config.optimizer.lr_law.get_oneway_ref("constant") / 40
    return config
"""
VARIED = [
    {},
    {"seed": 3},
    {"seed": 3, "model.n_experts": 4},
    {"optimizer.lr_law.constant": -8, "seed": 1},  # a whole number where a float stands, and another field follows
    {"optimizer.lr_law.constant": 9.5},
    {"optimizer.lr_law.n_experts": 0, "seed": 2},
    {"n_tokens": [1_048_576], "optimizer.warmup_tokens": 4_096},
    {"n_tokens": (1_048_576,), "model.d_model": 16, "seed": 0},
    {"model.d_model": 32, "loss.router_z": 1},
]


def test_each_config_is_the_one_that_resolving_it_alone_gives(tmp_path):
    calls, config = tmp_path / "calls", tmp_path / "config.py"
    config.write_text(CONFIG.format(calls=str(calls)).replace('get_oneway_ref("constant") / 40', "constant * 0 + 0.2"))
    plain = check(config, tmp_path, [varied for varied in VARIED if varied.get("optimizer.lr_law.constant") != -8])
    config.write_text(CONFIG.format(calls=str(calls)))
    computed = check(
        config, tmp_path, [{"optimizer.lr_law.constant": 10, "seed": 5}, {"optimizer.lr_law.constant": 8.0}]
    )
    assert [job.segments["branch-1048576"][0] / 1_048_576 for job in computed] == pytest.approx([0.75, 0.8], abs=0.01)
    assert len({job.name for job in plain}) == len(plain)


def check(config, folder, varied) -> list:
    path = folder / "sweep.py"
    path.write_text(f"def get_sweep():\n    return {str(config)!r}, {varied!r}\n")
    jobs, configs = jobs_lib.load(str(path), epath.Path(folder))
    base = cli.load_module(str(config), "config")
    for overrides, job in zip(varied, jobs):
        alone = jobs_lib.resolve(base, overrides)
        assert job.name.endswith(jobs_lib.digest(record_of(alone)))
        assert json.loads(json.dumps(configs[job.name])) == json.loads(alone.to_json())
        assert configs[job.name].optimizer.lr_law.constant == alone.optimizer.lr_law.constant
        assert (job.n_active, job.n_total) == (counts.n_active(alone.model), counts.n_total(alone.model))
        schedule = Schedule(alone)
        last = schedule.segments[-1]
        assert job.segments[last.name] == [schedule.tokens_at(last.start), schedule.tokens_at(last.stop)]
    return jobs


@pytest.mark.parametrize(
    "overrides, words",
    [
        ({"seed": -1}, "config.seed=-1"),
        ({"n_tokens": (5, 4)}, "ascending"),
        ({"optimizer.lr_law.constant": 1_000.0}, "beyond any float32"),
        ({"optimizer.warmup_tokens": 10**12}, "longer than the constant part"),
        ({"seed": "one"}, "seed"),
    ],
)
def test_an_own_field_that_no_run_can_have_is_refused(tmp_path, overrides, words):
    """Also beside a job of the same family that can be trained."""
    path = tmp_path / "sweep.py"
    path.write_text(f"def get_sweep():\n    return 'configs/quickstart.py', {[{}, overrides]!r}\n")
    with pytest.raises(UserError) as refused:
        jobs_lib.load(str(path), epath.Path(tmp_path))
    assert words in str(refused.value)


def test_a_config_is_made_once_for_a_family(tmp_path):
    """1,200 jobs of four models: what takes long, get_config and the counting of parameters, happens four times."""
    calls, config = tmp_path / "calls", tmp_path / "config.py"
    text = CONFIG.format(calls=str(calls)).replace('get_oneway_ref("constant") / 40', "constant * 0 + 0.2")
    config.write_text(text)
    grid = {"model.n_experts": (1, 2, 4, 8), "optimizer.lr_law.constant": (-5.0, -6.0, -7.0), "seed": tuple(range(100))}
    (tmp_path / "sweep.py").write_text(f"def get_sweep():\n    return {str(config)!r}, {grid!r}\n")
    jobs, _ = jobs_lib.load(str(tmp_path / "sweep.py"), epath.Path(tmp_path))
    assert len({job.name for job in jobs}) == 1_200
    assert len(calls.read_text()) == 4


COUNT = """
import runpy, sys
opened = []
sys.addaudithook(lambda event, args: opened.append(args[0]) if event in ("open", "os.listdir", "os.scandir") else None)
sys.argv = sys.argv[1:]
try:
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
finally:
    print("looked", sum({folder!r} in str(path) for path in opened), file=sys.stderr)
"""


@pytest.mark.parametrize(
    "command, most", [(["launch.status"], 7), (["launch.collect"], 4), (["launch.sweep", "--dry_run", "--sweep={}"], 0)]
)
def test_files_looked_at_grow_by_few_a_job(tmp_path, command, most):
    """Of jobs two thirds of which have some. No file is looked at once for every job of the sweep."""
    looked = []
    for n_jobs in (200, 400):
        folder = tmp_path / str(n_jobs)
        folder.mkdir(exist_ok=True)
        sweep = many_jobs.write_sweep(folder, n_jobs)
        flags = [flag.format(sweep) for flag in command]
        count = [sys.executable, "-c", COUNT.format(folder=str(folder)), *flags, f"--workdir={folder}"]
        done = subprocess.run(count, capture_output=True, text=True, env=helpers.environment())
        assert done.returncode == 0, done.stderr
        looked.append(int(done.stderr.split("looked ")[-1]))
    assert looked[1] - looked[0] <= 200 * most, looked


def test_the_benchmarks_workdir_is_one_that_collect_takes(tmp_path):
    many_jobs.write_sweep(tmp_path, 200)
    done = helpers.run("launch.collect", f"--workdir={tmp_path}")
    assert "133 of 200 runs are missing" in done.stdout, done
    assert len((tmp_path / "runs.csv").read_text().splitlines()) == 68
    assert sweepfile.read(epath.Path(tmp_path)).jobs[0].d_model == 16
    assert quickstart.get_config().n_tokens and os.path.exists(tmp_path / "sweep.py")
