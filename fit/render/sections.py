"""Sections of a report with a table or a figure of the paper."""

from fit.errors import UserError
from fit.fitted_law.law import Law
from fit.model.architecture import Architecture
from fit.render import elements, figures, tables
from fit.render.figures.draw import draw

TITLES = {
    "1": "Table 1: compute-optimal models",
    "2": "Table 2: best number of experts under memory",
    "4": "Table 4: the law at each number of experts",
    "5": "Table 5: bootstrap intervals of the optima",
}


def table_section(law: Law, architecture: Architecture, which: str) -> str:
    """The section of a table of the paper."""
    try:
        rows = tables.rows_of(which, law, architecture)
        body = f'{elements.table(rows)}\n<p class="soft">{elements.text(tables.note(which, law, rows))}</p>'
    except UserError as e:
        body = f"<p>{elements.text(e)}</p>"
    return f"<h2>{TITLES[which]}</h2>\n{body}"


def figure_section(law: Law, architecture: Architecture, which: str, measured: figures.Measured) -> str:
    """The section of a figure of the paper, with the numbers behind it."""
    caption = figures.FIGURES[which]
    try:
        figure, columns = draw(which, law, architecture, law.experts, (), measured)
    except UserError as e:
        return f"<h2>{elements.text(caption)}</h2>\n<p>{elements.text(e)}</p>"
    return elements.picture(caption, figures.image(figure), columns)
