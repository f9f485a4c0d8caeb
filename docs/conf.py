"""How Sphinx makes the site's pages of the repository's Markdown: `make site`."""

import pathlib
import sys
from typing import Any

from sphinx.application import Sphinx

sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parents[1])]

import reference_pages  # noqa: E402  beside this file

project = "jmoe"
html_title = project
html_theme = "furo"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "README"
include_patterns = ["*.md", "docs/**.md", "benchmarks/**.md", "results/**.md"]
exclude_patterns = [".*", "runs", "site"]
html_copy_source = html_show_sphinx = html_show_copyright = False
myst_heading_anchors = 4

# README has no list of pages, since GitHub shows the folder.
LISTED = (
    "docs/README",
    "docs/tutorials/*",
    "docs/guides/*",
    "docs/hardware",
    "docs/reference/*",
    "docs/reference/generated/*",
    "docs/explanation/*",
    "results/**",
    "benchmarks/**",
    "*",
)
PAGES = "\n\n```{toctree}\n:hidden:\n:glob:\n\n" + "\n".join(LISTED) + "\n```\n"


def setup(app: Sphinx) -> None:
    """Write the generated pages, and connect the changes to pages below."""
    reference_pages.write()
    app.connect("autodoc-process-docstring", reference_pages.escape_docstring, priority=400)
    app.connect("source-read", add_list_of_pages)
    app.connect("html-page-context", add_link_to_planner)


def add_list_of_pages(app: Sphinx, name: str, source: list[str]) -> None:
    """Add the list of all pages to the first one."""
    if name == root_doc:
        source[0] += PAGES


def add_link_to_planner(app: Sphinx, name: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Add a link to the planner at the head of each page."""
    planner = context["pathto"]("planner.html", resource=True)
    context["theme_announcement"] = f'<a href="{planner}">Plan a model in your browser</a>'
