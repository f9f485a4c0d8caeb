"""A run added to the table of a law's runs: which rows are new, the table with them, and their losses against the
law's predictions."""

import dataclasses
import os
import shlex
from collections.abc import Mapping
from typing import Any

import numpy as np

from fit.aliases import Json
from fit.errors import UserError
from fit.fitted_law import overrides
from fit.fitted_law.law import Law
from fit.fitted_law.law_files import NAMES
from fit.fitted_law.settings import DEFAULTS
from fit.form import PriorSummary
from fit.messages.finding import Finding, finding
from fit.messages.units import say
from fit.model.architecture import training_flops
from fit.prediction import predictions
from fit.studies.added_runs.results import AddedRun
from fit.table import spelled, validate
from fit.table.importers import workdir
from fit.table.runs import read_runs
from fit.table.table import COUNT_UNITS, LOSS_UNITS, Table, read, to_numbers

# Two runs are the same where these columns agree to the share CLOSE.
IDENTITY = ("n_active", "n_tokens", "n_experts", "loss")
CLOSE = 1e-9
# e or 2 to the power of a loss in nats; `numbers` of a table takes their logarithms
POWERS = dict(perplexity=np.exp, exp2=np.exp2)
MODEL = "{n_experts:g} experts with {n_active:amount} active on {n_tokens:amount} tokens"  # in words
# columns of the text and of the shape of models that a law's runs have in common
SHARED = ("corpus_fingerprint", "vocab_size", "width_per_block", "seq_len", "final_norm")
FIRST = ("n_active", "n_total", "n_tokens", "n_experts", "loss")  # columns of a new table, before the others
# settings of a fit that the next fit takes over as they are
SETTINGS = (
    "huber_delta",
    "reduction",
    "seed",
    "fix",
    "holdout",
    "select",
    "bootstrap_by",
    "weights",
    "with_rate",
)


def runs_of(source: str, table: Table | None) -> list[Json]:
    """Reads the runs to add.

    Args:
      source: a workdir of jmoe.train, or a table that `fit import` wrote.
      table: the runs so far; its column `overrides` names the fields that differ between runs.

    Returns:
      Rows by our names of columns.

    Raises:
      UserError: where the source is none of these.
    """
    if source.startswith("gs://"):
        raise UserError(f"--run={source}: copy the workdir's branch-*/result.json to a local folder first")
    if not os.path.exists(source):
        raise UserError(f"--run={source}: no such folder or file")
    if os.path.isfile(source):
        return _rows_with_numbers(read(source))
    if not workdir.is_workdir(source):
        raise UserError(
            f"--run={source}: expected a workdir of jmoe.train, with branch-*/result.json, or a table of runs; "
            f"python -m fit import {source} --out=new.csv makes a table of another trainer's run"
        )
    fields = []
    if table is not None:
        fields = overrides.fields_of(overrides.of_runs(table))
    return [workdir.row_of(result, fields) for result in workdir.results(source)]


def _rows_with_numbers(table: Table) -> list[Json]:
    """The runs of a table, with plain numbers in the columns of IDENTITY.

    Raises:
      UserError: names the row of a cell that is no number, and the columns that the table lacks.
    """
    columns = dict(table.columns)
    missing = [name for name in IDENTITY if name not in table]
    if missing:
        raise UserError(f"--run={table.path}: says no {', '.join(missing)}; it needs {', '.join(IDENTITY)}")
    for name in IDENTITY:
        numbers = table.numbers(name)
        if spelled.are_plain(columns[name]):
            continue
        columns[name] = numbers.tolist()
    return workdir.rows_of(dataclasses.replace(table, columns=columns))


def _cells(table: Table | None, name: str) -> list:
    """A column of a table; empty where there is no table or it lacks the column."""
    return table.column(name) if table is not None and name in table else []


def new_ones(rows: list[Json], table: Table | None, source: str) -> tuple[list[Json], list[Json]]:
    """(the rows that the table lacks, those that it has).

    Args:
      rows: the runs to add.
      table: the runs so far.
      source: where the rows are from, for errors.

    Raises:
      UserError: where the table has all of them, or a row lacks a column of IDENTITY.
    """
    if table is None:
        return rows, []
    names = {name_of(dict(run=name)) for name in _cells(table, "run")} - {None}
    validate.require_columns(table, IDENTITY)
    log_identities = np.log([table.numbers(name) for name in IDENTITY])  # [columns, runs]
    known = []
    for row in rows:
        missing = [name for name in IDENTITY if row.get(name) in (None, "")]
        if missing:
            raise UserError(f"--run={source}: says no {', '.join(missing)}; it needs {', '.join(IDENTITY)}")
        log_identity = np.log([[float(row[name])] for name in IDENTITY])
        has_its_numbers = np.any(np.all(np.abs(log_identities - log_identity) < CLOSE, axis=0))
        if name_of(row) in names or has_its_numbers:
            known.append(row)
    if len(known) == len(rows):
        name = name_of(known[0]) or "by its numbers"
        raise UserError(f"--run={source}: {table.path} has this run already ({name})")
    return [row for row in rows if row not in known], known


def name_of(row: Mapping[str, Any]) -> str | None:
    """The name of a run; None where it has none."""
    name = row.get("run")
    return None if name in (None, "") else str(name)


def label_of(row: Mapping[str, Any]) -> str:
    """The name of a run, or without one its model, in words."""
    return name_of(row) or say(MODEL, **{name: float(row[name]) for name in IDENTITY[:3]})


def check_text(rows: list[Json], table: Table | None, source: str) -> None:
    """Raises UserError where the rows have another text than the table's runs."""
    if table is None:
        return
    texts = {str(text) for text in _cells(table, "corpus_fingerprint")} - {""}
    for row in rows:
        text = row.get("corpus_fingerprint")
        if text and texts and str(text) not in texts:
            raise UserError(
                f"--run={source}: was trained on the text {text}, the runs of {table.path} on "
                f"{', '.join(sorted(texts))}; losses on different text do not compare: --mix_corpora adds it anyway"
            )


def fill_shared(rows: list[Json], table: Table | None) -> list[Finding]:
    """Fill in the columns SHARED that rows lack, if all runs of the table agree on them.

    Args:
      rows: the runs to add; changed in place.
      table: the runs so far.

    Returns:
      A finding on what was assumed, if anything.
    """
    assumed = {}
    for name in SHARED:
        values = {str(value): value for value in _cells(table, name)}
        if len(values) != 1:
            continue
        (value,) = values.values()
        for row in rows:
            if row.get(name) in (None, ""):
                row[name] = value
                assumed[name] = value
    if not assumed:
        return []
    listed = ", ".join(f"{name} {value}" for name, value in assumed.items())
    return [finding("taken_from_table", columns=listed)]


def together(table: Table | None, rows: list[Json], path: str) -> Table:
    """The table with the rows appended. Columns that either lacks are filled in if their values are known.

    Args:
      table: the runs so far.
      rows: the runs to add.
      path: of the new table, if there are no runs yet.
    """
    if table is None:
        names = dict.fromkeys((*FIRST, *(name for row in rows for name in row)))
        return Table(path, {name: [row.get(name, "") for row in rows] for name in names}, list(range(2, 2 + len(rows))))
    our_name_of = {theirs: name for name, theirs in table.names.items()}
    before = [{our_name_of.get(name, name): value for name, value in row.items()} for row in workdir.rows_of(table)]
    names = dict.fromkeys(before[0]) | dict.fromkeys(name for row in rows for name in row)
    columns: dict[str, list] = {}
    for name in names:
        values = [row[name] if name in row else workdir.filled(row, name) for row in before]
        values += [_in_unit(name, workdir.filled(row, name), table.units.get(name)) for row in rows]
        columns[table.names.get(name, name)] = values
    last = max(table.rows)
    numbers = [*table.rows, *range(last + 1, last + 1 + len(rows))]
    return dataclasses.replace(table, columns=columns, rows=numbers, arrow=None)


def _in_unit(name: str, value: Any, unit: str | None) -> Any:
    """A value in nats or as a plain number in a unit of a table's column; one that is no number as it is."""
    if unit is None:
        return value
    (number,) = to_numbers([value])
    if np.isnan(number):
        return value
    if unit in POWERS:
        return float(POWERS[unit](number))
    factors = LOSS_UNITS if name == "loss" else COUNT_UNITS
    return float(number / (factors[unit] if unit in factors else float(unit)))


def options(law: Law) -> dict[str, Any]:
    """The options of the fit that made a law.json, for fit.law.

    Where that fit chose between two forms, their weights and their prior, the new one chooses too.
    """
    settings = law.settings
    fit_options = {name: settings[name] for name in SETTINGS if name in settings}
    if law.choice:
        fit_options.pop("weights", None)
    else:
        fit_options["form"] = [law.form.name]
    fit_options |= dict(algorithm=settings.solver, starts=settings.starts or "paper")
    if not settings.weight_decay_default:
        fit_options["weight_decay"] = settings.weight_decay
    prior = settings.prior
    if prior and not _is_default(prior, law.choice is not None):
        fit_options["prior"] = prior.law
    if law.bootstrap:
        fit_options["bootstrap"] = law.n_draws
        fit_options["bootstrap_form"] = law.bootstrap.form
        fit_options["percentiles"] = law.bootstrap.percentiles
    return fit_options


def _is_default(prior: PriorSummary, chose: bool) -> bool:
    """Whether a prior was the default of its fit. An older law does not say it: all fits that `chose` between forms
    had the population's prior then."""
    if prior.by_default is None:
        return chose and prior.law == "population"
    return prior.by_default


def compared(law: Law, rows: list[Json]) -> list[AddedRun]:
    """Compares the losses of runs with a law's predictions."""
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row.get(name) for row in rows] for name in names}
    table = Table("the added runs", columns, list(range(len(rows))))
    predicted = predictions.predict(law, table).columns
    lows = predicted.get("predicted_loss_low", predicted.get("law_loss_low"))
    highs = predicted.get("predicted_loss_high", predicted.get("law_loss_high"))
    comparisons = []
    for i, row in enumerate(rows):
        loss = float(row["loss"])
        low = None
        high = None
        inside = None
        if lows and highs:
            low = lows[i]
            high = highs[i]
            inside = bool(low <= loss <= high)
        comparisons.append(
            AddedRun(
                run=name_of(row),
                loss=loss,
                predicted_loss=predicted["predicted_loss"][i],
                low=low,
                high=high,
                n_active=float(row["n_active"]),
                n_tokens=float(row["n_tokens"]),
                n_experts=float(row["n_experts"]),
                inside=inside,
                outside_fitted_range=predicted["outside_fitted_range"][i],
            )
        )
    return comparisons


def has_runs_of(law: Law, table: Table) -> bool:
    """Whether a table has the runs that a law.json was fitted to, and no others."""
    return read_runs(table, law.form.columns, mix_corpora=True).fingerprint() == law.runs.fingerprint


def what_next(law: Law, table: Table, mix_corpora: bool, out: str | None) -> str:
    """The next command for the user.

    Args:
      law: the one that the runs were compared with.
      table: all runs.
      mix_corpora: whether they may be of several texts.
      out: of the law of all runs, where it was fitted.
    """
    if out is not None:
        return f"the law of all runs is written to {out}; next: python -m fit plan --law={out}"
    if law.published:
        return f"next, once the table has runs of several sizes: python -m fit law --runs={table.path} --out=law.json"
    return f"next: {_refit(law, table, mix_corpora)}, then plan with it"


def _refit(law: Law, table: Table, mix_corpora: bool) -> str:
    """The command that fits a law to a table as it was fitted before, with draws."""
    settings = law.settings
    flags = dict(
        runs=table.path,
        out="law.json" if law.name in NAMES else law.name,
        bootstrap="100",
        form="" if law.choice else law.form.name,
        fix=_pairs(settings.fix, "="),
        holdout="" if settings.holdout == DEFAULTS.holdout else settings.holdout,
        prior=options(law).get("prior", ""),
        solver="paper" if settings.solver == "lbfgs" else "",
        bootstrap_by="" if settings.bootstrap_by == DEFAULTS.bootstrap_by else settings.bootstrap_by,
        columns=_pairs(table.names, ":"),
        units=_pairs(table.units, ":"),
    )
    words = [f"--{name}={text}" for name, text in flags.items() if text]
    switches = dict(with_rate=settings.with_rate, mix_corpora=mix_corpora)
    words += [f"--{name}" for name, is_on in switches.items() if is_on]
    return shlex.join(["python", "-m", "fit", "law", *words])


def _pairs(values: Mapping[str, Any], mark: str) -> str:
    """Names and values as a flag takes them."""
    return ",".join(f"{name}{mark}{value}" for name, value in values.items())


def flops_of(rows: list[Json]) -> float:
    """Training FLOPs of the largest of some runs."""
    return max(float(training_flops(float(row["n_active"]), float(row["n_tokens"]))) for row in rows)
