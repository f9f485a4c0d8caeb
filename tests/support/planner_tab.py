"""The planner page, opened in a browser, and its answers compared with the command line's."""

import json
import re
import shlex

import pytest

from fit import __main__ as command_line
from fit.laws import FORMS
from fit.render.planner import formulas, page

ANSWERED = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
SETTLED = """() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(function wait() {
    document.body.getAttribute("aria-busy") === "true" ? setTimeout(wait) : setTimeout(done); })))"""


class Planner:
    """The page, opened; `asked` holds every address that it asked for, `errors` all that it complained of."""

    def __init__(self, browser, folder, **how):
        self.tab = browser.new_page(**how)
        self.file = f"file://{folder}/planner.html"
        self.asked = []
        self.errors = []
        self.tab.on("request", lambda request: self.asked.append(request.url))
        self.tab.on("pageerror", lambda error: self.errors.append(str(error)))
        self.tab.on(
            "console", lambda line: self.errors.append(line.text) if line.type in ("error", "warning") else None
        )

    def ask(self, *, until=ANSWERED, **state):
        """The page in this state of its hash, with its plan; other laws and pictures may follow."""
        self.tab.goto(self.file + "#" + "&".join(f"{k}={v}" for k, v in state.items()))
        self.tab.evaluate(until)
        return self

    def open(self, **state):
        """The page in this state of its hash, drawn."""
        return self.ask(until=SETTLED, **state)

    def scroll_width(self):
        return self.tab.evaluate("document.documentElement.scrollWidth")

    def fill(self, **fields):
        self.tab.evaluate("document.querySelectorAll('.group').forEach((group) => (group.open = true))")
        for name, value in fields.items():
            self.tab.fill(f"#{name}", value)
        self.tab.evaluate(SETTLED)

    def text(self, name):
        return self.tab.text_content(f"#{name}")

    def plan(self):
        return json.loads(self.text("json"))

    def line(self, label):
        """The value of a line of the answer."""
        return self.tab.text_content(f"#answer [data-label='{label}']").removeprefix(f"{label}: ")


DRAWING = ("elements", "data", "chart", "pictures", "comparison", "app")  # scripts that need the page's elements


def calculating_tab(browser, laws):
    """A tab with the data and the functions of a page of these laws, but for those that draw."""
    data = page.page_data(laws, None)
    scripts = [page.NOT_CARRIED.sub("", page._read(f"{name}.js")) for name in page.SCRIPTS if name not in DRAWING]
    start = "for (const law of data.laws) Object.assign(law, data.forms[law.form]);"
    forms = formulas.script(FORMS[name] for name in data["forms"])
    tab = browser.new_page()
    tab.add_script_tag(content="\n".join([f"const data = {json.dumps(data)};", forms, *scripts, start]))
    return tab


def typed(command, capsys):
    """(what the command line prints of the page's command, its one sentence where it refuses)."""
    words = shlex.split(command)
    assert words[:4] == ["python", "-m", "fit", "plan"]
    code = command_line.run(words[3:])
    out, err = capsys.readouterr()
    assert code == (2 if err else 0)
    return out, err.removeprefix("fit plan: ").strip()


# The findings that the page has, too: not those of the model to build, nor that two forms of a law
# disagree, nor what its lines say in other words.
OF_THE_PAGE = ("tokens_per_parameter", "not_bounded", "not_read", "mostly_embedding", "shape_unknown", "whole_experts")
OF_THE_PAGE += ("lack_of_fit", "older_words", "shapes_differ", "miscounted", "totals_miscounted", "d_expert_unread")
OF_THE_PAGE += ("n_total_unread", "top_k_by_totals", "mixtures_assumed", "width_assumed", "top_k_assumed")
OF_THE_PAGE += ("law_not_counted", "laws_prefer", "laws_disagree", "laws_agree")


def assert_same(page, line, where=""):
    """All that the page says is what the command says: losses to 1e-6, other numbers to 0.1%, words to the letter.

    The command says more: the page leaves out the model to build, and what is found about it.
    """
    if isinstance(page, dict):
        assert set(page) <= set(line), (where, set(page) - set(line))
        for key in page:
            assert_same(page[key], line[key], f"{where}.{key}")
    elif isinstance(page, list) and where.endswith(".findings"):
        of_line = [found for found in line if found["code"] in OF_THE_PAGE]
        assert_same(sorted(page, key=str), sorted(of_line, key=str), f"{where}, sorted")
    elif isinstance(page, list):
        assert len(page) == len(line), where
        for i, value in enumerate(page):
            assert_same(value, line[i], f"{where}[{i}]")
    elif isinstance(page, str | bool) or page is None or line is None:
        assert page == line, where
    elif re.search(r"\.loss(_\w+)?(\[\d\])?$", where):
        assert page == pytest.approx(line, rel=1e-6, abs=1e-6), where
    elif ".regret_share" in where:  # e to a power of many times the difference of two losses
        assert page == pytest.approx(line, rel=5e-3), where
    else:
        assert page == pytest.approx(line, rel=1e-3), where
