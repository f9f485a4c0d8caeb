"""Operating a local sweep, with real processes: a job cancelled, retried or accepted; logs followed; the end told."""

import json
import re
import subprocess
import sys

import helpers
import pytest
import sweeps
from etils import epath

from jmoe.errors import UserError
from launch import local, output, sweepfile
from launch.backend import Sweep
from launch.jobs import Job
from tests.launch.test_local import children, wait_for_steps

TELL = """
import json, os, sys
names = "JMOE_WORKDIR", "JMOE_RUNS_MISSING", "JMOE_JOB", "JMOE_CAUSE"
with open(sys.argv[1], "a") as file:
    file.write(json.dumps([sys.argv[2:], *(os.environ[name] for name in names if name in os.environ)]) + "\\n")
"""


@pytest.fixture
def sweep(tmp_path, text_glob):
    """Largest first: one that diverges at once, a long one, a short one, and one that is cancelled before its turn."""
    config = helpers.write_config(tmp_path, text_glob, checkpoint_every=5)
    helpers.slow_steps(config)
    jobs = [
        {"n_tokens": (65_536,), "optimizer.lr_law.constant": 70.0},
        {"n_tokens": (16_384,)},
        {"n_tokens": (8_192,)},
        {"n_tokens": (4_096,)},
    ]
    (tmp_path / "tell.py").write_text(TELL)
    return sweeps.write_sweep(tmp_path, config, jobs)


def one(workdir, command, job, *flags):
    return helpers.run(f"launch.{command}", f"--workdir={workdir}", f"--job={job}", *flags)


def status(workdir) -> dict:
    return json.loads(helpers.run("launch.status", f"--workdir={workdir}", "--json").stdout)


def states(workdir) -> list[str]:
    return [job["state"] for job in status(workdir)["jobs"]]


def test_single_jobs_are_controlled_while_the_sweep_works_and_after(sweep, tmp_path):
    workdir = tmp_path / "run"
    told = tmp_path / "told.jsonl"
    on_done = f"--on_done={sys.executable} {tmp_path / 'tell.py'} {told} 'two words' $(touch pwned)"
    on_failure = f"--on_failure={sys.executable} {tmp_path / 'tell.py'} {tmp_path / 'failed.jsonl'}"
    start = ["launch.sweep", f"--sweep={sweep}", f"--workdir={workdir}", "--workers=1", "--retries=0"]
    start += [on_done, on_failure]
    bad, slow, short, never = controlled_while_it_works(start, workdir, tmp_path / "said.txt")
    failures = [json.loads(line) for line in (tmp_path / "failed.jsonl").read_text().splitlines()]
    assert [failure[:3] for failure in failures] == [[[], str(workdir), bad]] * 2  # it was tried again meanwhile
    assert all("non-finite loss" in cause for *_, cause in failures)
    assert "neither running nor queued" in one(workdir, "cancel", slow).stderr

    assert "is given up: non-finite loss" in one(workdir, "accept", bad).stdout
    went_on = one(workdir, "retry", slow)
    assert went_on.returncode == 0, went_on.stderr
    assert "resum" in one(workdir, "logs", slow, "--attempt=2").stdout
    assert states(workdir) == ["accepted", "done", "done", "accepted"]
    done = helpers.run(*start)
    said = "2 of 4 runs were done before, and the failure of 2 jobs was accepted: this sweep is finished"
    assert done.returncode == 0 and said in done.stdout, done
    assert "2 runs are left out" in done.stdout and "non-finite loss" in done.stdout
    ends = [json.loads(line) for line in told.read_text().splitlines()]
    words = ["two words", "$(touch", "pwned)"]
    assert ends == [[words, str(workdir), "3"], [words, str(workdir), "0"]]

    watched = helpers.succeeds("launch.status", f"--workdir={workdir}", "--watch=0.1", "--json", on_done)
    assert len(watched.stdout.splitlines()) == 1  # nothing is at work: it looks once
    assert json.loads(told.read_text().splitlines()[-1]) == ends[-1]


def controlled_while_it_works(start, workdir, said) -> list[str]:
    """Starts the sweep and cancels two of its jobs; returns the names of all once it has ended."""
    workdir.mkdir()
    with open(said, "w") as stderr:
        process = helpers.spawn(*start, stdout=subprocess.DEVNULL, stderr=stderr)
    try:
        helpers.wait_until(lambda: (workdir / "sweep.json").exists(), [process])
        bad, slow, short, never = names = list(json.loads((workdir / "sweep.json").read_text())["jobs"])
        helpers.wait_until(lambda: (workdir / "jobs" / slow / "trunk" / "metrics.jsonl").exists(), [process])
        assert "it was not running" in one(workdir, "cancel", never).stdout
        assert wait_for_steps(process, workdir, 4)
        assert len(children(process.pid)) == 1  # --workers, on a machine of two cores
        follow = helpers.spawn(
            "launch.logs", f"--workdir={workdir}", f"--job={slow}", "--follow", stdout=subprocess.PIPE
        )
        look_at_each(status(workdir), names)
        refused = one(workdir, "accept", short)
        assert refused.returncode == 2 and "has not failed for good: it is waiting" in refused.stderr
        assert "runs the sweep and trains job" in one(workdir, "retry", bad).stderr
        cancelled = one(workdir, "cancel", slow)
        assert "its trainer saved and stopped" in cancelled.stdout, cancelled
        workdir.with_name("tiny.slow").unlink()  # the others, and what is left of this one, may take no longer
        followed, _ = follow.communicate(timeout=300)  # it ends with the job
        process.wait(timeout=240)
    finally:
        process.kill()
    assert process.returncode == 2
    assert followed == (workdir / "jobs" / slow / "log.txt").read_text() and "stopped by signal 15" in followed
    assert states(workdir) == ["failed", "cancelled", "done", "cancelled"]
    read_the_logs(workdir, bad, never)
    return names


def look_at_each(whole: dict, names) -> None:
    """What launch.status says while the second job trains."""
    bad, slow, short, never = ({job["name"]: job for job in whole["jobs"]}[name] for name in names)
    assert [job["state"] for job in (bad, slow, short, never)] == ["failed", "running", "waiting", "cancelled"]
    assert whole["n_chips"] == 1 and whole["hours"] >= bad["hours"] > 0
    assert whole["hours_left"] > slow["hours_left"] > 0  # a short job comes after it
    assert "non-finite loss" in bad["failure"]["cause"] and bad["failure"]["for_good"]
    assert 0 < slow["tokens"] < slow["training_tokens"] and 2 < slow["loss"] < 8


def read_the_logs(workdir, bad, never) -> None:
    """Of one that diverges, which is tried again, and of one that never ran."""
    log = (workdir / "jobs" / bad / "log.txt").read_text()
    assert log.count("error: non-finite loss") == len(re.findall("^==> .* a trainer on ", log, re.MULTILINE)) == 2
    both = [one(workdir, "logs", bad, f"--attempt={n}").stdout for n in (1, -1)]
    assert "".join(both) == log and one(workdir, "logs", bad, "--attempt=2").stdout == both[1]
    assert not (workdir / "jobs" / never / "log.txt").exists()
    assert "is given up: cancelled" in one(workdir, "accept", never).stdout


@pytest.mark.parametrize(
    "command, flags, words",
    [
        ("sweep", ["--on_done=no-such-program x"], "names no program"),
        ("sweep", ["--workers=2", *"--backend=gke --image=i --queue=q --accelerator=A100:1".split()], "caps what runs"),
        ("sweep", ["--on_done=true", *"--backend=gke --image=i --queue=q".split()], "launch.status --watch=60"),
        ("sweep", "--backend=gke --queue=q --accelerator=v5e:4x4".split(), "needs --image"),
        ("sweep", "--backend=gke --image=i --queue=q --accelerator=A100:1 --workdir=x".split(), "--workdir on gs://"),
        ("status", ["--on_done=true"], "--on_done needs --watch"),
        ("status", ["--watch=1", "--on_done='x"], "--on_done='x: No closing quotation"),
        ("task", ["--array=/x"], "has no tasks that a scheduler starts"),
        ("logs", ["--job=d", "--follow", "--attempt=1"], "exclude each other"),
        ("logs", ["--job=d", "--rank=1"], "a local job is one process"),
        ("logs", ["--job=e"], "--job=e names 0 jobs"),
    ],
)
def test_what_cannot_be_meant_is_refused(sweep, tmp_path, command, flags, words):
    workdir = epath.Path(tmp_path / "run")
    if command == "sweep":
        flags = [*flags, f"--sweep={sweep}", "--dry_run"]
    else:
        workdir.mkdir()
        job = Job("d32-e1-0", workdir / "jobs/d32-e1-0", "c.py", {}, 32, 1, 1, 1, {"branch-8": 8}, {})
        Sweep(workdir, "sweep.py", "local", 1, [], {}, [job]).write()
    place = "gs://b/x" if "--backend=gke" in flags else workdir
    assert words in helpers.fails(f"launch.{command}", f"--workdir={place}", *flags)


def test_workers_are_capped(monkeypatch):
    """Two trainers at once share all cores, and one has them for itself."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setattr(local.cli, "cores", lambda: list(range(8)))
    assert [len(worker.cores) for worker in local.workers(2)] == [4, 4]
    assert [len(worker.cores) for worker in local.workers(5, threads=3)] == [4, 4]
    (alone,) = local.workers(5, threads=16)  # begun on a larger machine: as many threads here, on fewer cores
    assert len(alone.cores) == 8 and alone.env == {"PJRT_NPROC": "16"}


def test_a_tail_gives_whole_lines_once_and_names_the_file(tmp_path):
    one = tmp_path / "a"
    other = tmp_path / "b"
    looks = iter([b"1\n2", b"\n3\n", None])

    def over():
        text = next(looks)
        with open(one, "ab") as file:
            file.write(text or b"")
        if text is None:
            other.write_bytes(b"end")
        return text is None

    parts = list(output.tail(lambda: [one, other], over))
    assert parts == [b"1\n", b"2\n3\n", f"==> {other} <==\n".encode(), b"end"]


def test_tries_are_counted_from_either_end():
    for attempt, result in ((1, "a"), (3, "c"), (-1, "c"), (-3, "a")):
        assert output.one_try(["a", "b", "c"], attempt, sweepfile) == result
    job = Job("d1-e1-0", None, "", {}, 1, 1, 1, 1, {}, {})
    for attempt in (0, 4, -4):
        with pytest.raises(UserError, match=f"--attempt={attempt}: job d1-e1-0 has 3 tries, 1 to 3, or -1"):
            output.one_try(["a", "b", "c"], attempt, job)
