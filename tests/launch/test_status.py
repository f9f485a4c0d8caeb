"""launch.status: hours, cost and time left; the sweeps of a folder; failures told while it watches."""

import json
import subprocess
import sys
import time

import helpers
import pytest
import sweeps

from jmoe.storage import ownership
from launch import cancel, hooks, status, sweepfile, trainer

TELL = "import os, sys; open(sys.argv[1], 'a').write(os.environ['JMOE_JOB'] + ' ' + os.environ['JMOE_CAUSE'] + chr(10))"


def begin(folder, **options):
    """A sweep of a finished job, one half trained at 10 tokens/s, and one that has not begun."""
    jobs = [{"n_tokens": (65_536,)}, {"n_tokens": (131_072,)}, {"n_tokens": (262_144,)}]
    sweep = sweeps.begin(sweeps.write_sweep(folder, "configs/quickstart.py", jobs), folder, **options)
    done, half, _ = sweep.jobs
    sweeps.train(done)
    sweeps.train(half, 0.5)
    for job, seconds in ((done, 1_800), (half, 5_400)):
        (job.folder / "time.json").write_text(json.dumps({"seconds": seconds}))
    (half.folder / "trunk" / "speed.jsonl").write_text('{"tokens_per_second": 5}\n{"tokens_per_second": 10}\n')
    return sweep


def test_hours_cost_and_time_left(tmp_path):
    sweep = begin(tmp_path, n_chips=4, dollars_per_hour=3.0)
    seen = status.look(sweep, {sweep.jobs[1].name: "running"})
    half = 131_072 / 2 / 10 / 3_600
    assert [job["hours"] for job in seen["jobs"]] == [0.5, 1.5, None]
    assert [job["hours_left"] for job in seen["jobs"]] == [None, pytest.approx(half), None]
    assert (seen["hours"], seen["dollars"]) == (2.0, 24.0)
    assert seen["hours_left"] == pytest.approx(half + 262_144 / 10 / 3_600)  # models of one size: FLOPs are tokens
    words = status.in_words(seen)
    assert "2.00 hours of trainers so far, $24.00 (4 chips a job, $3 each an hour), 9:06:08 left" in words
    assert "50% trained, loss 3.500; 1:49:13 left" in words
    assert (
        status.look(sweep, {}, dollars_per_hour=1.0)["dollars"] == 8.0 and status.look(sweep, {})["hours_left"] is None
    )

    failed = sweep.jobs[2]
    trainer.give_up(failed, "cancelled", "cancelled")  # nothing trains it: no time is left for it
    assert status.look(sweep, {sweep.jobs[1].name: "running"})["hours_left"] == pytest.approx(half)
    sweep.options["n_chips"] = None
    assert "cost unknown" in status.in_words(status.look(sweep, {}))


def test_the_time_of_all_tries_is_kept(tmp_path):
    sweep = begin(tmp_path)
    done, half, _ = sweep.jobs
    took = 0.0
    for _ in range(2):
        began = time.monotonic()
        process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
        one = trainer.Trainer(half, process, 0, stall_minutes=0, keeps_time=True)
        time.sleep(0.3)
        process.communicate()
        assert one.wait() == one.poll() == 0
        took += time.monotonic() - began
    assert 5_400 + 0.6 <= half.seconds() <= 5_400 + took + 0.2
    assert done.seconds() == 1_800


def test_the_sweeps_of_a_folder(tmp_path):
    """Two levels deep, one of them damaged; a folder without any is refused as before."""
    begin(tmp_path / "one", n_chips=1)
    begin(tmp_path / "group" / "two")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "sweep.json").write_text("{")
    (tmp_path / "empty").mkdir()
    shown = helpers.run("launch.status", f"--workdir={tmp_path}", "--dollars_per_hour=2")
    damaged, two, one = shown.stdout.splitlines()
    assert damaged.startswith("damaged; ") and "sweep.json is damaged" in damaged
    assert two.startswith("group/two; 1 of 3 runs done; 3 jobs on local: 1 done, 2 waiting; 2.00 hours")
    assert one.startswith("one; 1 of 3 runs done") and "$4.00 (1 chips a job" in one
    whole = json.loads(helpers.run("launch.status", f"--workdir={tmp_path}", "--json").stdout)
    alone = json.loads(helpers.run("launch.status", f"--workdir={tmp_path}/group/two", "--json").stdout)
    assert whole["sweeps"][1] == alone and len(alone["jobs"]) == 3
    assert "holds no sweep" in helpers.fails("launch.status", f"--workdir={tmp_path}/empty")


def test_each_failed_job_is_told_once(tmp_path):
    sweep = begin(tmp_path, on_failure=[sys.executable, "-c", TELL, str(tmp_path / "told")])
    _, half, new = sweep.jobs
    trainer.write_failure(half, "the loss is odd", True, 0)
    trainer.give_up(new, "cancelled", "cancelled")
    for job in sweep.jobs * 2:
        hooks.failed(sweep, job)
    assert (tmp_path / "told").read_text() == f"{half.name} the loss is odd\n"

    commands = {"on_failure": sweep.options["on_failure"]}

    def statuses() -> list[dict]:
        return [status.see(sweep.workdir)]

    known = status._report_failures(statuses(), None, commands)  # earlier failures are in its first table
    (new.folder / "failure.json").unlink()
    trainer.write_failure(new, "and this one", True, 0)
    known = status._report_failures(statuses(), known, commands)
    status._report_failures(statuses(), known, commands)
    assert (tmp_path / "told").read_text().splitlines()[1:] == [f"{new.name} and this one"]


def test_a_job_that_has_not_begun_is_cancelled(tmp_path):
    """Whoever owns the sweep would start it in its turn, and then does not."""
    sweep = begin(tmp_path)
    new = sweepfile.read(sweep.workdir).jobs[2]
    for path in new.folder.iterdir():
        path.unlink()
    new.folder.rmdir()
    with ownership.hold(sweep.lock, "launch.sweep"):
        assert cancel.cancel_job(sweep, new, 1.0) == f"cancelled job {new.name}: it was not running"
    assert new.has_ended()
    assert status.look(sweep, {})["jobs"][2]["state"] == "cancelled"
