"""A run added to the table of a law's runs: whether it ended as predicted, and what the law then says."""

import dataclasses
import os
import re
import textwrap
from typing import Any

import numpy as np

from fit.aliases import Json
from fit.data.runs import read_runs
from fit.data.table import Table, read
from fit.errors import UserError
from fit.fitted_law import summary
from fit.fitted_law.law import Law
from fit.importers import workdir
from fit.messages.units import say
from fit.shape.architecture import training_flops

# what tells two runs apart, with the loss to this share
SAME = ("n_active", "n_tokens", "n_experts", "loss")
CLOSE = 1e-9
# columns of the text and of the shape of models that a law's runs have in common
SHARED = ("corpus_fingerprint", "vocab_size", "width_per_block", "seq_len", "final_norm")
FIRST = ("n_active", "n_total", "n_tokens", "n_experts", "loss")  # columns of a new table, before the others


def runs_of(source: str, table: Table | None) -> list[Json]:
    """The runs of a workdir of jmoe.train, or of a table that `fit import` wrote, as rows by our names of columns.
    Raises UserError for anything else."""
    if source.startswith("gs://"):
        raise UserError(f"--run={source}: copy the workdir's branch-*/result.json to a local folder first")
    if not os.path.exists(source):
        raise UserError(f"--run={source}: no such folder or file")
    if os.path.isfile(source):
        return workdir.rows_of(read(source))
    if not workdir.is_workdir(source):
        raise UserError(
            f"--run={source}: expected a workdir of jmoe.train, with branch-*/result.json, or a table of runs; "
            f"python -m fit import {source} --out=new.csv makes a table of another trainer's run"
        )
    texts = table.columns.get("overrides", []) if table else []
    fields = dict.fromkeys(name for text in texts for name in re.findall(r"(?:^| )([\w.]+)=", str(text)))
    return [workdir.row_of(result, list(fields)) for result in workdir.results(source)]


def new_ones(rows: list[Json], table: Table | None, source: str) -> tuple[list[Json], list[Json]]:
    """(the rows that the table lacks, those that it has). Raises UserError where it has all of them."""
    if table is None:
        return rows, []
    names = {str(name) for name in table.columns.get("run", [])}
    known = np.log([table.numbers(name) for name in SAME])  # [columns, runs]
    there = []
    for row in rows:
        missing = [name for name in SAME if row.get(name) in (None, "")]
        if missing:
            raise UserError(f"--run={source}: says no {missing[0]}; it needs {', '.join(SAME)}")
        own = np.log([[float(row[name])] for name in SAME])
        if str(row.get("run")) in names or np.any(np.all(np.abs(known - own) < CLOSE, axis=0)):
            there.append(row)
    if len(there) == len(rows):
        raise UserError(f"--run={source}: {table.path} has this run already ({there[0].get('run', 'by its numbers')})")
    return [row for row in rows if row not in there], there


def check_text(rows: list[Json], table: Table | None, source: str) -> None:
    """Raises UserError where the rows have another text than the table's runs."""
    known = {str(v) for v in (table.columns.get("corpus_fingerprint", []) if table else [])} - {""}
    for row in rows:
        own = row.get("corpus_fingerprint")
        if own and known and str(own) not in known:
            raise UserError(
                f"--run={source}: was trained on the text {own}, the runs of {table and table.path} on "
                f"{', '.join(sorted(known))}; losses on different text do not compare: --mix_corpora adds it anyway"
            )


def fill_shared(rows: list[Json], table: Table | None) -> list[str]:
    """Gives rows the columns SHARED that they leave out and in which all runs of the table are alike; a warning on what
    was so taken."""
    taken = {}
    for name in SHARED:
        values = {str(value): value for value in (table.columns.get(name, []) if table else [])}
        if len(values) != 1:
            continue
        (value,) = values.values()
        for row in rows:
            if row.get(name) in (None, ""):
                row[name] = value
                taken[name] = value
    if not taken:
        return []
    listed = ", ".join(f"{name} {value}" for name, value in taken.items())
    return [f"the run leaves out what all runs of the table share; taken for it: {listed}"]


def together(table: Table | None, rows: list[Json], path: str) -> Table:
    """The table with the rows after its own; columns that one of both lacks are filled in where that is known."""
    if table is None:
        names = dict.fromkeys((*FIRST, *(name for row in rows for name in row)))
        return Table(path, {name: [row.get(name, "") for row in rows] for name in names}, list(range(2, 2 + len(rows))))
    ours = {theirs: name for name, theirs in table.names.items()}
    before = [{ours.get(name, name): value for name, value in row.items()} for row in workdir.rows_of(table)]
    names = dict.fromkeys(before[0]) | dict.fromkeys(name for row in rows for name in row)
    columns: dict[str, list] = {}
    for name in names:
        values = [workdir.filled(row, name) if name not in row else row[name] for row in before]
        values += [workdir.filled(row, name) for row in rows]
        columns[table.names.get(name, name)] = values
    last = max(table.rows)
    numbers = [*table.rows, *range(last + 1, last + 1 + len(rows))]
    return dataclasses.replace(table, columns=columns, rows=numbers, arrow=None)


def options(law: Law) -> dict[str, Any]:
    """The options of the fit that made a law.json, for fit.law: where that chose between two forms, their weights and
    their prior, so does the new one."""
    settings, drawn = law.record.get("settings") or {}, law.record.get("bootstrap") or {}
    same = ("huber_delta", "reduction", "solver", "seed", "fix", "holdout", "select", "bootstrap_by", "weights")
    found = {name: settings[name] for name in same if name in settings}
    chosen = "choice" in law.record
    if chosen:
        found.pop("weights", None)
    else:
        found["form"] = [law.form.name]
    if "starts" in settings:
        found["starts"] = settings["starts"] or "paper"
    if not settings.get("weight_decay_default"):
        found["weight_decay"] = settings.get("weight_decay")
    prior = settings.get("prior") or {}
    if "law" in prior and not (chosen and prior["law"] == "population"):  # which is the default there
        found["prior"] = prior["law"]
    if drawn:
        found |= dict(bootstrap=len(drawn["draws"]), bootstrap_form=drawn["form"], percentiles=drawn["percentiles"])
    return found


def judged(law: Law, rows: list[Json]) -> list[Json]:
    """What a law says of runs: predicted and measured loss, the interval of a run, whether the loss lies in it (None
    without one), and what lies outside the fitted range."""
    columns = {name: [row.get(name) for row in rows] for name in dict.fromkeys(n for row in rows for n in row)}
    table = Table("the added runs", columns, list(range(len(rows))))
    found = summary.predict(law, table)["columns"]
    out = []
    for i, row in enumerate(rows):
        low, high = (found.get(f"predicted_loss_{end}", found.get(f"law_loss_{end}")) for end in ("low", "high"))
        loss = float(row["loss"])
        one = dict(run=row.get("run"), loss=loss, predicted_loss=found["predicted_loss"][i], low=None, high=None)
        one |= {name: float(row[name]) for name in ("n_active", "n_tokens", "n_experts")}
        one["inside"] = None
        if low and high:
            one |= dict(low=low[i], high=high[i], inside=bool(low[i] <= loss <= high[i]))
        out.append(one | dict(outside_fitted_range=found["outside_fitted_range"][i]))
    return out


def has_runs_of(law: Law, table: Table) -> bool:
    """Whether a table has the runs that a law.json was fitted to, and no others."""
    known = (law.record.get("runs") or {}).get("fingerprint")
    return read_runs(table, law.form.columns, mix_corpora=True).fingerprint() == known


def what_next(law: Law, path: str, out: str | None) -> str:
    """The command that follows."""
    if out is not None:
        return f"the law of all runs is written to {out}; next: python -m fit plan --law={out}"
    if law.published:
        return f"next, once the table has runs of several sizes: python -m fit law --runs={path} --out=law.json"
    return f"next: python -m fit law --runs={path} --out={law.name} --bootstrap=100, then plan with it"


def flops_of(rows: list[Json]) -> float:
    """Training FLOPs of the largest of some runs."""
    return max(float(training_flops(float(row["n_active"]), float(row["n_tokens"]))) for row in rows)


PREDICTED = "{run}: predicted {predicted_loss:.4f}, measured {loss:.4f} ({off:+.2%}){interval}"
INTERVAL = ", {where} its {share:g}% interval, {low:.4f} to {high:.4f}"
NO_INTERVAL = "; the law has no interval"
REFITTED = "the law fitted again, with this run, says {refitted_loss:.4f}"
PLANS = "the best plan of {flops:flops} FLOPs had a loss of {before_loss:.4f} ({before_model})"
PLANS_AFTER = "  and has {after_loss:.4f} by the law fitted again ({after_model})"
MODEL = "{n_experts} experts with {n_active:amount} active on {n_tokens:amount} tokens"


def text(found: Json) -> str:
    """What `fit add` found, in lines."""
    lines = []
    for row in found["runs"]:
        interval = NO_INTERVAL
        if row["inside"] is not None:
            first, last = found["percentiles"]
            where = "inside" if row["inside"] else "OUTSIDE"
            interval = say(INTERVAL, **row, where=where, share=last - first)
        lines.append(say(PREDICTED, **row, off=row["loss"] / row["predicted_loss"] - 1, interval=interval))
        if row["outside_fitted_range"]:
            lines.append(f"  outside the fitted range: {row['outside_fitted_range']}")
        if "refitted_loss" in row:
            lines.append("  " + say(REFITTED, **row))
    for row in found["plans"]:
        models = {f"{name}_model": say(MODEL, **row[name]) for name in ("before", "after")}
        losses = {f"{name}_loss": row[name]["loss"] for name in ("before", "after")}
        lines += [say(PLANS, flops=row["flops"], **models, **losses), say(PLANS_AFTER, **models, **losses)]
    lines += [f"warning: {warning}" for warning in found["warnings"]]
    for run in found["known"]:
        lines.append(f"{run}: in {found['table']} already, left as it is")
    lines.append(f"{found['table']}: {len(found['runs'])} added, {found['n_runs']} runs")
    lines.append(found["next"])
    return "\n".join(textwrap.fill(line, 120, subsequent_indent="    ", break_on_hyphens=False) for line in lines)
