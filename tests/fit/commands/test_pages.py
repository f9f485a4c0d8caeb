"""What commands print, a page each, against the words that were agreed on (tests/support/pages.py)."""

import pages
import pytest


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    pages.folder_of_runs(folder)
    return folder


@pytest.mark.parametrize("name", pages.PAGES)
def test_a_page_has_its_words(folder, name):
    """No line but a table's is wider than 120. An answer has ten lines, beside its warnings and a line on a model to
    start from, and its last one says that --verbose has more."""
    command = pages.PAGES[name]
    page = pages.printed(command, folder)
    words = pages.words_of(page)
    assert words == (pages.FOLDER / f"{name}.txt").read_text(encoding="utf-8")
    assert command.startswith("table") or max(map(len, page.splitlines())) <= 120
    if command.startswith(("plan", "compare", "law ", "next", "speedup")) and "--verbose" not in command:
        own = [line for line in words.splitlines() if not line.startswith(("warning: ", "Qwen3-30B-A3B: "))]
        assert len(own) <= 10 and "--verbose" in own[-1]


def test_each_page_is_compared():
    assert {path.stem for path in pages.FOLDER.iterdir()} == set(pages.PAGES)
