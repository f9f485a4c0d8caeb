"""Sweeps that were damaged, edited, refused or stalled: nothing sound is lost, and the file or flag is named."""

import json
import os
import shutil
import signal
import subprocess

import helpers
import pytest
import sweeps
from etils import epath

from jmoe.errors import UserError
from jmoe.version import code_version
from launch import local, slurm, sweepfile, trainer
from launch.backend import Sweep
from launch.progress import Progress


@pytest.fixture
def config(tmp_path, text_glob):
    return helpers.write_config(tmp_path, text_glob)


@pytest.fixture
def sweep(tmp_path, config):
    return sweeps.write_sweep(tmp_path, config, {"model.n_experts": (1, 4)})


@pytest.fixture
def done(tmp_path, sweep, text_glob):
    """The workdir of a finished sweep of two jobs."""
    workdir = tmp_path / "run"
    for job in sweeps.begin(sweep, workdir, corpus=helpers.fingerprint(text_glob)).jobs:
        sweeps.train(job)
    return workdir


def start(sweep, workdir, *flags):
    return helpers.run("launch.sweep", f"--sweep={sweep}", f"--workdir={workdir}", *flags)


@pytest.mark.parametrize("n_layers", [1, 500])
def test_progress_is_read_whatever_the_length_of_a_line(sweep, tmp_path, n_layers):
    """Each death after further progress is a first try, however many layers a line of metrics tells of."""
    job = sweeps.begin(sweep, tmp_path / "run").jobs[0]
    metrics = job.folder / "trunk" / "metrics.jsonl"
    metrics.parent.mkdir()
    for n_steps in (1, 2, 3):
        line = {"n_tokens": 256 * n_steps, "cross_entropy": 3.5, "load": [[0.123456789] * 8] * n_layers}
        with open(metrics, "a") as file:
            file.write(json.dumps(line) + "\n")
            if n_steps == 3:
                file.write('{"n_tokens": ')  # a line that is being written
        assert job.progress() == (256 * n_steps, 3.5)
        assert trainer.write_failure(job, "died", False, 1) == {
            "cause": "died", "tries": 1, "tokens": 256 * n_steps, "for_good": False
        }  # fmt: skip
    assert trainer.write_failure(job, "died", False, 1)["for_good"]


def test_an_edited_sweep_goes_on_with_what_it_says_now(config, tmp_path, text_glob):
    """Stopped, the code changed and two jobs taken out: one is finished, one half trained, and both are kept. The job
    that the sweep still has goes on by the new code, as its label says. Started again, there is nothing to do."""
    workdir = tmp_path / "run"
    sweep = sweeps.write_sweep(tmp_path, config, {"model.n_experts": (1, 2, 4)})
    finished, half, rest = sweeps.begin(sweep, workdir, code=sweeps.OLD, corpus=helpers.fingerprint(text_glob)).jobs
    sweeps.train(finished)
    sweeps.train(half, 0.5)
    (rest.folder / "trunk").mkdir(parents=True)
    same = sweeps.write_sweep(tmp_path, config, [{"model.n_experts": 4}])
    before = (workdir / "sweep.json").read_text()
    output = helpers.fails("launch.sweep", f"--sweep={same}", f"--workdir={workdir}", "--dry_run")
    assert "this would be refused" in output and f"was started with code {sweeps.OLD}" in output
    output = helpers.fails("launch.sweep", f"--sweep={same}", f"--workdir={workdir}")
    assert "--mix=code" in output and sweeps.OLD in output and (workdir / "sweep.json").read_text() == before
    output = helpers.fails("launch.sweep", f"--sweep={same}", f"--workdir={workdir}", "--mix=code")
    assert "--mix=config" in output and finished.name in output
    edited = start(same, workdir, "--mix=code", "--mix=config")
    assert edited.returncode == 0, edited.stderr
    assert "2 jobs of an earlier form of the sweep are kept" in edited.stderr
    assert "2 unfinished ones are trained no further" in edited.stderr
    codes = {row["run"].split("/")[1]: row["code"] for row in sweeps.rows(workdir)}
    assert codes == {finished.name: sweeps.OLD, rest.name: f"{sweeps.OLD}+{code_version()}"}
    told = helpers.run("launch.status", f"--workdir={workdir}").stdout
    assert f"{half.name}     0/2 kept      no longer in the sweep" in told, told
    assert "4 of 6 runs done; 3 jobs on local: 2 done, 1 kept" in told
    again = start(same, workdir)
    assert again.returncode == 0, again.stderr
    assert "2 of 2 runs were done before: this sweep is finished" in again.stdout


@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_damaged_sweep_json_is_made_again(damage, done, sweep):
    """From the jobs' folders: nothing is trained again, and what old code trained is not labelled new."""
    path = done / "sweep.json"
    for job in sweepfile.read(epath.Path(done)).jobs:
        job.code = [sweeps.OLD]
        sweepfile.write_job(job)
    whole = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(whole[: len(whole) // 2])
    output = helpers.fails("launch.status", f"--workdir={done}")
    assert "sweep.json" in output and ("holds no sweep" if damage == "gone" else "is damaged") in output
    output = helpers.fails("launch.sweep", f"--sweep={sweep}", f"--workdir={done}")
    assert f"was started with code {sweeps.OLD}" in output and "2 jobs are known from their folders" in output
    again = start(sweep, done, "--mix=code")
    assert again.returncode == 0 and "4 of 4 runs were done before" in again.stdout, again.stderr
    assert {row["code"] for row in sweeps.rows(done)} == {sweeps.OLD}
    assert (damage == "gone") != (done / "damaged-sweep.json").exists()  # kept, for whoever wants to look


def test_the_bar_says_what_it_waits_for(sweep, tmp_path):
    run = sweeps.begin(sweep, tmp_path / "run")
    one, other = run.jobs
    bar = Progress(run.jobs)

    def told():
        return bar._bar.postfix

    bar.update([one], [other])
    assert told() == "d32-e1 loading and compiling, d32-e4 waits for its earlier trainer to save"
    sweeps.train(one, 0.5)
    bar.update([one])
    assert told() == "d32-e1 loss 3.50"
    sweeps.train(one)
    shutil.rmtree(one.folder / "branch-16384")
    (one.folder / "branch-16384").mkdir()
    (one.folder / "branch-16384" / "metrics.jsonl").write_text('{"n_tokens": 16384, "cross_entropy": 3.5}\n')
    bar.update([one])
    assert told() == "d32-e1 evaluating"
    bar.close()


def test_status_and_logs_write_nothing(done, sweep):
    """In a folder that one may only read."""
    (done / "sweep.lock").touch()
    for job in sweepfile.read(epath.Path(done)).jobs:
        (job.local_folder / "lock").touch()
        job.log.write_text("said\n")
    for path in [done, *done.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    # root may write anywhere, unless it gives that up
    humble = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    if humble and not shutil.which("setpriv"):
        pytest.skip("without setpriv: root may write anywhere, and cannot give that up")
    options = dict(env=helpers.environment(), capture_output=True, text=True)

    def run(*command):
        return subprocess.run([*humble, *command], **options)

    assert run("touch", str(done / "new")).returncode != 0
    for module, words in (("status", "4 of 4 runs done"), ("logs", "said")):
        flags = [f"--workdir={done}"] + ["--job=d32-e1"] * (module == "logs")
        told = run(*helpers.command(f"launch.{module}", *flags))
        assert told.returncode == 0 and words in told.stdout, told.stderr


def test_a_trainer_without_a_sign_of_life_is_stopped(sweep, tmp_path):
    """A halted one is woken and may save; one that does not listen is killed; one that prints is left alone."""
    job = sweeps.begin(sweep, tmp_path / "run").jobs[0]
    loop = "while :; do sleep 0.05; done"
    codes = {}
    for name, script in {
        "halted": f"trap 'exit 143' TERM; echo up >&2; {loop}",
        "deaf": f"trap '' TERM; echo up >&2; {loop}",
        "busy": "for i in $(seq 20); do echo $i >&2; sleep 0.25; done",
    }.items():
        job.log.write_text("")
        with open(job.log, "ab") as log:
            process = subprocess.Popen(["sh", "-c", script], stderr=log, start_new_session=True)
        helpers.wait_until(lambda: job.log.stat().st_size, [process])
        if name == "halted":
            process.send_signal(signal.SIGSTOP)
        started = trainer.Trainer(job, process, 0, stall_minutes=0.05)  # 3 s: a busy machine delays a line
        codes[name] = started.wait(), "without a sign of life" in started.cause(1)
    assert codes == {"halted": (143, True), "deaf": (-signal.SIGKILL, True), "busy": (0, False)}


@pytest.mark.parametrize(
    "visible, n, found",
    [
        (None, 2, ["0", "1"]),
        ("", 2, []),
        ("0, 3", 4, ["0", "3"]),
        ("GPU-ab,-1,1", 2, ["GPU-ab"]),
        ("0", 0, []),
    ],
)
def test_no_visible_gpu_is_no_gpu(visible, n, found, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert local.visible_gpus(n) == found


@pytest.mark.parametrize("option", "-Jx -HJx -J --job-n=x --comm=x --arra=0-9 --output=x -ox --wrap=x --pars x".split())
def test_options_of_sbatch_that_are_the_sweeps_own_are_refused(option, tmp_path):
    with pytest.raises(UserError, match=f"--sbatch={option}(: | is no option)"):
        slurm.Slurm().check(Sweep(epath.Path(tmp_path), "", "slurm", 1, [], {"sbatch": [option]}, []))


def test_a_backend_that_cannot_submit_leaves_nothing(done, sweep, tmp_path):
    """No Slurm: the workdir belongs to no backend because of it."""
    before = (done / "sweep.json").read_bytes()
    for workdir in (tmp_path / "new", done):
        flags = f"--sweep={sweep}", f"--workdir={workdir}", "--backend=slurm"
        refused = helpers.run("launch.sweep", *flags, env={"PATH": str(tmp_path)})
        assert refused.returncode == 2 and "needs squeue" in refused.stderr
    assert not (tmp_path / "new" / "sweep.json").exists()
    assert (done / "sweep.json").read_bytes() == before
    assert start(sweep, done).returncode == 0
