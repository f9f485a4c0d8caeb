"""The paper's tables for any law. Each returns a list of rows, dictionaries with the same keys, ready to print or save.

The published cells of the paper's law stand beside the computed ones for Table 2, where not all agree. The last column of
each says what of the row lies outside the fitted range. Budgets and memories are the paper's unless given, or the law's
own where the paper's are far from what it was fitted to.
"""

import numpy as np

from fit import UserError, lawfile, marks, optimum, planning, summary
from fit.laws import joint

TABLE_1_EXPERTS = (1, 2, 4, 8, 16)
TABLE_1_FLOPS = (1e20, 5e20, 1e21)
TABLE_2_FLOPS = (1e21, 1e22, 1e23, 1e24)
TABLE_2_MEMORY_GB = (24, 80, 640)
TABLE_2_PRINTED = ((16, 32, 32), (4, 16, 32), (1, 8, 32), (1, 1, 16))  # 32 stands for "32 or more"
TABLE_5_FLOPS = (1e20, 1e21, 1e22)
KV_TOKENS = 16_384
FAR = 100  # times the largest budget fitted: beyond, a table of the paper's budgets tells nothing


def budgets_of(fitted, papers):
    """The training budgets `papers`, or three over and ten times beyond a law's own runs where those are far below."""
    low, high = fitted.ranges.get("training_flops", papers[:2])
    if min(papers) <= FAR * high:
        return papers
    return tuple(planning.rounded(v) for v in ((low * high) ** 0.5, high, 10 * high))


def memories_of(fitted, architecture, budgets):
    """(memories in GB, tokens in the cache) of Table 2: the paper's, or where the law has budgets of its own, once, 3 and
    10 times the weights of the best dense model of the middle budget, without a cache."""
    if budgets == TABLE_2_FLOPS or budgets != budgets_of(fitted, TABLE_2_FLOPS):
        return TABLE_2_MEMORY_GB, KV_TOKENS
    middle = optimum.Constraints(flops=sorted(budgets)[len(budgets) // 2])
    dense = optimum.optima(fitted, architecture, middle, [1])
    weights = float(optimum.memory_bytes(architecture, middle, dense.d_model[0], 1)) / 1e9
    return tuple(planning.rounded(times * weights) for times in (1, 3, 10)), 0


def _marked(fitted, row, **asked):
    return row | dict(outside_fitted_range=lawfile.in_words(fitted.extrapolation(**asked)))


def table_1(fitted, architecture, experts=None, budgets=None):
    """Compute-optimal n_active and n_tokens for each budget and number of experts."""
    experts = optimum.allowed_experts(fitted, experts or (TABLE_1_EXPERTS if fitted.published else fitted.experts))
    rows = []
    for flops in budgets or budgets_of(fitted, TABLE_1_FLOPS):
        m, mu, n, nu, c = fitted.at_experts(experts)
        size, tokens = optimum.compute_optimal(m, mu, n, nu, flops)
        loss = m * size**mu + n * tokens**nu + c
        rows += [
            dict(flops=flops, n_experts=int(e), n_active=float(size[i]), n_tokens=float(tokens[i]), loss=float(loss[i]))
            for i, e in enumerate(experts)
        ]
    return [_marked(fitted, row, **{k: row[k] for k in ("n_active", "n_tokens", "n_experts")}) for row in rows]


def table_2(fitted, architecture, experts=None, budgets=None, memories_gb=None, kv_tokens=None):
    """The best number of experts for each budget and memory: bfloat16 weights and a cache of kv_tokens tokens.

    With the published law, its models and the paper's cells, each row holds the printed E too, and how much more loss it
    has. best_at_edge: no more (or no fewer) experts were allowed; best_in_draws: in how many of a fit's draws it is best.
    """
    experts = optimum.allowed_experts(fitted, experts or fitted.experts)
    budgets = budgets or budgets_of(fitted, TABLE_2_FLOPS)
    own_memories, own_kv_tokens = memories_of(fitted, architecture, budgets)
    memories_gb = memories_gb or own_memories
    kv_tokens = own_kv_tokens if kv_tokens is None else kv_tokens
    published = fitted.name in joint.PRESETS and (architecture, tuple(experts), budgets, memories_gb, kv_tokens) == (
        fitted.architecture,
        fitted.experts,
        TABLE_2_FLOPS,
        TABLE_2_MEMORY_GB,
        KV_TOKENS,
    )
    rows = []
    for i, flops in enumerate(budgets):
        for j, memory in enumerate(memories_gb):
            constraints = optimum.Constraints(flops=flops, memory_bytes=memory * 1e9, kv_tokens=kv_tokens)
            found = optimum.optima(fitted, architecture, constraints, experts)
            best = int(np.nanargmin(found.loss))
            row = dict(
                flops=flops,
                memory_gb=memory,
                n_experts=int(experts[best]),
                n_active=float(found.n_active[best]),
                n_tokens=float(found.n_tokens[best]),
                loss=float(found.loss[best]),
                best_at_edge=marks.at_edge(experts, experts[best]),
            )
            if fitted.draws and (drawn := planning.bootstrap(fitted, architecture, constraints, experts)):
                wins = {other["n_experts"]: other["best_in_draws"] for other in drawn["optima"]}
                row |= dict(best_in_draws=wins.get(row["n_experts"], 0), draws=drawn["draws"])
            if published:
                printed = TABLE_2_PRINTED[i][j]
                at = list(experts).index(printed)
                row |= dict(
                    printed_n_experts=printed,
                    agrees=printed == row["n_experts"],
                    loss_gap=float(found.loss[at]) - row["loss"],
                )
            rows.append(_marked(fitted, row, **{k: row[k] for k in ("n_active", "n_tokens", "n_experts")}))
    return rows


def table_4(fitted, architecture, experts=None):
    """The law reduced to a Chinchilla law at each number of experts (Eq. 5), and beside it, where the fit made one, the
    law fitted to the runs of that number of experts alone."""
    separate = fitted.record.get("separate", {})
    rows = []
    for e in optimum.allowed_experts(fitted, experts or fitted.experts):
        row = dict(zip(("n_experts", "m", "mu", "n", "nu", "c"), (int(e), *map(float, fitted.at_experts(e)))))
        if separate:
            alone = separate.get(str(int(e)), {}).get("coefficients")
            row |= {
                f"separate_{name}": alone and value
                for name, value in zip(
                    ("m", "mu", "n", "nu", "c"),
                    (alone["A"], -alone["alpha"], alone["B"], -alone["beta"], alone["E"]) if alone else [None] * 5,
                )
            }
        rows.append(_marked(fitted, row, n_experts=int(e)))
    return rows


def table_5(fitted, architecture, experts=None, budgets=None):
    """Bootstrap intervals of the compute-optimal n_active and n_tokens, and how often each E was the best of those."""
    bootstrap = fitted.record.get("bootstrap")
    if not bootstrap:
        raise UserError(f"--law={fitted.name}: holds no bootstrap draws; fit it with --bootstrap=100")
    draws = {name: np.array(bootstrap["draws"])[:, i] for i, name in enumerate(fitted.law.COEFFICIENTS)}
    low, high = bootstrap["percentiles"]
    experts = optimum.allowed_experts(fitted, experts or fitted.experts)
    rows = []
    for flops in budgets or budgets_of(fitted, TABLE_5_FLOPS):
        sizes, tokens, losses = [], [], []
        for e in experts:
            m, mu, n, nu, c = fitted.law.at_experts(draws, e)
            with np.errstate(all="ignore"):
                size, d = optimum.compute_optimal(m, mu, n, nu, flops)
                size, d = (np.where((mu < 0) & (nu < 0), v, np.nan) for v in (size, d))
                losses.append(m * size**mu + n * d**nu + c)
            sizes.append(size)
            tokens.append(d)
        best = np.argmin(np.where(np.isnan(losses), np.inf, losses), axis=0)
        for i, e in enumerate(experts):
            ends = [np.nanpercentile(values, [low, high], method="weibull") for values in (sizes[i], tokens[i])]
            ends = np.concatenate(ends).tolist()
            rows.append(
                dict(
                    flops=flops,
                    n_experts=int(e),
                    n_active_low=ends[0],
                    n_active_high=ends[1],
                    n_tokens_low=ends[2],
                    n_tokens_high=ends[3],
                    draws_without_optimum=int(np.isnan(sizes[i]).sum()),
                    best_in_draws=int(np.sum(best == i)),
                    draws=len(best),
                )
            )
            outside = {}  # the interval's ends, the farther of both
            for size, trained in ((ends[0], ends[3]), (ends[1], ends[2])):
                for o in fitted.extrapolation(size, trained, int(e), flops):
                    outside[o["column"]] = max(o, outside.get(o["column"], o), key=lambda o: o["factor"])
            rows[-1]["outside_fitted_range"] = lawfile.in_words(outside.values())
    return rows


TABLES = {"1": table_1, "2": table_2, "4": table_4, "5": table_5}


def text(rows):
    """Rows as an aligned table for people."""
    cells = [list(rows[0])] + [[cell(v) for v in row.values()] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells)]
    return "\n".join("  ".join(word.rjust(width) for word, width in zip(line, widths)) for line in cells)


def cell(value):
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def note(which, fitted, rows):
    """A sentence below the table, or ""."""
    if which == "2" and "agrees" in rows[0]:
        return (
            f"{sum(row['agrees'] for row in rows)} of {len(rows)} cells agree with the paper; loss_gap is how much worse "
            "its cell is by its own law"
        )
    return interval_note(fitted) if which == "5" else ""


def interval_note(fitted):
    """One sentence: what the intervals of Table 5 are."""
    b = fitted.record["bootstrap"]
    low, high = b["percentiles"]
    return f"{low:g}th and {high:g}th percentiles of {len(b['draws'])} fits: {summary.drawn(b)}"
