"""The complete architecture of a mixture for a budget: what `fit holistic` and `fit.holistic` do, and their options."""

import dataclasses

import numpy as np

from fit.aliases import Json
from fit.errors import UserError
from fit.fitting import isoflop
from fit.options import Options, number, numbers, text
from fit.results import Result, optional
from fit.studies.architecture_search import holistic, holistic_runs, holistic_text
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


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Holistic(Result):
    """A mixture's architecture and the laws behind it. Each part is None where nothing asks for it.

    Attributes:
      fit: The laws fitted to runs of several M/N_a and N/N_a, and to runs of several widths.
      control: How much the loss of these runs changes with what the laws leave out.
      rank: Whether architectures keep their rank when the width changes.
      refit: Eq. 2, the best FLOPs per token and tokens for each budget, fitted again.
      architecture: The complete architecture for a budget.
    """

    fit: Json | None = optional()
    control: list[Json] | None = optional()
    rank: Json | None = optional()
    refit: Json | None = optional()
    architecture: Json | None = optional()


def search(
    ratio_runs: holistic_runs.Search | None,
    width_runs: holistic_runs.Search | None,
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
      UserError: Nothing is asked for, or no model can be built.
    """
    sources = dict(flops=options.flops, runs=ratio_runs, width_runs=width_runs, rank=rank, refit=refit)
    if all(source is None for source in sources.values()):
        raise UserError("nothing is asked: expected " + " or ".join(f"--{name}" for name in sources))
    rank_options = options.changed("group", "m_over_active", "total_over_active")
    if rank_options and rank is None:
        raise UserError(f"--{rank_options[0]} needs --rank")
    laws = None
    if ratio_runs or width_runs:
        laws = holistic_runs.fit(ratio_runs, width_runs)
    architecture = None
    control = holistic_runs.control(ratio_runs) if ratio_runs else None
    ranks = ranks_of(read(rank), options) if rank is not None else None
    profile = fit_profile(holistic_runs.read(refit)) if refit is not None else None
    if options.flops is not None:
        architecture = holistic.architecture(options.flops, laws["laws"] if laws else None)
    return Holistic(
        fit=laws,
        control=control,
        rank=ranks,
        refit=profile,
        architecture=architecture,
        answer_of=holistic_text.answer,
    )


def ranks_of(runs: Table, options: HolisticOptions) -> Json:
    """How far the ranks of architectures agree between widths.

    Args:
      runs: A table with d_model, loss, and either the column `group` or what tells the runs' architectures.
      options: The column `group`, or the grid to which the architectures are rounded.
    """
    if options.group is None:
        runs_of_search = holistic_runs.read(runs)
        grid = (
            options.m_over_active or holistic.M_OVER_ACTIVE,
            options.total_over_active or holistic.TOTAL_OVER_ACTIVE,
        )
        cells = holistic_runs.cells_of(runs_of_search, grid)
        ranks = holistic_runs.rank(cells, runs_of_search.width, runs_of_search.loss, runs_of_search.path)
        return ranks | dict(budgets=holistic_runs.rank_at_budgets(runs_of_search, cells))
    cells = np.unique([str(v) for v in runs.column(options.group)], return_inverse=True)[1]
    return holistic_runs.rank(cells, runs.numbers("d_model", (1, 1e7)), runs.numbers("loss"), runs.path)


def fit_profile(runs: holistic_runs.Search) -> Json:
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
