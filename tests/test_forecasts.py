"""The record of forecasts: hashes that still hold, and scores worked by hand."""

import csv
import math

import pytest

from results.forecasts import record


def test_every_forecast_has_the_hash_of_the_day_it_was_made():
    rows = record.read()
    assert {row["made"] for row in rows} >= {"2026-11-22", "2026-11-23", "2026-11-27"}


def test_a_changed_prediction_is_refused(tmp_path):
    rows = record.read()
    rows[3]["loss"] = "1.5"
    path = tmp_path / "record.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    with pytest.raises(ValueError, match="line 5: sha256 is"):
        record.read(path)


def test_scores_by_hand():
    """One forecast lies in its interval, one outside, one is not measured."""
    row = dict(loss="2.0", low="1.9", high="2.1", measured="")
    scores = record.scores_of([row, row | dict(measured="2.05"), row | dict(measured="1.8")])
    assert (scores.count, scores.inside) == (2, 1)
    assert scores.mean_error == pytest.approx(math.log((2 / 2.05) * (2 / 1.8)) / 2)
    assert scores.rms_error == pytest.approx(math.sqrt((math.log(2 / 2.05) ** 2 + math.log(2 / 1.8) ** 2) / 2))
