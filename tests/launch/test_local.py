"""Sweeps on the local pool: real trainers, killed as is the sweep itself; at length with JMOE_SOAK=1 (`make soak`)."""

import contextlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import time

import helpers
import pytest
import sweeps

from jmoe.errors import UserError
from jmoe.storage import files as storage
from launch.backend import Backend, backend

SOAK = bool(os.environ.get("JMOE_SOAK"))


@pytest.fixture(scope="module")
def sweep(tmp_path_factory, text_glob):
    folder = tmp_path_factory.mktemp("sweep")
    long = {"model.d_model": (16, 32, 48), "model.n_experts": (1, 2, 4, 8)}
    short = {"model.n_experts": (1, 4)}
    config = helpers.write_config(folder, text_glob, checkpoint_every=10)
    return sweeps.write_sweep(folder, config, long if SOAK else short)


@pytest.fixture
def config(sweep) -> str:
    """The config file of the sweep."""
    return str(pathlib.Path(sweep).with_name("tiny.py"))


def launch(sweep, workdir, *flags):
    return helpers.run(
        "launch.sweep", f"--sweep={sweep}", f"--workdir={workdir}", "--retries=1000", *flags, timeout=3600
    )


def rows(workdir):
    """runs.csv without its times."""
    return [{name: value for name, value in row.items() if name != "seconds"} for row in sweeps.rows(workdir)]


@pytest.fixture(scope="module")
def undisturbed(sweep, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("undisturbed")
    done = launch(sweep, workdir)
    assert done.returncode == 0, done.stderr
    return workdir


def test_runs_csv_has_the_laws_columns_first_and_traces_each_run(undisturbed):
    table = rows(undisturbed)
    assert list(table[0])[:5] == ["n_active", "n_total", "n_tokens", "n_experts", "loss"]
    assert len(table) == (24 if SOAK else 4)
    assert len({(r["d_model"], r["seed"], r["n_experts"], r["n_tokens"]) for r in table}) == len(table)
    assert {r["n_tokens"] for r in table} == {"8192", "16384"}
    assert len({r["corpus_fingerprint"] for r in table}) == len({r["code"] for r in table}) == 1
    for row in table:
        assert 2 < float(row["loss"]) < 6
        assert (float(row["drop_rate"]) > 0) == (row["n_experts"] != "1")
        assert (undisturbed / row["run"] / "result.json").exists()
        assert {"seed", "jmoe_version", "jax_version", "config", "overrides"} <= row.keys()


def test_killed_and_stopped_at_random_it_ends_with_the_same_table(sweep, undisturbed, tmp_path):
    """Trainers die by SIGKILL, and so does the sweep; then Ctrl-C, then launch.cancel."""
    chance = random.Random(1)
    n_killed = sum(kill_at_random(sweep, tmp_path, chance) for _ in range(3 if SOAK else 1))
    assert n_killed >= (20 if SOAK else 1)
    stop_by_ctrl_c(sweep, tmp_path)
    stop_by_cancel(sweep, tmp_path)
    done = launch(sweep, tmp_path)
    assert done.returncode == 0, done.stderr
    assert rows(tmp_path) == rows(undisturbed)
    times = re.compile(rb"(?m)^(.*?),([^,]*),(\d+,jobs/)")  # seconds stand before n_heads and the run's folder
    same = [times.sub(rb"\1,,\3", (folder / "runs.csv").read_bytes()) for folder in (tmp_path, undisturbed)]
    assert same[0] == same[1]


def kill_at_random(sweep, tmp_path, chance) -> int:
    """Starts the sweep and kills some of its trainers, then itself; returns how many trainers died."""
    process = begin(sweep, tmp_path)
    n_killed = 0
    for _ in range(8 if SOAK else 1):
        wait_for_steps(process, tmp_path, chance.randrange(1, 12))
        for pid in chance.sample(victims := children(process.pid), k=min(1, len(victims))):
            kill(pid)
            n_killed += 1
    assert wait_for_steps(process, tmp_path, chance.randrange(1, 12)), "the sweep ended before it was killed"
    orphans = children(process.pid)
    process.kill()
    process.wait()
    if chance.random() < 0.5:  # the others save and stop by themselves while the next sweep starts
        for pid in orphans:
            kill(pid)
    folders = at_work(tmp_path)
    assert len(folders) == len(set(folders))
    return n_killed


def stop_by_ctrl_c(sweep, tmp_path) -> None:
    process = begin(sweep, tmp_path)
    if wait_for_steps(process, tmp_path, 5):
        refused = helpers.fails("launch.sweep", f"--sweep={sweep}", f"--workdir={tmp_path}")
        assert "another launch.sweep" in refused and f"process {process.pid} on" in refused
        halt(children(process.pid)[:1])  # it is woken to save
        process.send_signal(signal.SIGINT)
        process.wait()
        output = (tmp_path / "stderr.txt").read_text()
        assert process.returncode == 130 and "the same command continues" in output and "Traceback" not in output
        assert not children(process.pid)
        assert not (tmp_path / "runs.csv").exists()


def stop_by_cancel(sweep, tmp_path) -> None:
    """While the trainers start."""
    process = begin(sweep, tmp_path)
    helpers.wait_until(lambda: at_work(tmp_path), [process])
    status = helpers.run("launch.status", f"--workdir={tmp_path}").stdout
    assert "/2 running" in status and f"process {process.pid} on" in status, status
    assert "asked 1 process" in helpers.run("launch.cancel", f"--workdir={tmp_path}").stdout
    assert process.wait() == 143


def test_what_remains_to_train_does_not_change_how_it_is_trained(sweep, undisturbed, tmp_path):
    """One job, trained again alone: with the threads of the beginning, though all cores are free."""
    shutil.copytree(undisturbed, tmp_path, dirs_exist_ok=True)
    last = next(folder for folder in (tmp_path / "jobs").iterdir() if "-e4-" in folder.name)
    shutil.rmtree(last)
    done = launch(sweep, tmp_path)
    assert done.returncode == 0, done.stderr
    assert rows(tmp_path) == rows(undisturbed)
    threads = json.loads((tmp_path / "sweep.json").read_text())["options"]["threads"]
    records = [json.loads(path.read_text())["record"] for path in tmp_path.glob("jobs/*/*/result.json")]
    assert {record["cpu_threads"] for record in records} == {threads}


def begin(sweep, workdir):
    with open(workdir / "stderr.txt", "w") as output:
        start = "launch.sweep", f"--sweep={sweep}", f"--workdir={workdir}", "--retries=1000"
        return helpers.spawn(*start, stdout=subprocess.DEVNULL, stderr=output)


def wait_for_steps(process, workdir, n: int) -> bool:
    """Until `n` more steps are logged; False if the sweep ended before."""
    target = sweeps.steps(workdir) + n
    while process.poll() is None and sweeps.steps(workdir) < target:
        time.sleep(0.02)
    return process.poll() is None


def children(pid: int) -> list[int]:
    done = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True)
    return [int(line) for line in done.stdout.split()]


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def halt(pids) -> None:
    """A halted process hears no signal but those that wake or kill it."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)


def at_work(workdir) -> list[str]:
    """The folders of the sweep's trainers, one for each process."""
    done = subprocess.run(["pgrep", "-af", f"jmoe.train.*{workdir}"], capture_output=True, text=True)
    return re.findall(r"--workdir=(\S+)", done.stdout)


def test_a_job_that_fails_for_good_is_told_and_stops_no_other(config, tmp_path):
    """One that has no memory is not tried again; test_control.py has one that diverges."""
    large = {"model.d_model": 1_024, "model.n_heads": 512, "data.seq_len": 16_384, "data.validation_tokens": 16_384}
    large |= {"batch_tokens": ((0, 16_384),), "n_tokens": (81_920, 163_840)}  # 0.5 TB of attention scores
    path = sweeps.write_sweep(tmp_path, config, [large, {"model.d_model": 16}])
    workdir = tmp_path / "run"
    done = helpers.run("launch.sweep", f"--sweep={path}", f"--workdir={workdir}")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "2 of 4 runs are missing" in done.stderr
    assert len(rows(workdir)) == 2
    status = helpers.run("launch.status", f"--workdir={workdir}").stdout.splitlines()
    assert [line.split()[2] for line in status[:2]] == ["failed", "done"]
    assert "out of memory" in status[0].lower() and "1 failed try:" in status[0]
    assert "2 of 4 runs done; 2 jobs on local: 1 done, 1 failed" in status[2]
    collected = helpers.succeeds("launch.collect", f"--workdir={workdir}")
    assert collected.stdout.lower().count("out of memory") == 2
    assert len(rows(workdir)) == 2


@pytest.fixture
def copied(sweep, config, undisturbed, tmp_path):
    """(workdir, the flags that start it): the finished sweep in a folder and with a config, edited.py, of its own."""
    workdir = tmp_path / "run"
    shutil.copytree(undisturbed, workdir)
    edited = tmp_path / "edited.py"
    edited.write_text(pathlib.Path(config).read_text())
    (tmp_path / "sweep.py").write_text(pathlib.Path(sweep).read_text().replace(config, str(edited)))
    return workdir, [f"--sweep={tmp_path / 'sweep.py'}", f"--workdir={workdir}"]


def test_two_versions_never_mix_silently(copied, undisturbed, tmp_path):
    """Another config, other code, another corpus: refused by name, taken when named."""
    (workdir, start), edited, n_rows = copied, tmp_path / "edited.py", len(rows(undisturbed))
    original = edited.read_text()
    logs = {path: path.read_bytes() for path in workdir.rglob("log.txt")}
    again = helpers.succeeds("launch.sweep", *start)
    assert f"{n_rows} of {n_rows} runs were done before: this sweep is finished" in again.stdout
    assert logs and {path: path.read_bytes() for path in logs} == logs  # nothing was started
    edited.write_text(original.replace("    return config", "    config.loss.router_z = 0.5\n    return config"))
    output = helpers.fails("launch.sweep", *start)
    assert "--mix=config" in output and "was edited" in output

    path = workdir / "sweep.json"
    begun = json.loads(path.read_text())
    name = list(begun["jobs"])[0]
    edited.write_text(original)
    changed = json.loads(path.read_text())
    changed["jobs"][name]["code"] = ["0ld0c0de-jax0.9"]
    path.write_text(json.dumps(changed))
    output = helpers.fails("launch.sweep", *start)
    assert "--mix=code" in output and "0ld0c0de-jax0.9" in output
    output = helpers.fails("launch.collect", f"--workdir={workdir}")
    assert "--mix=code" in output and "0ld0c0de-jax0.9 in 2 runs" in output and name in output
    assert helpers.run("launch.sweep", *start, "--mix=code").returncode == 0
    assert {row["code"] for row in rows(workdir)} == {"0ld0c0de-jax0.9", begun["jobs"][name]["code"][0]}

    result = next(workdir.glob(f"jobs/{name}/*/result.json"))
    other = json.loads(result.read_text()) | {"corpus_fingerprint": "f" * 16}
    result.write_text(json.dumps(other))
    output = helpers.run("launch.collect", f"--workdir={workdir}").stdout
    assert f"{result.parent.relative_to(workdir)}: result.json is damaged; starting the sweep again" in output
    result.write_text(json.dumps(storage.sealed(other)))
    output = helpers.fails("launch.collect", f"--workdir={workdir}")
    assert "--mix=corpus" in output and "f" * 16 in output
    other["record"]["config"]["loss"]["router_z"] = 0.5
    result.write_text(json.dumps(storage.sealed(other)))
    output = helpers.fails("launch.collect", f"--workdir={workdir}")
    assert "--mix=config" in output and result.parent.name in output


def test_values_reach_the_trainer_unharmed(tmp_path, config, text_glob):
    """Spaces, quotes, newlines and $(...) in a flag, in the sweep's file and in its folder: no shell reads them."""
    odd = helpers.odd_path()
    fingerprint = helpers.fingerprint(text_glob)
    folder = tmp_path / 'it\'s $(touch pwned) a "folder"\nhere'
    job = {"n_tokens": (8_192,), "data.path": odd, "data.fingerprint": fingerprint}
    start = "launch.sweep", f"--sweep={sweeps.write_sweep(folder, config, [job])}", f"--workdir={folder / 'run'}"
    helpers.succeeds(*start, env={"MY_API_TOKEN": "hunter2-never-in-a-log"})
    (result,) = folder.rglob("result.json")
    assert json.loads(result.read_text())["record"]["config"]["data"]["path"] == odd
    assert not list(tmp_path.rglob("pwned")) and not os.path.exists("pwned")
    files = [path for path in (folder / "run").rglob("*") if path.is_file()]
    assert files and all(b"hunter2" not in path.read_bytes() for path in files)


BACKEND = '''
"""Runs the task of the first job, in front of the user's eyes."""

import os
import subprocess
import sys

from absl import flags

from launch import output, trainer

ON_THIS_MACHINE = False
flags.DEFINE_string("greeting", "nothing", "What each task says first.")


def options():
    return {"greeting": flags.FLAGS.greeting}


def check(sweep):
    pass


def devices(sweep, accelerator):
    return 1, None


def submit(sweep):
    first, *_ = sweep.jobs
    flags = [f"--workdir={os.fspath(sweep.workdir)}", f"--job={first.name}", f"--backend={__file__}"]
    command = [sys.executable, "-m", "launch.task", *flags]
    print(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return f"that was one of {len(sweep.jobs)}"


def states(sweep):
    return {}


def reason(sweep, job):
    return "it was not its turn"


def logs(sweep, job):
    return b"its log: " + output.log(job)


def cancel(sweep, patience):
    return "too late"


def run_task(sweep, job):
    print(sweep.options["greeting"], job.name)
    return trainer.start_when_free(job, sweep.stall_minutes).wait()
'''


def test_a_backend_is_one_file(config, tmp_path):
    """Anywhere: with its flags, its part of every command, and what it runs as a job's task."""
    path = sweeps.write_sweep(tmp_path, config, {"n_tokens": ((8_192,), (4_096,))})
    (tmp_path / "mine.py").write_text(BACKEND)
    workdir = tmp_path / "run"
    flags = [f"--sweep={path}", f"--workdir={workdir}", "--greeting=good morning,"]
    begun = helpers.succeeds("launch.sweep", *flags, "--backend", tmp_path / "mine.py")
    assert "that was one of 2" in begun.stdout, begun.stderr
    here = f"--workdir={workdir}", f"--backend={tmp_path / 'mine.py'}"
    one, other = json.loads((workdir / "sweep.json").read_text())["jobs"]
    assert f"good morning, {one}" in begun.stdout
    collected = helpers.run("launch.collect", *here).stdout
    assert f"jobs/{other}/branch-4096: it was not its turn" in collected
    assert [row["run"] for row in rows(workdir)] == [f"jobs/{one}/branch-8192"]
    status = helpers.run("launch.status", *here).stdout
    assert "0/1 failed    it was not its turn" in status and "1 of 2 runs done; 2 jobs on" in status, status
    assert helpers.run("launch.logs", *here, f"--job={one}").stdout.startswith("its log: ")
    assert "too late" in helpers.run("launch.cancel", *here).stdout


@pytest.mark.parametrize(
    "name, words",
    [
        ("jobs", "--backend=jobs: choose local, slurm, gke, or the path of a Python file"),
        (__file__, "is no backend: it does not define devices, submit, states, logs, cancel"),
        ("nowhere.py", "nowhere.py' is no Python file"),
    ],
)
def test_what_is_no_backend_is_refused(name, words):
    with pytest.raises(UserError, match=re.escape(words)):
        backend(name)


def test_a_backends_file_may_hold_a_class(tmp_path):
    path = tmp_path / "mine.py"
    methods = "".join(
        f"    def {name}(self, *_):\n        return {name!r}\n" for name in ("devices", "submit", "states", "logs")
    )
    head = "from launch.backend import Backend\n\nclass Mine(Backend):\n    ON_THIS_MACHINE = True\n"
    path.write_text(head + methods + "    def cancel(self, *_):\n        return 'cancel'\n")
    mine = backend(str(path))
    assert mine.ON_THIS_MACHINE and mine.states(None) == "states" and mine.options() == {} and mine.preview(None) == ""
    assert type(mine).cancel_job is Backend.cancel_job
    with pytest.raises(UserError, match="mine.py cannot cancel one job, only all of them"):
        mine.cancel_job(None, None, 1.0)
    path = tmp_path / "less.py"
    path.write_text(head + methods)
    with pytest.raises(UserError, match="does not define cancel$"):
        backend(str(path))
