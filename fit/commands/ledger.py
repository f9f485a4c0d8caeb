"""The command that keeps forecasts: made, scored, and their record."""

import dataclasses
import os
from typing import Any

from fit import options
from fit.errors import UserError
from fit.fitted_law import ledger
from fit.fitted_law.forecast import PredictOptions
from fit.fitted_law.law import load

MODEL = tuple(field.name for field in dataclasses.fields(PredictOptions))


@dataclasses.dataclass(kw_only=True)
class Forecast(options.Options):
    """Write a dated forecast of a run's loss, enter what it came to, and print how all forecasts came out.

    python -m fit forecast --law=law.json --model=n_active=1e9,n_tokens=2e10,n_experts=8 --out=forecasts/big.json
    python -m fit forecast --score=forecasts/big.json --loss=2.41 --source=runs.csv --law=law.json
    python -m fit forecast --record=forecasts

    A forecast holds the hash of what it predicted and of its law, so that a later edit shows. With --law, scoring also
    puts the record of that law's forecasts into its law.json, and fit plan prints it.
    """

    law: str | None = options.text("The law to forecast by, or with --score the law.json to keep the record in.")
    model: dict[str, str] = options.pairs(
        "The run to forecast.", "NAME=VALUE", "=", MODEL, f", such as n_active=1e9; names: {', '.join(MODEL)}"
    )
    out: str | None = options.text("Forecast to write (JSON). Each forecast is a file of one folder.")
    note: str = options.text("What the run is, in words.", "")
    back_test: bool = options.switch("With --out: the run is measured already; the record counts it apart.")
    score: str | None = options.text("Forecast whose run is measured.")
    loss: float | None = options.number("With --score: measured loss, in nats per token.")
    source: str = options.text("With --score: where the loss comes from, in words.", "")
    record: str | None = options.text("Folder of forecasts to print the record of.")

    def run(self) -> None:
        tasks = [flag for flag in ("out", "score", "record") if getattr(self, flag) is not None]
        if len(tasks) != 1:
            found = " and ".join(f"--{flag}" for flag in tasks) if tasks else "none"
            raise UserError(f"expected one of --out, --score and --record, found {found}")
        if self.out is not None:
            self._make(self.out)
        elif self.score is not None:
            self._score(self.score)
        elif self.record is not None:
            _print_record(self.record)

    def _make(self, out: str) -> None:
        """Writes a forecast, and prints it."""
        if self.law is None or not self.model:
            raise UserError("--out needs --law and --model")
        law = load(self.law)
        model: dict[str, Any] = dict(self.model)
        entry = ledger.forecast(law, PredictOptions(**model), self.note, self.back_test)
        os.makedirs(os.path.dirname(out) or ".", exist_ok=True)
        ledger.write(entry, out)
        print(in_line(entry))

    def _score(self, path: str) -> None:
        """Enters the measured loss, and prints how it compares and the record of its folder."""
        if self.loss is None:
            raise UserError("--score needs --loss, the measured loss in nats per token")
        print(in_line(ledger.score(path, self.loss, self.source)))
        folder = os.path.dirname(path) or "."
        _print_scores(ledger.in_folder(folder))
        if self.law is not None:
            law = load(self.law)
            if law.published:
                raise UserError(f"--law={self.law}: expected a law.json to keep the record in, found a published law")
            ledger.save_record(law, folder, self.law)


def in_line(entry: ledger.Entry) -> str:
    """A forecast in one line."""
    low, high = entry.interval
    first, last = entry.percentiles
    model = ", ".join(f"{name} {value:g}" for name, value in entry.model.items())
    words = f"{entry.made} {entry.law}: {model}: {entry.loss:.4f} ({last - first:g}% from {low:.4f} to {high:.4f})"
    if entry.note:
        words += f", {entry.note}"
    if entry.measured is None:
        return f"{words}; not measured yet"
    where = "inside" if entry.is_inside else "outside"
    if entry.back_test:
        where += " (back-test)"
    return f"{words}; measured {entry.measured.loss:.4f}, {where}, forecast {entry.error:+.2%} off"


def _print_record(folder: str) -> None:
    """Prints each forecast of a folder, and the record of all."""
    entries = ledger.in_folder(folder)
    for entry in entries:
        print(in_line(entry))
    _print_scores(entries)


def _print_scores(entries: list[ledger.Entry]) -> None:
    """Prints how forecasts came out, and how back-tests did."""
    scored = ledger.record(entries)
    back_tests = ledger.record(entries, back_tests=True)
    if scored is None and back_tests is None:
        print("no forecast is measured yet")
    if scored is not None:
        print(scored)
    if back_tests is not None:
        print(f"made after the run was measured: {back_tests}")
