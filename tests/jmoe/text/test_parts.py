"""Text prepared by several processes at once with --part, in a folder and on gs://: the same bytes as by one."""

import contextlib
import pathlib
import signal

import helpers
import numpy as np
import pytest
from etils import epath
from text_fixtures import SMALL_PIECES, settings, write_much_text

from jmoe.errors import UserError
from jmoe.text import corpus, parts

SHARDS = "--shard_tokens=250000"


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """6.5 MB in two files, some of it twice: seven units. Beside it a config of such units and short leases."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "config.py").write_text(
        f"{helpers.SHORT_LEASES}{SMALL_PIECES}from configs.quickstart import get_config\n"
    )
    return write_much_text(folder, 325)


def flags(text, out_dir, *more):
    config = pathlib.Path(text).parent / "config.py"
    return [f"--config={config}", f"--config.data.path={text}", f"--out_dir={out_dir}", SHARDS, *more]


@pytest.fixture(scope="module")
def by_one(text, tmp_path_factory):
    """The folder that one machine makes."""
    folder = tmp_path_factory.mktemp("one") / "text"
    helpers.succeeds("jmoe.prepare", *flags(text, folder, "--workers=1"))
    return folder


def content(folder: epath.Path) -> dict[str, bytes]:
    """The files of a folder, but for those of owners."""
    files = {}
    for path in folder.iterdir():
        assert not path.is_dir(), path
        if not path.name.endswith(".lock"):
            files[path.name] = path.read_bytes()
    return files


def start(text, folder, part, *more):
    (process,) = helpers.start("jmoe.prepare", *flags(text, folder, f"--part={part}", "--workers=1", *more))
    return process


def test_three_at_once_on_gs_one_of_them_killed(text, by_one, bucket, tmp_path, monkeypatch):
    """Started again, it repeats none of its units. Training reads the result from there."""
    folder = epath.Path(f"{bucket}/parts/text")
    processes = [start(text, folder, f"{i}/3") for i in (1, 2, 3)]

    def units():
        with contextlib.suppress(FileNotFoundError):
            return sorted(path for work in folder.glob("parts-*") for path in (work / "units").iterdir())
        return []

    def of_second():
        return [path for path in units() if int(path.stem) % 3 == 1]

    helpers.wait_until(of_second, processes)
    processes[1].send_signal(signal.SIGKILL)
    assert processes[1].wait() == -signal.SIGKILL
    written = {path: path.stat().mtime for path in of_second()}
    assert written
    again = start(text, folder, "2/3")
    helpers.wait_until(lambda: len(of_second()) == 2, [again])
    assert written.items() <= {path: path.stat().mtime for path in of_second()}.items()
    said = [process.communicate(timeout=300)[1] for process in (processes[0], again, processes[2])]
    codes = [process.returncode for process in (processes[0], again, processes[2])]
    assert codes == [0, 0, 0], "\n".join(said)
    assert "waiting: part" in said[0] + said[2]
    assert content(folder) == content(epath.Path(by_one))

    monkeypatch.setenv("JMOE_CACHE", str(tmp_path / "cache"))
    fetched = corpus.load(settings(folder))
    local = corpus.load(settings(by_one))
    assert fetched.fingerprint == local.fingerprint
    np.testing.assert_array_equal(fetched.train[:], local.train[:])


def test_what_does_not_fit_together_is_refused(text, by_one, tmp_path):
    folder = tmp_path / "text"
    first = start(text, folder, "1/2")
    helpers.wait_until(lambda: list(folder.glob("parts-*/documents-00001.npz")), [first])
    for more, words in (
        (["--part=1/2"], "--part=1/2: another process is preparing it, jmoe.prepare (process"),
        (["--part=2/3"], f"--part=2/3: --out_dir={folder} is prepared in 2 parts, which would overlap with it"),
        (["--part=2/2", "--config.data.on_bad_document=skip"], "its parts are of other text, or by another tokenizer"),
        (["--part=2/2", "--shard_tokens=7"], f"--shard_tokens=7: the parts in --out_dir={folder} have shards of 25"),
        (["--join"], "--join: part 2 of 2 is not tokenised; run it with --part first"),
        ([], f"--out_dir={folder} is prepared in parts: give the --part, or --join to end them all"),
    ):
        assert words in helpers.fails("jmoe.prepare", *flags(text, folder, *more)), words
    first.kill()
    first.wait()
    second = start(text, folder, "2/2")  # finds the first one's table, and leaves it its shards
    assert second.communicate(timeout=300) and second.returncode == 0
    assert not (folder / "manifest.json").exists()
    assert "train: " in helpers.succeeds("jmoe.prepare", *flags(text, folder, "--join")).stdout
    assert content(epath.Path(folder)) == content(epath.Path(by_one))
    (tmp_path / "empty").mkdir()
    said = helpers.fails("jmoe.prepare", *flags(text, tmp_path / "empty", "--join"))
    assert f"--join: {tmp_path}/empty has no parts; prepare them by --part=1/N to N/N" in said


def test_a_bucket_that_is_not_there(text, bucket):
    said = helpers.fails("jmoe.prepare", *flags(text, "gs://no-such-bucket/text", "--part=1/2"))
    assert "--out_dir=gs://no-such-bucket/text cannot be used" in said
    assert "--verify reads a local folder" in helpers.fails("jmoe.prepare", f"--out_dir={bucket}/text", "--verify")


def test_parts_are_read_as_people_write_them():
    assert parts.Part.parse("3/16") == parts.Part(3, 16)
    for wrong in ("0/3", "3", "3/2", "1/0", "-1/3", "1/3/5"):
        with pytest.raises(UserError, match="expected I/N"):
            parts.Part.parse(wrong)
