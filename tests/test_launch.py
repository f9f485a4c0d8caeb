"""Sweeps on the local pool: real trainers, killed ones too."""

import csv
import os
import random
import re
import signal
import subprocess
import time

import helpers
import pytest

from configs.sweeps import quickstart

SWEEP = """
def get_sweep():
    return {config!r}, [
        {{"model.n_experts": n_experts, "model.d_model": d_model}} for d_model in (16, 32) for n_experts in (1, 4)
    ]
"""


@pytest.fixture(scope="module")
def sweep(tmp_path_factory, text_glob):
    folder = tmp_path_factory.mktemp("sweep")
    path = folder / "sweep.py"
    path.write_text(SWEEP.format(config=str(helpers.write_config(folder, text_glob))))
    return path


def launch(sweep, workdir, *flags):
    return helpers.run("launch.sweep", f"--sweep={sweep}", f"--workdir={workdir}", "--backend=local", *flags)


def rows(workdir):
    """runs.csv without its times."""
    with open(workdir / "runs.csv", newline="") as file:
        return [{name: value for name, value in row.items() if name != "seconds"} for row in csv.DictReader(file)]


@pytest.fixture(scope="module")
def undisturbed(sweep, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("undisturbed")
    done = launch(sweep, workdir)
    assert done.returncode == 0, done.stderr
    return workdir


def test_runs_csv_has_the_laws_columns_first_and_traces_each_run(undisturbed):
    table = rows(undisturbed)
    assert list(table[0])[:5] == ["n_active", "n_total", "n_tokens", "n_experts", "loss"]
    assert len(table) == 8
    assert {(r["d_model"], r["n_experts"], r["n_tokens"]) for r in table} == {
        (d, e, n) for d in ("16", "32") for e in ("1", "4") for n in ("8192", "16384")
    }
    assert len({r["corpus_fingerprint"] for r in table}) == 1
    for row in table:
        assert 2 < float(row["loss"]) < 6
        assert (float(row["drop_rate"]) > 0) == (row["n_experts"] == "4")
        assert (undisturbed / row["run"] / "result.json").exists()
        assert {"seed", "jmoe_version", "jax_version", "config", "overrides"} <= row.keys()


def test_a_second_start_starts_nothing(sweep, undisturbed):
    before = (undisturbed / "runs.csv").read_bytes()
    logs = {path: path.stat().st_size for path in undisturbed.rglob("log.txt")}
    done = launch(sweep, undisturbed)
    assert done.returncode == 0 and "8 of 8 runs were done before" in done.stdout
    assert (undisturbed / "runs.csv").read_bytes() == before
    assert {path: path.stat().st_size for path in undisturbed.rglob("log.txt")} == logs


def test_trainers_and_sweep_killed_at_random_end_with_the_same_table(sweep, undisturbed, tmp_path):
    chance = random.Random(1)
    for _ in range(2):
        process = subprocess.Popen(
            helpers.command("launch.sweep", f"--sweep={sweep}", f"--workdir={tmp_path}", "--backend=local"),
            env=helpers.environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        target = steps(tmp_path) + 15
        while process.poll() is None and steps(tmp_path) < target:
            time.sleep(0.01)
        trainers = children(process.pid)
        for pid in chance.sample(trainers, k=min(1, len(trainers))):
            os.kill(pid, signal.SIGKILL)
        target = steps(tmp_path) + 10
        while process.poll() is None and steps(tmp_path) < target:
            time.sleep(0.01)
        trainers = children(process.pid)
        process.kill()  # the sweep itself; its trainers are orphans now and die with it
        process.wait()
        for pid in trainers:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
    done = launch(sweep, tmp_path)
    assert done.returncode == 0, done.stderr
    assert rows(tmp_path) == rows(undisturbed)


def steps(workdir) -> int:
    return sum(path.read_bytes().count(b"\n") for path in workdir.glob("jobs/*/*/metrics.jsonl"))


def children(pid: int) -> list[int]:
    done = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True)
    return [int(line) for line in done.stdout.split()]


def test_ctrl_c_stops_and_resumes(sweep, undisturbed, tmp_path):
    process = subprocess.Popen(
        helpers.command("launch.sweep", f"--sweep={sweep}", f"--workdir={tmp_path}", "--backend=local"),
        env=helpers.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    while process.poll() is None and steps(tmp_path) < 10:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    said = process.communicate()[1]
    assert process.returncode == 130 and "the same command goes on" in said
    assert "Traceback" not in said
    assert not (tmp_path / "runs.csv").exists()
    assert launch(sweep, tmp_path).returncode == 0
    assert rows(tmp_path) == rows(undisturbed)


def test_a_job_that_fails_for_good_is_named_and_stops_no_other(sweep, tmp_path):
    folder = tmp_path / "sweep"
    folder.mkdir()
    config = re.search(r"return '(.*?)'", sweep.read_text()).group(1)
    (folder / "sweep.py").write_text(f"""
def get_sweep():
    return {config!r}, [{{"optimizer.lr_law.constant": c, "model.d_model": 16}} for c in (0.5, 90.0)]
""")
    done = launch(folder / "sweep.py", tmp_path / "run")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "2 of 4 runs are missing" in done.stderr and "non-finite loss" in done.stderr
    assert len(rows(tmp_path / "run")) == 2


def test_dry_run_describes_and_writes_nothing(tmp_path):
    done = helpers.run(
        "launch.sweep", "--sweep=configs/sweeps/quickstart.py", f"--workdir={tmp_path / 'x'}", "--dry_run"
    )
    assert done.returncode == 0, done.stderr
    _, jobs = quickstart.get_sweep()
    assert f"{sum(len(job['n_tokens']) for job in jobs)} runs in {len(jobs)} jobs" in done.stdout
    assert not (tmp_path / "x").exists()
    # a trunk to 0.8 of the largest budget and a fifth of each, at 6 N_active FLOPs a token
    n_active = lambda d: 2 * d * 257 + d // 16 * 13 * d**2
    alone = sum(6 * n_active(job["model.d_model"]) * sum(job["n_tokens"]) for job in jobs)
    shared = sum(
        6 * n_active(job["model.d_model"]) * (0.8 * max(job["n_tokens"]) + 0.2 * sum(job["n_tokens"])) for job in jobs
    )
    assert f"saves {1 - shared / alone:.0%}" in done.stdout


@pytest.mark.parametrize(
    "text, words",
    [
        ("def get_sweep():\n    return 'nowhere.py', [{}]", ["nowhere.py"]),
        ("x = 1", ["get_sweep"]),
        ("def get_sweep(:", ["SyntaxError"]),
        ("def get_sweep():\n    return 'configs/quickstart.py', []", ["no job"]),
        ("def get_sweep():\n    return 'configs/quickstart.py', [{'model.d_modle': 3}]", ["d_modle"]),
        ("def get_sweep():\n    return 'configs/quickstart.py', [{'n_tokens': (5, 4)}]", ["n_tokens", "ascending"]),
    ],
)
def test_an_unusable_sweep_is_refused(tmp_path, text, words):
    (tmp_path / "sweep.py").write_text(text)
    said = helpers.fails("launch.sweep", f"--sweep={tmp_path / 'sweep.py'}", f"--workdir={tmp_path / 'run'}")
    for word in words:
        assert word in said
    assert not (tmp_path / "run" / "runs.csv").exists()


def test_values_reach_the_trainer_unharmed(tmp_path, sweep):
    """No shell reads them: spaces, quotes and $(...) in a path."""
    config = re.search(r"return '(.*?)'", sweep.read_text()).group(1)
    odd = "no such $(touch pwned) 'file' \"here\" *.txt"
    (tmp_path / "sweep.py").write_text(f"def get_sweep():\n    return {config!r}, [{{'data.path': {odd!r}}}]")
    said = helpers.fails("launch.sweep", f"--sweep={tmp_path / 'sweep.py'}", f"--workdir={tmp_path / 'run'}")
    assert repr(odd) in said
    assert not list(tmp_path.rglob("pwned")) and not os.path.exists("pwned")
