"""Operating a sweep on a real Slurm: a capped array, one job cancelled, accepted and retried, ranks, the end told."""

import json
import subprocess
import sys

import helpers
import pytest
import slurm
import sweeps

from jmoe.errors import Unavailable
from launch import jobs, slurm_task
from tests.launch.test_slurm import queue, wait

pytestmark = pytest.mark.skipif(bool(slurm.missing()), reason=slurm.missing())


@pytest.fixture(autouse=True)
def as_its_user(cluster, monkeypatch):
    """Commands of this process and of those that it starts go to that Slurm."""
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)


def test_one_job_of_a_capped_array(cluster, tmp_path, text_glob):
    """Two tasks a job, one job at a time; the long one is cancelled, and the other ends the sweep."""
    config = helpers.write_config(tmp_path, text_glob)
    slow_file = helpers.slow_steps(config)
    varied = [{"n_tokens": (163_840,)}, {"n_tokens": (8_192,)}, {"n_tokens": (4_096,)}]
    sweep = sweeps.write_sweep(tmp_path, config, varied)
    workdir = tmp_path / "capped"
    told = tmp_path / "told"
    (tmp_path / "tell.py").write_text("import os, sys; open(sys.argv[1], 'w').write(os.environ['JMOE_RUNS_MISSING'])")
    here = f"--workdir={workdir}"
    start = ["launch.sweep", f"--sweep={sweep}", here, "--backend=slurm", "--workers=1", "--sbatch=--ntasks=2"]
    both = helpers.run(*start, "--sbatch=--dependency=singleton")
    assert both.returncode == 2 and "exclude each other" in both.stderr
    started = helpers.succeeds(*start, f"--on_done={sys.executable} {tmp_path / 'tell.py'} {told}")
    array = started.stdout.split(" as array ")[1].split(";")[0]
    assert "ArrayTaskThrottle=1" in cluster.call("scontrol", "show", "job", array).stdout
    slow, short, never = json.loads((workdir / "sweep.json").read_text())["jobs"]

    def one(command, job, *flags):
        return helpers.run(f"launch.{command}", here, f"--job={job}", *flags)

    assert f"task {array}_2 was cancelled" in one("cancel", never).stdout  # before its turn
    wait(lambda: sweeps.steps(workdir) > 3, "no step was trained")
    follow = helpers.start("launch.logs", here, f"--job={slow}", "--follow", stderr=subprocess.DEVNULL)[0]
    cancelled = one("cancel", slow)
    slow_file.unlink()
    assert f"cancelled job {slow}: task {array}_0 was cancelled" in cancelled.stdout, cancelled
    wait(lambda: told.exists(), "the end was not told")
    assert told.read_text() == "2" and follow.wait(300) == 0
    status = json.loads(helpers.run("launch.status", here, "--json").stdout)
    assert [job["state"] for job in status["jobs"]] == ["cancelled", "done", "cancelled"]
    log = (workdir / "jobs" / short / "log.txt").read_text()
    check_ranks(log, [one("logs", short, f"--rank={rank}").stdout for rank in range(3)])
    for job in (slow, never):
        assert "is given up: cancelled" in one("accept", job).stdout
    assert "2 runs are left out" in helpers.run("launch.collect", here).stdout
    assert "all runs are done" in helpers.run(*start).stdout
    assert "submitted 1 jobs" in one("retry", slow).stdout
    added = helpers.run(*start[:4], "--workers=1", "--sbatch=--ntasks=2")
    assert "1 jobs are queued or running" in added.stdout, added
    assert helpers.run("launch.cancel", here).returncode == 0
    wait(lambda: not queue(cluster), "the queue does not empty")


def test_tasks_run_what_was_submitted_and_not_what_sweep_json_says_later(cluster, tmp_path, text_glob):
    """Whoever writes into the workdir meanwhile names a config file and commands of theirs."""
    config = str(helpers.write_config(tmp_path, text_glob))
    sweep = sweeps.write_sweep(tmp_path, config, [{"n_tokens": (4_096,)}])
    workdir = tmp_path / "shared"
    told = tmp_path / "told"
    theirs = tmp_path / "was-run"
    start = ["launch.sweep", f"--sweep={sweep}", f"--workdir={workdir}", "--backend=slurm", "--sbatch=--hold"]
    assert helpers.run(*start, f"--on_done=touch '{told}'").returncode == 0
    (tmp_path / "theirs.py").write_text(f"import pathlib\npathlib.Path({str(theirs)!r}).touch()\n")
    fields = json.loads((workdir / "sweep.json").read_text())
    (job,) = fields["jobs"].values()
    job["config_file"] = str(tmp_path / "theirs.py")
    fields["options"] |= {"on_done": ["touch", str(theirs)], "on_failure": ["touch", str(theirs)]}
    (workdir / "sweep.json").write_text(json.dumps(fields))
    cluster.call("scontrol", "release", f"name=jmoe-{jobs.short_hash(str(workdir))}")
    wait(lambda: told.exists(), "the end was not told")
    assert "1 runs" in helpers.run("launch.collect", f"--workdir={workdir}").stdout and not theirs.exists()


def test_a_watch_waits_while_the_controller_is_away(cluster, tmp_path, text_glob):
    sweep = sweeps.write_sweep(tmp_path, str(helpers.write_config(tmp_path, text_glob)), [{"n_tokens": (4_096,)}])
    here = f"--workdir={tmp_path / 'watched'}"
    told = tmp_path / "told"
    log = tmp_path / "watch.txt"
    assert helpers.run("launch.sweep", f"--sweep={sweep}", here, "--backend=slurm", "--sbatch=--hold").returncode == 0
    with open(log, "w") as output:
        (watch,) = helpers.start("launch.status", here, "--watch=1", f"--on_done=touch '{told}'", stderr=output)
        with cluster.without_controller():
            wait(lambda: "looking again in 1 s\n" in log.read_text() or watch.poll() is not None, "it does not wait")
            assert watch.poll() is None and not told.exists(), log.read_text()
        assert helpers.run("launch.cancel", here).returncode == 0
        assert watch.wait(300) == 0 and told.exists(), log.read_text()


def test_a_controller_that_hangs_is_away(cluster, monkeypatch):
    monkeypatch.setattr(slurm_task, "SECONDS_TO_ANSWER", 2.0)
    assert "main" in slurm_task.call("sinfo", "-h", "-o", "%P")
    with cluster.halted(), pytest.raises(Unavailable, match="squeue: .* the same command continues"):
        slurm_task.call("squeue", "-h")
    assert "main" in slurm_task.call("sinfo", "-h", "-o", "%P")


def check_ranks(log: str, ranks: list[str]) -> None:
    """Each rank's log holds the lines of `log` that are labelled with it."""
    labelled = [line.split(": ", 1)[0] for line in log.splitlines() if line[:3] in ("0: ", "1: ")]
    assert "0" in labelled and ranks[0] and not ranks[2]
    assert [len(text.splitlines()) for text in ranks[:2]] == [labelled.count("0"), labelled.count("1")]
    assert ranks[0].splitlines()[0] == next(line[3:] for line in log.splitlines() if line.startswith("0: "))


def test_arrays_of_one_sweep_wait_for_each_other_where_jobs_are_capped(cluster, tmp_path, text_glob):
    """Slurm caps one array; a sweep of several, or one that grew, has as many."""
    config = str(helpers.write_config(tmp_path, text_glob))
    here = f"--workdir={tmp_path / 'grown'}"
    sweep = sweeps.write_sweep(tmp_path, config, {"seed": (0,)})
    start = ["launch.sweep", f"--sweep={sweep}", here, "--backend=slurm", "--workers=2", "--sbatch=--hold"]
    assert helpers.run(*start).returncode == 0
    sweeps.write_sweep(tmp_path, config, {"seed": (0, 1)})
    assert "submitted 1 jobs" in helpers.run(*start).stdout
    arrays = [line.split("|") for line in cluster.call("squeue", "-h", "-o", "%F|%j|%E").stdout.splitlines()]
    arrays = sorted((array, waits) for array, name, waits in arrays if not name.endswith("-collect"))
    assert len(arrays) == 2 and arrays[0][1] == "(null)" and f"afterany:{arrays[0][0]}" in arrays[1][1], arrays
    assert helpers.run("launch.cancel", here).returncode == 0
    wait(lambda: not queue(cluster), "the queue does not empty")
