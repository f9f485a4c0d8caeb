"""Results of functions: frozen dataclasses that also answer like dictionaries, and pages.

A `Record` is a row or a part of a result: row.n_active, row["n_active"] and dict(row) are the same. A `Result` is what
a function of `fit` returns. str() of it is what its command prints, to_dict() what the command's --json holds where it
has that flag, and to_frame() a pandas DataFrame.
"""

import dataclasses
import html
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fit.aliases import Json
from fit.errors import UserError
from fit.messages import lines
from fit.messages.finding import Finding
from fit.messages.lines import Line

if TYPE_CHECKING:
    import pandas

FRAME = 800  # height of a page in a notebook, in pixels
JSON_VERSION = 2  # of what --json prints: raised where a field goes or means something else
NOT_IN_JSON = {"json": False}  # metadata of a field that to_dict leaves out


def optional() -> Any:
    """A field that is None by default, and that to_dict then leaves out."""
    return dataclasses.field(default=None, metadata={"optional": True})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record(Mapping[str, Any]):
    """A frozen dataclass whose fields are also the items of a mapping.

    Attributes:
      explicit: Optional fields that to_dict has even where they are None.
    """

    explicit: tuple[str, ...] = dataclasses.field(default=(), compare=False, repr=False, metadata=NOT_IN_JSON)

    def names(self) -> list[str]:
        """The fields that to_dict has, in its order."""
        names = []
        for field in dataclasses.fields(self):
            is_absent = field.metadata.get("optional") and getattr(self, field.name) is None
            if is_absent and field.name not in self.explicit:
                continue
            if field.metadata.get("json", True):
                names.append(field.name)
        return names

    def __getitem__(self, name: str) -> Any:
        if name not in self.names():
            raise KeyError(name)
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())

    def to_dict(self) -> Json:
        """The fields as dictionaries, lists and plain values, ready for JSON."""
        return {name: to_plain(self[name]) for name in self.names()}


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Result(Record):
    """The result of a function of `fit`.

    Attributes:
      answer_of: Makes the lines that its command prints.
    """

    answer_of: Callable[[Any], Iterable[Line]] = dataclasses.field(compare=False, metadata=NOT_IN_JSON)

    @property
    def title(self) -> str:
        """The result in a few words."""
        return type(self).__name__.lower()

    @property
    def answer(self) -> str:
        """The first line of what its command prints; "" where it prints none."""
        return str(next(iter(self.answer_of(self)), ""))

    def to_dict(self) -> Json:
        """The version of this layout, then the fields as dictionaries, lists and plain values, ready for JSON."""
        return dict(version=JSON_VERSION) | super().to_dict()

    def rows(self) -> list[Json]:
        """The rows of to_frame."""
        return [super().to_dict()]

    def to_frame(self) -> "pandas.DataFrame":
        """The result's rows as a pandas DataFrame. Raises UserError where pandas is missing."""
        try:
            import pandas
        except ModuleNotFoundError as error:
            raise UserError("to_frame needs pandas: python -m pip install pandas") from error
        return pandas.DataFrame(self.rows())

    def __str__(self) -> str:
        return lines.text(self.answer_of(self))

    def __repr__(self) -> str:
        return f"<{self.title}: {self.answer}>" if self.answer else f"<{self.title}>"

    def _repr_html_(self) -> str:
        """The HTML that a notebook shows."""
        return "\n".join(lines.html(self.answer_of(self)))


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class WithFindings(Result):
    """A result with what to know before trusting it. to_dict also has `warnings`, the findings in words.

    Attributes:
      findings: In the order in which they were found.
    """

    findings: list[Finding]

    @property
    def warnings(self) -> list[str]:
        """The findings in words."""
        return [str(finding) for finding in self.findings]

    def names(self) -> list[str]:
        """The fields that to_dict has, the findings last."""
        names = super().names()
        names.remove("findings")
        return [*names, "warnings", "findings"]


class Page(str):
    """The path of a page that was written. A notebook shows the page itself.

    Attributes:
      html: The page as text.
    """

    html: str

    @classmethod
    def at(cls, path: str) -> "Page":
        """The page that was written to a path."""
        page = cls(path)
        page.html = pathlib.Path(path).read_text(encoding="utf-8")
        return page

    def _repr_html_(self) -> str:
        """The HTML that a notebook shows: the page in a frame of its own."""
        return f'<iframe srcdoc="{html.escape(self.html)}" width="100%" height="{FRAME}"></iframe>'


def to_plain(value: Any) -> Any:
    """A value with its records as dictionaries and its tuples as lists."""
    if isinstance(value, (Record, Finding)):
        return value.to_dict()
    if isinstance(value, dict):
        return {name: to_plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    return value
