"""Many jobs: what makes a job of a sweep file, and work that grows by little a job."""

import subprocess
import sys

import helpers
import pytest
from etils import epath

from benchmarks import many_jobs
from launch import jobs as jobs_lib

CONFIG = """
from configs import quickstart

def get_config():
    config = quickstart.get_config()
    config.n_tokens = (1_048_576, 2_097_152)
    config.optimizer.lr_law.n_active = 0.0
    config.optimizer.decay_fraction = config.optimizer.lr_law.get_oneway_ref("constant") / 40
    return config
"""


def test_a_field_that_the_config_file_computes_follows_an_override(tmp_path):
    config = tmp_path / "config.py"
    path = tmp_path / "sweep.py"
    config.write_text(CONFIG)
    varied = [{"optimizer.lr_law.constant": 10, "seed": 5}, {"optimizer.lr_law.constant": 8.0}]
    path.write_text(f"def get_sweep():\n    return {str(config)!r}, {varied!r}\n")
    jobs, configs = jobs_lib.load(str(path), epath.Path(tmp_path))
    assert [job.segments["branch-1048576"][0] / 1_048_576 for job in jobs] == pytest.approx([0.75, 0.8], abs=0.01)
    assert [configs[job.name].optimizer.lr_law.constant for job in jobs] == [10.0, 8.0]


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
    "command, most",
    [(["launch.status"], 7), (["launch.collect"], 4), (["launch.sweep", "--dry_run", "--mix=code", "--sweep={}"], 4)],
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
