"""Forecasts of losses: dated and hashed when they are made, scored once the run is measured, and their record.

A forecast is a JSON file. Its `sha256` covers all that was predicted, so that a later edit shows; `measured` is added
when the loss is known, and lies outside the hash. A back-test predicts a run that is measured already, by runs from
before it; records count it apart.
"""

import dataclasses
import datetime
import hashlib
import json
import os
import pathlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from fit.data.files import write_text
from fit.data.table import plain
from fit.errors import UserError
from fit.fitted_law.forecast import PredictOptions
from fit.fitted_law.law import Law, save


@dataclasses.dataclass(frozen=True)
class Measured:
    """What a forecast run came to.

    Attributes:
      loss: nats per token.
      date: day on which it was entered, as 2026-11-26.
      source: where the loss comes from, in words.
    """

    loss: float
    date: str
    source: str = ""


@dataclasses.dataclass(frozen=True)
class Entry:
    """A forecast of the loss of one run.

    Attributes:
      made: day on which it was made, as 2026-11-26.
      law: name or file of the law.
      law_sha256: hash of the law's record, so that another law under this name shows.
      model: {column: value} that the law read.
      loss: predicted, in nats per token.
      interval: its ends, for a new run where the law knows how runs scatter.
      percentiles: of the interval's ends, such as (10, 90).
      note: what the run is, in words.
      measured: None until the run is measured.
      back_test: whether the run was measured before the forecast was made.
    """

    made: str
    law: str
    law_sha256: str
    model: dict[str, float]
    loss: float
    interval: tuple[float, float]
    percentiles: tuple[float, float]
    note: str = ""
    measured: Measured | None = None
    back_test: bool = False

    @property
    def error(self) -> float:
        """ln(predicted / measured): positive where the forecast was too high. Only of a measured run."""
        assert self.measured is not None
        return float(np.log(self.loss / self.measured.loss))

    @property
    def is_inside(self) -> bool:
        """Whether the measured loss lies in the interval. Only of a measured run."""
        assert self.measured is not None
        low, high = self.interval
        return low <= self.measured.loss <= high

    def digest(self) -> str:
        """The hash of what was predicted."""
        return _sha256(self._predicted())

    def to_dict(self) -> dict[str, Any]:
        """As the file holds it."""
        measured = None if self.measured is None else dataclasses.asdict(self.measured)
        return self._predicted() | dict(sha256=self.digest(), measured=measured)

    def _predicted(self) -> dict[str, Any]:
        """What the hash covers; back_test is left out where it is false, as in forecasts from before it."""
        fields = dataclasses.asdict(self)
        del fields["measured"]
        if not self.back_test:
            del fields["back_test"]
        return fields


@dataclasses.dataclass(frozen=True)
class Record:
    """How the scored forecasts of a law, or of all laws, came out.

    Attributes:
      count: scored forecasts.
      inside: those whose measured loss lies in their interval.
      expected: the share of them that should.
      mean_error: mean of ln(predicted / measured); positive where forecasts are too high.
      rms_error: root mean square of the same.
    """

    count: int
    inside: int
    expected: float
    mean_error: float
    rms_error: float

    def __str__(self) -> str:
        return (
            f"{self.inside} of {self.count} forecasts so far lie in their {self.expected:.0%} intervals; "
            f"on average {abs(self.mean_error):.2%} too {'high' if self.mean_error > 0 else 'low'}, "
            f"root mean square {self.rms_error:.2%}"
        )


def forecast(law: Law, options: PredictOptions, note: str = "", back_test: bool = False) -> Entry:
    """The forecast of one run, made today.

    Args:
      law: by which to forecast.
      options: the run.
      note: what the run is, in words.
      back_test: whether the run is measured already.

    Raises:
      UserError: the law has no intervals, or reads a column that is not given.
    """
    table = options.table(law)
    model = {name: float(table.numbers(name)[0]) for name in law.form.columns}
    low, high = law.predict_interval(**model, new_run=law.noise is not None)
    low_percentile, high_percentile = law.percentiles
    return Entry(
        made=_today(),
        law=law.name,
        law_sha256=law_sha256(law),
        model=model,
        loss=float(law.predict(**model)),
        interval=(float(low), float(high)),
        percentiles=(float(low_percentile), float(high_percentile)),
        note=note,
        back_test=back_test,
    )


def law_sha256(law: Law) -> str:
    """The hash of what a law predicts by: of its record without the forecasts that were scored since."""
    return _sha256({name: value for name, value in law.record.items() if name != "forecasts"})


def write(entry: Entry, path: str) -> None:
    """Writes a forecast.

    Raises:
      UserError: there is a file already, or the path cannot be written.
    """
    if os.path.exists(path):
        raise UserError(f"--out={path}: there is a forecast already; a forecast is not written over")
    write_text(path, _json(entry))


def read(path: str) -> Entry:
    """The forecast in a file.

    Raises:
      UserError: it is no forecast, or what it predicted was changed after it was made.
    """
    try:
        fields = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        digest = fields.pop("sha256")
        measured = fields.pop("measured")
        for name in ("interval", "percentiles"):
            low, high = fields[name]
            fields[name] = (float(low), float(high))
        entry = Entry(**fields, measured=None if measured is None else Measured(**measured))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{path}: expected a forecast, as fit forecast writes it") from error
    if entry.digest() != digest:
        raise UserError(
            f"{path}: its prediction was changed after it was made: its sha256 is {entry.digest()[:12]} now"
        )
    return entry


def score(path: str, loss: float, source: str = "") -> Entry:
    """Enters the measured loss of a forecast, in nats per token, and returns it.

    Raises:
      UserError: it is no forecast, or has another measured loss already.
    """
    entry = read(path)
    if entry.measured is not None and entry.measured.loss != loss:
        raise UserError(f"{path}: has the measured loss {entry.measured.loss:g} already; expected the same or none")
    scored = dataclasses.replace(entry, measured=Measured(loss, _today(), source))
    write_text(path, _json(scored))
    return scored


def in_folder(folder: str) -> list[Entry]:
    """The forecasts of a folder, oldest first.

    Raises:
      UserError: the folder has none, or a file of it is no forecast.
    """
    paths = sorted(pathlib.Path(folder).glob("*.json"))
    if not paths:
        raise UserError(f"{folder}: expected a folder with forecasts, NAME.json, found none")
    return sorted((read(str(path)) for path in paths), key=lambda entry: entry.made)


def record(entries: Iterable[Entry], back_tests: bool = False) -> Record | None:
    """How those that are measured came out; None where none is.

    Args:
      entries: the forecasts.
      back_tests: whether back-tests count, and they alone.
    """
    scored = [entry for entry in entries if entry.measured is not None and entry.back_test == back_tests]
    if not scored:
        return None
    errors = np.array([entry.error for entry in scored])
    shares = [(entry.percentiles[1] - entry.percentiles[0]) / 100 for entry in scored]
    return Record(
        count=len(scored),
        inside=sum(entry.is_inside for entry in scored),
        expected=float(np.mean(shares)),
        mean_error=float(np.mean(errors)),
        rms_error=float(np.sqrt(np.mean(errors**2))),
    )


def save_record(law: Law, folder: str, path: str) -> None:
    """Puts the record of the law's scored forecasts in a folder into its law.json; `fit plan` prints it.

    Raises:
      UserError: the folder has no forecasts, none of them is the law's, or the file cannot be written.
    """
    scored = record(entry for entry in in_folder(folder) if entry.law_sha256 == law_sha256(law))
    if scored is None:
        raise UserError(f"--law={path}: no scored forecast in {folder} is by this law")
    with_forecasts = law.record | dict(forecasts=dataclasses.asdict(scored))
    save(dataclasses.replace(law, record=with_forecasts), path)


def _today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def _sha256(fields: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(plain(fields), sort_keys=True).encode()).hexdigest()


def _json(entry: Entry) -> str:
    return json.dumps(entry.to_dict(), indent=1, allow_nan=False) + "\n"
