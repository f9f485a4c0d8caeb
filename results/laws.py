"""Laws fitted to rows of results/runs.csv and asked for losses, by the commands of fit."""

import contextlib
import io
import sys

from fit.__main__ import run
from results.rows import HERE, fitted_runs, read, write

PAPERS_E_MAX = 290.4521
FIXED = f"--fix=E_max={PAPERS_E_MAX}"


def fit(command: str, *flags: str, cwd=HERE.parent) -> str:
    """What `python -m fit COMMAND` prints in the folder `cwd`; exits, with its sentence on stderr, where it fails."""
    said = io.StringIO()
    with contextlib.chdir(cwd), contextlib.redirect_stdout(said):
        code = run([command, *flags])
    if code:
        sys.exit(code)
    return said.getvalue()


def fit_law(folder, parts, law, *flags) -> None:
    """Fits the law to the runs of the parts `fit` and `seeds`, and writes it to the file `law`."""
    write(folder / "fit.csv", fitted_runs(parts))
    # law.json records the name fit.csv; runs up to E = 32 cannot determine E_max (the table of forms frees it)
    fit("law", "--runs=fit.csv", "--form=joint", "--weights=column:weight", FIXED, f"--out={law}", *flags, cwd=folder)


def predictions(folder, law, rows) -> list[dict]:
    write(folder / "models.csv", rows)
    fit("predict", f"--law={law}", f"--runs={folder / 'models.csv'}", f"--out={folder / 'predicted.csv'}")
    return read(folder / "predicted.csv")


def errors_of(folder, fitted, sets, form, *flags) -> list[list[float]]:
    """Measured minus predicted loss of each row of each of the `sets`, by a law of this form fitted to `fitted`."""
    write(folder / "own.csv", fitted)
    law = folder / "own.json"
    fit("law", f"--runs={folder / 'own.csv'}", f"--form={form}", "--weights=column:weight", f"--out={law}", *flags)

    def error(rows):
        return [row["loss"] - row["predicted_loss"] for row in predictions(folder, law, rows)]

    return [error(rows) if rows else [] for rows in sets]
