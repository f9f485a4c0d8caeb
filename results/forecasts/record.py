"""The forecasts of runs that were made before they were measured, and how they came out: prints record.csv.

    python -m results.forecasts.record

Each row has the hash of what was predicted, made on the day of the forecast, so that a later edit shows. A back-test
predicts a run that was measured already, by runs from before it; it is counted apart. Losses are in nats per token.
"""

import csv
import dataclasses
import hashlib
import json
import pathlib

import numpy as np

TABLE = pathlib.Path(__file__).with_suffix(".csv")
SIZES = ("n_active", "n_tokens", "n_experts")  # columns of the model that a law reads
PREDICTED = ("made", "law", "law_sha256", "note")  # columns of text that the hash covers, besides the numbers


@dataclasses.dataclass(frozen=True)
class Scores:
    """How measured forecasts came out.

    Attributes:
      count: Measured forecasts.
      inside: Those whose measured loss lies in the interval.
      mean_error: Mean of ln(predicted / measured); positive where forecasts are too high.
      rms_error: Root mean square of the same.
    """

    count: int
    inside: int
    mean_error: float
    rms_error: float


def read(path: pathlib.Path = TABLE) -> list[dict[str, str]]:
    """The forecasts, as text.

    Raises:
      ValueError: A prediction does not have its hash.
    """
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for i, row in enumerate(rows, 2):
        if sha256(row) != row["sha256"]:
            raise ValueError(f"{path}, line {i}: sha256 is {row['sha256']}, but its prediction has {sha256(row)}")
    return rows


def sha256(row: dict[str, str]) -> str:
    """The hash of what a row predicts."""
    fields = {name: row[name] for name in PREDICTED} | dict(
        model={name: float(row[name]) for name in SIZES if row[name]},
        loss=float(row["loss"]),
        interval=[float(row["low"]), float(row["high"])],
        percentiles=[float(row["low_percentile"]), float(row["high_percentile"])],
    )
    if row["back_test"]:
        fields["back_test"] = True
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def is_inside(row: dict[str, str]) -> bool:
    """Whether the measured loss lies in the interval."""
    return float(row["low"]) <= float(row["measured"]) <= float(row["high"])


def error_of(row: dict[str, str]) -> float:
    """ln(predicted / measured)."""
    return float(np.log(float(row["loss"]) / float(row["measured"])))


def scores_of(rows: list[dict[str, str]]) -> Scores:
    """How these forecasts came out, of which one at least is measured."""
    measured = [row for row in rows if row["measured"]]
    errors = np.array([error_of(row) for row in measured])
    return Scores(
        count=len(measured),
        inside=sum(is_inside(row) for row in measured),
        mean_error=float(errors.mean()),
        rms_error=float(np.sqrt((errors**2).mean())),
    )


def line_of(row: dict[str, str]) -> str:
    """A forecast in one line."""
    sizes = ", ".join(f"{name} {float(row[name]):g}" for name in SIZES if row[name])
    share = float(row["high_percentile"]) - float(row["low_percentile"])
    interval = f"{share:g}% from {float(row['low']):.4f} to {float(row['high']):.4f}"
    line = f"{row['made']} {row['law']}: {sizes}: {float(row['loss']):.4f} ({interval})"
    if not row["measured"]:
        return f"{line}; not measured yet"
    where = "inside" if is_inside(row) else "outside"
    return f"{line}; measured {float(row['measured']):.4f}, {where}, forecast {error_of(row):+.2%} off"


def main() -> None:
    """Prints each forecast and the scores of all."""
    rows = read()
    for row in rows:
        print(line_of(row))
    for words, back_test in (("forecasts", ""), ("back-tests", "1")):
        scores = scores_of([row for row in rows if row["back_test"] == back_test])
        print(
            f"{scores.inside} of {scores.count} {words} lie in their intervals; "
            f"mean error {scores.mean_error:+.2%}, root mean square {scores.rms_error:.2%}"
        )


if __name__ == "__main__":
    main()
