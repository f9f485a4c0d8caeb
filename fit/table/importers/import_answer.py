"""The answer of `fit import`: the runs that it read, and warnings before a law is fitted to them."""

from collections.abc import Mapping

from fit.table import histories, mixed_columns, selection, validate
from fit.table.table import Table


def answer(source: str, tool: str, n_rows: int, runs: Table, units: Mapping[str, str]) -> list[str]:
    """Lines on what was read.

    Args:
      source: The file, folder or project.
      tool: Whose files these are.
      n_rows: How many rows it has.
      runs: Those that --where keeps.
      units: {column: unit} of columns that were converted.
    """
    lines = [f"{source}: read as {tool}'s; {len(runs)} of {n_rows} runs kept"]
    if runs.left_out:
        lines.append(f"left out by --where: {selection.left_out_in_words(runs.left_out)}")
    lines += [f"{name}: converted from {unit}" for name, unit in units.items()]
    return lines


def warnings(runs: Table) -> list[str]:
    """Oddities of the runs, refusals by `fit law`, and the flag that mends their units."""
    refused = [*histories.named_histories(runs), *mixed_columns.text_problems(runs)]
    sentences = [*validate.impossible(runs), *validate.doubts(runs)]
    sentences += [f"fit law refuses these runs: {problem.where}: {problem.what}" for problem in refused]
    sentences += [*mixed_columns.recipe_doubts(runs), *histories.unnamed_histories(runs)]
    likely_units = validate.likely_units(runs)
    if likely_units:
        flag = ",".join(f"{name}:{unit}" for name, unit in likely_units.items())
        sentences.append(f"--units={flag} converts all of them")
    return [str(each) for each in sentences]
