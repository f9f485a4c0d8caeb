"""A loss of power at any moment of a sweep: the run goes on from a sound checkpoint to the same end, and nothing that
the disk has is taken for what it is not."""

import csv
import functools
import hashlib
import json
import os
import pathlib
import subprocess

import disk
import helpers
import jax
import pytest
from etils import epath

from jmoe.config.schema import config_of_record
from jmoe.errors import Damaged, UserError
from jmoe.model import sharding
from jmoe.run.record import read_arrays, read_record
from jmoe.run.step import abstract_state
from jmoe.storage import files as storage

# reads that fail leave callbacks that find their event loop closed; jmoe.cli drops these echoes in the programs
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
SEGMENTS = ("trunk", "branch-4096", "branch-8192")
FORKS = dict(zip(SEGMENTS, (0, 13, 26), strict=True))  # the first step of each


class Recorded:
    """A sweep of one run, which prepared its text: what a disk may hold at each moment of it."""

    def __init__(self, folder: pathlib.Path):
        self.root, text = folder / "disk", folder / "text"
        self.root.mkdir()
        text.mkdir()
        for source in sorted(pathlib.Path(os.__file__).parent.glob("*.py"))[:40]:
            (text / f"{source.stem}.txt").write_bytes(source.read_bytes())
        self.config = helpers.write_config(folder, f"{text}/*.txt", checkpoint_every=6)
        text_of_config = self.config.read_text()
        self.config.write_text(text_of_config.replace("n_tokens = (8_192, 16_384)", "n_tokens = (4_096, 8_192)"))
        self._sweep = folder / "sweep.py"
        self._sweep.write_text(f"def get_sweep():\n    return {str(self.config)!r}, {{'seed': (0,)}}\n")
        self._lines = disk.record(self.command(self.root), env=self.environment(self.root))
        (self.job,) = (self.root / "sweep" / "jobs").iterdir()
        self.job_path = f"sweep/jobs/{self.job.name}"

    def command(self, root: pathlib.Path) -> list[str]:
        return helpers.command("launch.sweep", f"--sweep={self._sweep}", f"--workdir={root / 'sweep'}")

    def environment(self, root: pathlib.Path) -> dict:
        compiled = {"JAX_COMPILATION_CACHE_DIR": os.path.realpath(f"{os.environ['JMOE_CACHE']}/compiled")}
        return helpers.environment() | compiled | {"JMOE_CACHE": str(root / "cache")}

    @functools.cached_property
    def moments(self) -> list[tuple[str, list[disk.State], list[tuple]]]:
        """After each thing done: the thing, the distinct states that were not there before, and the saves that have
        begun until then, (segment, step) in their order."""
        played, seen, moments, begun = disk.Disk(str(self.root), self._lines), set(), [], []
        for number, done in enumerate(played.play()):
            if done.startswith("mkdir") and done.endswith(".orbax-checkpoint-tmp") and "/checkpoints/" in done:
                segment, step = done.removesuffix(".orbax-checkpoint-tmp").split("/")[-3::2]
                if step.isdigit():
                    begun = [*begun, (segment, int(step))]
            states = {}
            for i, kind in enumerate(disk.KINDS):
                state = played.state(kind, seed=10 * number + i)
                states.setdefault(state.hash, state)
            moments.append((done, [state for key, state in states.items() if key not in seen], begun))
            seen |= set(states)
        return moments


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    if why := disk.missing():
        pytest.skip(why)
    return Recorded(tmp_path_factory.mktemp("power"))


class Reader:
    """Reads checkpoints in this process, with the trainer's own reader, and keeps what it found of each content."""

    def __init__(self, folder: pathlib.Path):
        self._folder, self._found = folder, {}

    def is_sound(self, state: disk.State, step: str) -> bool:
        if state.hash not in self._found:
            place = self._folder / str(len(self._found))
            place.mkdir()
            state.write(place / step)
            self._found[state.hash] = self._read(epath.Path(place / step))
        return self._found[state.hash]

    def _read(self, folder: epath.Path) -> bool:
        try:
            record = read_record(folder)
            mesh, params, opt_state = abstract_of(json.dumps(record["config"]))
            with jax.set_mesh(mesh):
                read_arrays(folder, record, params=params, opt_state=opt_state)
        except (Damaged, UserError):
            return False
        return True


@functools.cache
def abstract_of(config_of_a_record: str) -> tuple:
    """(mesh, params, opt_state) of the config in a checkpoint's record, as JSON, on one device; without arrays."""
    config = config_of_record(json.loads(config_of_a_record))
    mesh = sharding.make_mesh(config, jax.devices()[:1])
    with jax.set_mesh(mesh):
        return mesh, *abstract_state(config, mesh)


def checkpoints(job: disk.State | None, segment: str) -> dict[int, disk.State]:
    """The steps of a segment whose folders have their final names."""
    folder = job.at(segment, "checkpoints") if job else None
    return {int(name): state for name, state in folder.is_.items() if name.isdigit()} if folder else {}


@functools.cache
def steps_logged(metrics: disk.State | None) -> list[int]:
    """Those of a metrics.jsonl, up to the first line that is none."""
    steps = []
    for line in metrics.is_.split(b"\n") if metrics else ():
        try:
            steps.append(json.loads(line)["step"])
        except ValueError:
            break
    return steps


def test_every_moment_leaves_a_sound_checkpoint(recorded, tmp_path):
    """A save counts once the next has begun. What counts is never lost, nor are the metrics before it; and whatever has
    a final name, a checkpoint, a result, prepared tokens or the launcher's files, is whole."""
    reader, n_states = Reader(tmp_path), 0
    for done, states, begun in recorded.moments:
        for state in states:
            n_states += 1
            job = state.at(recorded.job_path)
            newest = {segment: max(checkpoints(job, segment), default=0) for segment in SEGMENTS}
            for segment, step in newest.items():
                if step:
                    where = f"after {done}: step {step} of {segment}"
                    assert reader.is_sound(checkpoints(job, segment)[step], str(step)), f"{where} is damaged"
                    steps = steps_logged(job.at(segment, "metrics.jsonl"))
                    first = FORKS[segment]
                    assert steps[: step - first] == list(range(first, step)), f"{where} has metrics of {steps}"
            for segment, step in begun[:-1]:
                assert newest[segment] >= step, f"after {done}: step {step} of {segment} is lost: {newest}"
            check_files(state, recorded.job_path, has_saved=bool(begun), done=done)
    assert n_states > 2_000 and recorded.moments[-1][2][-1] == ("branch-8192", 32)


def check_files(state: disk.State, job_path: str, has_saved: bool, done: str) -> None:
    """What the launcher and a finished branch write is whole or not there, and sweep.json is, once a trainer works."""
    for path in ("sweep/sweep.json", f"{job_path}/job.json", *(f"{job_path}/{name}/result.json" for name in SEGMENTS)):
        if (file := state.at(path)) is not None:
            assert is_json(file), f"after {done}: {path} is cut"
        else:
            assert not (has_saved and "result" not in path), f"after {done}: {path} is lost"
    if (table := state.at("sweep/runs.csv")) is not None:
        assert table.is_.endswith(b"\n"), f"after {done}: runs.csv is cut"
    tokens = state.at("cache/tokens")
    for folder in tokens.is_.values() if tokens else ():
        assert has_its_shards(folder), f"after {done}: the shards are not what the manifest says"
    assert not has_saved or tokens and any(len(name) == 16 for name in tokens.is_), f"after {done}: the text is lost"


@functools.cache
def is_json(file: disk.State) -> bool:
    """Whether it is JSON as it was written: sealed, if it has a seal."""
    try:
        values = json.loads(file.is_)
    except ValueError:
        return False
    return "sha256" not in values or values == storage.sealed(values)


@functools.cache
def has_its_shards(folder: disk.State) -> bool:
    """Whether a folder of prepared tokens has the shards of its manifest, if it has a manifest."""
    manifest = folder.at("manifest.json") if isinstance(folder.is_, dict) else None
    if manifest is None:
        return True
    shards = [shard for split in json.loads(manifest.is_)["shards"].values() for shard in split]
    found = [(folder.at(shard["file"]), shard["sha256"]) for shard in shards]
    return all(data and hashlib.sha256(data.is_).hexdigest() == hash_ for data, hash_ in found)


def lost_most(recorded, share: float) -> tuple[str, disk.State]:
    """What was done last, and what the disk has if it kept least, after that share of the moments with a checkpoint."""
    moments = [moment for moment in recorded.moments if moment[1] and moment[2]]
    done, states, _ = moments[int(share * len(moments))]
    return done, states[0]


AT_LENGTH = pytest.mark.skipif(not os.environ.get("JMOE_SOAK"), reason="make soak alone: at other moments")


@pytest.mark.parametrize("share", [0.5, *(pytest.param(share, marks=AT_LENGTH) for share in (0.1, 0.8))])
def test_a_sweep_ends_the_same_after_a_loss_of_power(recorded, tmp_path, share):
    """The command that started it, given again, in the same place."""
    done, state = lost_most(recorded, share)
    state.write(tmp_path / "disk")
    command, environment = recorded.command(tmp_path / "disk"), recorded.environment(tmp_path / "disk")
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, f"after {done}: {ended.stderr}"
    (job,) = (tmp_path / "disk" / "sweep" / "jobs").iterdir()
    said = (job / "log.txt").read_text()
    assert "damaged" not in said and ("resuming" in said or share < 0.35), f"after {done}: {said}"
    assert results_of(job) == results_of(recorded.job), f"after {done}"
    assert rows(tmp_path / "disk") == rows(recorded.root), f"after {done}"


def results_of(job: pathlib.Path) -> list:
    """What the branches of a run have as their results, without times, and its metrics."""
    results = [json.loads(path.read_text()) for path in sorted(job.glob("*/result.json"))]
    kept = [{name: value for name, value in result.items() if name not in ("seconds", "sha256")} for result in results]
    assert len(kept) == 2
    return kept + [path.read_text() for path in sorted(job.glob("*/metrics.jsonl"))]


def rows(root: pathlib.Path) -> list[dict]:
    """runs.csv without its times."""
    with open(root / "sweep" / "runs.csv", newline="") as file:
        return [{name: value for name, value in row.items() if name != "seconds"} for row in csv.DictReader(file)]
