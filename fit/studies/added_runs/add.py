"""A finished run added to the table of runs: what `fit add` and `fit.add` do."""

import os
from collections.abc import Mapping

from fit.errors import UserError
from fit.fitted_law.law import Law
from fit.fitted_law.law_files import check_law_file, save
from fit.messages.finding import finding
from fit.studies.added_runs import compare, longer_table, new_rows, refit
from fit.studies.added_runs.answer import answer
from fit.studies.added_runs.results import AddedRuns, PlanChange
from fit.table.files import check_writable
from fit.table.table import Table, checked_units, read, write


def add(
    law: Law,
    run: str,
    runs: str,
    out: str | None = None,
    mix_corpora: bool = False,
    columns: Mapping[str, str] | None = None,
    units: Mapping[str, str] | None = None,
) -> AddedRuns:
    """Adds a finished run to a table of runs, and fits the law to all of them as it was fitted before.

    Args:
      law: The law that predicts the run. A published law is not fitted again.
      run: A workdir of jmoe.train, or a table of runs.
      runs: The table to add to. It is made where it does not exist and the law is published.
      out: The law.json to write the new law to.
      mix_corpora: Whether to add a run of another text.
      columns: {our name: the table's name} of columns that the table calls otherwise. Default: those of the law's fit.
      units: {column: unit} of the table's columns that are not in nats or plain numbers. A column that is not named
        has the unit of the law's fit.

    Raises:
      UserError: The table has the run already, the run's text is another one, or a file cannot be written. Nothing is
        written then.
    """
    _check_out(law, out)
    table = _runs_so_far(law, runs, columns, units)
    read_rows, findings = new_rows.rows_of(run, table)
    rows, known = new_rows.new_and_known(read_rows, table, run)
    if not mix_corpora:
        new_rows.check_text(rows, table, run)
    check_writable(runs)
    rows, shared = new_rows.with_shared(rows, table)
    all_runs = longer_table.with_rows_added(table, rows, runs)
    compared, doubts = compare.with_predictions(law, rows)
    findings += [*shared, *doubts]
    plans: list[PlanChange] = []
    if not law.published:
        if table is not None and not refit.was_fitted_to(law, table):
            findings.append(finding("other_table", table=runs, law=law.name))
        refitted = refit.fitted_again(law, all_runs, mix_corpora, with_draws=out is not None)
        compared = compare.with_refitted_losses(compared, refitted, rows)
        plans = compare.plan_changes(law, refitted, compared)
        if out is not None:
            save(refitted, out)
    write(all_runs, runs)
    return AddedRuns(
        law=law.name,
        table=runs,
        n_runs=len(all_runs),
        runs=compared,
        known=[new_rows.label_of(row) for row in known],
        plans=plans,
        findings=findings,
        percentiles=law.percentiles,
        next=refit.next_step(law, all_runs, mix_corpora, out),
        answer_of=answer,
    )


def _runs_so_far(
    law: Law, path: str, columns: Mapping[str, str] | None, units: Mapping[str, str] | None
) -> Table | None:
    """The table to add to; None where a published law begins one. Raises UserError where it cannot be read."""
    if os.path.exists(path) or not law.published:
        _check_settings(law)
        return read(path, columns or law.settings.columns, law.settings.units | checked_units(units))
    if columns or units:
        flag = "columns" if columns else "units"
        raise UserError(f"--{flag}: {path} is a new table, in our names, nats and plain numbers: leave --{flag} out")
    return None


def _check_out(law: Law, out: str | None) -> None:
    """Raises UserError where no law is to be written, or --law would not read it from that file."""
    if out is not None and law.published:
        raise UserError(f"--out={out}: --law={law.name} is a published law, which is not fitted again: leave --out out")
    if out is not None:
        check_law_file(out)


def _check_settings(law: Law) -> None:
    """Raises UserError where the law was fitted to some rows of its table, or to columns that the table lacks."""
    for flag in ("where", "set"):
        if law.settings[flag]:
            raise UserError(
                f"--law={law.name}: was fitted with --{flag}, so its table has other rows or columns than the law: "
                "make a table of them by fit import with the same flags, and fit the law to that"
            )
