"""Symbolic links that somebody planted in a sweep's workdir: nothing is written, added to or deleted behind them."""

import json
import pathlib

import helpers
import pytest
import sweeps

from jmoe.errors import UserError
from jmoe.storage import durable
from jmoe.storage import files as storage
from launch import cluster, hooks, local, slurm, sweepfile, trainer
from launch.jobs import files_of

FAILURE = {"cause": "it died", "tries": 1, "tokens": 0, "for_good": True}
LINKS = (
    "jobs",
    "jobs/NAME",
    "jobs/NAME/trunk",
    "jobs/NAME/trunk/checkpoints",
    "jobs/NAME/trunk/checkpoints/20",
    "jobs/NAME/trunk/snapshots/20",
    "jobs/NAME/trunk/metrics.jsonl",
    "jobs/NAME/branch-16384",
    "jobs/NAME/branch-16384/result.json",
    "jobs/NAME/logs",
    "jobs/NAME/log.txt",
    "jobs/NAME/lock",
    "jobs/NAME/train.lock",
    "jobs/NAME/job.json",
    "jobs/NAME/time.json",
    "jobs/NAME/failure.json",
)


@pytest.fixture
def sweep(tmp_path, text_glob):
    """A sweep of one half trained job, which has failed."""
    config = helpers.write_config(tmp_path, text_glob)
    path = sweeps.write_sweep(tmp_path, config, [{"seed": 0}])
    sweep = sweeps.begin(path, tmp_path / "run", on_failure=["touch", str(tmp_path / "told")])
    (job,) = sweep.jobs
    sweeps.train(job, 0.5)
    (job.folder / "trunk" / "checkpoints" / "20").mkdir(parents=True)
    (job.folder / "failure.json").write_text(json.dumps(FAILURE))
    return sweep


def plant(sweep, place: str) -> tuple[pathlib.Path, pathlib.Path]:
    """Moves what is at a place of the workdir elsewhere, and links to it; returns the link and where it leads."""
    (job,) = sweep.jobs
    link = pathlib.Path(sweep.workdir, place.replace("NAME", job.name))
    outside = pathlib.Path(sweep.workdir).parent / "outside"
    if link.exists():
        link.rename(outside)
    elif "." in link.name:
        outside.write_text("mine")
    else:
        outside.mkdir()
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(outside)
    return link, outside


def contents(path: pathlib.Path) -> dict[str, bytes | None]:
    """Every file and folder at a path and below, with what it holds."""
    found = {str(each): each.read_bytes() if each.is_file() else None for each in path.rglob("*")}
    return found | {str(path): path.read_bytes() if path.is_file() else None}


def writers(sweep) -> dict:
    """What writes to or deletes in a job's folder, by what it is."""
    (job,) = sweep.jobs
    files = files_of(sweep.workdir)
    return {
        "a start": lambda: local.Local().submit(sweep),
        "a look before it": lambda: sweepfile.resume(sweep, files),
        "a trainer": lambda: trainer.start(job, 0),
        "a failure": lambda: trainer.write_failure(job, "it died", True, 0),
        "an acceptance": lambda: trainer.give_up(job, "it died", "accepted"),
        "a new try": lambda: trainer.forget_cause(job),
        "a command told": lambda: hooks.failed(sweep, job),
        "a copied log": lambda: cluster.copy_log(job, 0),
    }


@pytest.mark.parametrize("place", LINKS)
def test_nothing_is_written_behind_a_link(place, sweep):
    link, outside = plant(sweep, place)
    before = contents(outside)
    names = {path.name for path in outside.parent.iterdir()}
    for what, write in writers(sweep).items():
        try:
            write()
            refused = ""
        except UserError as error:
            refused = str(error)
        has_failed = sweep.jobs[0].failure() != {}  # else nothing is told, and there is nothing to forget
        is_shallow = place in ("jobs", "jobs/NAME")
        if what == "a look before it" and not is_shallow:  # as of --dry_run, which looks at few files
            continue
        assert f"{link} is a symbolic link to {outside}" in refused or (what == "a command told" and not has_failed), (
            what
        )
    assert contents(outside) == before and link.is_symlink()
    assert {path.name for path in outside.parent.iterdir()} == names  # the command of --on_failure was not called


def test_a_folder_of_slurms_lists_that_is_a_link(sweep, tmp_path, monkeypatch):
    link, outside = plant(sweep, "slurm")
    monkeypatch.setattr(slurm, "call", lambda *_, **__: "")  # an empty queue
    (sweep.jobs[0].folder / "failure.json").unlink()
    with pytest.raises(UserError, match="slurm is a symbolic link"):
        slurm.Slurm().submit(sweep)
    assert not list(outside.iterdir())


def test_links_that_no_trainer_follows_are_left_alone(sweep, tmp_path):
    """The workdir may itself be a link, and other programs have links of their own, as wandb does in its folder."""
    (job,) = sweep.jobs
    wandb = pathlib.Path(job.folder, "trunk", "wandb")
    wandb.mkdir()
    (wandb / "latest-run").symlink_to(wandb)
    (tmp_path / "short").symlink_to(sweep.workdir)
    same = sweepfile.read(storage.absolute(tmp_path / "short")).jobs[0]
    same.refuse_links()
    durable.refuse_links(tmp_path / "nothing")


@pytest.mark.parametrize(
    "module, place",
    [
        ("jmoe.train", "jobs/NAME/train.lock"),
        ("jmoe.train", "jobs/NAME/trunk/checkpoints"),
        ("launch.sweep", "sweep.lock"),
        ("launch.collect", "runs.csv"),
        ("launch.retry", "jobs/NAME"),
    ],
)
def test_a_command_names_the_link_that_it_does_not_follow(module, place, sweep):
    link, outside = plant(sweep, place)
    before = contents(outside)
    (job,) = sweep.jobs
    here = f"--workdir={sweep.workdir}"
    flags = {
        "jmoe.train": (f"--config={job.config_file}", f"--workdir={job.folder}"),
        "launch.sweep": (f"--sweep={sweep.file}", here),
        "launch.collect": (here,),
        "launch.retry": (here, f"--job={job.name}"),
    }
    assert f"{link} is a symbolic link to {outside}" in helpers.fails(module, *flags[module])
    assert contents(outside) == before and link.is_symlink()
