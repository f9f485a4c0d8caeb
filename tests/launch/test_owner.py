"""Who owns a workdir: real processes, in another pid namespace too, and a lease on a served bucket."""

import concurrent.futures
import dataclasses
import gc
import os
import signal
import subprocess
import sys
import time
from subprocess import PIPE

import helpers
import pytest
import sweeps
import tensorstore
from etils import epath

from jmoe.errors import UNAVAILABLE, Unavailable
from jmoe.storage import files as storage
from jmoe.storage import lease, ownership
from launch.backend import Sweep

HOLDER = """
import sys, time
from etils import epath
from jmoe.storage import files, lease, ownership
lease.RENEW_EVERY, lease.EXPIRY = 0.2, {expiry}
if not {timer}:  # as on a system without such timers
    lease.Deadline.set = lambda *_: None
with ownership.hold(epath.Path(sys.argv[1]), "a holder"):
    print("held", flush=True)
    {work}
    time.sleep(600)
"""
LONG = 300  # seconds until a process counts as hanging
AT_LENGTH = pytest.mark.skipif(not os.environ.get("JMOE_SOAK"), reason="make soak alone: another owner is halted")
WRITES = (
    "for i in range(10**6): files.write_whole(epath.Path(sys.argv[1]).parent / 'data.json', str(i)); time.sleep(0.01)"
)


def hold(path, *prefix, expiry=60.0, work="pass", timer=True):
    """A process that holds `path` and does `work`, started behind `prefix`."""
    program = HOLDER.format(expiry=expiry, work=work, timer=timer)
    process = subprocess.Popen([*prefix, sys.executable, "-c", program, str(path)], stdout=PIPE, stderr=PIPE, text=True)
    assert process.stdout.readline() == "held\n", process.stderr.read()
    return process


@pytest.fixture
def held(tmp_path):
    """Ends the processes that a test put there."""
    processes = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def sweep(tmp_path_factory, text_glob):
    folder = tmp_path_factory.mktemp("sweep")
    return sweeps.write_sweep(folder, helpers.write_config(folder, text_glob), {"model.n_experts": (1,)})


def test_every_spelling_of_a_workdir_is_one_sweep(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    spellings = [f"{folder}", f"{folder}/", "run", "./run", f"{tmp_path}/link/", f"{folder}/../run", f"{tmp_path}//run"]
    ids = {Sweep(storage.absolute(s), "", "local", 1, [], {}, []).id for s in spellings}
    assert len(ids) == 1
    remote = ["gs://b/x", "gs://b/x/", "gs://b//x", "gs://b/./x", "gs://b/y/../x"]
    assert {os.fspath(storage.absolute(path)) for path in remote} == {"gs://b/x"}


def test_a_file_has_one_owner_by_whatever_name(tmp_path, held):
    """A link and another spelling lead to the same lock; it ends with its process."""
    lock = tmp_path / "run" / "sweep.lock"
    held.append(process := hold(lock))
    (tmp_path / "link").symlink_to(tmp_path / "run")
    for name in (lock, tmp_path / "link" / "sweep.lock", tmp_path / "run" / ".." / "run" / "sweep.lock"):
        assert ownership.owner(name).pid == process.pid
        with pytest.raises(ownership.Taken, match=f"held by a holder .process {process.pid} on"):
            with ownership.hold(name, "me"):
                pass
    process.kill()
    process.communicate()
    assert ownership.owner(lock) is None
    with ownership.hold(lock, "me"):
        assert ownership.owner(lock).pid == os.getpid()


def test_a_process_id_that_means_another_process_is_not_signalled():
    """The same number with another start, boot or namespace: nothing is sent."""
    process = subprocess.Popen(["sleep", "60"])
    me = ownership.Owner.of(process.pid)
    try:
        for other in (
            dataclasses.replace(me, started="1"),
            dataclasses.replace(me, boot="another"),
            dataclasses.replace(me, namespace="pid:[1]"),
            dataclasses.replace(me, started=""),
        ):
            assert not other.lives_here() and not other.send(signal.SIGKILL)
        assert process.poll() is None
        assert me.lives_here() and me.send(signal.SIGKILL)
        process.wait(LONG)
        assert not me.lives_here() and me.has_ended() and not me.send(signal.SIGTERM)
    finally:
        process.kill()
        process.wait()


def test_stop_wakes_asks_and_kills():
    """A halted process is woken to save; one that does not listen is killed."""
    halted = subprocess.Popen(["sh", "-c", "trap 'exit 7' TERM; echo; while :; do sleep 0.05; done"], stdout=PIPE)
    deaf = subprocess.Popen(["sh", "-c", "trap '' TERM; echo; while :; do sleep 0.05; done"], stdout=PIPE)
    for process in (halted, deaf):
        process.stdout.readline()
        process.stdout.close()
    halted.send_signal(signal.SIGSTOP)
    owners = [ownership.Owner.of(process.pid) for process in (halted, deaf)]
    assert ownership.stop(owners, 2.0) == 1
    assert halted.wait(LONG) == 7 and deaf.wait(LONG) == -signal.SIGKILL


@pytest.mark.skipif(os.geteuid() != 0, reason="without root: unshare needs it")
def test_cancel_signals_nobody_in_another_pid_namespace(sweep, tmp_path, held):
    """There the holder is process 1, a number that belongs to another one here: cancel says who holds it, and where."""
    sweeps.begin(sweep, tmp_path)
    held.append(process := hold(tmp_path / "sweep.lock", "unshare", "-p", "-f", "--mount-proc", "--kill-child"))
    owner = ownership.owner(tmp_path / "sweep.lock")
    assert owner.pid == 1 and not owner.is_near()
    output = helpers.fails("launch.cancel", f"--workdir={tmp_path}")
    assert "a holder (process 1 of another container" in output and "only be stopped from there" in output
    assert process.poll() is None and ownership.owner(tmp_path / "sweep.lock") == owner
    assert "at work on it: a holder" in helpers.run("launch.status", f"--workdir={tmp_path}").stdout
    output = helpers.fails("launch.sweep", f"--sweep={sweep}", f"--workdir={tmp_path}")
    assert "another launch.sweep works on" in output and "process 1 of another container" in output


def test_a_lease_has_one_owner(bucket, held, monkeypatch, capfd):
    """On gs://: respected while it beats, taken over once it is silent."""
    monkeypatch.setattr(lease, "RENEW_EVERY", 0.2)
    monkeypatch.setattr(lease, "EXPIRY", 3.0)
    path = epath.Path(f"{bucket}/lease/sweep.lock")
    held.append(process := hold(path))
    assert ownership.owner(path).pid == process.pid
    with pytest.raises(ownership.Taken, match=f"held by a holder .process {process.pid} on"):
        with ownership.hold(path, "me"):
            pass
    process.send_signal(signal.SIGSTOP)
    with ownership.hold(path, "me"):
        assert "nothing was heard for 3 s: taken over" in capfd.readouterr().err
        process.send_signal(signal.SIGCONT)
        assert process.wait(LONG) == UNAVAILABLE
        assert "was taken over: this process ends and writes nothing more" in process.stderr.read()
        time.sleep(0.5)
        assert ownership.owner(path).pid == os.getpid()
    assert ownership.owner(path) is None


@pytest.mark.parametrize("timer", [True, pytest.param(False, marks=AT_LENGTH)])
def test_a_halted_owner_writes_nothing_when_it_wakes(timer, proxy, bucket, held, monkeypatch):
    """It is halted while the answer to a renewal is on its way, and wakes when another process owns its folder: that
    answer must not make its lease any younger. (Ten seconds: a machine with much else to do delays renewals.)"""
    proxy.end()
    monkeypatch.setattr(lease, "RENEW_EVERY", 0.2)
    monkeypatch.setattr(lease, "EXPIRY", 10.0)
    path = epath.Path(f"{bucket}/halted-{timer}/train.lock")
    held.append(process := hold(path, expiry=10.0, work=WRITES, timer=timer))
    helpers.wait_until((path.parent / "data.json").exists, [process])
    proxy.fail("late", 1.0, at=f"name=halted-{timer}/train.lock", only="train.lock")
    helpers.wait_until(lambda: proxy.failed["late"], [process])
    process.send_signal(signal.SIGSTOP)
    helpers.wait_until(proxy.over)
    with ownership.hold(path, "me"):
        storage.write_whole(path.parent / "data.json", "mine")
        if not timer:
            process.send_signal(signal.SIGCONT)
        assert process.wait(LONG) == (-signal.SIGKILL if timer else UNAVAILABLE)  # halted as it is, or by itself
        assert timer or "this process ends and writes nothing more" in process.stderr.read()
        assert (path.parent / "data.json").read_text() == "mine"


def test_an_owner_whose_renewals_do_not_get_through_ends_before_its_lease_can_be_taken(proxy, bucket, held):
    """By itself, as the store answers everything else. When it does is simulated in jmoe/storage/test_lease.py."""
    path = epath.Path(f"{bucket}/cut-off/train.lock")
    held.append(process := hold(path, expiry=6.0, work=WRITES, timer=False))
    helpers.wait_until((path.parent / "data.json").exists, [process])
    proxy.fail("503", 600, at="train.lock", only="train.lock")
    helpers.wait_until(lambda: proxy.failed["503"], [process])
    assert process.wait(LONG) == UNAVAILABLE
    proxy.end()
    assert "cut-off/train.lock: the store confirmed no renewal of this lease" in process.stderr.read()


def test_a_lease_is_given_up_though_the_answer_to_a_renewal_is_on_its_way(proxy, bucket, monkeypatch):
    """The store holds another generation than the owner knows of."""
    proxy.end()
    monkeypatch.setattr(lease, "RENEW_EVERY", 0.2)
    path = epath.Path(f"{bucket}/given-up/train.lock")
    with ownership.hold(path, "me"):
        proxy.fail("late", 1.0, at="name=given-up/train.lock", only="train.lock")
        helpers.wait_until(lambda: proxy.failed["late"])
    assert ownership.owner(path) is None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of the file that was not written
def test_a_write_that_arrives_after_another_owners_is_refused(proxy, bucket):
    """A network holds it back: the store keeps what the new owner wrote meanwhile."""
    proxy.end()
    path = storage.make_workdir(f"{bucket}/late") / "result.json"
    storage.write_whole(path, "old")
    with ownership.hold(path.parent / "train.lock", "me"), concurrent.futures.ThreadPoolExecutor() as pool:
        proxy.fail("held", 2.0, at="upload_id", only="upload_id")
        written = pool.submit(storage.write_whole, path, "mine")
        helpers.wait_until(lambda: proxy.failed["held"])
        other = tensorstore.KvStore.open({"driver": "gcs", "bucket": bucket.removeprefix("gs://")}).result()
        other.write("late/result.json", "new").result()
        assert not proxy.over()
        with pytest.raises(Unavailable, match="late/result.json: another process replaced it meanwhile"):
            written.result()
    del written
    gc.collect()
    assert path.read_text() == "new"


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_a_lock_that_was_lost_stops_its_holder(how, tmp_path, held):
    """Its file is deleted, or is another process's, as after a server of NFS gave it away: the next write finds out."""
    path = tmp_path / "train.lock"
    held.append(process := hold(path, work=WRITES))
    helpers.wait_until((tmp_path / "data.json").exists, [process])
    if how == "deleted":
        path.unlink()
    else:
        path.with_name("new").write_text(ownership.Owner.of(what="another").text())
        path.with_name("new").rename(path)
    assert process.wait(LONG) == UNAVAILABLE
    output = process.stderr.read()
    assert ("was deleted" if how == "deleted" else f"now says another (process {os.getpid()}") in output, output
    assert "this process ends and writes nothing more" in output


def test_a_lock_that_is_deleted_while_it_is_taken_is_not_held(tmp_path, monkeypatch):
    path = tmp_path / "lock"
    acquire = ownership._acquire

    def slow(file, kind):
        if path.exists() and not path.with_name("moved").exists():
            path.rename(path.with_name("moved"))
        return acquire(file, kind)

    monkeypatch.setattr(ownership, "_acquire", slow)
    with ownership.lock(path) as file:
        assert os.path.samestat(os.fstat(file.fileno()), path.stat())


def test_a_lease_of_a_process_that_died_here_is_taken_once_its_requests_are_over(bucket, held, monkeypatch, capfd):
    """After a quarter of the time that is waited for one that may live."""
    monkeypatch.setattr(lease, "EXPIRY", 16.0)
    path = epath.Path(f"{bucket}/dead/sweep.lock")
    process = hold(path)
    process.kill()
    process.communicate()
    began = time.monotonic()
    with ownership.hold(path, "me"):
        assert lease.EXPIRY / 4 <= time.monotonic() - began
        output = capfd.readouterr().err
        assert "which has ended: waiting 4 s for requests that it may have sent" in output
        assert "which has ended: taken over" in output and "sign of life" not in output


def test_of_many_that_want_a_lease_one_gets_it(bucket, monkeypatch):
    """Six at once over a lease that is free: the store's precondition lets one of them in at a time."""
    monkeypatch.setattr(lease, "RENEW_EVERY", 0.1)
    path, program = (
        epath.Path(f"{bucket}/many/sweep.lock"),
        HOLDER.format(expiry=60.0, work="pass", timer=True).replace("600", "2"),
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", program, os.fspath(path)], stdout=PIPE, stderr=PIPE, text=True)
        for _ in range(4)
    ]
    output = [process.communicate(timeout=LONG) for process in processes]
    assert sum("held" in out for out, _ in output) >= 1
    for (out, err), process in zip(output, processes, strict=True):
        assert ("held" in out) == (process.returncode == 0), err
        assert "held" in out or "Taken" in err


def test_a_trainer_that_waited_in_vain_is_tried_again(bucket, held, tmp_path, text_glob):
    """A code of its own where its starter has it wait for an earlier trainer; without that it is a user's mistake."""
    config = helpers.write_config(tmp_path, text_glob)
    workdir = f"{bucket}/second"
    held.append(process := hold(f"{workdir}/train.lock"))
    for patience, code in (("1", 75), ("0", 2)):
        flags = f"--config={config}", f"--workdir={workdir}"
        done = helpers.run("jmoe.train", *flags, env={"JMOE_OWNER_PATIENCE": patience})
        assert done.returncode == code, done.stderr
        assert "another trainer is at work in" in done.stderr and f"process {process.pid} on" in done.stderr


RUN = """
import sys, time
from etils import epath
from jmoe.run import distributed
from jmoe.storage import lease
lease.RENEW_EVERY, lease.EXPIRY = 1.0, 18.0
with distributed.joined(), distributed.owned(epath.Path(sys.argv[1])):
    (epath.Path(sys.argv[1]) / f"owned-{distributed.jax.process_index()}").write_text("")
    time.sleep(600)
"""


@pytest.mark.parametrize("halted", [0, pytest.param(1, marks=AT_LENGTH)])
def test_no_process_of_a_run_outlives_its_lease(halted, bucket, monkeypatch):
    """One of two is halted for good: the kernel ends it. If it is the first, which renews the lease, the other one ends
    by itself before that."""
    workdir = epath.Path(f"{bucket}/followed-{halted}")
    monkeypatch.setattr(helpers, "command", lambda module, *flags: [sys.executable, "-c", RUN, *flags])
    processes = helpers.start("", os.fspath(workdir), n_processes=2)
    try:
        helpers.wait_until(lambda: len(list(workdir.glob("owned-*"))) == 2, processes)
        processes[halted].send_signal(signal.SIGSTOP)
        assert processes[halted].wait(LONG) == -signal.SIGKILL
        if halted == 0:
            assert processes[1].wait(LONG) == UNAVAILABLE
            output = processes[1].stderr.read()
            assert "train.lock: the store confirmed no renewal of this lease" in output, output
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@pytest.mark.filterwarnings("ignore:os.fork")  # another test of this process may have started jax
def test_a_failure_is_noted_only_by_who_could_train_the_job(sweep, tmp_path, held):
    """The lock file names the trainer and not who started it. A starter that was cut off finds that another trainer
    works on the job: it counts no try of that one's."""
    from launch import trainer

    job = sweeps.begin(sweep, tmp_path, corpus="f" * 16).jobs[0]
    started = trainer.start(job, 0, env=helpers.environment())
    owner = ownership.owner(job.lock)
    assert owner.pid == started.process.pid and owner.lives_here() and job.name in str(owner)
    assert trainer.start(job, 0) is None
    started.process.kill()
    held.append(process := hold(job.folder / "train.lock"))
    assert trainer.record_failure(started, started.wait(), 0) == {} and job.failure() == {}
    process.kill()
    process.wait()
    failure = trainer.record_failure(started, started.wait(), 0)
    assert failure["tries"] == 1 and "killed by signal 9" in failure["cause"] and job.failure() == failure
