"""How far beyond its runs does a law hold? Every form, fitted to the runs of least compute of every table.

    python -m benchmarks.extrapolation [--forms=default,chinchilla,mine] [--tables=llama3] [--out=DIR]

A law is fitted to the runs of at most 1/3, 1/10 or 1/30 of the largest compute, as `python -m fit law` fits it, and
predicts the others. `default` is the fit without --form; `population` is the same with --prior=population, without the
table's source in that prior. Printed for each form, cut and table, in % of the loss:

  error     root mean square;    bias  mean, positive where the law is too high
  holds     share of the runs that lie in the nominal 80% interval of a new run
  width     median half-width of these intervals

then, for each form and cut, the geometric mean of the errors, that of the ratios to the additive law's errors on the
same tables (over), the means of the other figures, and the geometric mean of half-width over error. Intervals include
the error of the form itself (fit/fitting/rolling.py) if enough runs are left to measure it. A table counts if at
least LEAST_FITTED runs are left to fit and LEAST_LEFT to predict. The command also scores a page in the folder that
FIT_LAWS names: use it for a new law. Nothing in fit is chosen table by table.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import concurrent.futures
import csv
import multiprocessing
import pathlib

import numpy as np
from absl import app, flags

import fit
from fit.fitted_law.law import Law
from fit.laws import FORMS
from fit.laws._coupled import SUFFIX
from fit.model.architecture import OF_EXPERTS
from fit.table.runs import ROLLING
from fit.table.table import Table

ROOT = pathlib.Path(__file__).parents[1]
CUTS = (3, 10, 30)
LEAST_FITTED = 12
LEAST_LEFT = 6
DRAWS = 50
DEFAULT = "default"
POPULATION = "population"
ADDITIVE = ("chinchilla", "joint")
BENCHED = [DEFAULT, POPULATION, *(name + end for name in ADDITIVE for end in ("", SUFFIX))]
# {source: (its tables, what they are)}: the prior of a table that is scored has not seen its source
SOURCES = {
    "llama3": (("llama3",), "dense isoFLOP sweep read off the Llama 3 paper, arXiv 2407.21783"),
    "marin": (
        ("marin_comma", "marin_dclm", "marin_nemotron", "marin_v16"),
        "dense isoFLOP sweeps on three texts and a sweep of mixtures of 64 experts of marin, Apache-2.0",
    ),
    "chinchilla": (("chinchilla",), "Hoffmann et al. 2022, read off its Figure 4 by Besiroglu et al. 2024, MIT"),
    "porian": (("porian",), "Porian et al. 2024, RefinedWeb with tuned rates, MIT"),
    "gadre": (
        ("gadre_c4", "gadre_refinedweb", "gadre_redpajama"),
        "Gadre et al. 2024, dense models on three texts, MIT",
    ),
    "ours": (("ours", "ours_e1", "ours_e4", "ours_e16"), "results/runs.csv"),
}
COLUMNS = ("form", "table", "cut", "fitted", "left", "error", "bias", "holds", "width", "k", "chosen")
FORM = flags.DEFINE_list("forms", BENCHED, f"Forms to score, of {', '.join((DEFAULT, POPULATION, *FORMS))}.")
TABLES = flags.DEFINE_list("tables", [], "Tables to score. Default: all.")
OUT = flags.DEFINE_string("out", None, "Folder to write extrapolation.csv and extrapolation.png to.")


def tables() -> dict[str, Table]:
    """Returns all tables by name; each has n_active, n_tokens, n_experts and loss."""
    by_name = {path.stem: fit.read(str(path)) for path in sorted((ROOT / "benchmarks/tables").glob("*.csv"))}
    chinchilla = fit.read(str(ROOT / "tests/data/chinchilla_svg_245.csv"))
    by_name["chinchilla"] = part(chinchilla, np.argsort(np.argsort(chinchilla.numbers("loss"))) < 240)
    gadre = fit.read(str(ROOT / "benchmarks/tables/tasks/gadre2024.csv"))
    for text in ("c4", "refinedweb", "redpajama"):
        by_name[f"gadre_{text}"] = part(gadre, np.array(gadre.column("text")) == text)
    ours = fit.read(str(ROOT / "results/runs.csv"))
    ours = part(ours, np.isin(ours.column("part"), ["fit", "seeds", "tests", "memory"]))
    experts = ours.numbers("n_experts")
    return by_name | {"ours": ours} | {f"ours_e{e}": part(ours, experts == e) for e in (1, 4, 16)}


def part(table: Table, mask: np.ndarray) -> Table:
    """Returns the rows of a table for which `mask` [rows] is true."""
    indices = np.flatnonzero(mask)
    columns = {name: [values[i] for i in indices] for name, values in table.columns.items()}
    return Table(table.path, columns, [table.rows[i] for i in indices], table.names)


def suits(name: str, table: Table) -> bool:
    """Whether a form can be fitted to a table.

    The form's columns must be there and vary, and a form without experts needs models of one number of experts.
    """
    if name in (DEFAULT, POPULATION):
        return True
    form = FORMS[name]

    def varies(column: str) -> bool:
        return column in table and len(set(table.column(column))) > 1

    has_experts = bool(set(OF_EXPERTS) & set(form.columns))
    return has_experts == varies("n_experts") and all(varies(column) for column in form.columns)


def score(form: str, name: str, table: Table, cut: int) -> dict | None:
    """Returns a row of the result; None if too few runs are left to fit or to predict."""
    flops = 6 * table.numbers("n_active") * table.numbers("n_tokens")
    fitted = flops <= flops.max() / cut
    if fitted.sum() < LEAST_FITTED or (~fitted).sum() < LEAST_LEFT:
        return None
    try:
        law = fitted_law(form, part(table, fitted), source_of(name))
    except fit.UserError:  # fewer distinct runs than coefficients
        return None
    rest = part(table, ~fitted)
    columns = {name: rest.numbers(name) for name in law.form.columns}
    loss = rest.numbers("loss")
    error = np.log(law.predict(**columns) / loss)
    low, high = law.predict_interval(**columns, new_run=True)
    return dict(
        form=form,
        table=name,
        cut=cut,
        fitted=int(fitted.sum()),
        left=len(loss),
        error=float(np.sqrt(np.mean(error**2))),
        bias=float(np.mean(error)),
        holds=float(np.mean((low <= loss) & (loss <= high))),
        width=float(np.median(np.log(high / low)) / 2),
        k=law.coefficients.get("k", 1.0),
        chosen=law.form.name,
    )


def source_of(name: str) -> str:
    """Returns the source of a table."""
    return next(source for source, (names, _) in SOURCES.items() if name in names)


def fitted_law(form: str, table: Table, source: str) -> Law:
    """Fits a law, with rolling hold-outs if there are enough runs.

    The default chooses its hold-outs itself.
    """
    options = dict(bootstrap=DRAWS, mix_corpora=True)
    if form == DEFAULT:
        return fit.law(table, **options)
    if form == POPULATION:
        return fit.law(table, prior=f"population:{source}", **options)
    try:
        return fit.law(table, form=form, holdout=ROLLING, **options)
    except fit.UserError:
        return fit.law(table, form=form, **options)


def means(rows: list[dict], additive: dict) -> dict:
    """Returns the means of rows.

    Args:
        rows: rows of the result.
        additive: {(table, cut): the additive law's error}.

    Returns:
        The geometric means of the errors, of their ratios to the additive law's, and of half-width over error; the
        arithmetic means of the other figures.
    """
    error = float(np.exp(np.mean([np.log(row["error"]) for row in rows])))
    ratios = [
        row["error"] / additive[row["table"], row["cut"]] for row in rows if (row["table"], row["cut"]) in additive
    ]
    over = float(np.exp(np.mean(np.log(ratios)))) if ratios else float("nan")
    ratio = float(np.exp(np.mean([np.log(row["width"] / row["error"]) for row in rows])))
    others = {name: float(np.mean([row[name] for row in rows])) for name in ("bias", "holds", "width")}
    return dict(tables=len(rows), error=error, over=over, ratio=ratio, **others)


def main(_: object) -> None:
    """Scores the forms on the tables, prints the scores, and with --out writes them."""
    by_name = tables()
    unknown = ({*TABLES.value} - by_name.keys()) | ({*FORM.value} - FORMS.keys() - {DEFAULT, POPULATION})
    if unknown:
        listed = ", ".join(sorted(unknown))
        raise app.UsageError(f"{listed}: tables are {', '.join(by_name)}; forms {', '.join(FORMS)}")
    cases = [
        (form, name, by_name[name], cut)
        for cut in CUTS
        for name in TABLES.value or by_name
        for form in FORM.value
        if suits(form, by_name[name])
    ]
    rows = []
    print(f"{'form':20} {'table':15} {'cut':>4} {'fitted':>6} {'left':>5} {'error':>7} {'bias':>7} holds  width    k")
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=context) as pool:
        for row in filter(None, pool.map(score, *zip(*cases, strict=True))):
            rows.append(row)
            print(
                "{form:20} {table:15} {cut:4d} {fitted:6d} {left:5d} {error:7.2%} {bias:+7.2%} {holds:5.0%} "
                "{width:6.2%} {k:4.2f} {chosen}".format(**row),
                flush=True,
            )
    additive = {(row["table"], row["cut"]): row["error"] for row in rows if row["form"] in ADDITIVE}
    print(f"\n{'form':20} {'cut':>4} {'tables':>6} {'error':>7}  over {'bias':>7} holds  width  ratio")
    for form in FORM.value:
        for cut in CUTS:
            rows_of_form = [row for row in rows if (row["form"], row["cut"]) == (form, cut)]
            if rows_of_form:
                line = (
                    "{form:20} {cut:4d} {tables:6d} {error:7.2%} {over:5.2f} {bias:+7.2%} {holds:5.0%} {width:6.2%} "
                    "{ratio:5.2f}"
                )
                print(line.format(form=form, cut=cut, **means(rows_of_form, additive)))
    if OUT.value:
        write(rows, pathlib.Path(OUT.value))


def write(rows: list[dict], folder: pathlib.Path) -> None:
    """Writes extrapolation.csv and extrapolation.png, with a panel for each cut and a colour for each form."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "extrapolation.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: f"{v:.6g}" if isinstance(v, float) else v for name, v in row.items()} for row in rows)
    names = sorted({row["table"] for row in rows})
    forms = list(dict.fromkeys(row["form"] for row in rows))
    figure, panels = plt.subplots(1, len(CUTS), figsize=(11, 4), sharey=True, layout="constrained")
    for panel, cut in zip(panels, CUTS, strict=True):
        for i, form in enumerate(forms):
            rows_of_form = [row for row in rows if (row["form"], row["cut"]) == (form, cut)]
            offset = 0.15 * (i - (len(forms) - 1) / 2)
            heights = [names.index(row["table"]) + offset for row in rows_of_form]
            panel.plot([100 * row["error"] for row in rows_of_form], heights, "o", label=form)
        panel.set(title=f"beyond 1/{cut} of the compute", xlabel="error, % of the loss", xscale="log")
        panel.set_yticks(range(len(names)), names)
        panel.grid(alpha=0.3)
    panels[-1].legend()
    figure.savefig(folder / "extrapolation.png", dpi=120)


if __name__ == "__main__":
    app.run(main)
