"""The planner page, opened in a browser, and its answers compared with the command line's."""

import re
import shlex

import pytest

from fit import __main__ as command_line

SETTLED = """() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(function wait() {
    document.body.getAttribute("aria-busy") === "true" ? setTimeout(wait) : setTimeout(done); })))"""


class Planner:
    """The page, opened; `asked` holds every address that it asked for, `errors` all that it complained of."""

    def __init__(self, browser, folder, **how):
        self.tab, self.file = browser.new_page(**how), f"file://{folder}/planner.html"
        self.asked, self.errors = [], []
        self.tab.on("request", lambda request: self.asked.append(request.url))
        self.tab.on("pageerror", lambda error: self.errors.append(str(error)))
        self.tab.on(
            "console", lambda line: self.errors.append(line.text) if line.type in ("error", "warning") else None
        )

    def open(self, **state):
        """The page in this state of its hash, drawn."""
        self.tab.goto(self.file + "#" + "&".join(f"{k}={v}" for k, v in state.items()))
        self.tab.evaluate(SETTLED)
        return self

    def fill(self, **fields):
        self.tab.evaluate("document.querySelectorAll('.group').forEach((group) => (group.open = true))")
        for name, value in fields.items():
            self.tab.fill(f"#{name}", value)
        self.tab.evaluate(SETTLED)

    def text(self, name):
        return self.tab.text_content(f"#{name}")

    def items(self, name):
        return self.tab.locator(f"#{name} li").all_text_contents()


def typed(command, capsys):
    """(what the command line prints of the page's command, its one sentence where it refuses)."""
    words = shlex.split(command)
    assert words[:4] == ["python", "-m", "fit", "plan"]
    code = command_line.run([*words[3:], "--shape=paper"])  # the page builds the law's own shapes
    out, err = capsys.readouterr()
    assert code == (2 if err else 0)
    return out, err.removeprefix("fit plan: ").strip()


def assert_same(page, line, where="", searched=False):
    """Equal key by key and word by word, numbers to 1e-9; sizes that were searched for, and losses that follow
    from such sizes, to 1e-5: the loss hardly changes with them at its bottom."""
    if isinstance(line, dict):
        assert list(page) == list(line), where
        for key in line:
            assert_same(page[key], line[key], f"{where}.{key}", searched)
    elif isinstance(line, list):
        assert len(page) == len(line), where
        for i, value in enumerate(line):
            assert_same(page[i], value, f"{where}[{i}]", searched)
    elif (
        searched
        and isinstance(line, float)
        and ("rule_of_thumb" in where or not re.search(r"\.loss(_saved)?(\[\d\])?$", where))
    ):
        assert page == pytest.approx(line, rel=1e-5), where
    elif isinstance(line, float) or isinstance(line, int) and not isinstance(line, bool):
        least = 1e-9 if ".loss" in where.removesuffix("]") else 1e-12  # some are differences of two losses
        assert page == pytest.approx(line, rel=1e-9, abs=least), where
    else:
        assert page == line, where
