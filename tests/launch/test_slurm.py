"""Sweeps on a real Slurm of two nodes; at length with JMOE_SOAK=1 (`make soak`)."""

import contextlib
import json
import os
import pathlib
import random
import re
import subprocess
import time

import helpers
import pytest
import slurm
import sweeps

from launch import slurm_task

SOAK = bool(os.environ.get("JMOE_SOAK"))
SECRET = "hunter2-never-in-a-log"

pytestmark = pytest.mark.skipif(bool(slurm.missing()), reason=slurm.missing())


@pytest.fixture(scope="module")
def config(tmp_path_factory, text_glob):
    return helpers.write_config(tmp_path_factory.mktemp("config"), text_glob, checkpoint_every=5)


@pytest.fixture(autouse=True)
def nothing_left(cluster):
    """What a test that failed left in the queue, or a node that Slurm drained on the way, harms no other test."""
    yield
    cluster.clear()


@pytest.fixture
def run(cluster):
    """Runs a command of launch as a user of that Slurm would, with a secret in the environment."""

    def call(module, *flags):
        return helpers.run(module, *flags, env=cluster.environment | {"MY_API_TOKEN": SECRET})

    return call


def losses(workdir):
    return {row["run"]: (row["loss"], row["train_loss"], row["drop_rate"]) for row in sweeps.rows(workdir)}


def wait(condition, what, seconds=3600 if SOAK else 600):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.3)


def wait_for_the_end(cluster):
    """Until the queue is empty; what Slurm says of nodes and jobs where that takes too long."""
    deadline = time.monotonic() + (3600 if SOAK else 600)
    while queue(cluster):
        eligible_now(cluster)
        if time.monotonic() > deadline:
            pytest.fail(f"the queue does not empty\n{cluster.report()}")
        time.sleep(0.3)


def alone(sweep, workdir):
    """Losses of the same sweep on this machine, which nothing disturbs."""
    helpers.succeeds("launch.sweep", f"--sweep={sweep}", f"--workdir={workdir}", timeout=3600)
    return losses(workdir)


def drain(cluster, task, node):
    """The task goes on elsewhere, for its own node takes no more."""
    cluster.call("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=test")
    cluster.call("scancel", "--signal=TERM", task, check=False)
    wait(lambda: task not in running(cluster), f"{task} does not leave its node")
    cluster.call("scontrol", "update", f"NodeName={node}", "State=RESUME")


def down(cluster, task, node):
    cluster.call("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
    cluster.wait_for_nodes()  # slurmd reports that it is well


def preempt(cluster, task, node):
    """By a job of a partition that goes before."""
    cluster.call("sbatch", "--partition=urgent", f"--nodelist={node}", "--exclusive", "--output=/dev/null", "--wrap=:")
    wait(lambda: task not in running(cluster), f"{task} is not preempted")


def kill(cluster, task, node):
    """A trainer, while the controller is being restarted; scancel --signal=KILL would cancel the task."""
    pids = subprocess.run(["pgrep", "-f", "jmoe.train.*% x"], capture_output=True, text=True).stdout.split()
    subprocess.run(["kill", "-9", *pids[:1]], check=False)
    with cluster.without_controller():
        time.sleep(1)


def away(cluster, task, node):
    """The controller, for longer than Slurm's commands wait for it, when a trainer ends."""
    cluster.call("scancel", "--signal=KILL", f"{task}.0", check=False)
    with cluster.without_controller():
        time.sleep(45)


def lose(cluster, task, node):
    cluster.lose(node)
    wait(lambda: "down" in cluster.states()[node], f"Slurm does not find {node} lost")
    cluster.find_again(node)


def requeue(cluster, task, node):
    cluster.call("scontrol", "requeue", task, check=False)


EVENTS = [drain, kill, preempt] + [down, away, lose, requeue] * SOAK


def test_whatever_happens_to_nodes_it_ends_with_the_same_losses(cluster, run, config, tmp_path):
    """An array over two nodes, one of which is drained, set down or lost, or given to another job."""
    varied = {"model.d_model": (16, 32, 48), "model.n_experts": (1, 2, 4, 8)} if SOAK else {"model.n_experts": (1, 4)}
    varied["n_tokens"] = ((4_096, 65_536 if SOAK else 16_384),)  # longer than all that happens
    own = tmp_path / config.name
    own.write_text(config.read_text())
    slow = helpers.slow_steps(own)
    sweep = sweeps.write_sweep(tmp_path, own, varied)
    chance = random.Random(1)
    workdir = tmp_path / "it's $(touch pwned) back\\slash [1] 100% x"
    start = ("launch.sweep", f"--sweep={sweep}", f"--workdir={workdir}", "--backend=slurm", "--retries=1000")
    start += ("--sbatch=--exclusive",)  # a task a node
    n_jobs = 12 if SOAK else 2
    output = sweeps.started_twice_at_once(run, *start)
    assert f"nothing to submit: {n_jobs} jobs are queued" in output[0] and f"submitted {n_jobs} jobs" in output[1]
    assert len(queue(cluster).splitlines()) == n_jobs + 1  # and a collect
    again = run(*start)
    assert f"nothing to submit: {n_jobs} jobs are queued or running" in again.stdout, again.stderr

    names = set(json.loads((workdir / "sweep.json").read_text())["jobs"])
    used = set()
    happened = []
    for event in EVENTS * (3 if SOAK else 1):
        target = sweeps.steps(workdir) + chance.randrange(1, 15)

        def on_the_way(target=target):
            return sweeps.steps(workdir) > target and running(cluster)

        wait(
            lambda on_the_way=on_the_way: eligible_now(cluster) or on_the_way() or finished(cluster),
            "no step was trained",
        )
        if tasks := running(cluster):
            used |= set(tasks.values())
            task = chance.choice(sorted(tasks))
            event(cluster, task, tasks[task])
            happened.append(event.__name__)
    slow.unlink()
    status = run("launch.status", f"--workdir={workdir}").stdout
    assert f"of {2 * n_jobs} runs done; {n_jobs} jobs on slurm" in status, status
    wait_for_the_end(cluster)
    assert len(happened) >= len(EVENTS) and used == set(slurm.NODES), (happened, used)
    assert (workdir / "runs.csv").exists(), "the collect after the array did not run"
    result = losses(workdir)
    assert len(result) == 2 * n_jobs and {run.split("/")[1] for run in result} == names
    assert "0 jobs are queued" in run(*start).stdout
    assert SECRET not in everything_written(workdir, cluster.folder)
    assert not list(tmp_path.rglob("pwned")) and not os.path.exists("pwned")
    resumed = "".join(path.read_text() for path in workdir.glob("jobs/*/log.txt"))
    assert "stopped by signal 15" in resumed
    assert alone(sweep, tmp_path / "alone") == result


@pytest.mark.skipif(not SOAK, reason="make soak alone: takes minutes, most of them Slurm's own")
@pytest.mark.parametrize("event", [down, lose, preempt, away])
def test_a_job_over_two_nodes_survives_what_happens_to_one(event, cluster, run, config, tmp_path):
    sweep = sweeps.write_sweep(tmp_path, config, {"n_tokens": ((8_192, 163_840),)})
    workdir = tmp_path / "both"
    start = ("launch.sweep", f"--sweep={sweep}", f"--workdir={workdir}", "--backend=slurm", "--retries=1")
    assert run(*start, "--sbatch=--nodes=2", "--sbatch=--ntasks=2").returncode == 0
    wait(lambda: sweeps.steps(workdir) > 30, "no step was trained")
    ((task, nodes),) = running(cluster).items()
    assert nodes == "node[1-2]"
    event(cluster, task, "node2")
    wait_for_the_end(cluster)
    result = losses(workdir)
    undisturbed = alone(sweep, tmp_path / "alone")
    assert result.keys() == undisturbed.keys(), run("launch.logs", f"--workdir={workdir}", "--job=d").stdout
    for name in result:
        assert float(result[name][0]) == pytest.approx(float(undisturbed[name][0]), abs=1e-3)


@pytest.mark.skipif(not SOAK, reason="make soak alone: Slurm looks at time limits twice a minute")
def test_at_its_time_limit_a_job_saves_and_is_queued_again(cluster, run, config, tmp_path):
    """Slurm itself sends SIGTERM, two minutes before the limit: here soon after the start."""
    sweep = sweeps.write_sweep(tmp_path, config, {"n_tokens": ((8_192, 409_600),)})
    workdir = tmp_path / "limited"
    start = ("launch.sweep", f"--sweep={sweep}", f"--workdir={workdir}", "--backend=slurm", "--sbatch=--time=2")
    assert run(*start).returncode == 0
    wait(lambda: "BeginTime" in queue(cluster) or finished(cluster), "it is not queued again")
    assert not finished(cluster)
    (task,) = [line.split()[0] for line in queue(cluster).splitlines() if "BeginTime" in line]
    cluster.call("scontrol", "update", f"JobId={task}", "TimeLimit=60")  # once is enough
    wait_for_the_end(cluster)
    logs = run("launch.logs", f"--workdir={workdir}", "--job=d").stdout
    assert "stopped by signal 15" in logs and "resuming from" in logs
    assert losses(workdir) == alone(sweep, tmp_path / "alone")


def running(cluster) -> dict[str, str]:
    """Array tasks that run, with their nodes."""
    lines = cluster.call("squeue", "-h", "-t", "RUNNING", "-o", "%j %F_%K %N").stdout.split("\n")
    return {line.split()[1]: line.split()[2] for line in lines if line.startswith("jmoe-") and "-collect" not in line}


def queue(cluster) -> str:
    return cluster.call("squeue", "-h", "-r", "-o", "%i %j %T %r").stdout


def finished(cluster) -> bool:
    return "jmoe" not in queue(cluster).replace("-collect", "")


def eligible_now(cluster) -> None:
    """Slurm holds a requeued job back for two minutes; a test need not wait for that. It must wait until the trainers
    have ended ("already running, do not launch second copy" drains the node), and two seconds more: slurmd starts no
    job again in the second in which it was killed ("already killed, do not launch batch job")."""
    lines = cluster.call("squeue", "-h", "-r", "-o", "%i %A %r").stdout.splitlines()
    if held := [line.split() for line in lines if "BeginTime" in line]:

        def steps_of(number):
            return subprocess.run(["pgrep", "-f", rf"slurmstepd: \[{number}\."], capture_output=True)

        wait(lambda: all(steps_of(number).returncode for _, number, _ in held), "a requeued task does not end")
        time.sleep(2)
        for task, *_ in held:
            cluster.call("scontrol", "update", f"JobId={task}", "StartTime=now", check=False)


def everything_written(*folders):
    """Text of all files below `folders`; the controller replaces its state's files while they are read."""
    texts = []
    for folder in folders:
        for path in folder.rglob("*"):
            if not path.is_file() or "spool" in path.parts:
                continue
            with contextlib.suppress(FileNotFoundError):
                texts.append(path.read_text(errors="replace"))
    return "".join(texts)


def test_two_tasks_odd_flags_and_a_failure(cluster, run, config, text_glob, tmp_path):
    """A job over two nodes trains as one process does; flags arrive unharmed; a failure is told and harms no other."""
    odd = helpers.odd_path()
    fingerprint = helpers.fingerprint(text_glob)
    one = {"n_tokens": (8_192,), "data.path": odd, "data.fingerprint": fingerprint}
    jobs = [one, one | {"optimizer.lr_law.constant": 70.0}]
    sweep = sweeps.write_sweep(tmp_path, config, jobs)
    workdir = tmp_path / "two"
    start = ("launch.sweep", f"--sweep={sweep}", f"--workdir={workdir}", "--backend=slurm")
    submitted = run(*start, "--sbatch=--ntasks=2", "--sbatch=--comment=not ours", "--sbatch=--nice=1")
    assert submitted.returncode == 2 and "--comment" in submitted.stderr
    assert run(*start, "--sbatch=--nodes=2", "--sbatch=--ntasks=2", "--sbatch=--nice=1").returncode == 0
    wait_for_the_end(cluster)
    assert "node[1-2]" in cluster.call("squeue", "-h", "-t", "all", "-o", "%N").stdout.split()
    rows = sweeps.rows(workdir)
    assert [row["n_devices"] for row in rows] == ["2"]
    record = json.loads((workdir / rows[0]["run"] / "result.json").read_text())["record"]
    assert record["config"]["data"]["path"] == odd
    status = run("launch.status", f"--workdir={workdir}").stdout
    assert "1 done, 1 failed" in status and "non-finite loss" in status
    assert "non-finite loss" in run("launch.collect", f"--workdir={workdir}").stdout

    flags = f"--config={config}", f"--workdir={tmp_path / 'alone'}", "--config.n_tokens=(8192,)"
    helpers.succeeds("jmoe.train", *flags)
    loss = json.loads((tmp_path / "alone" / "branch-8192" / "result.json").read_text())["loss"]
    assert float(rows[0]["loss"]) == pytest.approx(loss, abs=1e-4)


@pytest.mark.skipif(not SOAK, reason="make soak alone: takes minutes, most of them Slurm's own")
def test_a_store_that_gives_no_answer_is_no_try(cluster, run, config, text_glob, bucket, proxy, monkeypatch):
    """It ends one of two tasks: srun ends the other one, and its own exit code is the larger of both. Then it ends
    both, and what started them: the job is queued again."""
    monkeypatch.setenv("JMOE_STORE_PATIENCE", "5")
    job = {"n_tokens": (8_192,), "data.fingerprint": helpers.fingerprint(text_glob)}
    shorter = cluster.folder / "shorter.py"  # each trainer reads it: the lease of one that could not give it back
    text = pathlib.Path(config).read_text()
    shorter.write_text(f"from jmoe.storage import lease\n\nlease.RENEW_EVERY, lease.EXPIRY = 2.0, 30.0\n{text}")
    sweep = sweeps.write_sweep(cluster.folder, str(shorter), [job])
    workdir = f"{bucket}/tasks"
    arrays = "trunk/checkpoints/5/params/ocdbt.process_1/"  # of the second task
    proxy.fail("401", 3000, at=arrays, only=arrays)
    start = ("launch.sweep", f"--sweep={sweep}", f"--workdir={workdir}", "--backend=slurm", "--retries=0")
    submitted = run(*start, "--sbatch=--ntasks=2")
    assert submitted.returncode == 0, submitted.stderr

    def logs():
        return run("launch.logs", f"--workdir={workdir}", "--job=d").stdout

    wait(lambda: "; trying again" in logs() or not queue(cluster), "the store ended no task")
    assert re.search(r"task 1: Exited with exit code 75", logs()), logs()
    proxy.end()
    proxy.fail("503", 3000)
    wait(lambda: "BeginTime" in queue(cluster) or finished(cluster), "the task went on without a store")
    assert not finished(cluster), logs()
    proxy.end()
    wait_for_the_end(cluster)
    status = run("launch.status", f"--workdir={workdir}").stdout
    assert "1 of 1 runs done; 1 jobs on slurm: 1 done" in status, (status, logs())


def test_a_task_that_slurm_started_again_elsewhere_is_over(cluster, monkeypatch):
    """Its old process, cut off so that it could not be killed, sees its own id running: it is not the one that runs."""
    submitted = cluster.call("sbatch", "--parsable", "--array=0", "--output=/dev/null", "--wrap=sleep 300").stdout
    array = submitted.strip()
    for name, value in (cluster.environment | {"SLURM_ARRAY_JOB_ID": array, "SLURM_ARRAY_TASK_ID": "0"}).items():
        monkeypatch.setenv(name, value)

    def runs():
        return cluster.call("squeue", "-h", "-j", f"{array}_0", "-o", "%T").stdout.strip() == "RUNNING"

    try:
        wait(runs, "the task does not start")
        assert not slurm_task._is_ending()
        cluster.call("scontrol", "requeue", f"{array}_0")
        wait(lambda: eligible_now(cluster) or runs(), "the task does not start again")
        assert slurm_task._is_ending()
        monkeypatch.setenv("SLURM_RESTART_COUNT", "1")  # as the one that runs now has it
        assert not slurm_task._is_ending()
    finally:
        cluster.call("scancel", array)


def test_why_a_task_did_not_run_is_told(cluster, run, config, tmp_path):
    """By status, collect and logs, where only Slurm's own output has it; a list that is gone is named, and what Slurm
    refuses leaves no sweep behind."""
    sweep = sweeps.write_sweep(tmp_path, config, {"seed": (0, 1)})
    workdir = tmp_path / "held"
    start = ("launch.sweep", f"--sweep={sweep}", f"--workdir={workdir}", "--backend=slurm", "--sbatch=--hold")
    refused = run(*start, "--sbatch=--partition=nowhere")
    assert refused.returncode == 2 and "partition" in refused.stderr, refused.stderr
    assert not (workdir / "sweep.json").exists()

    assert run(*start).returncode == 0
    path = workdir / "sweep.json"
    begun = json.loads(path.read_text())
    name = list(begun["jobs"])[0]
    begun["jobs"][name]["code"] = ["0ld0c0de-jax0.9"]
    begun["jobs"] = {name: begun["jobs"][name]}  # and the other is gone from it
    path.write_text(json.dumps(begun))
    for array in {line.split()[0].split("_")[0] for line in queue(cluster).splitlines()}:  # a line for each task
        cluster.call("scontrol", "release", array)
    wait_for_the_end(cluster)
    why = f"job {name} belongs to code 0ld0c0de-jax0.9"
    status = run("launch.status", f"--workdir={workdir}").stdout
    assert " failed " in status and why in status and "/slurm/" in status, status
    assert why in run("launch.collect", f"--workdir={workdir}").stdout
    assert why in run("launch.logs", f"--workdir={workdir}", f"--job={name}").stdout
    output = "".join(file.read_text() for file in (workdir / "slurm").glob("*.txt"))
    assert "is not, or no longer, in" in output

    path.unlink()
    assert run(*start).returncode == 0
    newest = max((workdir / "slurm").glob("*.json"))
    newest.unlink()
    lost = run("launch.status", f"--workdir={workdir}")
    assert lost.returncode == 2 and newest.name in lost.stderr and "Traceback" not in lost.stderr, lost.stderr
    assert "0 of 4 runs done" in lost.stdout
    again = run(*start)
    assert again.returncode == 2 and newest.name in again.stderr and "launch.cancel" in again.stderr
    assert run("launch.cancel", f"--workdir={workdir}").returncode == 0
    wait_for_the_end(cluster)
