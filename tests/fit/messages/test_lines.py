"""Lines of an answer: a terminal and a page show the same ones."""

import html
import re

import hypothesis
import hypothesis.strategies as st

from fit.messages import lines
from fit.messages.lines import BLANK, Line

WORDS = st.text("ab <>&'0.:", min_size=1, max_size=200).map(str.strip).filter(bool)
LINES = st.lists(st.builds(Line, st.just("") | WORDS, WORDS, st.lists(WORDS, max_size=3).map(tuple)), max_size=5)


def words_of(text):
    """Its letters and signs, without the spaces that wrapping and tags change."""
    return re.sub(r"\s", "", text)


@hypothesis.given(LINES)
def test_a_terminal_and_a_page_have_the_same_words(answer):
    page = "\n".join(lines.html(answer))
    shown = html.unescape(re.sub(r"<[^<>]*>", "", page))
    assert words_of(shown) == words_of(lines.text(answer))
    for line in answer:
        assert (f"<b>{html.escape(line.label)}</b>" in page) or not line.label
        assert ("<pre>" in page) or not line.detail


@hypothesis.given(
    st.lists(st.lists(st.text("abc", min_size=1, max_size=9), min_size=1, max_size=60), min_size=1, max_size=3)
)
def test_no_line_of_a_terminal_is_too_wide(words):
    sentences = [" ".join(sentence) for sentence in words]
    text = lines.text(Line("", sentence) for sentence in sentences)
    assert max(map(len, text.split("\n"))) <= lines.WIDTH
    assert text.split() == " ".join(sentences).split()


def test_a_long_command_continues_after_a_backslash():
    command = "  python -m launch.sweep " + " ".join(f"--flag_{i}=some_value" for i in range(10))
    head, *rows = lines.text([Line("Next", "train it", (command,))]).split("\n")
    assert head == "Next: train it" and all(row.endswith(" \\") for row in rows[:-1])
    assert " ".join(" ".join(rows).replace("\\", "").split()) == command.strip()


def test_parts_are_set_apart_and_empty_ones_left_out():
    one, two = Line("a", "1"), Line("b", "2")
    assert list(lines.joined([[], [one], [], [two, one], []])) == [one, BLANK, two, one]
    assert list(lines.with_details([one], [two, BLANK, one])) == [one, BLANK, two, BLANK]


def test_a_warning_is_marked_on_a_page():
    (shown,) = lines.html([Line(lines.WARNING, "1 < 2")])
    assert shown == '<ul class="warnings"><li>1 &lt; 2</li></ul>'
    assert lines.text([Line(lines.WARNING, "1 < 2")]) == "warning: 1 < 2"
