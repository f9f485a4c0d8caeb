"""A bucket that does not answer for a while: waited for, never taken for damage, and nothing is deleted.

The outages take a second; with JMOE_SOAK=1 a hundred. Whole runs and sweeps in outages: test_storage.py and
tests/launch/test_gs.py.
"""

import concurrent.futures
import gc
import os
import re
import subprocess
import sys
import threading

import helpers
import jax
import outage
import pytest
import tensorstore
from etils import epath

from jmoe import cli
from jmoe.errors import UNAVAILABLE, Unavailable, UserError
from jmoe.run import checkpoint
from jmoe.storage import files as storage
from jmoe.storage import gcs, owner_check, ownership
from tests.jmoe.run.test_checkpoint import RECORD, abstract, assert_is, mesh_of, restore, state, write

AT_LENGTH = pytest.mark.skipif(not os.environ.get("JMOE_SOAK"), reason="make soak alone: takes minutes")
# of the store's faults, one that gcsfs sees as an answer and one that it sees as none
FAULTS = ["401", "lost", *(pytest.param(fault, marks=AT_LENGTH) for fault in ("503", "reset", "cut"))]

# reads that fail leave callbacks that find their event loop closed; jmoe.cli drops these echoes in the programs
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True)
def quiet(proxy):
    """Every test begins without an outage, and leaves nothing of its failed reads behind."""
    proxy.end()
    yield
    gc.collect()


@pytest.fixture(scope="module")
def saved(proxy, bucket):
    """A folder with two sound checkpoints, and what lies in it."""
    write(f"{bucket}/saved/checkpoints", mesh_of(2, 2), 5, 10)
    return f"{bucket}/saved/checkpoints"


def content(folder) -> dict:
    """Every object under a folder."""
    store = gcs.Store()
    return {name: store.cat_file(name) for name in store.find(folder)}


@pytest.mark.parametrize("fault", FAULTS)
def test_files_are_read_and_written_through_an_outage(fault, proxy, bucket):
    """Each request fails at first; an object that cannot be looked at is never one that is not there."""
    folder = storage.make_workdir(f"{bucket}/files-{fault}")
    path, large = folder / "a", os.urandom(300_000)

    def written():
        path.write_bytes(large)
        return path.read_bytes() == large

    for act, then in (
        (lambda: storage.make_workdir(f"{bucket}/files-{fault}/b").name, "b"),
        (lambda: storage.write_whole(path, '{"a": 1}\n'), None),
        (lambda: storage.read_lines(path), [{"a": 1}]),
        (lambda: (path.exists(), folder.is_dir(), [p.name for p in folder.iterdir()]), (True, True, ["a"])),
        (lambda: (folder / "b").exists(), False),
        (written, True),
        (path.unlink, None),
        (path.exists, False),
    ):
        proxy.fail(fault, 0.25)
        assert act() == then
        helpers.wait_until(proxy.over)
    assert proxy.failed[fault] >= 8


@pytest.mark.parametrize(
    "faults",
    [["reset", "cut", "503", "401"], *(pytest.param([fault] * 4, marks=AT_LENGTH) for fault in outage.FAULTS)],
    ids="-".join,
)
def test_a_resume_waits_for_the_store(faults, proxy, saved, capfd):
    """At the listing, the record, metadata and the arrays: the newest checkpoint is taken, every object stays."""
    before = content(saved)
    places = ("checkpoints", "10/record/metadata", "10/params/d/", "10/params/ocdbt.process_0/d/")
    for fault, at in zip(faults, places, strict=True):
        proxy.fail(fault, outage.SECONDS, at=at)
    assert_is(restore(saved, mesh_of(2, 2)), mesh_of(2, 2), 10)
    assert proxy.over() and proxy.failed.total() >= 3
    said = capfd.readouterr().err
    assert "damaged" not in said and "does not answer" in said, said
    assert not proxy.deleted and content(saved) == before


@pytest.mark.parametrize(
    "fault, at",
    [
        ("cut", "10/record/metadata"),
        ("401", "10/params/ocdbt.process_0/d/"),
    ],
)
def test_an_outage_that_outlasts_the_patience_ends_the_resume(fault, at, proxy, saved, monkeypatch):
    monkeypatch.setenv("JMOE_STORE_PATIENCE", "0.3")
    before = content(saved)
    proxy.fail(fault, 600, at=at)
    with pytest.raises(Unavailable, match="the store gave no answer for .* s .*goes on from what is saved"):
        restore(saved, mesh_of(2, 2))
    proxy.end()
    assert not proxy.deleted and content(saved) == before


def test_damage_in_a_bucket_is_found_and_kept(proxy, bucket, capfd):
    """The damaged checkpoint makes room for a new one of its step, and lies aside as it was."""
    folder, mesh = epath.Path(f"{bucket}/damage/checkpoints"), mesh_of(2, 2)
    write(folder, mesh, 5, 10)
    (array, *_) = (folder / "10" / "params" / "d").iterdir()
    array.write_bytes(array.read_bytes()[:-1])
    damaged = content(folder / "10")
    saved = checkpoint.Checkpoints(folder)
    with jax.set_mesh(mesh):
        assert_is(saved.restore(*map(abstract, state(mesh, 0)), RECORD), mesh, 5)
        saved.save(10, *state(mesh, 10), RECORD)
    saved.close()
    kept = content(folder.parent / "damaged-10")
    assert {name.replace("/damaged-10/", "/checkpoints/10/"): x for name, x in kept.items()} == damaged
    assert f"kept as {folder.parent}/damaged-10" in capfd.readouterr().err
    assert_is(restore(folder, mesh), mesh, 10)


def test_an_unfinished_save_that_was_the_only_one_is_removed(proxy, bucket, monkeypatch):
    """The folder is there when it is looked at, and gone, with its last object, when it is listed."""
    folder = epath.Path(f"{bucket}/unfinished/checkpoints")
    (folder / "5" / "params").mkdir(parents=True)
    (folder / "5" / "params" / "d").write_text("half of it")
    iterdir, looks = type(folder).iterdir, []

    def late(path):
        if str(path) == str(folder) and threading.current_thread() is threading.main_thread():
            looks.append(path.exists())
            helpers.wait_until(lambda: not path.exists())
        return iterdir(path)

    monkeypatch.setattr(type(folder), "iterdir", late)
    saved = checkpoint.Checkpoints(folder)
    assert looks == [True] and saved.steps() == [] == checkpoint.steps_in(folder)
    saved.close()


def test_a_deletion_of_which_the_answer_was_lost_is_done(proxy, bucket):
    """Of a single request: aiohttp makes it again unseen, on a new connection, and is told that there is no object."""
    path = storage.make_workdir(f"{bucket}/deleted") / "a"
    path.write_text("a")
    assert path.read_text() == "a"
    proxy.fail("lost", 0.001, at="DELETE ")
    path.unlink()
    assert proxy.failed["lost"] >= 1 and not path.exists()


def test_many_deletions_wait_for_the_store_one_by_one(proxy, bucket, monkeypatch):
    """Also on Google's service, where gcsfs would send a hundred in one request and fail for the first that fails."""
    monkeypatch.setattr(gcs.Store, "on_google", True)
    folder = epath.Path(f"{bucket}/many")
    for i in range(40):
        (folder / str(i)).write_text(f"text {i}")
    proxy.fail("503", 1.0, at="DELETE", only="DELETE")
    folder.rmtree()
    assert proxy.failed["503"] and content(folder) == {}
    assert not [request for request in proxy.requests if "/batch/" in request]


@pytest.mark.parametrize("change", ["delete", "move"])
def test_a_late_deletion_or_move_is_refused_once_another_owner_has_written(change, proxy, bucket):
    """It names the object's generation, as all changes of an owner do. The one here is held back, and comes after the
    object was written by another: then nothing is done to that, unless the owner still owns it."""
    path = epath.Path(f"{bucket}/late-{change}/a")
    path.write_text("the owner's")
    other = tensorstore.KvStore.open({"driver": "gcs", "bucket": bucket.removeprefix("gs://")}).result()
    store, owns, request = gcs.Store(), [True], {"delete": "DELETE", "move": "moveTo"}[change]

    def still_mine():
        if not owns[0]:
            raise UserError("this process owns it no more")
        return 100.0

    def work():
        with owner_check.checking_owner(still_mine):
            store.rm_file(os.fspath(path)) if change == "delete" else store.mv_file(path, path.with_name("b"))

    proxy.fail("held", 2.0, at=request, only=request)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        done = pool.submit(work)
        helpers.wait_until(lambda: proxy.failed["held"])
        owns[0] = False
        other.write(f"late-{change}/a", "another's").result()
        with pytest.raises(UserError, match="owns it no more"):
            done.result()
    assert content(path.parent) == {f"{os.fspath(path).partition('://')[2]}": b"another's"}


def test_a_move_of_which_the_answer_was_lost_is_done(proxy, bucket):
    """The store moves each object, and the answer is cut: asked again it says 404, for the object has left."""
    path = epath.Path(f"{bucket}/moved/10")
    for i in range(3):
        (path / str(i)).write_text(f"text {i}")
    before = content(path)
    proxy.fail("cut", 0.5, at="moveTo", only="moveTo")
    kept = storage.set_aside(path, path.parent)
    assert proxy.failed["cut"] >= 1 and not path.exists()
    assert {name.replace(f"damaged-{path.name}", path.name): text for name, text in content(kept).items()} == before


def test_a_move_of_what_is_not_there_fails_through_an_outage(proxy, bucket):
    folder = epath.Path(f"{bucket}/unmoved")
    (folder / "other").write_text("")
    proxy.fail("503", 0.5, at="moveTo", only="moveTo")
    with pytest.raises(FileNotFoundError):
        gcs.Store().mv_file(folder / "a", folder / "b")
    assert proxy.failed["503"]


def test_a_process_ends_well_while_the_store_does_not_answer_for_its_lease(proxy, bucket):
    """Its heart asks then; the answer comes when Python is ending, which here takes its time."""
    program = (
        "import sys, time\n"
        "from etils import epath\n"
        "from jmoe.storage import lease, ownership\n"
        "class Slow:\n"
        "    def __del__(self, sleep=time.sleep): sleep(10)\n"
        "slow = Slow()\n"
        "lease.RENEW_EVERY, lease.SECONDS_TO_RELEASE = 0.1, 0.5\n"
        "with ownership.hold(epath.Path(sys.argv[1]), 'a test'):\n"
        "    print('held', flush=True)\n"
        "    time.sleep(1)\n"
    )
    command = [sys.executable, "-c", program, f"{bucket}/left/train.lock"]
    process = subprocess.Popen(command, env=helpers.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.readline() == b"held\n", process.communicate()
    proxy.fail("503", 4, at="left/train.lock")
    said = process.communicate(timeout=300)[1].decode()
    assert process.returncode == 0 and proxy.failed["503"] > 1, said


def test_a_forbidden_bucket_is_the_users_to_mend(proxy, bucket):
    proxy.fail("403", 600)
    with pytest.raises(UserError, match="--workdir=.*/forbidden cannot be written: Forbidden: .*the proxy says 403"):
        storage.make_workdir(f"{bucket}/forbidden")
    with pytest.raises(OSError) as error:
        (epath.Path(bucket) / "a").write_text("")
    assert "Forbidden" in cli.disk_error(error.value) and cli.unavailable(error.value) is None


def test_a_lease_of_which_the_answer_was_lost_is_held(proxy, bucket):
    """The store makes the object, and the answer is cut: asked again it says 412, for the object exists."""
    path = epath.Path(f"{bucket}/lost/sweep.lock")
    proxy.fail("cut", 0.5, at="ifGenerationMatch=0", only="ifGenerationMatch=0")
    with ownership.hold(path, "me"):
        assert proxy.failed["cut"] and ownership.owner(path) == ownership.Owner.of(what="me")
    assert ownership.owner(path) is None


def test_a_start_in_a_long_outage_ends_with_a_code_that_is_tried_again(proxy, bucket, tmp_path, text_glob, monkeypatch):
    monkeypatch.setenv("JMOE_STORE_PATIENCE", "0.5")
    proxy.fail("503", 600)
    config = helpers.write_config(tmp_path, text_glob, checkpoint_every=5)
    said = helpers.run("jmoe.train", f"--config={config}", f"--workdir={bucket}/long")
    assert said.returncode == UNAVAILABLE == 75, said.stderr
    assert re.search(r"error: gs://jmoe-test\S*: the store gave no answer for", said.stderr), said.stderr
    assert "Traceback" not in said.stderr


@pytest.mark.parametrize("failing", [0, pytest.param(1, marks=AT_LENGTH)])
def test_a_store_error_on_one_process_ends_all_of_them(failing, proxy, bucket, tmp_path, text_glob):
    """The one that met it with code 75, the others by jax with another that is tried again."""
    config = helpers.write_config(tmp_path, text_glob, checkpoint_every=5)
    workdir = f"{bucket}/many-{failing}"
    flags = [f"--config={config}", f"--workdir={workdir}", "--config.model.group_tokens=128"]
    arrays = f"uploadType=media&name=many-{failing}/trunk/checkpoints/5/params/ocdbt.process_{failing}/"
    proxy.fail("401", 600, at=arrays, only=arrays)
    processes = helpers.start("jmoe.train", *flags, n_processes=2)
    said = [process.communicate(timeout=300)[1] for process in processes]
    codes = [process.returncode for process in processes]
    assert codes[failing] == UNAVAILABLE and codes[1 - failing] not in (0, 2), (codes, said)
    assert "error: gs://" in said[failing]
