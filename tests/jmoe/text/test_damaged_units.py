"""Files that a kill or a disk damaged in the middle of a preparation: made again, or named with what to do."""

import pathlib

import numpy as np
import pytest
from etils import epath
from text_fixtures import settings, write_much_text

from jmoe import prepare
from jmoe.errors import Damaged, UserError
from jmoe.storage.files import cache_dir
from jmoe.text import corpus, parts, sources, tokenizer, unit_format
from jmoe.text import prepare as prepare_lib

SHARD_TOKENS = 30_000


class Killed(Exception):
    """The end of a process, where a test chooses."""


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_much_text(tmp_path_factory.mktemp("text"), 20)


@pytest.fixture(autouse=True)
def small_units(monkeypatch):
    monkeypatch.setattr(sources, "PIECE_BYTES", 40_000)


@pytest.fixture
def preparation(text, tmp_path):
    data = settings(text)
    return parts.Preparation(
        sources.find(data), data, tokenizer.load("bytes"), epath.Path(tmp_path / "parts"), SHARD_TOKENS
    )


def content(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.endswith(".lock")}


@pytest.fixture
def whole(text, tmp_path):
    """What a preparation that nobody disturbed writes."""
    prepare.prepare_folder(settings(text), tmp_path / "whole", 1, SHARD_TOKENS)
    return content(tmp_path / "whole")


def damage(path: pathlib.Path, kind: str) -> None:
    old = path.read_bytes()
    middle = len(old) // 2
    new = {
        "zeroed": bytes(len(old)),
        "empty": b"",
        "cut": old[:middle],
        "altered": old[:middle] + bytes([old[middle] ^ 1]) + old[middle + 1 :],
        "text": b"not a unit",
    }[kind]
    assert new != old
    path.write_bytes(new)


KINDS = ("zeroed", "empty", "cut", "altered", "text")


def test_any_altered_byte_is_noticed(tmp_path):
    """A file whose arrays are still right may be read; any other is called damaged, whatever NumPy and zip say."""
    chance = np.random.default_rng(0)
    tokens = chance.integers(0, 999, 50, np.uint16)
    table = np.array([(b"a", 30, 99), (b"b", 20, 77)], unit_format.DOCUMENTS)
    path = tmp_path / "unit.npz"
    unit_format.write_unit(path, tokens, table, 3)
    old = path.read_bytes()
    n_damaged = 0

    def check_documents() -> None:
        documents = unit_format.read_unit_documents(path)
        np.testing.assert_array_equal(documents.tables, [table])
        assert documents.n_skipped == 3

    def check_tokens() -> None:
        np.testing.assert_array_equal(unit_format.read_tokens(path), tokens)

    for place in range(0, len(old), 3):
        new = bytearray(old)
        new[place] ^= chance.integers(1, 256)
        path.write_bytes(new)
        for check in (check_tokens, check_documents):
            try:
                check()
            except Damaged as error:
                n_damaged += 1
                assert str(path) in str(error) and "pickle" not in str(error)
    assert n_damaged > len(old) / 6


def test_damaged_units_of_a_killed_preparation_are_made_again(text, tmp_path, whole, monkeypatch, capsys):
    folder = tmp_path / "killed"
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(prepare_lib, "write_manifest", raise_killed)
        prepare.prepare_folder(settings(text), folder, 1, SHARD_TOKENS)
    files = sorted(folder.glob("units-*/0*.npz"))
    assert len(files) > len(KINDS)
    with pytest.raises(UserError, match=f"manifest.json is missing; {len(files)} units of text are tokenised"):
        prepare._verify(folder)
    for path, kind in zip(files, KINDS, strict=False):
        damage(path, kind)
    prepare.prepare_folder(settings(text), folder, 1, SHARD_TOKENS)
    said = capsys.readouterr().err
    assert content(folder) == whole
    for path in files:
        assert (f"{path} is damaged" in said) == (path in files[: len(KINDS)])


def raise_killed(*_) -> None:
    raise Killed


@pytest.fixture
def halfway(preparation, monkeypatch):
    """Two parts that were tokenised; the second was killed before it wrote the manifest."""

    def prepare_both():
        with monkeypatch.context() as patch:
            patch.setattr(parts, "_wait_for_tables", lambda *_: True)
            patch.setattr(parts, "_write_shards", lambda *_: False)
            assert not parts.prepare_part(preparation, parts.Part(1, 2), 1)
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(prepare_lib, "write_manifest", raise_killed)
            parts.prepare_part(preparation, parts.Part(2, 2), 1)
            parts.join(preparation)

    prepare_both()
    assert not preparation.done()
    return preparation


@pytest.mark.parametrize("pattern", ["units/*.npz", "documents-*.npz", "*.bin.json"])
@pytest.mark.parametrize("kind", ["altered", "missing"])
def test_damaged_files_of_parts_are_made_again(pattern, kind, halfway, whole):
    """By a part that is started again, and by --join; a missing table is that of a part that has not run."""
    files = sorted(pathlib.Path(halfway.work).glob(pattern))
    assert len(files) >= 2
    for path in files[:2]:
        path.unlink() if kind == "missing" else damage(path, kind)
    for record in pathlib.Path(halfway.work).glob("*.bin.json"):
        if pattern.startswith("units"):
            record.unlink()  # so that the units are read again
    if (pattern, kind) == ("documents-*.npz", "missing"):
        with pytest.raises(UserError, match="--join: parts 1, 2 of 2 are not tokenised; run it with --part first"):
            parts.join(halfway)
        with pytest.raises(UserError, match="parts 1, 2 of 2 are not tokenised"):
            prepare._verify(pathlib.Path(halfway.folder))
        return
    if kind == "altered":
        parts.join(halfway)
    else:
        parts.prepare_part(halfway, parts.Part(1, 2), 1)
        parts.prepare_part(halfway, parts.Part(2, 2), 1)
    assert content(pathlib.Path(halfway.folder)) == whole


def test_what_cannot_be_made_again_is_named(halfway, capsys):
    folder = pathlib.Path(halfway.folder)
    with pytest.raises(UserError, match="all 2 parts are tokenised, and not all shards are written; --join"):
        prepare._verify(folder)
    agreed = (folder / "parts.json").read_bytes()
    damage(folder / "parts.json", "zeroed")
    for read in (lambda: parts.join(halfway), lambda: parts.prepare_part(halfway, parts.Part(1, 2), 1)):
        with pytest.raises(UserError, match=r"parts.json is damaged: .*; delete it, and start the parts again"):
            read()
    (folder / "parts.json").write_bytes(agreed)
    parts.join(halfway)
    (folder / "train-00000.bin").unlink()
    (folder / "train-00002.bin").unlink()
    with pytest.raises(UserError, match=r"2 of \d+ shards are missing: train-00000.bin, train-00002.bin; delete it"):
        prepare._verify(folder)
    damage(folder / "manifest.json", "zeroed")
    with pytest.raises(UserError, match=r"manifest.json is damaged .*; delete it, and the same command"):
        parts.prepare_part(halfway, parts.Part(1, 2), 1)
    with pytest.raises(UserError, match="nothing in it is tokenised"):
        prepare._verify(folder / "elsewhere")


def test_a_damaged_listing_of_the_cache_is_made_again(text, own_cache):
    first = corpus.load(settings(text))
    (listing,) = (cache_dir() / "tokens" / "listings").iterdir()
    damage(listing, "zeroed")
    assert corpus.opened(settings(text)) is None
    assert corpus.load(settings(text)).fingerprint == first.fingerprint == listing.read_text()
