"""What a sweep file may say, what --config flags add to it, and sentences for what neither can."""

import json

import helpers
import pytest
import sweeps
from etils import epath

from jmoe.errors import UserError
from launch import jobs as jobs_lib
from launch import sweepfile, varied
from launch.backend import Sweep

JOBS = [{"n_tokens": (65_536,)}, {"n_tokens": (131_072,), "model.n_experts": 2}]


def load(folder, returned: str, *flags, head: str = ""):
    (folder / "sweep.py").write_text(f"{head}\ndef get_sweep():\n    {returned}\n")
    return jobs_lib.load(str(folder / "sweep.py"), epath.Path(folder) / "run", list(flags))[0]


@pytest.mark.parametrize(
    "returned, words",
    [
        ('return {"seed": 3}', "get_sweep\\(\\) must return .*, not {'seed': 3}"),
        ("return 'nowhere.py', [{}]", "nowhere.py"),
        ("return 'configs/quickstart.py', []", "no job"),
        ("return 'configs/quickstart.py', [{'n_tokens': (5, 4)}]", "n_tokens.* ascending"),
        ("return 'configs/quickstart.py', [3]", "get_sweep\\(\\) must return"),
        ("return 'configs/quickstart.py', {'seed': 3}", "in a grid, 'seed' must have a list of values, not 3"),
        ("return 'configs/quickstart.py', [{'seed': -1}]", "job {'seed': -1}: config.seed=-1 must be"),
        ("return 'configs/quickstart.py', [{'n_heads': 4}]", "config.n_heads is no field .* config.model.n_heads"),
        ("raise ValueError('no text')", "get_sweep\\(\\) fails: ValueError: no text"),
        ("import sys; sys.exit(7)", "get_sweep\\(\\) fails: SystemExit: 7"),
        ("return 3\nimport sys; sys.exit(7)", "fails: SystemExit: 7"),  # when it is read
        (f"return '{'a' * 300}.py', [{{}}]", "is no Python file"),
    ],
)
def test_a_sweep_file_that_makes_no_jobs_is_refused_in_a_sentence(tmp_path, returned, words):
    with pytest.raises(UserError, match=f"sweep.py.*{words}"):
        load(tmp_path, returned)


def test_numbers_of_numpy_are_numbers(tmp_path):
    """In names, in sweep.json and on the trainer's command line."""
    plain = load(tmp_path, "return 'configs/quickstart.py', {'seed': (0, 1), 'optimizer.lr_law.constant': (-5.0,)}")
    grid = "{'seed': np.arange(2), 'optimizer.lr_law.constant': np.array([-5.0])}"
    jobs = load(tmp_path, f"return 'configs/quickstart.py', {grid}", head="import numpy as np")
    assert [job.command() for job in jobs] == [job.command() for job in plain]
    assert json.dumps([job.fields() for job in jobs])


def test_flags_of_the_config_count_as_if_the_sweep_file_said_them(tmp_path):
    """In names, in what each job is pinned to, and in what a trainer is given; --dry_run takes them from anywhere."""
    flags = ["--config.data.path=books/*.txt", "--config.seed", "3", "--config.batch_tokens=((0,1024),)"]
    more = {"data.path": "books/*.txt", "seed": 3, "batch_tokens": ((0, 1_024),)}
    output = load(tmp_path, f"return 'configs/quickstart.py', {[more | job for job in JOBS]!r}")
    path = sweeps.write_sweep(tmp_path, "configs/quickstart.py", JOBS)
    jobs, configs = jobs_lib.load(path, epath.Path(tmp_path / "run"), flags)
    assert [job.fields() for job in jobs] == [job.fields() for job in output]
    assert [job.command() for job in jobs] == [job.command() for job in output]
    assert all(configs[job.name].data.path == "books/*.txt" for job in jobs)

    workdir = epath.Path(tmp_path / "run")
    workdir.mkdir()
    Sweep(workdir, path, "local", 1, [], {}, jobs).write()
    read = sweepfile.read(workdir).jobs
    assert [jobs_lib.config_of(job).batch_tokens for job in read] == [((0, 1_024),)] * 2
    start = [f"--sweep={path}", flags[0], f"--workdir={workdir}", *flags[1:], "--dry_run"]
    assert "config.data.path='books/*.txt'" in helpers.fails("launch.sweep", *start)
    printed = helpers.succeeds("launch.sweep", *start, "--text_elsewhere")
    assert all(job.name in printed.stdout for job in jobs), printed


@pytest.mark.parametrize(
    "flag, words",
    [
        ("--config.n_tokens=(1,)", r"--config.n_tokens: the sweep file sets it too \(n_tokens=\(65536,\)\)"),
        ("--config.model.n_experts=4", "--config.model.n_experts: the sweep file sets it too"),
        ("--config.model.n_exprts=4", "--config.model.n_exprts is no field .* did you mean --config.model.n_experts"),
        ("--config.seed=x", "no such field or value: .*--config.seed=x"),
        ("--config.seed=-1", "config.seed=-1 must be"),
        ("--config.seed", "Missing value for flag --config.seed"),
        ("--config.seed=None", "config.seed=None must be"),
    ],
)
def test_flags_that_the_sweep_cannot_take_are_refused(tmp_path, flag, words):
    with pytest.raises(UserError, match=words):
        load(tmp_path, f"return 'configs/quickstart.py', {JOBS!r}", flag)


def test_flags_of_the_config_are_told_from_the_others():
    others = ["--sweep=a.py", "--mfu", "0.5", "--configure=x"]
    own = ["--config.seed", "3", "-config.data.path=a b", "--noconfig.x"]
    assert varied.split([*others[:1], *own, *others[1:]]) == (others, own)
    assert varied.split(["--config.seed=3", "stray"]) == (["stray"], ["--config.seed=3"])
