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
    """No line is wider than 120. An answer has ten lines beside its warnings and a line on a model to start from, and
    where it leaves something out it says that --verbose has it."""
    command = pages.PAGES[name]
    page = pages.printed(command, folder)
    assert pages.words_of(page) == (pages.FOLDER / f"{name}.txt").read_text(encoding="utf-8")
    assert max(map(len, page.splitlines())) <= 120
    if command.startswith(("plan", "compare", "law ", "next", "speedup")) and "--verbose" not in command:
        page = pages.words_of(page)
        own = [line for line in page.splitlines() if not line.startswith(("warning: ", "Qwen3-30B-A3B: "))]
        assert len(own) <= 10 and "--verbose" in own[-1]


def test_each_page_is_compared():
    assert {path.stem for path in pages.FOLDER.iterdir()} == set(pages.PAGES)
