"""The complete architecture of a mixture for a budget: what `fit holistic` and `fit.holistic` do, and their options."""

import dataclasses

import numpy as np

from fit.aliases import Json
from fit.errors import UserError
from fit.fitting import isoflop
from fit.options import Options, number, numbers, text
from fit.studies.architecture_search import answer, architecture, fitted, published, ranks, search_runs
from fit.studies.architecture_search.ranks import Ranks
from fit.studies.architecture_search.result import Holistic
from fit.studies.architecture_search.search_runs import SearchRuns
from fit.table.table import Table, read


@dataclasses.dataclass(kw_only=True)
class HolisticOptions(Options):
    """A mixture's complete architecture for a budget, beside the tables of runs."""

    flops: float | None = number("Training FLOPs, M D: FLOPs per token times tokens.")
    group: str | None = text("With --rank: column that names an architecture. Default: the nearest on the grid.")
    m_over_active: tuple[float, ...] | None = numbers(
        "With --rank: M/N_a of the grid. Default: phase 1's, 7,8,9,11,14,17."
    )
    total_over_active: tuple[float, ...] | None = numbers(
        "With --rank: N/N_a of the grid. Default: phase 1's, 12,16,20,22,26,30."
    )


def holistic(
    ratio_runs: SearchRuns | None,
    width_runs: SearchRuns | None,
    rank: object,
    refit: object,
    options: HolisticOptions,
) -> Holistic:
    """The parts that are asked for.

    Args:
      ratio_runs: Runs of several M/N_a and N/N_a, to fit their laws.
      width_runs: Runs of several widths, to fit the law of d_model.
      rank: Runs of several architectures, each at several widths, to compare their ranks, as fit.read takes them.
      refit: Runs of several sizes at each budget, to fit Eq. 2, as fit.read takes them.
      options: The budget, and how `rank` tells architectures apart.

    Raises:
      UserError: Nothing is asked for, options exclude each other, or no model can be built.
    """
    sources = dict(flops=options.flops, runs=ratio_runs, width_runs=width_runs, rank=rank, refit=refit)
    if all(source is None for source in sources.values()):
        raise UserError("nothing is asked: expected " + " or ".join(f"--{name}" for name in sources))
    rank_options = options.changed("group", "m_over_active", "total_over_active")
    if rank_options and rank is None:
        raise UserError(f"--{rank_options[0]} needs --rank")
    if options.group is not None and len(rank_options) > 1:
        raise UserError(f"--{rank_options[1]}: expected without --group, whose column names the architectures")
    laws = None
    control = None
    of_budget = None
    if ratio_runs or width_runs:
        laws = fitted.fit(ratio_runs, width_runs)
    if ratio_runs:
        control = ranks.control(ratio_runs)
    ranks_of_runs = ranks_of(read(rank), options) if rank is not None else None
    profile = fit_profile(search_runs.read(refit)) if refit is not None else None
    if options.flops is not None:
        of_budget = architecture.architecture_at(options.flops, laws.laws if laws else None)
    return Holistic(
        fit=laws,
        control=control,
        rank=ranks_of_runs,
        refit=profile,
        architecture=of_budget,
        answer_of=answer.answer,
    )


def ranks_of(table: Table, options: HolisticOptions) -> Ranks:
    """How far the ranks of architectures agree between widths.

    Args:
      table: Runs with d_model, loss, and either the column `group` or what tells the runs' architectures.
      options: The column `group`, or the grid to which the architectures are rounded.
    """
    if options.group is not None:
        groups = np.unique([str(value) for value in table.column(options.group)], return_inverse=True)[1]
        try:
            runs = search_runs.read(table)
        except UserError:  # the table does not tell the budgets: its runs count as those of one
            return ranks.rank(groups, table.numbers("d_model", (1, 1e7)), table.numbers("loss"), table.path)
        cells = ranks.cells_of_groups(runs, groups)
    else:
        runs = search_runs.read(table)
        grid = (
            options.m_over_active or published.M_OVER_ACTIVE,
            options.total_over_active or published.TOTAL_OVER_ACTIVE,
        )
        cells = ranks.cells_of(runs, grid)
    of_all = ranks.rank(cells, runs.width, runs.loss, runs.path)
    return dataclasses.replace(of_all, budgets=ranks.rank_at_budgets(runs, cells))


def fit_profile(runs: SearchRuns) -> Json:
    """Eq. 2 fitted to runs of several M at each budget: M_opt and D_opt = C / M_opt. Raises UserError where no budget
    has a best M."""
    profiles = isoflop.profiles(runs.m, runs.flops, runs.loss)
    if not profiles:
        raise UserError(
            f"{runs.path}: at no budget does the loss have a lowest point within {isoflop.LEAST} or more values of M"
        )
    profile = profiles[0]
    if profile["power"]:
        a, b = profile["power"]
        profile["tokens_power"] = (1 / a, 1 - b)
    return profile
