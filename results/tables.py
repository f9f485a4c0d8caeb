"""The tables of results/first.md, as Markdown. Losses are in nats per byte."""

import collections
import itertools
import json
import math
import pathlib

import numpy as np

from results.laws import FIXED, PAPERS_E_MAX, errors_of, fit, predictions
from results.rows import POSITIONS, Parts, Row, by_model, fitted_runs, memory_runs, noise, read, weighted, write

VOCAB = 257
NARROWEST = 48  # d_model of the trunks with the most budgets
NO_FLOOR = 1e-6  # nats, the least that --fix takes
TWO_SIGMA = 2 * 1.2816  # from the 10th to the 90th percentile, in standard deviations


def tables_of(folder: pathlib.Path, law: pathlib.Path, parts: Parts) -> dict[str, str]:
    """Returns {name of its place in first.md: table} of the tables that need no fit except that of learning rates."""
    fitted = fitted_runs(parts)
    tables = {"runs": table_of_runs(parts), "seeds": table_of_seeds(fitted)}
    tables["law"] = table_of_law(json.loads(law.read_text()))
    if parts["lr"]:
        budgets = [row["n_tokens"] for row in fitted if row["d_model"] == NARROWEST]
        tables["learning_rate"] = learning_rates(folder, parts["lr"], budgets)
    if parts["tests"]:
        tables["tests"] = table_of_tests(folder, law, parts["tests"], fitted)
        tables["tokens"] = table_of_tokens(parts["fit"] + parts["tests"])
        tables["positions"] = table_of_positions(read(POSITIONS))
    if parts["memory"]:
        tables["memory"] = table_of_memory(memory_runs(parts))
    return tables


def markdown(header: list[str], lines: list[list[str]]) -> str:
    """Returns a table."""
    rows = [header, ["---"] * len(header), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def millions(n: float) -> str:
    """Returns a number in millions or thousands, with three digits."""
    return f"{n / 1e6:.3g}M" if n >= 1e6 else f"{n / 1e3:.3g}k"


def table_of_runs(parts: Parts) -> str:
    """Returns the runs, sizes, tokens, dropped tokens and hours of each part."""
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


def table_of_seeds(rows: list[Row]) -> str:
    """Returns the losses of models with several seeds, and their standard deviations."""
    lines = []
    for (d_model, n_experts, n_tokens), group in by_model(rows).items():
        if len(group) > 1:
            losses = [row["loss"] for row in sorted(group, key=lambda row: row["seed"])]
            spread = np.std(losses, ddof=1)
            cells = [f"{d_model:g}", f"{n_experts:g}", millions(n_tokens), ", ".join(f"{x:.4f}" for x in losses)]
            lines.append([*cells, f"{spread:.4f}", f"{spread / np.mean(losses):.2%}"])
    header = ["d_model", "E", "tokens", "loss of each seed", "standard deviation", "of the loss"]
    widths = sorted({group[0]["d_model"] for group in by_model(rows).values() if len(group) > 1})
    of_widths = ", ".join(f"{noise(rows, width):.2%} at d_model {width:g}" for width in widths)
    return markdown(header, lines) + f"\n\nOver all of them: {noise(rows):.2%} of the loss; {of_widths}."


def table_of_law(law: dict) -> str:
    """Returns the coefficients of a law.json."""
    return markdown(["coefficient", "value"], [[name, f"{value:.5g}"] for name, value in law["coefficients"].items()])


def table_of_tokens(rows: list[Row]) -> str:
    """Returns how much the loss falls per e-fold of tokens, between budgets at least a factor of 1.5 apart.

    By a law that is a sum of a term of size and a term of data, the numbers of one E and one column would be the same
    for all widths.
    """
    falls = collections.defaultdict(list)  # (E, d_model), (fewer tokens, more tokens): nats, one for each seed
    trunks = collections.defaultdict(dict)
    for row in rows:
        trunks[row["n_experts"], row["d_model"], row["seed"]][row["n_tokens"]] = row["loss"]
    for (n_experts, d_model, _), losses in trunks.items():
        for few, many in itertools.pairwise(sorted(losses)):
            if many / few > 1.5:
                fall = (losses[few] - losses[many]) / math.log(many / few)
                falls[(n_experts, d_model), (few, many)].append(fall)
    spans = sorted({span for _, span in falls})
    lines = []
    for n_experts, d_model in sorted({model for model, _ in falls}):
        cells = [falls[(n_experts, d_model), span] for span in spans]
        means = [f"{np.mean(cell):.3f}" if cell else "" for cell in cells]
        lines.append([f"{n_experts:g}", f"{d_model:g}", *means])
    return markdown(["E", "d_model", *(f"{millions(few)} to {millions(many)}" for few, many in spans)], lines)


def table_of_positions(rows: list[Row]) -> str:
    """Returns the loss by the position in a row, a mean of seeds, of each model's longest fitted run and test."""
    spans = [name for name in rows[0] if name.startswith("loss_")]
    longest = {}
    for (d_model, n_experts, n_tokens), group in by_model(rows).items():
        key = (d_model, n_experts, group[0]["part"] == "tests")
        longest[key] = (n_tokens, [np.mean([row[span] for row in group]) for span in spans])
    lines = []
    for (d_model, n_experts, _), (n_tokens, losses) in sorted(longest.items()):
        cells = [f"{d_model:g}", f"{n_experts:g}", millions(n_tokens), *(f"{loss:.3f}" for loss in losses)]
        lines.append([*cells, f"{losses[1] - losses[-1]:.3f}"])
    names = [position_name(name) for name in spans]
    header = ["d_model", "E", "tokens", *names, f"{names[1]} minus {names[-1]}"]
    return markdown(header, lines)


def position_name(column: str) -> str:
    """Returns the positions of a column such as loss_1_16, in words."""
    return column.removeprefix("loss_").replace("_", " to ")


def learning_rates(folder: pathlib.Path, rows: list[Row], budgets: list[float]) -> str:
    """Returns what `fit lr` prints, and how much loss one rate for all `budgets` (in tokens) of a trunk costs."""
    write(folder / "lr.csv", rows)
    printed = fit("lr", f"--runs={folder / 'lr.csv'}", "--with_tokens", f"--out={folder / 'lr.json'}").rstrip()
    result = json.loads((folder / "lr.json").read_text())
    low = min(budgets)
    high = max(budgets)
    moved = result["lr_law"]["n_tokens"] * math.log(high / low)  # of ln rate
    curvatures = [best["curvature"] for best in result["optima"]]
    curved = f"{min(curvatures):.2f} to {max(curvatures):.2f} nats per unit of ln rate, squared"
    return (
        f"```\n{printed}\n```\n\n"
        f"From {millions(low)} to {millions(high)} tokens, the budgets of one trunk, the best rate moves by "
        f"{math.expm1(abs(moved)):.0%}. A trunk has one rate for all of them, off by half of that at most. By the "
        f"parabolas through the losses ({curved}) that costs {max(curvatures) * (moved / 2) ** 2:.4f} nats at most."
    )


def table_of_tests(folder: pathlib.Path, law: pathlib.Path, rows: list[Row], fitted: list[Row]) -> str:
    """Returns predicted and measured losses with intervals, and whether the order of E is the same."""
    lines = []
    errors = []
    bounds = []
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
        of_width = [row for row in predicted if row["d_model"] == d_model]
        orders.append(
            [f"{d_model:g}", order_of_experts(of_width, "predicted_loss"), order_of_experts(of_width, "loss")]
        )
    return markdown(header, lines) + "\n\n" + text + markdown(["d_model", "E by predicted loss", "as trained"], orders)


def order_of_experts(rows: list[Row], column: str) -> str:
    """Returns the numbers of experts in the order of a column."""
    return " < ".join(f"{row['n_experts']:g}" for row in sorted(rows, key=lambda row: row[column]))


def without_embeddings(rows: list[Row]) -> list[Row]:
    """Returns the rows, with the embedding and the head left out of n_active."""
    return [row | {"n_active": row["n_active"] - 2 * VOCAB * row["d_model"]} for row in rows]


def table_of_forms(folder: pathlib.Path, fitted: list[Row], tests: list[Row]) -> str:
    """Returns the RMSE in nats of several laws, on the runs to which they are fitted and on the tests."""
    lines = []
    for counted, change in (("yes", lambda rows: rows), ("no", without_embeddings)):
        a = change(fitted)
        b = change(tests)
        for name, form, fixed in (
            ("joint, E_max free", "joint", {}),
            (f"joint, E_max {PAPERS_E_MAX:g}", "joint", FIXED),
            (f"coupled, E_max {PAPERS_E_MAX:g}", "joint_coupled", FIXED),
            (f"coupled, E_max {PAPERS_E_MAX:g}, no floor", "joint_coupled", FIXED | {"c": NO_FLOOR}),
        ):
            residuals = errors_of(folder, a, (a, b), form, fix=fixed)
            lines.append([name, counted, *(rmse_in_words(r) for r in residuals)])
        residuals = [[], []]
        for e in sorted({row["n_experts"] for row in a}):
            fitted_of_e = [row for row in a if row["n_experts"] == e]
            if len({row["n_active"] for row in fitted_of_e}) < 3:
                continue
            tests_of_e = [row for row in b if row["n_experts"] == e]
            errors_of_e = errors_of(folder, fitted_of_e, (fitted_of_e, tests_of_e), "chinchilla")
            for all_errors, errors in zip(residuals, errors_of_e, strict=True):
                all_errors += errors
        lines.append(["Chinchilla, each E by itself", counted, *(rmse_in_words(r) for r in residuals)])
    return markdown(["law", "embeddings counted", "RMSE, fitted runs", "RMSE, tests"], lines)


def rmse_in_words(errors: list[float]) -> str:
    """Returns the root mean square of errors."""
    return f"{math.sqrt(np.mean(np.square(errors))):.4f}"


def table_of_position_laws(folder: pathlib.Path, parts: Parts, positions: list[Row]) -> str:
    """Returns how well a joint law of the loss at some positions of a row predicts that loss in the tests."""
    named = {(row["part"], row["run"]): row for rows in parts.values() for row in rows}
    runs = [named[row["part"], row["run"]] | row for row in positions]
    spans = [name for name in positions[0] if name.startswith("loss_")]
    lines = []
    for span in [*spans, "loss"]:
        rows = [row | {"loss": row[span]} for row in runs]
        fitted = weighted([row for row in rows if row["part"] == "fit"])
        tests = [row for row in rows if row["part"] == "tests"]
        residuals = errors_of(folder, fitted, (fitted, tests), "joint", fix=FIXED)
        name = position_name(span) if span in spans else "all"
        errors_of_tests = ", ".join(f"{error:+.4f}" for error in residuals[1])
        lines.append([name, *(rmse_in_words(r) for r in residuals), errors_of_tests])
    header = ["positions", f"RMSE, {len(fitted)} fitted runs", f"RMSE, {len(tests)} tests", "errors of the tests"]
    return markdown(header, lines)


def table_of_memory(rows: list[Row]) -> str:
    """Returns the losses of the models of equal memory."""
    lines = []
    for (d_model, n_experts, n_tokens), group in by_model(rows).items():
        losses = [row["loss"] for row in group]
        cells = [f"{n_experts:g}", f"{d_model:g}", millions(group[0]["n_active"]), millions(group[0]["n_total"])]
        spread = f"{np.std(losses, ddof=1):.4f}" if len(losses) > 1 else ""
        lines.append([*cells, millions(n_tokens), f"{group[0]['flops']:.2e}", f"{np.mean(losses):.4f}", spread])
    header = ["E", "d_model", "active", "total", "tokens", "FLOPs", "loss, mean of seeds", "standard deviation"]
    return markdown(header, lines)
