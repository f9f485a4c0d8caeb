"""How Sphinx makes the site's pages of the repository's Markdown: `make site`."""

project = "jmoe"
html_title = project
html_theme = "furo"
extensions = ["myst_parser"]
root_doc = "README"
include_patterns = ["*.md", "docs/*.md", "benchmarks/**.md", "results/**.md"]
exclude_patterns = [".*", "runs", "site"]
html_copy_source = html_show_sphinx = html_show_copyright = False
myst_heading_anchors = 4

# README has no list of pages, since GitHub shows the folder.
PAGES = "\n\n```{toctree}\n:hidden:\n:glob:\n\ndocs/tutorial\ndocs/*\nresults/**\nbenchmarks/**\n*\n```\n"


def setup(app) -> None:
    """Adds the list of pages, and a link to the planner at the head of each."""

    def page(app, name, template, context, doctree) -> None:
        there = context["pathto"]("planner.html", resource=True)
        context["theme_announcement"] = f'<a href="{there}">Plan a model in your browser</a>'

    app.connect("source-read", lambda app, name, source: name == root_doc and source.append(source.pop() + PAGES))
    app.connect("html-page-context", page)
