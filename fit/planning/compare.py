"""Several laws asked about one budget: the best architecture of each, against its own best dense model.

Losses on different corpora cannot be compared, so no law's loss is set against another's. The architectures are
compared, all counted in one way (n_active and n_total with embedding and head, 6 n_active n_tokens training FLOPs); a
law that counts otherwise is given its own counts of the same model. Also compared is how far, by each law, its best
model lies below its best dense model under the same limits, and how many more FLOPs that dense model would need.
"""

import dataclasses
import math
import operator
from collections.abc import Sequence

import numpy as np

from fit.aliases import Array, Floats, Json, Numbers
from fit.errors import UserError
from fit.fitted_law.law import Law, load
from fit.messages import sentences
from fit.messages.units import say
from fit.planning import by_time, optimum, target
from fit.planning.by_time import ByTime
from fit.planning.constraints import Constraints
from fit.planning.memory import STATE
from fit.planning.planning import at_edge, not_bounded
from fit.shape.architecture import Architecture, training_flops
from fit.shape.reference_model import PublishedModel

LAWS = ("joint-moe-2025", "sparsity-2025", "fine-grained-2024", "comprehensive-2025", "chinchilla-refit-2024")
SPLITS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 32)
MOST_SHARED = 64  # numbers of shared experts that are tried
AGREE = 2.0  # answers within this factor agree
FURTHEST = 1e3  # times a law's compute; beyond, its answer is shown and counts for nothing
LEVERAGE = dict(a=1.23, d=-7.61e-2, gamma=1.67e-2, beta=-1.17e-1, A_start=1.63e-2, A_max=5.28e16)  # its Table 2
LEVERAGE_OF = dict(activation=(0.008, 1.0), granularity=(2.0, 16.0), flops=(3e17, 6e20))  # the ranges of its runs
ABOUT = (
    "Losses are not set against each other: every law has its own text and tokenizer. Each law's best is measured "
    "against the best dense model by the same law under the same limits. Counts are with embedding and head, training "
    "FLOPs are 6 n_active n_tokens, for all of them."
)


def compare(
    laws: Sequence[Law],
    shape: Json,
    constraints: Constraints,
    experts: Floats | None = None,
    used: Sequence[float] | None = None,
    known: PublishedModel | None = None,
    timed: ByTime | None = None,
) -> Json:
    """What each of the Laws answers and what they agree on, as a dictionary of plain numbers, ready for JSON.

    shape: {vocab_size, width_per_block}, and n_dense and kv_share where they are asked for. experts: numbers
    of experts to choose from; None takes each law's own. used: numbers of whole experts' width that a token may use,
    for laws that read it; None takes each law's own. known: a model to set beside each law's best. timed: hours by the
    clock as the budget, in place of the FLOPs of the constraints. Raises UserError where no law has a feasible model,
    or a law cannot be planned with.
    """
    rows, infeasible = [], []
    for law in laws:
        row = answer(law, shape, constraints, experts, used, known, timed)
        (rows if "loss" in row else infeasible).append(row)
    if not rows:
        raise UserError(infeasible[0]["why"])
    given = constraints.to_json() if timed is None else dict(hours=timed.hours) | constraints.to_json()
    result = dict(**shape, constraints=given, about=ABOUT, laws=rows, infeasible=infeasible)
    result |= dict(agreement=agreement(counted(rows)), conclusion=conclusion(rows))
    if known:
        result["like"] = counts(known)
    return result


def counts(known: PublishedModel) -> Json:
    """What a model counts; the cache in numbers, training memory in bytes without what tokens at work take."""
    names = ("name", "n_active", "n_total", "n_embedding", "n_experts", "top_k", "n_shared_experts", "whole_experts")
    return {name: getattr(known, name) for name in (*names, "notes", "cache_elements_per_token")} | dict(
        n_active_without_embedding=known.n_active - known.n_embedding,
        training_bytes=STATE * known.n_total,
        training_flops_per_token=training_flops(known.n_active, 1),
    )


def of_known(known: PublishedModel, law: Law, shape: Json, constraints: Constraints) -> Json:
    """Its counts and, where a number of FLOPs is given, `laws`: what `law` and each other law of mixtures would build
    instead."""
    if not isinstance(constraints.flops, float):  # none, or FLOPs by number of experts
        return counts(known)
    laws = [law, *(other for other in map(load, LAWS) if other.name != law.name and other.knows_experts)]
    rows = [answer(law, shape, constraints, known=known) for law in laws]
    return counts(known) | dict(laws=[row for row in rows if "loss" in row])


def _beside(
    known: PublishedModel, law: Law, e: int, architecture: Architecture, constraints: Constraints
) -> Json | None:
    """A known model under the same budget, and flops_share: the share of the FLOPs with which models built like the
    law's best reach its loss. None where the budget trains no token of it, or the law holds for one number of experts
    alone, which it has not."""
    n_tokens = float(constraints.tokens(known.n_active))
    if constraints.flops is None or n_tokens < 1:
        return None
    columns = known.columns(law.counts_embedding, bool(law.models["architecture"]))
    if law.only_experts is not None and not np.isclose(float(columns["n_experts"]), law.only_experts):
        return None
    loss = float(law.loss(law.coefficients, columns | dict(n_tokens=n_tokens)))
    within = Constraints(flops=constraints.flops, inference_tokens=constraints.inference_tokens)
    asked = law, float(e), architecture, within
    share = target.least_flops(*asked, loss, 1e-6 * constraints.flops, 1e6)
    outside = law.extrapolation(**columns, n_tokens=n_tokens, flops=training_flops(known.n_active, n_tokens))
    return dict(n_tokens=n_tokens, loss=loss, extrapolation=outside, flops_share=share and share / constraints.flops)


def answer(
    law: Law,
    shape: Json,
    constraints: Constraints,
    experts: Floats | None = None,
    used: Sequence[float] | None = None,
    known: PublishedModel | None = None,
    timed: ByTime | None = None,
) -> Json:
    """The law's best architecture, its best dense one, and `known` beside them (_beside); {law, why} where nothing is
    feasible."""
    if experts is not None and law.of_mixtures and law.only_experts is not None and law.only_experts not in experts:
        return dict(law=law.name, why=law.only_words)
    experts = law.experts if experts is None or law.fixes_experts or not law.knows_experts else experts
    asked = np.array(experts, float)
    found, architecture, i, constraints = _best(law, shape, constraints, asked, used, timed)
    if found is None:
        return dict(law=law.name, why=optimum.why_infeasible(architecture, constraints, min(experts)))
    row = found.row(i, ("n_active", "n_total", "n_tokens", "loss", "d_model"))
    e = row["n_experts"]
    columns = architecture.columns(row["d_model"], e, law.counts_embedding)
    flops = training_flops(row["n_active"], row["n_tokens"])
    return row | dict(
        law=law.name,
        form=law.form.name,
        source=law.record.get("source"),
        note=law.record.get("note"),
        mixtures=law.of_mixtures,
        sparsity=float(columns["sparsity"]),
        split=architecture.granularity,
        shared=architecture.shared,
        used=architecture.active_width,
        size_bound=str(found.size_bound[i]),
        memory_bytes=float(constraints.memory(architecture, row["d_model"], e)),
        chose_experts=law.knows_experts and not law.fixes_experts,
        at_edge=law.knows_experts and at_edge(experts, e),
        not_bounded=e == max(experts) and not_bounded(law, architecture, constraints),
        finest=bool(len(_splits(law)) > 1 and architecture.granularity == max(_splits(law))),
        extrapolation=law.extrapolation(**columns, n_tokens=row["n_tokens"], flops=flops),
        not_read=_not_read(law, shape, used),
        leverage=leverage_of_split(e, architecture.granularity, flops, architecture.active_width) if e > 1 else None,
        dense=_dense(law, shape, constraints, row["loss"], timed),
        **(_by_the_clock(law, architecture, constraints, row, asked) if timed else {}),
        **(dict(like=_beside(known, law, e, architecture, constraints)) if known else {}),
    )


def _by_the_clock(law: Law, architecture: Architecture, constraints: Constraints, best: Json, experts: Array) -> Json:
    """{speed, clock} of a law's best model: its speed, and what FLOPs would choose of these numbers of experts."""
    clock, chips = constraints.clock, constraints.chips
    assert clock is not None and chips is not None
    speed = float(clock.at(best["n_experts"]).speed(best["n_active"]))
    trained = [e for e in experts[architecture.has_enough_experts(experts)] if e not in clock.untrainable]
    return dict(
        speed=by_time.speed_of(clock.calibration, chips, speed, best),
        clock=by_time.against_flops(law, architecture, constraints, best, trained),
    )


def _splits(law: Law) -> Sequence[int]:
    """The SPLITS of an expert that lie within the law's data; [1] where a split makes no difference to the law."""
    read = [name for name in ("top_k", "granularity") if name in law.form.columns]
    return [k for k in SPLITS if all(k <= law.ranges.get(name, (1, k))[1] for name in read)] if read else [1]


def _not_read(law: Law, shape: Json, used: Sequence[float] | None) -> Json:
    """{flag: value} of what the user asks of the models but the law has no column for."""
    asked = dict(kv_share=(shape.get("kv_share"), 1.0), dense_blocks=(shape.get("n_dense"), 0))
    found = {name: value for name, (value, neutral) in asked.items() if value not in (None, neutral)}
    if used and list(used) != [1.0] and law.of_mixtures and not law.reads_used:
        found["used"] = ",".join(f"{u:g}" for u in used)
    return found


def _choices(law: Law, shape: Json, used: Sequence[float] | None) -> list[Architecture]:
    """The Architectures that the law can tell apart. With a law that reads neither sparsity nor top_k, a token uses one
    expert's width; with a law whose runs were not built like the paper's, they are built like those runs."""
    own = law.shaped(shape["vocab_size"], shape["width_per_block"])
    if own.counts_routed_experts:
        own = dataclasses.replace(own, **shape)
        wanted = used if used and law.reads_used else [own.active_width]
        narrow = [max(own.shared + 1, round(u * own.granularity)) for u in wanted]
        return [dataclasses.replace(own, active_width=n / own.granularity) for n in dict.fromkeys(narrow)]
    most = law.ranges.get("shared_share", (0, 1))[1] if "shared_share" in law.form.columns else 0
    used = used if used and law.reads_used else (1.0,)
    splits = [shape["granularity"]] if "granularity" in shape else _splits(law)
    return [
        dataclasses.replace(Architecture(granularity=k, shared=s, active_width=u), **shape)
        for u in used
        for k in splits
        for s in ([shape["shared"]] if "shared" in shape else _shared_of(u * k))
        if "shared" in shape or (s <= most * u * k and float(u * k).is_integer())
    ]


def _shared_of(chosen: float) -> Sequence[int]:
    """How many of the experts that a token uses may be shared: all numbers, or MOST_SHARED of them, evenly spaced."""
    numbers = range(math.ceil(chosen))
    step = math.ceil(len(numbers) / MOST_SHARED)
    return numbers[::step]


def _best(
    law: Law,
    shape: Json,
    constraints: Constraints,
    experts: Array,
    used: Sequence[float] | None = None,
    timed: ByTime | None = None,
) -> tuple[optimum.Optima | None, Architecture, int, Constraints]:
    """(Optima, Architecture, index, its constraints) of the law's least loss; no Optima where nothing is feasible."""
    architectures = _choices(law, shape, used)
    found = None
    for architecture in architectures:
        if timed:
            constraints = timed.of(law, architecture, experts)
        solved = optimum.solve(law, experts[architecture.has_enough_experts(experts)], architecture, constraints)
        if solved.feasible.any():
            i = int(np.nanargmin(solved.loss))
            if found is None or solved.loss[i] < found[0].loss[found[2]]:
                found = solved, architecture, i, constraints
    return found or (None, architectures[0], 0, constraints)


def _dense(law: Law, shape: Json, constraints: Constraints, loss: float, timed: ByTime | None = None) -> Json | None:
    """The best dense model by the law, or by the dense law of the same paper; None where none is feasible. flops_ratio,
    by the clock hours_ratio: the FLOPs or hours at which a dense model reaches `loss`, over those given; None where no
    budget is enough."""
    if not law.knows_dense:
        return None
    dense_law = load(law.record["dense"]) if law.published and "dense" in law.record else law
    found, architecture, i, constraints = _best(dense_law, shape, constraints, np.array([1.0]), None, timed)
    if found is None:
        return None
    row: Json = found.row(i) | dict(law=dense_law.name)
    row |= dict(loss_saved_share=1 - loss / row["loss"])
    if constraints.has_budget:
        needed = target.least_flops(dense_law, 1.0, architecture, constraints, loss)
        ratio = needed and needed / constraints.amount
        row |= dict(flops_ratio=ratio) if timed is None else dict(hours_ratio=ratio)
    return row


def counted(rows: list[Json]) -> list[Json]:
    """The answers that count: those at most FURTHEST times beyond the compute that their law was fitted to."""

    def beyond(row: Json) -> float:
        outside = [o for o in row["extrapolation"] if o["column"] == "training_flops" and o["value"] > o["high"]]
        return max((o["factor"] for o in outside), default=1.0)

    return [row for row in rows if beyond(row) <= FURTHEST]


def conclusion(rows: list[Json]) -> list[str]:
    """What the laws together say, in sentences; rows: the answers of all laws."""
    votes = counted(rows)
    lines = []
    for row in rows:
        if row not in votes:
            lines.append(sentences.NOT_COUNTED_LAW.format(law=row["law"], furthest=f"{FURTHEST:,.0f}"))
    mixtures = [row for row in votes if row["mixtures"] and row["dense"]]
    if mixtures:
        saved = [row["dense"]["loss_saved_share"] for row in mixtures]
        for_mixtures = sum(row["n_experts"] > 1 for row in mixtures)
        words = dict(count=len(mixtures), for_mixtures=for_mixtures, least=min(saved), most=max(saved))
        lines.append(say(sentences.LAWS_PREFER, **words))
    best = [answer for answer in agreement(votes) if answer["of"] == "best" and answer["limit"] is None]
    apart = [say(sentences.LAWS_SPAN, **answer) for answer in best if not answer["agree"]]
    near = [say(sentences.LAWS_SPAN, **answer) for answer in best if answer["agree"]]
    if apart:
        lines.append(sentences.LAWS_DISAGREE.format(what="; ".join(apart)))
    if near:
        lines.append(sentences.LAWS_AGREE.format(agree=AGREE, what="; ".join(near)))
    return lines


def agreement(rows: list[Json]) -> list[Json]:
    """How far the laws' answers lie apart: a list of {of, column, low, high, low_law, high_law, factor, agree, limit}.

    of "best": the best models of the laws of mixtures; for n_experts, only of the laws that chose it. of "dense": every
    law's best dense model. limit: what fixed all these answers, so that they show no agreement: "memory" for n_total,
    "experts" (those compared) for n_experts; else None. A column is left out where fewer than two laws answer.
    """
    mixtures = [row for row in rows if row["mixtures"]]
    dense = [row["dense"] | dict(law=row["law"]) for row in rows if row["dense"]]
    free = [row for row in mixtures if row["chose_experts"]]
    asked = [("best", name, mixtures) for name in ("n_active", "n_total", "n_tokens")]
    asked += [("best", "n_experts", free), ("dense", "n_active", dense), ("dense", "n_tokens", dense)]
    out = []
    for of, name, models in asked:
        if len(models) < 2:
            continue
        low, *_, high = sorted(models, key=operator.itemgetter(name))
        by_memory = name == "n_total" and all(row["size_bound"] == "memory" for row in models)
        by_experts = name == "n_experts" and all(row["at_edge"] for row in models)
        ends = dict(low=low[name], high=high[name], low_law=low["law"], high_law=high["law"])
        found = dict(factor=high[name] / low[name], agree=bool(high[name] <= AGREE * low[name]))
        limit = "memory" if by_memory else "experts" if by_experts else None
        out.append(dict(of=of, column=name) | ends | found | dict(limit=limit))
    return out


def leverage(activation: Numbers, granularity: Numbers, flops: Numbers) -> Numbers:
    """Efficiency leverage, Tian et al. (2025, arXiv 2507.17702): how many times the FLOPs of a mixture a dense model
    needs for the mixture's loss, each of its best size. Numbers or arrays that broadcast.

      EL(A, G, C) = Â^(a + d log C + gamma (log G)^2 + beta log G)    (Eq. 13)
      1/Â = 1/(A + 1/(1/A_start - 1/A_max)) + 1/A_max

    A = (top_k + n_shared) / (n_experts + n_shared) is the share of the experts that a token uses, G = 2 d_model /
    d_expert, C the training FLOPs without the embedding. It is not a law of the loss, so it plans nothing.

    The paper does not print the bases of its logarithms. With log10 C and log2 G its own check holds (more than 7 at A
    = 3.1%, G = 12, 1e22 FLOPs: 7.2), and so does its best granularity of about 12 (2^(-beta / 2 gamma) = 11.3). With
    natural logarithms of both neither does.
    """
    c = LEVERAGE
    scale = 1 / (1 / (activation + 1 / (1 / c["A_start"] - 1 / c["A_max"])) + 1 / c["A_max"])
    g = np.log2(granularity)
    return scale ** (c["a"] + c["d"] * np.log10(flops) + c["gamma"] * g**2 + c["beta"] * g)


def leverage_of_split(n_experts: float, split: float, flops: float, used: float = 1) -> Json:
    """{leverage, outside: what lies outside the paper's runs} of a mixture of n_experts experts as wide as a dense
    layer of 3 d_model, each split into `split`, of which a token uses `used` times as many."""
    asked = dict(activation=used / n_experts, granularity=2 * split / 3, flops=flops)
    outside = [name for name, value in asked.items() if not LEVERAGE_OF[name][0] <= value <= LEVERAGE_OF[name][1]]
    return dict(leverage=float(leverage(**asked)), outside=outside)
