"""Text prepared once, by several processes: the same as in a training, trained on, killed, started twice."""

import hashlib
import os
import pathlib
import random
import signal
import subprocess
import time

import helpers
import numpy as np
import psutil
import pytest
from text_fixtures import SMALL_PIECES, prepare_command, settings, write_much_text

from jmoe.errors import UserError
from jmoe.storage import ownership
from jmoe.storage.files import cache_dir
from jmoe.text import corpus


def test_a_prepared_folder_is_the_text_it_was_made_of(prepared, places, vocabularies, own_cache):
    one, other = (
        corpus.load(settings(places["parquet"], vocabularies["json"])),
        corpus.load(settings(prepared, vocabularies["json"])),
    )
    assert one.fingerprint == other.fingerprint
    for split in ("train", "validation"):
        np.testing.assert_array_equal(getattr(one, split)[:], getattr(other, split)[:])
    assert len(other.manifest["shards"]["train"]) > 5
    for split, shards in other.manifest["shards"].items():
        for shard in shards:
            content = (prepared / shard["file"]).read_bytes()
            assert hashlib.sha256(content).hexdigest() == shard["sha256"]
            tokens = np.frombuffer(content, np.uint16)
            assert len(tokens) == shard["tokens"] and np.sum(tokens == 0) == shard["documents"]  # 0 ends a document
        for what in ("tokens", "documents"):
            assert sum(shard[what] for shard in shards) == other.manifest[what][split]
    described = other.manifest["tokenizer"]
    assert described["sha256"] == hashlib.sha256(pathlib.Path(vocabularies["json"]).read_bytes()).hexdigest()
    assert (described["vocab_size"], described["end_of_text"]) == (700, 0)
    tokens, whole = other.train, one.train[:]
    chance = np.random.default_rng(0)
    for start, stop in chance.integers(0, len(whole), (300, 2)):  # across the seams of shards
        np.testing.assert_array_equal(tokens[start:stop], whole[start:stop])


def test_a_second_start_prepares_nothing_and_other_text_is_refused(prepared, places, vocabularies):
    before = {path: path.stat().st_mtime_ns for path in prepared.glob("*.*n")}
    (prepared / "units-0123").mkdir()  # as a kill in the last moment leaves them
    (prepared / "units-0123" / "000000.npz").write_bytes(b"")
    (prepared / "manifest.json.123.tmp").write_text("{")
    helpers.succeeds(*prepare_command(places, vocabularies, prepared))
    assert {path: path.stat().st_mtime_ns for path in prepared.glob("*.*n")} == before
    assert {path.name for path in prepared.iterdir()} == {path.name for path in before} | {".lock"}
    said = helpers.fails(*prepare_command(places, vocabularies, prepared, source="jsonl"))
    assert f"--out_dir={prepared}" in said and "other text" in said


def test_a_vocabulary_too_small_for_the_tokenizer(prepared, vocabularies, text_glob, own_cache):
    for data in (settings(prepared, vocabularies["json"]), settings(text_glob, vocabularies["json"])):
        with pytest.raises(UserError, match=r"config.model.vocab_size=699 is below the 700 tokens.*tokenizer.json"):
            corpus.load(data, vocab_size=699)
    assert not list(cache_dir().rglob("*.bin"))  # said before any text was read
    made = corpus.load(settings(prepared, vocabularies["json"]), vocab_size=700)
    assert made.manifest["tokenizer"]["vocab_size"] == 700


@pytest.fixture(scope="module")
def much_text(tmp_path_factory):
    """10 MB in two files, some of it twice: ten units of work. Beside it a config of such units."""
    folder = tmp_path_factory.mktemp("much")
    (folder / "config.py").write_text(f"{SMALL_PIECES}from configs.quickstart import get_config\n")
    return write_much_text(folder, 500)


def content(folder) -> dict:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_killed_at_random_moments_it_ends_byte_identical(much_text, tmp_path):
    """SIGKILL and Ctrl-C while two processes tokenise and while shards are written, against one process left alone."""
    config = pathlib.Path(much_text).parent / "config.py"
    flags = [f"--config={config}", f"--config.data.path={much_text}", "--shard_tokens=750000"]
    done = helpers.succeeds("jmoe.prepare", *flags, "--workers=1", f"--out_dir={tmp_path / 'whole'}")
    whole = content(tmp_path / "whole")
    assert sum(name.endswith(".bin") for name in whole) > 4 and not any("units" in name for name in whole)

    folder, chance = tmp_path / "killed", random.Random(1)
    command = helpers.command("jmoe.prepare", *flags, "--workers=2", f"--out_dir={folder}")

    def progress():
        return len(list(folder.glob("units-*/*.npz"))) + len(list(folder.glob("*.bin")))

    kills = 0
    for kill in (0, 2, 3, 5):
        process = subprocess.Popen(
            command, env=helpers.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        before = set(folder.glob("units-*/*.npz"))
        target = 3 * kill if kill < 4 else 9 + kill  # the last ones while shards are written
        while process.poll() is None and progress() < target:
            time.sleep(0.001)
        time.sleep(chance.random() * 0.03)
        workers = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        if kill == 2:
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.kill()
        said = process.communicate()[1].decode()
        if kill == 2 and process.returncode != 0:
            assert process.returncode == 130 and "resumes" in said and "Traceback" not in said, said
        _, alive = psutil.wait_procs(workers, timeout=300)
        assert not alive  # a worker does not outlive the process that it works for
        if process.returncode == 0:
            break
        kills += 1
        if not (folder / "manifest.json").exists():
            assert before <= set(folder.glob("units-*/*.npz"))  # what was done is kept
    assert kills >= 1  # how many there are, and what each finds done, is the machine's affair
    done = subprocess.run(command, env=helpers.environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert content(folder) == whole


def test_two_at_once_do_not_write_over_each_other(places, vocabularies, prepared, tmp_path):
    with ownership.hold(tmp_path / ".lock", "a test"):
        said = helpers.fails(*prepare_command(places, vocabularies, tmp_path))
    assert f"--out_dir={tmp_path}" in said and "another process" in said
