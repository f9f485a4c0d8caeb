"""law.json: a Law as a JSON object, with the `version` of its fields, and back.

The types of the parts (parts.py, models.py, tuning.py) say what a file may hold. What cannot be is refused here and
nowhere else. What a Law does not know is left out of a file, and what a file has beyond these fields out of the Law.
"""

import dataclasses
import functools
import json
import os
import sys
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import numpy as np

from fit.aliases import Json
from fit.errors import UserError
from fit.fitted_law import tuning
from fit.fitted_law.architecture_ratios import PAPERS_RATIOS
from fit.fitted_law.models import Models
from fit.fitted_law.parts import Bootstrap
from fit.fitted_law.tuning import Tuning
from fit.form import Form
from fit.laws import FORMS
from fit.messages.catalogue import CATALOGUE, SEVERITIES
from fit.messages.finding import Finding, finding
from fit.messages.printable import is_printable
from fit.results import to_plain
from fit.table.files import write_text
from fit.table.table import plain

Law = TypeVar("Law")  # the class of law.py, which reads and writes itself by this module

VERSION = 4  # of law.json; a file that names none is of version 1
EXPECTED = {float: "a number", int: "a whole number", bool: "true or false", str: "text without control characters"}
WITHOUT_EMBEDDING = "without embedding"  # the entry "counts" where a law counts without embedding and head
MISSING = object()
LONGEST_SHOWN = 60  # letters of a value in an error
# names in version 1 and in version 2, of fields of these entries
RENAMED = dict(split="granularity", holds="coverage", reach="log_compute_range", drift="drift_mean", wander="drift_rms")
RENAMED_IN = ("models", "rolling", "choice")


class _Invalid(Exception):
    """A value that a law.json cannot hold."""

    def __init__(self, field: str, value: object, expected: str) -> None:
        shown = "missing" if value is MISSING else json.dumps(value, default=str)
        if len(shown) > LONGEST_SHOWN:
            shown = shown[: LONGEST_SHOWN - 3] + "..."
        super().__init__(f"{field} is {shown}, expected {expected}")


def read(kind: Callable[..., Law], path: str | os.PathLike, name: str, where: str) -> Law:
    """Reads a law.json.

    Args:
      kind: The class Law.
      path: The file.
      name: The law's name.
      where: The file's name in errors.

    Raises:
      UserError: Names the field that is not what `fit law` writes, or that a newer version wrote.
    """
    try:
        with open(path, encoding="utf-8") as f:
            values = json.load(f)
    except OSError as e:
        raise UserError(f"{where}: cannot be read: {e.strerror}") from e
    except (ValueError, RecursionError) as e:
        raise UserError(f"{where}: is not JSON: {e}") from e
    if not isinstance(values, dict) or str(values.get("form")) not in FORMS:
        raise UserError(f"{where}: has no form that is one of {', '.join(FORMS)}")
    return from_dict(kind, name, FORMS[values["form"]], values, where)


def write(law: Any, path: str | os.PathLike) -> None:
    """Writes a law as a law.json. Raises UserError where the file cannot be written."""
    write_text(str(path), json.dumps(to_dict(law), indent=1, allow_nan=False) + "\n")


def to_dict(law: Any) -> Json:
    """A law as law.json holds it."""
    values: Json = dict(version=VERSION, form=law.form.name)
    for field in dataclasses.fields(law):
        value = getattr(law, field.name)
        if field.metadata.get("json", True) and value not in (None, "", (), {}):
            values[_key(field)] = plain(to_plain(value))
    if not law.counts_embedding:
        values["counts"] = WITHOUT_EMBEDDING
    return values


def from_dict(kind: Callable[..., Law], name: str, form: Form, values: Json, where: str) -> Law:
    """The Law of an object as law.json holds it, or as a page of fit/laws declares a published law.

    Args:
      kind: The class Law.
      name: The law's name.
      form: Its form.
      values: The object.
      where: Its name in errors.

    Raises:
      UserError: A field has a value that it cannot have.
    """
    try:
        version = values.get("version", 1)
        if type(version) is not int or not 1 <= version <= VERSION:
            raise _Invalid("version", version, f"at most {VERSION}: a newer fit wrote it")
        if version == 1:
            values = _of_version_1(values)
        if version <= 2:
            values = _of_version_2(values)
        if version <= 3:
            values = _of_version_3(values)
        fields = _fields(kind, values, "")
        if values.get("counts") is not None:
            fields["counts_embedding"] = _decoded(str, values["counts"], "counts") != WITHOUT_EMBEDDING
        coefficients = fields.pop("coefficients")
        for coefficient in form.names:
            if coefficient not in coefficients:
                raise _Invalid(f"coefficients.{coefficient}", MISSING, "a finite number")
        ordered = {coefficient: coefficients[coefficient] for coefficient in form.names}
        _check(form, ordered, fields.get("models", Models()), fields.get("bootstrap"), fields.get("tuning"))
    except _Invalid as error:
        raise UserError(f"{where}: {error}") from None
    return kind(name=name, form=form, coefficients=ordered, **fields)


def _of_version_1(values: Json) -> Json:
    """An object of version 1 with the names of version 2."""
    values = values | {name: _renamed(values[name]) for name in RENAMED_IN if name in values}
    sample = values.get("sample")
    if isinstance(sample, dict):
        values["sample"] = sample.get("runs")
    rates = values.get("rates")
    bootstrap = values.get("bootstrap")
    if isinstance(rates, dict) and isinstance(bootstrap, dict):
        values["rates"] = rates | dict(percentiles=bootstrap.get("percentiles"))
    return values


def _of_version_2(values: Json) -> Json:
    """An object of version 2 with the names of version 3, which has findings in place of sentences."""
    models = values.get("models")
    if isinstance(models, dict) and "assumed" in models:
        values = values | dict(models=models | dict(assumed=_findings("models.assumed", models["assumed"])))
    if values.get("warnings"):
        values = values | dict(findings=_findings("warnings", values["warnings"]))
    if values.get("warning"):
        (beyond_runs,) = _findings("warning", [values["warning"]])
        values = values | dict(beyond_runs=beyond_runs)
    return values


def _of_version_3(values: Json) -> Json:
    """An object of version 3 as one of version 4, whose choice of a form has a finding in place of a sentence."""
    choice = values.get("choice")
    if not isinstance(choice, dict):
        return values
    (reason,) = _findings("choice.why", [choice.get("why", MISSING)])
    return values | dict(choice=choice | dict(reason=reason))


def _findings(field: str, sentences: Any) -> list[Json]:
    """Sentences of a law.json of version 2 as its findings."""
    told = _decoded(tuple[str, ...], sentences, field)
    return [finding("older_words", sentence=sentence).to_dict() for sentence in told]


def _renamed(value: Any) -> Any:
    """A value of JSON with the names of version 2 in its objects."""
    if isinstance(value, list):
        return [_renamed(item) for item in value if not _is_old_hold_out(item)]
    if isinstance(value, dict):
        return {RENAMED.get(name, name): _renamed(item) for name, item in value.items()}
    return value


def _is_old_hold_out(value: Any) -> bool:
    """Whether this is a rolling hold-out as fit 0.2 wrote it, which did not go by factors of compute."""
    return isinstance(value, dict) and "fitted_flops" in value and "factor" not in value


@functools.cache
def _types_of(kind: Any) -> dict[str, Any]:
    """{field: its type} of a dataclass."""
    return typing.get_type_hints(kind, include_extras=True)


def _key(field: dataclasses.Field) -> str:
    """The name of a field in law.json."""
    return field.metadata.get("key", field.name)


def _fields(kind: Any, value: Any, path: str) -> dict[str, Any]:
    """{field: value} of an object, of the fields that a dataclass has; those with their default may be missing."""
    if not isinstance(value, dict):
        raise _Invalid(path, value, "an object")
    kinds = _types_of(kind)
    fields = {}
    for field in dataclasses.fields(kind):
        if not field.metadata.get("json", True):
            continue
        has_default = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        item = value.get(_key(field), MISSING)
        if has_default and (item is MISSING or item is None):
            continue
        fields[field.name] = _decoded(kinds[field.name], item, f"{path}.{_key(field)}".lstrip("."))
    return fields


def _decoded(kind: Any, value: Any, path: str) -> Any:
    """A value of JSON as a value of a type.

    Args:
      kind: float, int, bool, str, a tuple, a dict with names as keys, a dataclass, a union of such, or
        Annotated[type, Rule].
      value: MISSING where the file does not have it.
      path: its place in the file, for errors.

    Raises:
      _Invalid: It is none.
    """
    origin = typing.get_origin(kind)
    kinds = typing.get_args(kind)
    if origin is Annotated:
        of_type, rule = kinds
        try:
            decoded = _decoded(of_type, value, path)
        except _Invalid:
            raise _Invalid(path, value, rule.expected) from None
        if not rule.accepts(decoded):
            raise _Invalid(path, value, rule.expected)
        return decoded
    if origin in (types.UnionType, typing.Union):
        if value is None and types.NoneType in kinds:
            return None
        is_text = isinstance(value, str) and str in kinds
        return _decoded(str if is_text else kinds[0], value, path)
    if origin is dict:
        if not isinstance(value, dict) or not all(map(is_printable, value)):
            raise _Invalid(path, value, "an object with names without control characters")
        return {name: _decoded(kinds[1], item, f"{path}.{name}") for name, item in value.items()}
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise _Invalid(path, value, "a list")
        of_items = kinds[:1] * len(value) if kinds[-1] is Ellipsis else kinds
        if len(value) != len(of_items):
            raise _Invalid(path, value, f"a list of {len(of_items)}")
        return tuple(_decoded(of_item, item, path) for of_item, item in zip(of_items, value, strict=True))
    if kind is Finding:
        return _finding(value, path)
    if dataclasses.is_dataclass(kind):
        return kind(**_fields(kind, value, path))
    accepted = (float, int) if kind is float else (kind,)
    is_allowed = type(value) in accepted
    if is_allowed and kind in (int, float):
        is_allowed = abs(value) <= sys.float_info.max  # no NaN either
    if is_allowed and kind is str:
        is_allowed = is_printable(value)
    if not is_allowed:
        raise _Invalid(path, value, EXPECTED[kind])
    return kind(value)


def _finding(value: Any, path: str) -> Finding:
    """A finding of a file. One of a code that this version does not know keeps its words."""
    if not isinstance(value, dict):
        raise _Invalid(path, value, "an object")
    text = {name: _decoded(str, value.get(name, MISSING), f"{path}.{name}") for name in ("code", "severity", "text")}
    values = value.get("values", MISSING)
    if not isinstance(values, dict) or not all(map(is_printable, values)):
        raise _Invalid(f"{path}.values", values, "an object with names without control characters")
    for name, item in values.items():
        if type(item) not in EXPECTED:
            raise _Invalid(f"{path}.values.{name}", item, "a number or text")
        _decoded(type(item), item, f"{path}.values.{name}")
    if text["severity"] not in SEVERITIES:
        raise _Invalid(f"{path}.severity", text["severity"], f"one of {', '.join(SEVERITIES)}")
    if text["code"] not in CATALOGUE:
        return Finding("older_words", text["severity"], dict(sentence=text["text"]))
    finding_of_file = Finding(text["code"], text["severity"], values)
    try:
        str(finding_of_file)
    except (KeyError, ValueError, TypeError):
        raise _Invalid(f"{path}.values", values, f"those of {text['code']}") from None
    return finding_of_file


def _check(
    form: Form, coefficients: dict[str, float], models: Models, bootstrap: Bootstrap | None, rates: Tuning | None
) -> None:
    """Raises _Invalid where parts of a law do not fit together."""
    if bootstrap:
        _check_draws("bootstrap.draws", bootstrap.draws, len(form.names))
        beyond = bootstrap.beyond
        if beyond and len(beyond.drift) != len(bootstrap.draws):
            raise _Invalid("bootstrap.beyond.drift", beyond.drift, f"a number for each of {len(bootstrap.draws)} draws")
    shares = models.shares
    if shares and not (len(shares.n_active) == len(shares.share) and np.all(np.diff(shares.n_active) > 0)):
        raise _Invalid("models.shares", shares.to_dict(), "n_active, rising, and as many shares")
    for name, values in models.differing.items():
        if (name == "vocab_size" or name in PAPERS_RATIOS) and str in map(type, values):
            raise _Invalid(f"models.differing.{name}", values, "numbers")
    for name in form.shares:
        smallest = form.smallest_share(name)
        expected = f"a number from {smallest:.3g} to 1"
        if not smallest <= coefficients[name] <= 1:
            raise _Invalid(f"coefficients.{name}", coefficients[name], expected)
        drawn = [row[form.names.index(name)] for row in bootstrap.draws] if bootstrap else [1.0]
        if not smallest <= min(drawn) <= max(drawn) <= 1:
            raise _Invalid("bootstrap.draws", drawn, f"{name}, {expected}")
    with np.errstate(all="ignore"):
        params = form.to_params(coefficients)
    if not np.all(np.isfinite(params)):
        pairs = [f"{name} above {c.above}" for name, c in form.coefficients.items() if c.above]
        raise _Invalid("coefficients", coefficients, " and ".join(["scales above 0", *pairs]))
    if rates:
        _check_tuning(rates, 0 if bootstrap is None else len(bootstrap.draws))


def _check_draws(field: str, draws: tuple[tuple[float, ...], ...], width: int) -> None:
    """Raises _Invalid unless draws are rows of `width` coefficients."""
    if not draws or any(len(row) != width for row in draws):
        raise _Invalid(field, draws, f"rows of {width} numbers")


def _check_tuning(rates: Tuning, n_draws: int) -> None:
    """Raises _Invalid where the coefficients of rates, their reference and draws do not fit together.

    Args:
      rates: The optima.
      n_draws: How many draws the law has.
    """
    if not set(rates.reference) <= set(tuning.OF_MODELS):
        raise _Invalid("rates.reference", rates.reference, f"some of {', '.join(tuning.OF_MODELS)}")
    names = tuning.names(rates.reference, rates.with_batch)
    if list(rates.coefficients) != names:
        raise _Invalid("rates.coefficients", rates.coefficients, ", ".join(names))
    optima = ["rate", "batch"] if rates.with_batch else ["rate"]
    if list(rates.scatter) != optima:
        raise _Invalid("rates.scatter", rates.scatter, " and ".join(optima))
    positive = [name for name in tuning.POSITIVE if name in names]
    if min(rates.coefficients[name] for name in positive) <= 0:
        raise _Invalid("rates.coefficients", rates.coefficients, f"positive {', '.join(positive)}")
    if len(rates.draws) != n_draws:
        raise _Invalid("rates.draws", rates.draws, f"one for each of {n_draws} draws")
    if n_draws:
        _check_draws("rates.draws", rates.draws, len(names))
        if min(row[names.index(name)] for row in rates.draws for name in positive) <= 0:
            raise _Invalid("rates.draws", rates.draws, f"positive {', '.join(positive)}")
