"""Findings: what to know before trusting a result, each with a code.

To add one: write its template under a code in catalogue.py; call finding(code, name=value, ...) where it is known; and
make it in tests/fit/messages/test_findings.py, which has a question for each code. A finding is worded only where it
is printed; until then it is picked, sorted and left out by its code and severity, never by its words.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from fit.aliases import Json
from fit.messages.catalogue import CATALOGUE
from fit.messages.units import fields_of, say, say_first


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something to know before trusting a result. str() of it is its sentence.

    Attributes:
      code: A key of CATALOGUE.
      severity: URGENT, WARNING or NOTE.
      values: {name: value} that the template is filled in with, plain enough for JSON. With a value `file`, which is a
        table, the sentence begins with it.
    """

    code: str
    severity: str
    values: Mapping[str, Any]

    def __str__(self) -> str:
        kind = CATALOGUE[self.code]
        clauses = {name: say_first(templates, self.values) for name, templates in kind.clauses.items()}
        sentence = say(kind.template, **self.values, **clauses)
        return f"{self.values['file']}: {sentence}" if "file" in self.values else sentence

    def of_file(self, path: str) -> "Finding":
        """The same finding, on the table in a file."""
        return dataclasses.replace(self, values={**self.values, "file": path})

    def to_dict(self) -> Json:
        """The finding for JSON, with its sentence."""
        return dict(code=self.code, severity=self.severity, values=dict(self.values), text=str(self))


def finding(code: str, **values: Any) -> Finding:
    """A finding of the catalogue. A value that is None is left out, and with it the clause that says it.

    Raises:
      KeyError: The catalogue does not have the code, or its template has a field without a value.
    """
    kind = CATALOGUE[code]
    known = {name: value for name, value in values.items() if value is not None}
    missing = [name for name in fields_of(kind.template) if name not in known and name not in kind.clauses]
    if missing:
        raise KeyError(f"{code}: no value of {', '.join(missing)}")
    return Finding(code, kind.severity, known)


def in_words(findings: Iterable[Finding]) -> list[str]:
    """The findings in words."""
    return [str(each) for each in findings]
