"""What is asked of predictions, of runs at equal FLOPs, of a search over architectures and of the next runs."""

import dataclasses

import numpy as np

from fit.architecture_search import holistic, holistic_runs
from fit.asked.fields import Asked, choice, experts, needed, number, numbers, several, text, whole
from fit.asked.plans import Shape
from fit.data.table import BOUNDS, DERIVED, Table
from fit.equal_flops import isoflop
from fit.errors import UserError
from fit.fitted_law.law import Law


@dataclasses.dataclass(kw_only=True)
class Model(Asked):
    """One model whose loss is predicted."""

    n_active: float | None = number("Active parameters, embedding and head included.", None, *BOUNDS["n_active"])
    n_tokens: float | None = number("Training tokens.", None, *BOUNDS["n_tokens"])
    n_experts: int | None = whole(
        "Experts in each layer, 1 for a dense model. Default: the law's own, else 1.", least=1
    )
    n_total: float | None = number("All parameters, embedding and head included.", None, *BOUNDS["n_total"])
    top_k: int | None = whole("Experts that a token chooses.", least=1)
    n_shared_experts: int | None = whole("Experts that every token uses.", least=0)
    granularity: float | None = number("How many times narrower an expert is than a dense layer.", None, 1, 1e6)
    n_embedding: float | None = number(
        "Parameters of embedding and head among those given, which some laws do not count.", None, 0, 1e16
    )

    def table(self, law: Law) -> Table:
        """Of one row. Raises UserError where the law reads more than is given."""
        if self.n_experts is not None:
            law.check_experts(self.n_experts, "--n_experts")
        given = {name: getattr(self, name) for name in ("n_active", "n_total", "n_tokens", "top_k", "granularity")}
        given |= dict(n_experts=self.n_experts or law.only_experts or 1, n_shared_experts=self.n_shared_experts)
        if self.n_embedding is not None and not law.counts_embedding:
            for name in ("n_active", "n_total"):
                if given[name] is not None:
                    given[name] -= self.n_embedding
        table = Table("the model", {name: [value] for name, value in given.items() if value is not None}, [1])
        for name in law.form.columns:
            flags = (name,) if name in given else DERIVED.get(name, ((name,),))[0]
            for flag in (flag for flag in flags if flag not in table):
                if flag not in given:
                    raise UserError(
                        f"the {law.form.name} law reads {name}, for which there is no flag: give a table by --runs"
                    )
                raise UserError(f"--{flag} is missing: the {law.form.name} law needs it")
        return table


@dataclasses.dataclass(kw_only=True)
class Surface(Asked):
    """How the surface of each budget is fitted."""

    seed: int = whole("Seed of the refits.", 0)


@dataclasses.dataclass(kw_only=True)
class Next(Shape):
    """Which runs to train next."""

    flops: float = needed(number("Training FLOPs to spend; a trunk that branches share is counted once."))
    goal: str = choice(
        "What the runs should make surer: loss and best number of experts at --target_flops, or --coefficients.",
        "plan",
        ("plan", "coefficients"),
    )
    target_flops: float | None = number("With --goal=plan: training FLOPs of the plan to make surer.")
    coefficients: tuple[str, ...] | None = several(
        "Names of the law's coefficients. Default: all that the fit did not hold fixed.", None
    )
    experts: tuple[int, ...] | None = experts("Numbers of experts to train and to compare. Default: those fitted.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.goal == "plan" and self.coefficients is not None:
            raise UserError("--coefficients is for --goal=coefficients")
        if self.goal == "plan" and self.target_flops is None:
            raise UserError("--target_flops is missing: the training FLOPs of the plan that matters")
        if self.goal != "plan" and self.target_flops is not None:
            raise UserError("--target_flops is for --goal=plan")

    def names(self, law: Law) -> tuple[str, ...]:
        """The coefficients to make surer. Raises UserError for one that the law has not or that was held."""
        if self.goal == "plan":
            return ()
        fixed = (law.record.get("settings") or {}).get("fix") or {}
        free = tuple(name for name in law.form.names if name not in fixed)
        names = free if self.coefficients is None else self.coefficients
        if unknown := [name for name in names if name not in free]:
            raise UserError(
                f"--coefficients={','.join(names)}: found {unknown[0]!r}, expected some of {', '.join(free)}"
            )
        return names


@dataclasses.dataclass(kw_only=True)
class Holistic(Asked):
    """A mixture's complete architecture for a budget, beside the tables that api.holistic takes."""

    flops: float | None = number("Training FLOPs, M D: FLOPs per token times tokens.")
    group: str | None = text("With --rank: column that names an architecture. Default: the nearest on the grid.")
    m_over_active: tuple[float, ...] | None = numbers(
        "With --rank: M/N_a of the grid. Default: phase 1's, 7,8,9,11,14,17."
    )
    total_over_active: tuple[float, ...] | None = numbers(
        "With --rank: N/N_a of the grid. Default: phase 1's, 12,16,20,22,26,30."
    )

    def ranked(self, runs: Table) -> dict:
        """How ranks agree in a table with d_model, loss and a column `group`, or one that tells the runs'
        architectures."""
        if self.group is None:
            search = holistic_runs.read(runs)
            grid = self.m_over_active or holistic.M_OVER_ACTIVE, self.total_over_active or holistic.TOTAL_OVER_ACTIVE
            cells = holistic_runs.cells_of(search, grid)
            found = holistic_runs.rank(cells, search.width, search.loss, search.path)
            return found | dict(budgets=holistic_runs.rank_at_budgets(search, cells))
        cells = np.unique([str(v) for v in runs.column(self.group)], return_inverse=True)[1]
        return holistic_runs.rank(cells, runs.numbers("d_model", (1, 1e7)), runs.numbers("loss"), runs.path)


def refit(runs: holistic_runs.Search) -> dict:
    """Eq. 2 fitted to runs of several M at each budget: M_opt and D_opt = C / M_opt. Raises UserError where no budget
    has a best M."""
    found = isoflop.profiles(runs.m, runs.flops, runs.loss)
    if not found:
        raise UserError(
            f"{runs.path}: at no budget does the loss have a lowest point within {isoflop.LEAST} or more values of M"
        )
    profile = found[0]
    if profile["power"]:
        a, b = profile["power"]
        profile["tokens_power"] = (1 / a, 1 - b)
    return profile
