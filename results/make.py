"""`make results`: fits the law to results/runs.csv, tests and draws it, and fills in the tables of results/README.md.

    python -m results.make

The README's numbers are written by this program, between the marks `<!-- NAME -->` and `<!-- end -->`, from runs.csv
alone. Losses are in nats per byte.
"""

import collections
import csv
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import numpy as np
from absl import app

from results import figures

HERE = pathlib.Path(__file__).parent
LAW, PRESET = HERE / "law.json", HERE.parent / "fit" / "presets" / "jmoe-bytes-2026.json"  # the same file twice
VOCAB = 257
NARROWEST = 48  # d_model of the trunks with the most budgets
PAPERS_E_MAX = 290.4521
FIXED = f"--fix=E_max={PAPERS_E_MAX}"
DRAWS = 100  # of the bootstrap
TWO_SIGMA = 2 * 1.2816  # from the 10th to the 90th percentile, in standard deviations
FIGURES = {"2a": "isoflop", "3": "equal_memory"}  # of the paper, drawn from both laws; 1b is in figures.py


def main(_):
    parts = parts_of(HERE / "runs.csv")
    if missing := [part for part in ("seeds", "fit") if part not in parts]:
        sys.exit(f"results/runs.csv has no run of {' nor of '.join(missing)}; results/README.md has the commands")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        fit_law(folder, parts, LAW, f"--bootstrap={DRAWS}")
        PRESET.parent.mkdir(exist_ok=True)
        shutil.copyfile(LAW, PRESET)
        tables = tables_of(folder, LAW, parts)
        if parts["tests"]:
            tables["forms"] = table_of_forms(folder, fitted_runs(parts), parts["tests"])
        if parts["memory"]:
            curves = lambda models, law=LAW: predictions(folder, law, models)
            figures.memory_matched(HERE / "figures" / "memory_matched.png", parts["memory"], curves, LAW)
        draw(folder, LAW)
    page = HERE / "README.md"
    page.write_text(filled(page.read_text(), tables))
    print(f"{LAW}, {page}: {sum(map(len, parts.values()))} runs")


def parts_of(table) -> dict:
    """{part of the study: its rows}; a part that has none is an empty list."""
    parts = collections.defaultdict(list)
    for row in read(table):
        parts[row["part"]].append(row)
    return parts


def fitted_runs(parts) -> list[dict]:
    return weighted(parts["fit"] + parts["seeds"])


def fit_law(folder, parts, law, *flags) -> None:
    """Fits the law to the runs of the parts `fit` and `seeds`, and writes it to the file `law`."""
    write(folder / "fit.csv", fitted_runs(parts))
    # law.json records the name fit.csv; runs up to E = 32 cannot determine E_max (the table of forms frees it)
    fit("law", "--runs=fit.csv", "--weights=column:weight", FIXED, f"--out={law}", *flags, cwd=folder)


def tables_of(folder, law, parts) -> dict[str, str]:
    """{name of its place in the README: table} of those that need no fit except that of the learning rates."""
    fitted = fitted_runs(parts)
    tables = {"runs": table_of_runs(parts), "seeds": table_of_seeds(fitted)}
    tables["law"] = table_of_law(json.loads(law.read_text()))
    if parts["lr"]:
        budgets = [row["n_tokens"] for row in fitted if row["d_model"] == NARROWEST]
        tables["learning_rate"] = learning_rates(folder, parts["lr"], budgets)
    if parts["tests"]:
        tables["tests"] = table_of_tests(folder, law, parts["tests"], fitted)
    if parts["memory"]:
        tables["memory"] = table_of_memory(parts["memory"])
    return tables


def fit(command: str, *flags: str, cwd=HERE.parent) -> str:
    """What `python -m fit COMMAND` prints, started in the folder `cwd`."""
    environment = os.environ | {"PYTHONPATH": str(HERE.parent)}
    command_line = [sys.executable, "-m", "fit", command, *flags]
    done = subprocess.run(command_line, capture_output=True, text=True, cwd=cwd, env=environment)
    if done.returncode:
        sys.exit(f"fit {command} {' '.join(flags)}: {done.stderr}")
    return done.stdout


def read(path) -> list[dict]:
    """The rows of a table, numbers as numbers."""

    def value(text):
        try:
            return float(text)
        except ValueError:
            return text

    with path.open(newline="") as file:
        return [{name: value(text) for name, text in row.items()} for row in csv.DictReader(file)]


def write(path, rows) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)), restval="")
        writer.writeheader()
        writer.writerows(rows)


def model(row) -> tuple:
    """What runs that differ only in their seed have in common."""
    return row["d_model"], row["n_experts"], row["n_tokens"]


def by_model(rows) -> dict:
    """{(d_model, n_experts, n_tokens): rows}, sorted."""
    groups = collections.defaultdict(list)
    for row in rows:
        groups[model(row)].append(row)
    return dict(sorted(groups.items()))


def weighted(rows) -> list[dict]:
    """The rows with a column `weight`, so that a model counts once however many seeds it was trained with."""
    groups = by_model(rows)
    return [row | {"weight": 1 / len(groups[model(row)])} for row in rows]


def noise(rows, d_model=None) -> float:
    """The standard deviation of ln(loss) from seed to seed, over all models of width `d_model` that have several
    seeds; if there are none, over all models that have several."""
    several = [group for group in by_model(rows).values() if len(group) > 1]
    own = [group for group in several if group[0]["d_model"] == d_model]
    groups = [[math.log(row["loss"]) for row in group] for group in own or several]
    return math.sqrt(sum(np.var(group) * len(group) for group in groups) / sum(len(group) - 1 for group in groups))


def markdown(header, lines) -> str:
    """A table; every cell is text."""
    rows = [header, ["---"] * len(header), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def millions(n: float) -> str:
    return f"{n / 1e6:.3g}M" if n >= 1e6 else f"{n / 1e3:.3g}k"


def table_of_runs(parts) -> str:
    lines = []
    for name, rows in parts.items():
        drops = [row["drop_rate"] for row in rows if row["n_experts"] > 1]
        trunks = {row["run"].rsplit("/", 1)[0] for row in rows}
        sizes = f"{millions(min(r['n_active'] for r in rows))} to {millions(max(r['n_active'] for r in rows))}"
        tokens = f"{millions(min(r['n_tokens'] for r in rows))} to {millions(max(r['n_tokens'] for r in rows))}"
        experts = ", ".join(f"{e:g}" for e in sorted({row["n_experts"] for row in rows}))
        drop = f"{np.mean(drops):.1%} ({min(drops):.1%} to {max(drops):.1%})"
        hours = sum(row["seconds"] for row in rows) / 3600
        lines.append([name, str(len(rows)), str(len(trunks)), sizes, tokens, experts, drop, f"{hours:.1f}"])
    header = ["part", "runs", "trunks", "active parameters", "tokens", "E", "tokens dropped, mean and range", "hours"]
    return markdown(header, lines)


def table_of_seeds(rows) -> str:
    lines = []
    for (d_model, n_experts, n_tokens), group in by_model(rows).items():
        if len(group) > 1:
            losses = [row["loss"] for row in sorted(group, key=lambda row: row["seed"])]
            spread = np.std(losses, ddof=1)
            cells = [f"{d_model:g}", f"{n_experts:g}", millions(n_tokens), ", ".join(f"{x:.4f}" for x in losses)]
            lines.append([*cells, f"{spread:.4f}", f"{spread / np.mean(losses):.2%}"])
    header = ["d_model", "E", "tokens", "loss of each seed", "standard deviation", "of the loss"]
    widths = sorted({group[0]["d_model"] for group in by_model(rows).values() if len(group) > 1})
    each = ", ".join(f"{noise(rows, width):.2%} at d_model {width:g}" for width in widths)
    return markdown(header, lines) + f"\n\nOver all of them: {noise(rows):.2%} of the loss; {each}."


def table_of_law(law) -> str:
    return markdown(["coefficient", "value"], [[name, f"{value:.5g}"] for name, value in law["coefficients"].items()])


def learning_rates(folder, rows, budgets) -> str:
    """What `fit lr` prints, and how much loss one rate for all `budgets` (in tokens) of a trunk costs."""
    write(folder / "lr.csv", rows)
    said = fit("lr", f"--runs={folder / 'lr.csv'}", "--with_tokens", f"--out={folder / 'lr.json'}").rstrip()
    found = json.loads((folder / "lr.json").read_text())
    low, high = min(budgets), max(budgets)
    moved = found["lr_law"]["n_tokens"] * math.log(high / low)  # of ln rate
    curvatures = [best["curvature"] for best in found["optima"]]
    curved = f"{min(curvatures):.2f} to {max(curvatures):.2f} nats per unit of ln rate, squared"
    return (
        f"```\n{said}\n```\n\n"
        f"From {millions(low)} to {millions(high)} tokens, the budgets of one trunk, the best rate moves by "
        f"{math.expm1(abs(moved)):.0%}. A trunk has one rate for all of them, off by half of that at most. By the "
        f"parabolas through the losses ({curved}) that costs {max(curvatures) * (moved / 2) ** 2:.4f} nats at most."
    )


def predictions(folder, law, rows) -> list[dict]:
    write(folder / "models.csv", rows)
    fit("predict", f"--law={law}", f"--runs={folder / 'models.csv'}", f"--out={folder / 'predicted.csv'}")
    return read(folder / "predicted.csv")


def table_of_tests(folder, law, rows, fitted) -> str:
    """Predicted against measured, with intervals, and whether the order of E is the same."""
    lines, errors, bounds = [], [], []
    predicted = predictions(folder, law, rows)
    for row in sorted(predicted, key=lambda row: (row["d_model"], row["n_experts"])):
        sigma_law = (row["law_loss_high"] - row["law_loss_low"]) / TWO_SIGMA
        sigma = math.hypot(sigma_law, noise(fitted, row["d_model"]) * row["loss"])
        error = row["loss"] - row["predicted_loss"]
        errors.append(error)
        bounds.append(sigma)
        lines.append(
            [
                millions(row["n_active"]),
                millions(row["n_tokens"]),
                f"{row['n_experts']:g}",
                f"{row['predicted_loss']:.4f}",
                f"{row['predicted_loss_low']:.4f} to {row['predicted_loss_high']:.4f}",
                f"{row['loss']:.4f}",
                f"{error:+.4f}",
                f"{2 * sigma:.4f}",
                f"{row['drop_rate']:.1%}",
            ]
        )
    header = ["active", "tokens", "E", "predicted", "80% interval of a run", "measured", "error", "2 σ", "dropped"]
    rmse, bound = (math.sqrt(np.mean(np.square(x))) for x in (errors, bounds))
    text = f"RMSE {rmse:.4f} nats; 2 √(σ_law² + σ_seed²), in the same mean, {2 * bound:.4f}.\n\n"
    orders = []
    for d_model in sorted({row["d_model"] for row in predicted}):
        some = [row for row in predicted if row["d_model"] == d_model]
        order = lambda column: " < ".join(f"{r['n_experts']:g}" for r in sorted(some, key=lambda r: r[column]))  # noqa: B023
        orders.append([f"{d_model:g}", order("predicted_loss"), order("loss")])
    return markdown(header, lines) + "\n\n" + text + markdown(["d_model", "E by predicted loss", "as trained"], orders)


def without_embeddings(rows) -> list[dict]:
    """The rows, with the embedding and the head left out of n_active."""
    return [row | {"n_active": row["n_active"] - 2 * VOCAB * row["d_model"]} for row in rows]


def table_of_forms(folder, fitted, tests) -> str:
    """RMSE in nats of several laws, on the runs they were fitted to and on the tests."""
    lines = []
    for counted, change in (("yes", lambda rows: rows), ("no", without_embeddings)):
        a, b = change(fitted), change(tests)
        for name, flags in (
            ("joint, E_max free", ()),
            (f"joint, E_max {PAPERS_E_MAX:g}", (FIXED,)),
        ):
            residuals = [errors_of(folder, a, rows, "joint", *flags) for rows in (a, b)]
            lines.append([name, counted, *(f"{math.sqrt(np.mean(np.square(r))):.4f}" for r in residuals)])
        residuals = [[], []]
        for e in sorted({row["n_experts"] for row in a}):
            own = [row for row in a if row["n_experts"] == e]
            if len({row["n_active"] for row in own}) < 3:
                continue
            for i, rows in enumerate((own, [row for row in b if row["n_experts"] == e])):
                residuals[i] += errors_of(folder, own, rows, "chinchilla") if rows else []
        cells = [f"{math.sqrt(np.mean(np.square(r))):.4f}" for r in residuals]
        lines.append(["Chinchilla, each E by itself", counted, *cells])
    return markdown(["law", "embeddings counted", "RMSE, fitted runs", "RMSE, tests"], lines)


def errors_of(folder, fitted, rows, form, *flags) -> list[float]:
    """Measured minus predicted loss of each of `rows`, by a law of this form fitted to `fitted`."""
    write(folder / "own.csv", fitted)
    law = folder / "own.json"
    fit("law", f"--runs={folder / 'own.csv'}", f"--form={form}", "--weights=column:weight", f"--out={law}", *flags)
    return [row["loss"] - row["predicted_loss"] for row in predictions(folder, law, rows)]


def table_of_memory(rows) -> str:
    lines = []
    for (d_model, n_experts, n_tokens), group in by_model(rows).items():
        losses = [row["loss"] for row in group]
        cells = [f"{n_experts:g}", f"{d_model:g}", millions(group[0]["n_active"]), millions(group[0]["n_total"])]
        spread = f"{np.std(losses, ddof=1):.4f}" if len(losses) > 1 else ""
        lines.append([*cells, millions(n_tokens), f"{group[0]['flops']:.2e}", f"{np.mean(losses):.4f}", spread])
    header = ["E", "d_model", "active", "total", "tokens", "FLOPs", "loss, mean of seeds", "standard deviation"]
    return markdown(header, lines)


def draw(folder, law) -> None:
    """The pictures of the fit, and the paper's figures drawn from this law and from the paper's."""
    figures = HERE / "figures"
    fit("plot", f"--law={law}", f"--runs={folder / 'fit.csv'}", f"--out_dir={figures}")
    for which, name in FIGURES.items():
        for kind, drawn in (("ours", law), ("paper", "joint-moe-2025")):
            fit("plot", f"--law={drawn}", f"--figure={which}", f"--out={figures / f'{name}_{kind}.png'}")


def filled(page: str, tables: dict) -> str:
    """Returns the page with each table between its marks; exits if a table has no such place, or several."""
    for name, text in tables.items():
        place = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
        page, n = re.subn(place, lambda m, text=text: f"{m[1]}{text}\n{m[2]}", page, flags=re.DOTALL)
        if n != 1:
            sys.exit(f"results/README.md has {n} places for {name}, expected one")
    return page


if __name__ == "__main__":
    app.run(main)
