"""A finished run added to the table of runs: what `fit add` and `fit.add` do."""

import dataclasses
import os
from collections.abc import Mapping

from fit.aliases import Json
from fit.errors import UserError
from fit.fitted_law.law import Law
from fit.fitted_law.law_files import check_law_file, save
from fit.fitting import fit_law
from fit.fitting.options import FitOptions
from fit.messages.finding import finding
from fit.planning.inputs.options import PlanOptions
from fit.planning.make_plan import best_plan
from fit.studies.added_runs import added
from fit.studies.added_runs.answer import answer
from fit.studies.added_runs.results import AddedRuns
from fit.table.files import check_writable
from fit.table.table import Table, checked_units, read, write

OF_A_PLAN = ("n_experts", "n_active", "n_tokens", "loss")  # what is compared of the plans before and after


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
    table = None
    if os.path.exists(runs) or not law.published:
        _check_settings(law)
        table = read(runs, columns or law.settings.columns, law.settings.units | checked_units(units))
    elif columns or units:
        flag = "columns" if columns else "units"
        raise UserError(f"--{flag}: {runs} is a new table, in our names, nats and plain numbers: leave --{flag} out")
    rows, known = added.new_ones(added.runs_of(run, table), table, run)
    if not mix_corpora:
        added.check_text(rows, table, run)
    check_writable(runs)
    findings = added.fill_shared(rows, table)
    compared = added.compared(law, rows)
    all_runs = added.together(table, rows, runs)
    plans: list[Json] = []
    if not law.published:
        if table is not None and not added.has_runs_of(law, table):
            findings.append(finding("other_table", table=runs, law=law.name))
        refitted = _fitted_again(law, all_runs, mix_corpora, with_draws=out is not None)
        by_new_law = added.compared(refitted, rows)
        compared = [
            dataclasses.replace(before, refitted_loss=after.predicted_loss)
            for before, after in zip(compared, by_new_law, strict=True)
        ]
        flops = added.flops_of(rows)
        comparisons = [_plans_before_and_after(law, refitted, budget) for budget in (flops, 10 * flops)]
        plans = [comparison for comparison in comparisons if comparison is not None]
        if out is not None:
            save(refitted, out)
    write(all_runs, runs)
    return AddedRuns(
        law=law.name,
        table=runs,
        n_runs=len(all_runs),
        runs=compared,
        known=[added.label_of(row) for row in known],
        plans=plans,
        findings=findings,
        percentiles=law.percentiles,
        next=added.what_next(law, all_runs, mix_corpora, out),
        answer_of=answer,
    )


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


def _fitted_again(law: Law, runs: Table, mix_corpora: bool, with_draws: bool) -> Law:
    """The law fitted to these runs with the options of its own fit."""
    options: Json = added.options(law) | dict(mix_corpora=mix_corpora)
    if not with_draws:
        options["bootstrap"] = 0
    return fit_law.fit_law(runs, FitOptions(**options))


def _plans_before_and_after(before: Law, after: Law, flops: float) -> Json | None:
    """The best models by two laws for a budget; None where one of the laws cannot plan it."""
    options = PlanOptions(flops=flops)
    try:
        plans = dict(before=best_plan(before, options).best, after=best_plan(after, options).best)
    except UserError:
        return None
    best = {when: {name: row[name] for name in OF_A_PLAN} for when, row in plans.items()}
    return dict(flops=flops) | best
