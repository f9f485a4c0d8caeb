"""Fits laws to rows of results/runs.csv, and predicts losses with them, by fit."""

import contextlib
import io
import pathlib
import sys
from collections.abc import Sequence

import fit as scaling
from fit.__main__ import run
from results.rows import HERE, Parts, Row, fitted_runs, read, write

PAPERS_E_MAX = 290.4521
FIXED = {"E_max": PAPERS_E_MAX}


def fit(command: str, *flags: str, cwd: pathlib.Path = HERE.parent) -> str:
    """Returns what `python -m fit COMMAND` prints in the folder `cwd`; exits, with its error on stderr, if it fails."""
    printed = io.StringIO()
    with contextlib.chdir(cwd), contextlib.redirect_stdout(printed):
        code = run([command, *flags])
    if code:
        sys.exit(code)
    return printed.getvalue()


def fit_law(folder: pathlib.Path, parts: Parts, law: pathlib.Path, **options: object) -> None:
    """Fits the law to the runs of the parts `fit` and `seeds`, and writes it to the file `law`."""
    write(folder / "fit.csv", fitted_runs(parts))
    # law.json records the name fit.csv; runs up to E = 32 cannot determine E_max (the table of forms frees it)
    with contextlib.chdir(folder):
        fitted = scaling.law("fit.csv", "joint", weights="column:weight", fix=FIXED, **options)
        scaling.save(fitted, law)


def predictions(folder: pathlib.Path, law: str | pathlib.Path, rows: list[Row]) -> list[Row]:
    """Returns the rows with the columns of `fit predict`; `folder` gets the files that this needs."""
    write(folder / "models.csv", rows)
    fit("predict", f"--law={law}", f"--runs={folder / 'models.csv'}", f"--out={folder / 'predicted.csv'}")
    return read(folder / "predicted.csv")


def errors_of(
    folder: pathlib.Path, fitted: list[Row], sets: Sequence[list[Row]], form: str, **options: object
) -> list[list[float]]:
    """Returns the errors of a law.

    Args:
        folder: a folder for the files that this needs.
        fitted: the runs to which the law is fitted.
        sets: sets of runs to predict.
        form: the form of the law.
        **options: further options of fit.law.

    Returns:
        Measured minus predicted loss of each row of each set, in nats.
    """
    runs = folder / "fitted.csv"
    law = folder / "fitted.json"
    write(runs, fitted)
    scaling.save(scaling.law(runs, form, weights="column:weight", **options), law)

    def errors(rows: list[Row]) -> list[float]:
        return [row["loss"] - row["predicted_loss"] for row in predictions(folder, law, rows)]

    return [errors(rows) if rows else [] for rows in sets]
