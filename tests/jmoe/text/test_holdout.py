"""What is held out: its share whatever the sizes of documents, by hash, in any order of files, by any tokenizer."""

import hashlib
import json

import numpy as np
import pytest
from hypothesis import given as for_all
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from text_fixtures import decode, settings

from jmoe.errors import UserError
from jmoe.text import corpus, holdout, prepare, sources, tokenizer, unit_format


def choose(sizes, order):
    names = [f"document {i}".encode() for i in range(len(sizes))]
    table = np.array([(hashlib.sha256(names[i]).digest(), 1, sizes[i]) for i in order], unit_format.DOCUMENTS)
    return table, holdout.choose(table, np.zeros(len(order), bool), False, "rules")


sizes = st.lists(st.one_of(st.integers(1, 10), st.integers(1, 10**7)), min_size=1, max_size=300)


@hypothesis_settings(max_examples=60)
@for_all(sizes, st.integers(1, 400), st.randoms(use_true_random=False))
def test_it_is_about_its_share_in_any_order(sizes, n_more, random):
    sizes = sizes + [1000] * n_more
    order = list(range(len(sizes)))
    table, (kept, held_out, cut, _) = choose(sizes, order)
    tail = cut[1] if cut else 0
    share = sum(sizes) / 100
    assert kept.all() and 0.49 * share - 1 <= table["bytes"][held_out].sum() + tail <= 2 * share + 1
    if cut:
        assert not held_out[cut[0]] and 0 < tail < table["bytes"][cut[0]]
    random.shuffle(order)
    _, (_, held_again, cut_again, _) = choose(sizes, order)
    assert {order[i] for i in np.flatnonzero(held_again)} == set(np.flatnonzero(held_out))
    assert (cut_again and (order[cut_again[0]], cut_again[1])) == cut


def test_among_many_even_documents_the_hash_alone_decides():
    """As it always was: one in a hundred, and adding text moves no document from one side to the other."""
    names = [hashlib.sha256(f"document {i}".encode()).digest() for i in range(3000)]
    by_hash = np.array([int.from_bytes(name[:8]) % 100 == 0 for name in names])
    for n in (1500, 3000):
        _, (_, held_out, cut, _) = choose([1000 + i % 7 for i in range(n)], range(n))
        assert cut is None and np.array_equal(held_out, by_hash[:n])


def lines(name: str, n: int) -> str:
    return "".join(f"{name} says a line, äöü, and it is number {i}\n" for i in range(n))


def test_a_single_file_trains_and_its_tail_is_held_out(tmp_path, own_cache):
    (tmp_path / "book.txt").write_text(lines("book", 3000))
    made = corpus.load(settings(tmp_path / "book.txt"))
    (head,), (tail,) = decode(made.train), decode(made.validation)
    assert head + tail == lines("book", 3000)
    assert head.endswith("\n") and 0.005 < len(tail) / len(head + tail) < 0.01
    assert made.manifest["documents"] == {"train": 1, "validation": 1}
    for split, document in (("train", head), ("validation", tail)):
        assert made.manifest["bytes"][split] == len(document.encode())
        assert made.manifest["tokens"][split] == len(document.encode()) + 1


def test_text_that_changes_meanwhile_is_named(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text(lines("a", 900))
    where = settings(tmp_path / "a.txt")
    choose = holdout.choose

    def then_edited(*arguments):
        (tmp_path / "a.txt").write_text("something else")
        return choose(*arguments)

    monkeypatch.setattr(holdout, "choose", then_edited)
    with pytest.raises(UserError, match="a.txt changed while it was prepared"):
        prepare.prepare(sources.find(where), where, tokenizer.load("bytes"), tmp_path / "out")


def test_a_tail_begins_at_a_line_a_word_or_a_character():
    assert holdout.cut_at(b"0123456789\nabc\nd", 10) == 11
    assert holdout.cut_at(b"0123456789 abc d", 10) == 11
    euros = "€€€€".encode()
    for tail in range(1, len(euros)):
        at = holdout.cut_at(euros, tail)
        assert 0 < at < len(euros)
        if tail >= 3:
            assert (euros[:at] + euros[at:]).decode() == "€€€€" and at % 3 == 0


def test_the_fingerprint_of_a_text_stays(tmp_path, own_cache):
    """Runs that began with it go on; it was computed before there was any rule but the hash."""
    documents = [f"document {i}: " + "äöü and plain text " * (i % 7 + 1) for i in range(400)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": d}) + "\n" for d in documents))
    assert corpus.load(settings(tmp_path / "a.jsonl")).fingerprint == "d6a4b6ae607b3c2f"
