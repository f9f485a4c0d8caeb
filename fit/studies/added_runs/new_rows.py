"""The runs to add to a table: read from a workdir or a table, and told from those that the table has."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from fit.aliases import Array, Json
from fit.errors import UserError
from fit.fitted_law import overrides
from fit.messages.finding import Finding, finding
from fit.messages.units import say
from fit.table import spelled, validate
from fit.table.importers import workdir
from fit.table.table import Table, read

NEEDED = ("n_active", "n_tokens", "loss")  # columns; runs without n_experts are dense, as for fit law
# Two runs are the same where these columns agree to the share CLOSE.
IDENTITY = ("n_active", "n_tokens", "n_experts", "loss")
CLOSE = 1e-9
MODEL = "{n_experts:g} experts with {n_active:amount} active on {n_tokens:amount} tokens"  # in words
# columns of the text and of the shape of models that a law's runs have in common
SHARED = ("corpus_fingerprint", "vocab_size", "width_per_block", "seq_len", "final_norm")


def rows_of(source: str, table: Table | None) -> tuple[list[Json], list[Finding]]:
    """Reads the runs to add.

    Args:
      source: A workdir of jmoe.train, or a table that `fit import` wrote.
      table: The runs so far; its column `overrides` names the fields that differ between runs.

    Returns:
      (rows by our names of columns, findings on what they leave out).

    Raises:
      UserError: The source is none of these, or a number is missing.
    """
    if source.startswith("gs://"):
        raise UserError(f"--run={source}: copy the workdir's branch-*/result.json to a local folder first")
    if not os.path.exists(source):
        raise UserError(f"--run={source}: no such folder or file")
    if os.path.isfile(source):
        return _rows_of_table(read(source))
    if not workdir.is_workdir(source):
        raise UserError(
            f"--run={source}: expected a workdir of jmoe.train, with branch-*/result.json, or a table of runs; "
            f"python -m fit import {source} --out=new.csv makes a table of another trainer's run"
        )
    fields = []
    if table is not None:
        fields = overrides.fields_of(overrides.of_runs(table))
    dense = dict(n_experts=1)  # where the result does not say it
    return [workdir.row_of(dense | result, fields) for result in workdir.results(source)], []


def _rows_of_table(table: Table) -> tuple[list[Json], list[Finding]]:
    """The runs of a table, with plain numbers in the columns of IDENTITY, and findings as rows_of returns them.

    Raises:
      UserError: Names the row of a cell that is no number, and the columns that the table lacks.
    """
    missing = [name for name in NEEDED if name not in table]
    if missing:
        raise UserError(f"--run={table.path}: says no {', '.join(missing)}; it needs {', '.join(NEEDED)}")
    findings = []
    columns = dict(table.columns)
    for name in IDENTITY:
        if name not in table:
            columns[name] = [1] * len(table)
            findings.append(finding("no_n_experts").of_file(table.path))
            continue
        numbers = table.numbers(name)
        if not spelled.are_plain(columns[name]):
            columns[name] = numbers.tolist()
    return workdir.rows_of(dataclasses.replace(table, columns=columns)), findings


def _cells(table: Table | None, name: str) -> list:
    """A column of a table; empty where there is no table or it lacks the column."""
    return table.column(name) if table is not None and name in table else []


def new_and_known(rows: list[Json], table: Table | None, source: str) -> tuple[list[Json], list[Json]]:
    """(the rows that the table lacks, those that it has).

    Args:
      rows: The runs to add.
      table: The runs so far.
      source: Where the rows are from, for errors.

    Raises:
      UserError: The table has all of them, or lacks a column that it needs.
    """
    if table is None:
        return rows, []
    names = {name_of(dict(run=name)) for name in _cells(table, "run")} - {None}
    validate.require_columns(table, NEEDED)
    log_identities = np.log([_numbers(table, name) for name in IDENTITY])  # [columns, runs]
    known = []
    for row in rows:
        log_identity = np.log([[float(row[name])] for name in IDENTITY])
        has_its_numbers = np.any(np.all(np.abs(log_identities - log_identity) < CLOSE, axis=0))
        if name_of(row) in names or has_its_numbers:
            known.append(row)
    if len(known) == len(rows):
        name = name_of(known[0]) or "by its numbers"
        raise UserError(f"--run={source}: {table.path} has this run already ({name})")
    return [row for row in rows if row not in known], known


def _numbers(table: Table, name: str) -> Array:
    """A column of IDENTITY; of a table without n_experts, whose runs are dense, 1."""
    return table.numbers(name) if name in table else np.ones(len(table))


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


def with_shared(rows: list[Json], table: Table | None) -> tuple[list[Json], list[Finding]]:
    """The rows with the columns SHARED that they lack, if all runs of the table agree on them.

    Args:
      rows: The runs to add.
      table: The runs so far.

    Returns:
      (the rows, a finding on what was assumed, if anything).
    """
    shared = {}
    for name in SHARED:
        values = {str(value): value for value in _cells(table, name)}
        if len(values) == 1:
            (shared[name],) = values.values()
    filled = []
    assumed = set()
    for row in rows:
        lacking = [name for name in shared if row.get(name) in (None, "")]
        filled.append(row | {name: shared[name] for name in lacking})
        assumed.update(lacking)
    if not assumed:
        return filled, []
    listed = ", ".join(f"{name} {value}" for name, value in shared.items() if name in assumed)
    return filled, [finding("taken_from_table", columns=listed)]
