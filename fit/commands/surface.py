"""Fit the isoFLOP surface of each budget: the loss over total parameters and sparsity, and the best of both.

python -m fit surface --runs=runs.csv
python -m fit surface --runs=runs.csv --out=surface.svg

The table has n_active, n_total, n_tokens, loss, and sparsity or n_experts with top_k. Intervals come from 100 refits to
80% of the runs each; every refit also predicts the rest.
"""

import json

from fit.commands import flags
from fit.errors import UserError
from fit.words.units import amount

FLAGS = (
    ("string", "runs", None, "Table of runs at several sizes and sparsities of equal FLOPs: .csv, .jsonl or .parquet."),
    ("string", "out", None, "Picture of the surfaces to write: .png, .pdf or .svg."),
    ("integer", "seed", 0, "Seed of the refits.", 0),
    ("bool", "json", False, "Print the fits as JSON."),
)


def define_flags(f):
    flags.define(f, FLAGS)
    flags.define_columns(f)


def run(f):
    if f.runs is None:
        raise UserError("--runs is missing: a table of runs at several sizes and sparsities")
    from fit.equal_flops import surface

    ending = f.out and flags.picture_ending(f.out)
    rows = surface.of_table(f.runs, flags.columns_of(f), seed=f.seed)
    if f.out:
        from fit.paper.figures import search

        search.save(search.surfaces(rows), f.out, ending)
    if f.json:
        print(json.dumps([{k: v for k, v in row.items() if k not in ("surface", "points")} for row in rows], indent=1))
    else:
        print("\n".join(text(rows)))


def text(rows):
    """Lines for people."""
    for row in rows:
        best, (low_n, high_n), (low_s, high_s) = row["best"], *row["intervals"].values()
        held = "" if row["correlation"] is None else f", held-out correlation {row['correlation']:.3f}"
        fine = f" ({row['left_out']} of finer or coarser experts left out)" if row["left_out"] else ""
        yield f"{row['flops']:.3g} FLOPs: {row['runs']} runs{fine}, RMSE {row['rmse']:.4f}{held}"
        yield (
            f"  best: n_total {amount(best['n_total'])} [{amount(low_n)}, {amount(high_n)}], sparsity "
            f"{best['sparsity']:.3f} [{low_s:.3f}, {high_s:.3f}], loss {best['loss']:.4f}"
            + (
                f"; at the end of the {' and '.join(best['at_edge'])} that were run: not an optimum"
                if best["at_edge"]
                else ""
            )
        )
        at = ", ".join(
            f"{one['sparsity']:.3f}{'*' * one['at_edge']} [{one['interval'][0]:.3f}, {one['interval'][1]:.3f}] at "
            f"{amount(one['n_total'])}"
            for one in row["at_sizes"]
        )
        if at:
            yield f"  best sparsity by n_total: {at}"
    if any(one["at_edge"] for row in rows for one in row["at_sizes"]):
        yield "* at the end of the sparsities that were run at about that size: not an optimum"
