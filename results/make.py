"""`make results`: fits the law to results/runs.csv, tests and draws it, and fills in the tables of results/first.md.

    python -m results.make

This program writes the numbers of that page, between the marks `<!-- NAME -->` and `<!-- end -->`, from runs.csv alone.
Losses are in nats per byte.
"""

import json
import pathlib
import re
import sys
import tempfile

from fit.messages.finding import finding
from jmoe import cli
from results import figures
from results.laws import fit, fit_law, predictions
from results.rows import HERE, POSITIONS, TABLE, Row, fitted_runs, memory_runs, parts_of, read
from results.tables import table_of_forms, table_of_position_laws, tables_of

LAW = HERE.parent / "fit" / "fitted_law" / "presets" / "jmoe-bytes-2026.json"
BEYOND_RUNS = finding(  # printed wherever the law is used beyond its runs
    "failed_tests", models=6, least=2.8, most=2.9, lowest=0.02, highest=0.08, page="results/first.md"
)
DRAWS = 100  # of the bootstrap
FIGURES = {"2a": "isoflop", "3": "equal_memory"}  # of the paper, drawn from both laws; 1b is in figures.py


def main(_: object) -> None:
    """Fits, tests and draws the law, and writes the page."""
    parts = parts_of(TABLE)
    missing = [part for part in ("seeds", "fit") if part not in parts]
    if missing:
        sys.exit(f"results/runs.csv has no run of {' nor of '.join(missing)}; results/first.md has the commands")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        fit_law(folder, parts, LAW, bootstrap=DRAWS)
        law = json.loads(LAW.read_text()) | dict(beyond_runs=BEYOND_RUNS.to_dict())
        LAW.write_text(json.dumps(law, indent=1) + "\n")
        tables = tables_of(folder, LAW, parts)
        if parts["tests"]:
            tables["forms"] = table_of_forms(folder, fitted_runs(parts), parts["tests"])
            tables["position_laws"] = table_of_position_laws(folder, parts, read(POSITIONS))
        if parts["memory"]:

            def curves(models: list[Row], law: str | pathlib.Path = LAW) -> list[Row]:
                return predictions(folder, law, models)

            figures.memory_matched(HERE / "figures" / "memory_matched.png", memory_runs(parts), curves, LAW)
        draw(folder, LAW)
    page = HERE / "first.md"
    page.write_text(filled(page.read_text(), tables))
    print(f"{LAW}, {page}: {sum(map(len, parts.values()))} runs")


def draw(folder: pathlib.Path, law: pathlib.Path) -> None:
    """Draws the pictures of the law and its fit, and the paper's figures by this law and by the paper's."""
    figures = HERE / "figures"
    fit_points = figures / "predicted_against_measured.png"
    fit("plot", f"--law={law}", f"--runs={folder / 'fit.csv'}", "--figure=5", f"--out={fit_points}")
    fit("plot", f"--law={law}", "--figure=compute", f"--out={figures / 'compute_ours.png'}")
    for which, name in FIGURES.items():
        for kind, drawn in (("ours", law), ("paper", "joint-moe-2025")):
            fit("plot", f"--law={drawn}", f"--figure={which}", f"--out={figures / f'{name}_{kind}.png'}")


def filled(page: str, tables: dict[str, str]) -> str:
    """Returns the page with each table between its marks; exits if a table has no such place, or several."""
    for name, text in tables.items():
        place = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
        page, n = re.subn(place, lambda m, text=text: f"{m[1]}{text}\n{m[2]}", page, flags=re.DOTALL)
        if n != 1:
            sys.exit(f"results/first.md has {n} places for {name}, expected one")
    return page


if __name__ == "__main__":
    cli.run(main)
