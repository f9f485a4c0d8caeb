"""Runs in the format of those that a law was fitted to."""

from fit.fitted_law.law import Law
from fit.table.reading import read_with
from fit.table.table import Table


def read_runs(law: Law, runs: object) -> Table:
    """Reads a table of runs by the names, units, conditions and formulas that the law's fit was given.

    Args:
      law: A law.
      runs: What fit.table.table.read takes; a Table is returned as it is.

    Raises:
      UserError: The table cannot be read.
    """
    settings = law.settings
    return read_with(runs, settings.columns, settings.units, settings.where, settings.set)
