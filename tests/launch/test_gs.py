"""Sweeps whose workdir is on gs://, served by a real process: on the local pool, and as the pods of a JobSet."""

import json
import os
import pathlib
import signal
import threading
import time
from subprocess import DEVNULL, PIPE, STDOUT

import helpers
import outage
import pytest
import sweeps
from etils import epath

from jmoe.storage import ownership
from jmoe.version import code_version
from launch import collect, gke, preflight, sweepfile
from launch import jobs as jobs_lib
from launch.backend import Sweep

ALONE = {"JMOE_HOSTS": "1", "JMOE_SLICES": "1"}  # what a pod of one host is told


@pytest.fixture(scope="module")
def sweep(tmp_path_factory, text_glob):
    folder = tmp_path_factory.mktemp("sweep")
    config = helpers.write_config(folder, text_glob, checkpoint_every=10)
    helpers.slow_steps(config).unlink()
    if outage.SECONDS == 1:  # a longer outage would outlast them
        config.write_text(helpers.SHORT_LEASES + config.read_text())
    return sweeps.write_sweep(folder, config, {"n_tokens": ((4_096,),)})


def rows(workdir):
    times = ("seconds", "n_devices", "train_loss", "loss")
    return [({k: v for k, v in row.items() if k not in times}, float(row["loss"])) for row in sweeps.rows(workdir)]


@pytest.fixture(scope="module")
def on_a_disk(sweep, tmp_path_factory):
    """The rows of the same sweep in a local folder."""
    workdir = tmp_path_factory.mktemp("local")
    helpers.succeeds("launch.sweep", f"--sweep={sweep}", f"--workdir={workdir}")
    return rows(workdir)


def test_a_killed_sweep_on_gs_ends_as_on_a_disk(sweep, on_a_disk, bucket, proxy):
    """And then meets outages, in one of which its trainer gives up a save, which is no failed try. A trainer of which
    one request in twenty fails is in jmoe/storage/test_storage.py, as make soak has it here."""
    workdir = f"{bucket}/local"
    proxy.end()
    if outage.SECONDS > 1:
        proxy.fail_at_random()
    start = ("launch.sweep", f"--sweep={sweep}", f"--workdir={workdir}", "--retries=0")
    slow = pathlib.Path(sweep).with_name("tiny.slow")
    slow.touch()
    process = helpers.spawn(*start, stdout=DEVNULL, stderr=DEVNULL)
    while process.poll() is None and not list(epath.Path(workdir).glob("jobs/*/*/checkpoints/*")):
        time.sleep(0.5)
    process.kill()
    process.wait()
    slow.unlink()
    (job,) = epath.Path(workdir).glob("jobs/*")
    branch = f"uploadType=media&name=local/jobs/{job.name}/branch-4096/checkpoints"
    for fault, at in (
        ("503", "sweep.json"),
        ("reset", "jobs"),
        ("401", branch),  # TensorStore's, which takes it for an answer
        ("cut", "checkpoints"),
        ("503", "result.json&"),
        ("lost", "runs.csv"),
    ):
        proxy.fail(fault, max(3.0, outage.SECONDS) if fault == "401" else outage.SECONDS, at)
    done = helpers.succeeds(*start, timeout=30000)
    assert proxy.over(), (done.stdout, done.stderr, proxy.failed)
    assert set(proxy.failed) == set(outage.FAULTS), proxy.failed
    proxy.end()
    assert "goes on from what is saved" in done.stdout and "damaged" not in done.stdout, done.stdout
    assert rows(workdir) == on_a_disk
    status = helpers.run("launch.status", f"--workdir={workdir}").stdout
    assert "1 of 1 runs done; 1 jobs on local: 1 done" in status
    logs = status.splitlines()[-1].split(": ", 1)[1]
    assert len(list(epath.Path(logs).glob("*/log.txt"))) == 1
    assert "validation loss" in helpers.run("launch.logs", f"--workdir={workdir}", "--job=d32-e1").stdout
    assert "runs.csv: 1 runs" in helpers.run("launch.collect", f"--workdir={workdir}").stdout


def test_no_job_is_asked_for_twice(proxy, bucket, tmp_path, text_glob):
    """At a second start and at collect: a listing of all that is there, and each finished run's result."""
    workdir = epath.Path(f"{bucket}/counted")
    path = sweeps.write_sweep(tmp_path, helpers.write_config(tmp_path, text_glob), {"seed": tuple(range(5))})
    begun = sweeps.begin(path, workdir)
    for job in begun.jobs[:3]:
        sweeps.train(job)
    n_runs = sum(len(job.budgets) for job in begun.jobs[:3])

    def requests(call) -> list[str]:
        proxy.end()
        call()
        return [request for request in proxy.requests if "counted/jobs/" in request]

    def start_again():
        (jobs, configs), files = jobs_lib.load(path, workdir), jobs_lib.files_of(workdir)
        again = Sweep(workdir, path, "local", 1, [], {}, jobs)
        sweepfile.resume(again, files)
        preflight.tokens(again, configs, {}, files)
        assert [job.done(files) for job in again.trained].count(False) == 2

    assert len(requests(start_again)) == 1 + n_runs
    assert len(requests(lambda: collect.write(begun))) == 1 + n_runs


def test_ctrl_c_is_heard_in_an_outage(sweep, bucket, proxy, tmp_path):
    """At once, not when the store answers or the patience is over; a second one ends the trainers as well."""
    workdir = f"{bucket}/interrupted"
    output = tmp_path / "output.txt"
    with open(output, "w") as file:
        patient = {"JMOE_STORE_PATIENCE": "3000", "PYTHONUNBUFFERED": "1"}
        start = ("launch.sweep", f"--sweep={sweep}", f"--workdir={workdir}")
        process = helpers.spawn(*start, env=patient, stdout=file, stderr=file)
    helpers.wait_until(lambda: list(epath.Path(workdir).glob("jobs/*/*/metrics.jsonl")), [process])
    proxy.fail("503", 3000)
    try:
        helpers.wait_until(lambda: "does not answer" in output.read_text(), [process], 100)
        process.send_signal(signal.SIGINT)
        helpers.wait_until(lambda: "asking 1 trainers to save and stop" in output.read_text(), [process], 100)
        assert process.poll() is None, output.read_text()
        process.send_signal(signal.SIGINT)
        assert process.wait(300) == 130
        assert "the same command" in output.read_text() and "Traceback" not in output.read_text()
        assert not proxy.over()
    finally:
        process.kill()
        proxy.end()


def test_two_pods_train_one_job(sweep, on_a_disk, bucket, tmp_path):
    """What a JobSet of two hosts would start, with the variables that its manifest sets; each has a disk of its own."""
    workdir = epath.Path(f"{bucket}/pods")
    job = write_sweep(sweep, workdir, on_a_disk[0][0]["corpus_fingerprint"])
    pods = [helpers.spawn(*task(workdir, job), env=env, stdout=PIPE, stderr=STDOUT) for env in two_pods(tmp_path)]
    printed = [pod.communicate(timeout=300)[0] for pod in pods]
    assert [pod.returncode for pod in pods] == [0, 0], printed
    assert "validation loss" in printed[0]  # a pod's log is what its trainer printed
    result = json.loads((job.folder / "branch-4096" / "result.json").read_text())
    assert result["n_devices"] == 2
    assert result["loss"] == pytest.approx(on_a_disk[0][1], abs=1e-5)
    assert helpers.run(*task(workdir, job), env=ALONE).returncode == 0


def test_a_pod_tells_for_good_from_again(sweep, bucket, proxy, text_glob):
    """Exit code 2 fails the JobSet, 75 restarts it; the tries are counted from one pod to the next, but not where
    the trainer was ended by the store."""
    workdir = epath.Path(f"{bucket}/failing")
    job = write_sweep(sweep, workdir, helpers.fingerprint(text_glob), overrides={"seed": 5})

    def run(**env):
        return helpers.run(*task(workdir, job), env=ALONE | env)

    other = run()
    assert other.returncode == 2 and "was edited since" in other.stderr  # not the config that the job is named after
    write_sweep(sweep, workdir, helpers.fingerprint(text_glob))
    proxy.fail("503", 600, at=".probe-", only=".probe-")
    outlasted = run(JMOE_STORE_PATIENCE="0.5")
    assert outlasted.returncode == 75 and "the store gave no answer" in outlasted.stdout, outlasted
    assert not job.failure()
    proxy.end()
    with helpers.spawn(*task(workdir, job), env=ALONE, stdout=PIPE) as preempted:
        preempted.stdout.readline()  # the log's, once the trainer has started; it imports for seconds
        preempted.terminate()
        preempted.stdout.read()
    assert preempted.returncode == 143 and not job.failure()
    codes = [run(XLA_FLAGS="--no_such_flag").returncode for _ in range(2)]
    assert codes == [75, 2]  # one retry without progress
    failure = job.failure()
    assert failure["tries"] == 2 and failure["for_good"] and "no_such_flag" in failure["cause"], failure


def task(workdir, job) -> list[str]:
    """What a pod of the job runs."""
    return ["launch.task", f"--workdir={workdir}", f"--job={job.name}", f"--config={job.config_file}"]


def two_pods(folder) -> list[dict[str, str]]:
    """What a JobSet of two hosts tells its pods, each of which has a disk of its own."""
    told = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{helpers.free_port()}", "JMOE_HOSTS": "2", "JMOE_SLICES": "1"}
    told |= {"JMOE_SLICE_INDEX": "0"}
    return [told | {"JOB_COMPLETION_INDEX": str(i), "JMOE_CACHE": str(folder / f"pod{i}")} for i in range(2)]


def test_a_try_in_which_both_pods_fail_is_counted_once(sweep, bucket, tmp_path, text_glob):
    workdir = epath.Path(f"{bucket}/counted")
    job = write_sweep(sweep, workdir, helpers.fingerprint(text_glob))
    wrong = {"XLA_FLAGS": "--no_such_flag"}
    pods = [helpers.spawn(*task(workdir, job), env=env | wrong, stdout=DEVNULL) for env in two_pods(tmp_path)]
    assert [pod.wait(300) for pod in pods] == [75, 75]
    assert job.failure()["tries"] == 1


@pytest.mark.filterwarnings("ignore:os.fork")  # another test of this process may have started jax
def test_a_try_is_counted_though_the_first_pod_hangs(sweep, tmp_path, text_glob, monkeypatch):
    """Kubernetes then kills it, and would start all of them again for ever if nobody had counted."""
    workdir = epath.Path(tmp_path)
    job = write_sweep(sweep, workdir, helpers.fingerprint(text_glob))
    for name, value in two_pods(tmp_path)[1].items():  # at its coordinator nobody listens: the trainer waits
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(gke, "SECONDS_FOR_FIRST_POD", 0)

    def kill_the_trainer():
        while not (owner := ownership.owner(job.lock)) or not owner.what:  # the lock is there before it is signed
            time.sleep(0.01)
        os.kill(owner.pid, signal.SIGKILL)

    whole = sweepfile.read(workdir)
    before = signal.getsignal(signal.SIGTERM)
    threading.Thread(target=kill_the_trainer, daemon=True).start()
    try:
        assert gke.Gke().run_task(whole, whole.job(job.name)) == 75
    finally:
        signal.signal(signal.SIGTERM, before)
    assert job.failure()["tries"] == 1 and "killed by signal 9" in job.failure()["cause"]


def write_sweep(sweep, workdir, fingerprint, **changes):
    """Its only job, with the sweep.json that launch.sweep would have left for GKE."""
    (job,), _ = jobs_lib.load(str(sweep), workdir)
    job.code = [code_version()]
    job.corpus = fingerprint
    job.overrides = changes.get("overrides", job.overrides)
    Sweep(workdir, str(sweep), "gke", 1, [], {}, [job]).write()
    return job
