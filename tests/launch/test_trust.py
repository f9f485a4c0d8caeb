"""A sweep.json that somebody else wrote: it neither leads out of the workdir nor runs a program of theirs."""

import re

import helpers
import pytest
import sweeps
from etils import epath

from jmoe.errors import UserError
from launch import status, sweepfile, trainer, trust

BACKEND = """
import pathlib
pathlib.Path({mark!r}).touch()
ON_THIS_MACHINE = True
options = check = devices = submit = logs = cancel = lambda *_: None
states = lambda sweep: {{}}
"""


@pytest.fixture
def begun(tmp_path):
    path = sweeps.write_sweep(tmp_path, "configs/quickstart.py", [{"seed": 1}])
    (tmp_path / "run").mkdir()
    return sweeps.begin(path, tmp_path / "run")


def edit(sweep, change) -> None:
    sweeps.edit(sweep, lambda fields: change(fields, next(iter(fields["jobs"].values()))))


@pytest.mark.parametrize("name", ["../../OUT-51bbacf9", "/tmp/OUT-51bbacf9", "..", "", "a/b", "a" * 300, "-x", "a\nb"])
@pytest.mark.parametrize("where", ["job", "budgets", "segments", "corpus"])
def test_names_stay_inside_the_workdir(begun, where, name):
    def change(fields, job):
        if where == "job":
            fields["jobs"] = {name: job}
        else:
            job[where] = name if where == "corpus" else {name: [0, 65_536]}

    edit(begun, change)
    if where == "corpus" and not name:  # one that is not fixed yet
        sweepfile.read(begun.workdir)
        return
    with pytest.raises(UserError, match="sweep.json is damaged .* names no job, branch or corpus"):
        sweepfile.read(begun.workdir)


def test_a_backends_file_runs_only_if_it_is_named(begun, tmp_path):
    theirs = tmp_path / "theirs.py"
    mark = tmp_path / "was-run"
    theirs.write_text(BACKEND.format(mark=str(mark)))
    edit(begun, lambda fields, job: fields.update(backend=str(theirs)))
    here = f"--workdir={begun.workdir}"
    shown = helpers.run("launch.status", here)
    assert shown.returncode == 2 and not mark.exists()
    assert "0 of 1 runs done" in shown.stdout and f"only if you name it: --backend={theirs}" in shown.stderr
    sweep = sweepfile.read(epath.Path(begun.workdir))
    with pytest.raises(UserError, match="runs only if you name it"):
        assert sweep.engine
    assert helpers.run("launch.status", here, f"--backend={theirs}").returncode == 0 and mark.exists()


def retry(sweep, *more):
    """launch.retry of the sweep's first job; its exit code is 2, as the job has no text to train on."""
    return helpers.fails("launch.retry", f"--workdir={sweep.workdir}", "--job=d", *more)


def named(said: str) -> str:
    """The flag that an error asks for."""
    return re.search(r"--trust=[0-9a-f]{12}", said)[0]


def test_a_retried_job_is_submitted_with_options_that_a_sweep_could_have_had(begun):
    edit(begun, lambda fields, job: fields.update(backend="slurm", options={"sbatch": ["--wrap=touch pwned"]}))
    assert "--sbatch=--wrap=touch pwned: --array" in retry(begun, named(retry(begun)))


THEIRS = """
import pathlib
pathlib.Path({mark!r}).touch()
from configs.quickstart import get_config
"""


@pytest.mark.parametrize("what", ["config_file", "on_failure", "sbatch"])
def test_a_retry_runs_what_this_users_start_wrote_or_what_is_named(begun, tmp_path, what):
    """A config file, a command and options of sbatch, each put into sweep.json by somebody else."""
    theirs = tmp_path / "theirs.py"
    mark = tmp_path / "was-run"
    theirs.write_text(THEIRS.format(mark=str(mark)))

    def change(fields, job):
        if what == "config_file":
            job["config_file"] = str(theirs)
        else:
            fields["options"][what] = {"on_failure": ["touch", str(mark)], "sbatch": ["--chdir=/tmp/theirs"]}[what]

    edit(begun, change)
    said = retry(begun)
    assert "is not as a start of yours" in said and not mark.exists()
    assert {"config_file": str(theirs), "on_failure": str(mark), "sbatch": "--chdir=/tmp/theirs"}[what] in said
    assert "failed again" in retry(begun, named(said))
    assert mark.exists() == (what != "sbatch")


def test_a_retry_of_a_sweep_of_ones_own_needs_no_trust(begun):
    """And takes back that a failure was accepted."""
    trainer.give_up(begun.jobs[0], "it died", "accepted")
    assert status.look(begun, {})["jobs"][0]["state"] == "accepted"
    assert "failed again" in retry(begun)
    assert status.look(begun, {})["jobs"][0]["state"] == "failed"
    assert "sweep.json has the hash" in retry(begun, "--trust=0123456789ab")


def test_an_error_about_a_strangers_sweep_holds_no_escape_codes(begun):
    edit(begun, lambda fields, job: fields["options"].update(on_failure=["\x1b[2J\nerror: all is well"]))
    said = retry(begun)
    assert r"\x1b[2J\nerror: all is well" in said and "\x1b" not in said


def test_collect_runs_the_command_of_its_own_flag(begun, tmp_path):
    theirs = tmp_path / "theirs"
    mine = tmp_path / "mine"
    edit(begun, lambda fields, job: fields["options"].update(on_done=["touch", str(theirs)]))
    here = f"--workdir={begun.workdir}"
    assert helpers.run("launch.collect", here).returncode == 0
    assert helpers.run("launch.collect", here, f"--on_done=touch {mine}").returncode == 0
    assert mine.exists() and not theirs.exists()


def test_a_task_without_its_flags_runs_only_an_own_sweep(begun, tmp_path):
    edit(begun, lambda fields, job: job.update(config_file=str(tmp_path / "theirs.py")))
    task = "launch.task", f"--workdir={begun.workdir}", f"--job={begun.jobs[0].name}"
    assert "is not as a start of yours" in helpers.fails(*task)
    assert "has no tasks" in helpers.fails(*task, "--config=configs/quickstart.py")  # and goes on with a named config


def test_a_start_anew_makes_a_sweep_ones_own(begun, tmp_path):
    edit(begun, lambda fields, job: job.update(config_file=str(tmp_path / "theirs.py")))
    text = (begun.workdir / "sweep.json").read_text()
    assert not trust.is_own(begun.workdir, text)
    begun.write()
    assert trust.is_own(begun.workdir, (begun.workdir / "sweep.json").read_text())


def test_a_cache_that_cannot_be_written_is_said(begun, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("JMOE_CACHE", str(tmp_path / "file"))
    begun.write()
    assert "launch.retry will ask for --trust" in capsys.readouterr().err


def test_a_task_of_slurm_is_started_by_slurm(begun, monkeypatch):
    edit(begun, lambda fields, job: fields.update(backend="slurm"))
    sweep = sweepfile.read(begun.workdir)
    for name in ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match="/x cannot be read"):
        sweep.engine.job_of_task("/x")
    with pytest.raises(UserError, match="Slurm starts the tasks"):
        sweep.engine.run_task(sweep, sweep.jobs[0])
