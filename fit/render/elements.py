"""Parts of an HTML page: texts, lists, tables and pictures with the numbers behind them."""

import base64
import dataclasses
import html
from collections.abc import Iterable
from typing import Any

from fit.aliases import Json
from fit.messages import units

WORDS = 40  # a cell of more letters is a sentence and is wrapped
MOST_ROWS = 5000  # of the numbers behind a picture: a million would make the page unusable
BYTES = {"memory_bytes": 1, "memory_gb": 1e9}  # column: bytes in its unit; its cells have units of their own
COUNTS = ("n_active", "n_total", "n_tokens", "dense_parameters", "unique_tokens")


@dataclasses.dataclass(frozen=True)
class Image:
    """A drawn figure.

    Attributes:
      png: The picture as PNG.
      width, height: On a page, in pixels.
      is_wide: Whether it is wider than a column of text.
    """

    png: bytes
    width: int
    height: int
    is_wide: bool


def text(value: object) -> str:
    """A value as HTML text."""
    return html.escape(str(value))


def items(sentences: Iterable[str]) -> str:
    """Sentences as items of a list."""
    return "".join(f"<li>{text(sentence)}</li>" for sentence in sentences)


def picture(caption: str, image: Image, columns: dict[str, list]) -> str:
    """A section with a figure, and the numbers behind it.

    Args:
      caption: The heading.
      image: The figure.
      columns: {name: values} of its numbers.
    """
    data = base64.b64encode(image.png).decode()
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    counted = f"{len(rows)} rows" if len(rows) <= MOST_ROWS else f"the first {MOST_ROWS} of {len(rows)} rows"
    return (
        f'<h2>{text(caption)}</h2>\n<figure class="{"scroll wide" if image.is_wide else "scroll"}">'
        f'<img alt="{text(caption)}" width="{image.width}" height="{image.height}" '
        f'src="data:image/png;base64,{data}"></figure>'
        f"<details><summary>numbers ({counted})</summary>{table(rows[:MOST_ROWS])}</details>"
    )


def table(rows: list[Json]) -> str:
    """Rows as a table. Columns with sentences are wrapped."""
    if not rows:
        return '<p class="soft">none</p>'
    wrapped = set()
    for row in rows:
        wrapped |= {name for name, value in row.items() if isinstance(value, str) and len(value) > WORDS}
    tag = {name: ' class="words"' if name in wrapped else "" for name in rows[0]}
    head = ""
    for name in rows[0]:
        words = "memory" if name in BYTES else name
        head += f"<th{tag[name]}>{text(words).replace('_', '_<wbr>')}</th>"
    body = ""
    for row in rows:
        cells = [f"<td{tag[name]}>{text(cell(name, value))}</td>" for name, value in row.items()]
        body += f"<tr>{''.join(cells)}</tr>"
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def cell(name: str, value: Any) -> str:
    """A value of a column as text."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or value != value:
        return "–" if value != value else units.cell(value)
    if name.endswith("flops"):
        return units.flops(value)
    if name.removesuffix("_low").removesuffix("_high") in COUNTS:
        return units.amount(value)
    if name in BYTES:
        return units.memory(value * BYTES[name])
    return f"{value:.4f}" if name.endswith("loss") else units.cell(value)
