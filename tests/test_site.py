"""The site that `make site` writes, opened as a reader does."""

import pathlib
import re
import subprocess
import sys

import pytest
import yaml

from jmoe.config.schema import COLUMNS, FIELDS

ROOT = pathlib.Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "site"
    bin = pathlib.Path(sys.executable).parent
    command = ["make", "site", "-o", ".venv/.docs", f"BIN={bin}", f"SITE={folder}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_link_of_the_site_leads_somewhere(site):
    pages = [page for page in site.rglob("*.html") if page.name != "planner.html" or page.parent != site]
    assert len(pages) > 20 and (site / "index.html").read_text() == (site / "README.html").read_text()
    for page in pages:
        links = re.findall(r'(?:href|src)="([^"#?:]+)[^":]*"', page.read_text(encoding="utf-8"))
        assert [link for link in links if not (page.parent / link).exists()] == [], page
    bench = (ROOT / "benchmarks/README.md").read_text(encoding="utf-8").partition("## Beyond the runs")[2]
    cells = re.findall(r"\d+\.\d+%", bench.partition("\n## ")[0])
    assert len(cells) > 9 and all(c in (site / "benchmarks/README.html").read_text(encoding="utf-8") for c in cells)


@pytest.mark.parametrize("width, scheme", [(1440, "light"), (390, "dark")])
def test_the_site_asks_for_nothing_elsewhere_and_fits_the_screen(browser, site, width, scheme):
    tab = browser.new_page(viewport=dict(width=width, height=844), color_scheme=scheme)
    requests = []
    tab.on("request", lambda request: requests.append(request.url))
    for name in ("index", "benchmarks/README", "docs/guides/planner", "docs/reference/generated/commands"):
        tab.goto(f"file://{site}/{name}.html")
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
    tab.click("text=Plan a model in your browser")
    tab.wait_for_selector("#answer")
    assert tab.url == f"file://{site}/planner.html" and all(url.startswith("file:") for url in requests)
    tab.close()


def test_the_folder_is_a_static_space_and_a_page_of_github(site):
    head = (site / "README.md").read_text().split("---\n")[1]
    space = yaml.safe_load(head)
    assert space["sdk"] == "static" and (site / space["app_file"]).exists()
    assert len(space["short_description"]) <= 60  # the most that a Space shows
    assert (site / ".nojekyll").exists()  # else GitHub leaves out folders that begin with _
    assert (site / "_static").is_dir()


def test_the_reference_holds_each_field_column_and_flag(site):
    """The pages that Sphinx made of the code, and the committed page of columns, against the code as it runs."""
    generated = ROOT / "docs" / "reference" / "generated"
    config_page = (generated / "config.md").read_text(encoding="utf-8")
    assert [name for name in FIELDS if f"`config.{name}`" not in config_page] == []
    columns_page = (ROOT / "docs" / "reference" / "runs-csv.md").read_text(encoding="utf-8")
    assert [name for name in COLUMNS.values() if f"`{name}`" not in columns_page] == []
    python_page = (site / "docs" / "reference" / "generated" / "python.html").read_text(encoding="utf-8")
    assert all(name in python_page for name in ("fit.plan", "fit.law", "jmoe.train.train", "jmoe.generate.generate"))
    commands_page = (generated / "commands.md").read_text(encoding="utf-8")
    command = [sys.executable, "-m", "launch.sweep", "--help"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    flags = re.findall(r"^  --(?:\[no\])?(\w+)", printed, re.MULTILINE)
    assert len(flags) > 9 and [flag for flag in flags if f"`--{flag}`" not in commands_page] == []
