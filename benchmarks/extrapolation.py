"""How far beyond its runs does a law hold? Every form on every table of runs, fitted to those of little compute.

    python -m benchmarks.extrapolation [--forms=default,chinchilla,mine] [--tables=llama3] [--out=DIR]

A law is fitted to the runs of at most 1/3, 1/10 or 1/30 of the largest compute, as `python -m fit law` does it, and
predicts the others. `default` is what it does without --form, with a prior that has not seen the table's source;
`no-prior` is the same with --prior=none. Printed for each form, cut and table, in % of the loss:

  error     root mean square;    bias  mean, positive where the law is too high
  holds     share of the runs that lie in the nominal 80% interval of a new run
  width     median half-width of these intervals

then, for each form and cut, the geometric mean of the errors, that of the ratios to the additive law's errors on the
same tables (over), the other figures' means, and the geometric mean of half-width over error. Intervals have the form's
own error (fit/fitting/rolling.py) where enough runs are left to measure it. A table counts where at least FITTED
runs are left to fit and LEFT to predict. A page in the folder that FIT_LAWS names is scored by the same command: this
is where to come with a new law. Nothing in fit is chosen table by table.
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
from fit.data.runs import ROLLING
from fit.data.table import Table
from fit.laws import FORMS
from fit.laws._coupled import SUFFIX
from fit.shape.architecture import OF_EXPERTS

ROOT = pathlib.Path(__file__).parents[1]
CUTS, FITTED, LEFT, DRAWS = (3, 10, 30), 12, 6, 50
DEFAULT, NO_PRIOR, ADDITIVE = "default", "no-prior", ("chinchilla", "joint")
BENCHED = [DEFAULT, NO_PRIOR, *(name + end for name in ADDITIVE for end in ("", SUFFIX))]
# {source: (its tables, what they are)}: a table is scored with a prior that has not seen its source
SOURCES = {
    "llama3": (("llama3",), "dense isoFLOP sweep read off the Llama 3 paper, arXiv 2407.21783"),
    "marin-dense": (("marin_comma", "marin_dclm", "marin_nemotron"), "dense isoFLOP sweeps of marin, Apache-2.0"),
    "marin-mixtures": (("marin_v16",), "sweep of mixtures of 64 experts of marin, Apache-2.0"),
    "chinchilla": (("chinchilla",), "Hoffmann et al. 2022, read off its Figure 4 by Besiroglu et al. 2024, MIT"),
    "ours": (("ours", "ours_e1", "ours_e4", "ours_e16"), "results/runs.csv"),
}
COLUMNS = "form", "table", "cut", "fitted", "left", "error", "bias", "holds", "width", "k", "chosen"
FORM = flags.DEFINE_list("forms", BENCHED, f"Which of {', '.join((DEFAULT, NO_PRIOR, *FORMS))}.")
TABLES = flags.DEFINE_list("tables", [], "Which tables. Default: all.")
OUT = flags.DEFINE_string("out", None, "Folder for extrapolation.csv and extrapolation.png.")


def tables() -> dict:
    """{name: a Table with n_active, n_tokens, n_experts, loss}."""
    found = {path.stem: fit.read(str(path)) for path in sorted((ROOT / "benchmarks/tables").glob("*.csv"))}
    chinchilla = fit.read(str(ROOT / "tests/data/chinchilla_svg_245.csv"))
    found["chinchilla"] = part(chinchilla, np.argsort(np.argsort(chinchilla.numbers("loss"))) < 240)
    ours = fit.read(str(ROOT / "results/runs.csv"))
    ours = part(ours, np.isin(ours.column("part"), ["fit", "seeds", "tests", "memory"]))
    experts = ours.numbers("n_experts")
    return found | {"ours": ours} | {f"ours_e{e}": part(ours, experts == e) for e in (1, 4, 16)}


def part(table, rows):
    """The rows (bool) of a table."""
    kept = np.flatnonzero(rows)
    columns = {name: [values[i] for i in kept] for name, values in table.columns.items()}
    return Table(table.path, columns, [table.rows[i] for i in kept], table.names)


def suits(name: str, table) -> bool:
    """Whether a form can be fitted to a table: it has the form's columns, which vary, and a form without experts gets
    models of one number of experts."""
    if name in (DEFAULT, NO_PRIOR):
        return True
    form = FORMS[name]
    varies = lambda name: len(set(table.column(name))) > 1
    mixed = "n_experts" in table and varies("n_experts")
    knows = bool(set(OF_EXPERTS) & set(form.columns))
    return knows == mixed and all(name in table and varies(name) for name in form.columns)


def score(form: str, name: str, table, cut: int) -> dict | None:
    """A row of the result; None where too few runs are left to fit or to predict."""
    flops = 6 * table.numbers("n_active") * table.numbers("n_tokens")
    fitted = flops <= flops.max() / cut
    if fitted.sum() < FITTED or (~fitted).sum() < LEFT:
        return None
    try:
        law, rest = fitted_law(form, part(table, fitted), source_of(name)), part(table, ~fitted)
    except fit.UserError:  # fewer distinct runs than coefficients
        return None
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
    """The source of a table."""
    return next(source for source, (names, _) in SOURCES.items() if name in names)


def fitted_law(form: str, table, source: str):
    """The law, with rolling hold-outs where the runs are enough for them; the default form makes its own, and its prior
    has not seen the table's source."""
    options = dict(bootstrap=DRAWS, mix_corpora=True)
    if form == DEFAULT:
        return fit.law(table, prior=f"population:{source}", **options)
    if form == NO_PRIOR:
        return fit.law(table, prior="none", **options)
    try:
        return fit.law(table, form=form, holdout=ROLLING, **options)
    except fit.UserError:
        return fit.law(table, form=form, **options)


def means(rows: list[dict], additive: dict) -> dict:
    """Geometric means of the errors and of their ratios to those of the additive laws, {(table, cut): error}; means of
    the others."""
    mean = lambda name: float(np.mean([row[name] for row in rows]))
    error = float(np.exp(np.mean([np.log(row["error"]) for row in rows])))
    beside = [
        row["error"] / additive[row["table"], row["cut"]] for row in rows if (row["table"], row["cut"]) in additive
    ]
    over = float(np.exp(np.mean(np.log(beside)))) if beside else float("nan")
    ratio = float(np.exp(np.mean([np.log(row["width"] / row["error"]) for row in rows])))
    others = {name: mean(name) for name in ("bias", "holds", "width")}
    return dict(tables=len(rows), error=error, over=over, ratio=ratio, **others)


def main(_):
    found = tables()
    if unknown := {*TABLES.value} - found.keys() | {*FORM.value} - FORMS.keys() - {DEFAULT, NO_PRIOR}:
        raise app.UsageError(f"{', '.join(sorted(unknown))}: tables are {', '.join(found)}; forms {', '.join(FORMS)}")
    asked = [
        (form, name, found[name], cut)
        for cut in CUTS
        for name in TABLES.value or found
        for form in FORM.value
        if suits(form, found[name])
    ]
    rows = []
    print(f"{'form':20} {'table':15} {'cut':>4} {'fitted':>6} {'left':>5} {'error':>7} {'bias':>7} holds  width    k")
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=context) as pool:
        for row in filter(None, pool.map(score, *zip(*asked))):
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
            if some := [row for row in rows if (row["form"], row["cut"]) == (form, cut)]:
                line = (
                    "{form:20} {cut:4d} {tables:6d} {error:7.2%} {over:5.2f} {bias:+7.2%} {holds:5.0%} {width:6.2%} "
                    "{ratio:5.2f}"
                )
                print(line.format(form=form, cut=cut, **means(some, additive)))
    if OUT.value:
        write(rows, pathlib.Path(OUT.value))


def write(rows: list[dict], folder: pathlib.Path) -> None:
    """extrapolation.csv, and extrapolation.png: each table's error, a panel for each cut, a colour for each form."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "extrapolation.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: f"{v:.6g}" if isinstance(v, float) else v for name, v in row.items()} for row in rows)
    names, forms = sorted({row["table"] for row in rows}), list(dict.fromkeys(row["form"] for row in rows))
    figure, panels = plt.subplots(1, len(CUTS), figsize=(11, 4), sharey=True, layout="constrained")
    for panel, cut in zip(panels, CUTS):
        for i, form in enumerate(forms):
            some = [row for row in rows if (row["form"], row["cut"]) == (form, cut)]
            at = [names.index(row["table"]) + 0.15 * (i - (len(forms) - 1) / 2) for row in some]
            panel.plot([100 * row["error"] for row in some], at, "o", label=form)
        panel.set(title=f"beyond 1/{cut} of the compute", xlabel="error, % of the loss", xscale="log")
        panel.set_yticks(range(len(names)), names)
        panel.grid(alpha=0.3)
    panels[-1].legend()
    figure.savefig(folder / "extrapolation.png", dpi=120)


if __name__ == "__main__":
    app.run(main)
