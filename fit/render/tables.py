"""The paper's tables for any law. Each gives rows, dictionaries with the same keys, ready to print or save.

Table 2 has the published cells of the paper's law beside the computed ones, because not all agree. The last column
of each table names the values of the row outside the fitted range. Budgets and memories are the paper's unless given.
If those are far from the runs of a law, they are the law's own.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from fit.aliases import Floats, Json
from fit.fitted_law import extrapolation
from fit.fitted_law.extrapolation import Outside, in_words
from fit.fitted_law.law import Law
from fit.fitted_law.published_draws import drawing_in_words
from fit.form import Reduced
from fit.laws import FORMS, PRESETS
from fit.messages import units
from fit.model.architecture import Architecture
from fit.planning.context import reasons_to_doubt
from fit.planning.inputs.constraints import Constraints
from fit.planning.inputs.problem import Problem
from fit.planning.search import solver, unconstrained
from fit.planning.uncertainty import joint_draws
from fit.studies.optimum_intervals import optimum_intervals

TABLE_1_EXPERTS = (1, 2, 4, 8, 16)
TABLE_1_FLOPS = (1e20, 5e20, 1e21)
TABLE_5_FLOPS = (1e20, 1e21, 1e22)
PAPERS_LAW = "joint-moe-2025"
FAR = 100  # times the largest budget fitted: beyond, a table of the paper's budgets is of no use


def papers_table_2() -> Json:
    """Table 2 of the paper: flops, memory_gb, kv_tokens, and n_experts by budget and memory."""
    return PRESETS[PAPERS_LAW].presets[PAPERS_LAW]["table_2"]


def budgets_of(law: Law, papers: Sequence[float]) -> Sequence[float]:
    """The paper's training budgets; where the law's runs are far below those, three from its runs to ten times beyond.

    Args:
      papers: the paper's budgets, in FLOPs.
    """
    low, high = law.ranges.get("training_flops", papers[:2])
    if min(papers) <= FAR * high:
        return papers
    return tuple(float(f"{budget:.1e}") for budget in ((low * high) ** 0.5, high, 10 * high))  # two digits


def memories_of(law: Law, architecture: Architecture, budgets: Sequence[float]) -> tuple[Sequence[float], float]:
    """The memories of Table 2 in GB, and the tokens in its cache.

    They are the paper's; or where the law has budgets of its own, once, 3 and 10 times the weights of the best dense
    model of the middle budget, without a cache.
    """
    papers = papers_table_2()
    if budgets == papers["flops"] or budgets != budgets_of(law, papers["flops"]):
        return papers["memory_gb"], papers["kv_tokens"]
    middle = Constraints(flops=sorted(budgets)[len(budgets) // 2])
    dense = solver.best_of_each_number(Problem(law, architecture, middle, [1]))
    weights = float(middle.memory(architecture, dense.d_model[0], dense.n_experts[0])) / 1e9
    return tuple(float(f"{times * weights:.1e}") for times in (1, 3, 10)), 0


def _marked(law: Law, architecture: Architecture, row: Json) -> Json:
    """The row, with its values outside the fitted range in words."""
    columns = extrapolation.columns_of_sizes(law, architecture, row["n_active"], row["n_experts"])
    outside = extrapolation.outside(law, n_tokens=row["n_tokens"], **columns)
    return row | dict(outside_fitted_range=in_words(outside))


def table_1(law: Law, architecture: Architecture, experts: Floats = (), budgets: Floats = ()) -> Iterator[Json]:
    """Compute-optimal n_active and n_tokens for each budget and number of experts."""
    experts = solver.allowed_experts(law, experts or (TABLE_1_EXPERTS if law.published else law.experts))
    for flops in budgets or budgets_of(law, TABLE_1_FLOPS):
        sizes, tokens, losses = unconstrained.optima(law, experts, architecture, flops)
        for e, n_active, n_tokens, loss in zip(experts, sizes, tokens, losses, strict=True):
            row = dict(
                flops=flops, n_experts=int(e), n_active=float(n_active), n_tokens=float(n_tokens), loss=float(loss)
            )
            yield _marked(law, architecture, row)


def table_2(
    law: Law,
    architecture: Architecture,
    experts: Floats = (),
    budgets: Floats = (),
    memories_gb: Floats = (),
    kv_tokens: float | None = None,
) -> Iterator[Json]:
    """The best number of experts for each budget and memory: bfloat16 weights and a cache of kv_tokens tokens.

    With the published law, its models and the paper's cells, each row also holds the printed E and how much higher its
    loss is. best_at_edge: no more (or no fewer) experts were allowed; best_in_draws: how many of a fit's draws agree.
    """
    experts = solver.allowed_experts(law, experts or law.experts)
    budgets = tuple(budgets or budgets_of(law, papers_table_2()["flops"]))
    default_memories, default_kv_tokens = memories_of(law, architecture, budgets)
    memories_gb = tuple(memories_gb or default_memories)
    kv_tokens = default_kv_tokens if kv_tokens is None else kv_tokens
    options = dict(flops=budgets, memory_gb=memories_gb, kv_tokens=kv_tokens)
    printed = _printed_cells(law, architecture, experts, options)
    for i, flops in enumerate(budgets):
        for j, memory in enumerate(memories_gb):
            constraints = Constraints(flops=flops, memory_bytes=memory * 1e9, kv_tokens=kv_tokens)
            problem = Problem(law, architecture, constraints, experts)
            optima = solver.best_of_each_number(problem)
            best = optima.best
            row = dict(flops=flops, memory_gb=memory) | optima.row(best)
            row["best_at_edge"] = reasons_to_doubt.is_at_edge(experts, experts[best])
            row |= _wins(problem, row["n_experts"])
            if printed is not None:
                cell = printed[i][j]
                gap = float(optima.loss[list(experts).index(cell)]) - row["loss"]
                row |= dict(printed_n_experts=cell, agrees=cell == row["n_experts"], loss_gap=gap)
            yield _marked(law, architecture, row)


def _printed_cells(
    law: Law, architecture: Architecture, experts: Floats, options: Json
) -> Sequence[Sequence[int]] | None:
    """The paper's numbers of experts, by budget and memory; None unless law, models and options are the paper's."""
    printed = law.table_2
    if printed is None or (architecture, tuple(experts)) != (law.architecture, law.experts):
        return None
    if options != {name: printed[name] for name in options}:
        return None
    return printed.n_experts


def _wins(problem: Problem, n_experts: float) -> Json:
    """{best_in_draws, draws}: in how many of a fit's draws this number of experts is the best; {} without draws."""
    experts = problem.experts
    if not problem.law.draws or len(experts) < 2:
        return {}
    draws = joint_draws.of_problem(problem, experts)
    if not draws.is_drawn:
        return {}
    loss = joint_draws.solve_draws(problem, experts, draws).loss
    best = np.asarray(experts)[np.argmin(np.nan_to_num(loss, nan=np.inf), axis=0)]
    return dict(best_in_draws=int(np.sum(best == n_experts)), draws=draws.n)


def table_4(law: Law, architecture: Architecture, experts: Floats = ()) -> Iterator[Json]:
    """The law reduced to a Chinchilla law at each number of experts (Eq. 5), and beside it, where the fit made one, the
    law fitted to the runs of that number of experts alone."""
    names = Reduced._fields if "k" in law.form.names else Reduced._fields[:5]
    reduce_separate = None
    shares: dict[str, float] = {}
    if law.form.separate:
        separate_form = FORMS[law.form.separate["form"]]
        reduce_separate = separate_form.chinchilla_coefficients_at
        shares = dict.fromkeys(separate_form.shares, 1.0)  # an additive law has k = 1, and may not say it
    for e in solver.allowed_experts(law, experts or law.experts):
        row: Json = dict(n_experts=int(e)) | dict(
            zip(names, map(float, law.chinchilla_coefficients_at(e)), strict=False)
        )
        if law.separate:
            separate = law.separate.get(str(int(e)))
            if reduce_separate and separate:
                reduced = reduce_separate(shares | separate.coefficients, e)
                values = dict(zip(names, map(float, reduced), strict=False))
            else:
                values = dict.fromkeys(names)
            row |= {f"separate_{name}": value for name, value in values.items()}
        yield row | dict(outside_fitted_range=in_words(extrapolation.outside(law, n_experts=int(e))))


def table_5(law: Law, architecture: Architecture, experts: Floats = (), budgets: Floats = ()) -> Iterator[Json]:
    """Bootstrap intervals of the compute-optimal n_active and n_tokens, and how often each E was the best.

    Raises:
      UserError: for a law without draws.
    """
    law.check_has_draws()
    experts = solver.allowed_experts(law, experts or law.experts)
    for flops in budgets or budgets_of(law, TABLE_5_FLOPS):
        for interval in optimum_intervals(law, architecture, experts, flops):
            size_low, size_high = interval.n_active
            tokens_low, tokens_high = interval.n_tokens
            row = dict(
                flops=flops,
                n_experts=interval.n_experts,
                n_active_low=size_low,
                n_active_high=size_high,
                n_tokens_low=tokens_low,
                n_tokens_high=tokens_high,
                draws_without_optimum=interval.draws_without_optimum,
            )
            if len(experts) > 1:
                row["best_in_draws"] = interval.best_in_draws
            ends = [(size_low, tokens_high), (size_high, tokens_low)]
            outside = _farthest_outside(law, architecture, ends, interval.n_experts, flops)
            yield row | dict(draws=interval.draws, outside_fitted_range=in_words(outside))


def _farthest_outside(
    law: Law, architecture: Architecture, ends: Sequence[tuple[float, float]], n_experts: int, flops: float
) -> list[Outside]:
    """The columns in which the models (n_active, n_tokens) at an interval's ends lie outside the fitted range.

    Each column has the value of the model that is farther outside.
    """
    farthest: dict[str, Outside] = {}
    for n_active, n_tokens in ends:
        columns = extrapolation.columns_of_sizes(law, architecture, n_active, n_experts)
        for outside in extrapolation.outside(law, n_tokens=n_tokens, training_flops=flops, **columns):
            known = farthest.get(outside.column)
            if known is None or not known.is_farther_than(outside):
                farthest[outside.column] = outside
    return list(farthest.values())


TABLES = ("1", "2", "4", "5")
# {option of fit table: the tables that read it}
READERS = dict(flops=("1", "2", "5"), shape=("1", "2", "5"), memory_gb=("2",), kv_tokens=("2",))


def rows_of(
    which: str,
    law: Law,
    architecture: Architecture,
    experts: Floats = (),
    budgets: Floats = (),
    memories_gb: Floats = (),
    kv_tokens: float | None = None,
) -> list[Json]:
    """The rows of one of TABLES.

    Args:
      which: Of TABLES.
      law: The law.
      architecture: How models are built.
      experts: Numbers of experts, of all tables; by default those fitted.
      budgets: Training FLOPs, of all tables but 4; by default the paper's, or near the fitted range.
      memories_gb: Of table 2.
      kv_tokens: Tokens in the cache of table 2.

    Raises:
      UserError: The law does not allow the table.
    """
    if which == "1":
        return list(table_1(law, architecture, experts, budgets))
    if which == "2":
        return list(table_2(law, architecture, experts, budgets, memories_gb, kv_tokens))
    if which == "4":
        return list(table_4(law, architecture, experts))
    return list(table_5(law, architecture, experts, budgets))


def text(rows: Sequence[Json]) -> str:
    """Rows as an aligned table of text."""
    cells = [list(rows[0])] + [[units.cell(value) for value in row.values()] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for row in cells:
        lines.append("  ".join(word.rjust(width) for word, width in zip(row, widths, strict=True)))
    return "\n".join(lines)


def note(which: str, law: Law, rows: Sequence[Json]) -> str:
    """A sentence below the table, or ""."""
    if which == "2" and "agrees" in rows[0]:
        return (
            f"{sum(row['agrees'] for row in rows)} of {len(rows)} cells agree with the paper; loss_gap is how much "
            "worse its cell is by its own law"
        )
    if which != "5":
        return ""
    bootstrap = law.bootstrap
    assert bootstrap is not None
    low, high = bootstrap.percentiles
    how = drawing_in_words(bootstrap.form, bootstrap.by)
    return f"{low:g}th and {high:g}th percentiles of {law.n_draws} fits: {how}"
