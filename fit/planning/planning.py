"""A plan: the optima under constraints, the best model that can be built, what it saves against a dense one, and what
to know before trusting it. plan_text.py puts it into words, plan_config.py makes a training config of it.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np

from fit.aliases import ByName, Floats, Json
from fit.data.runs import unlikely
from fit.fitted_law import models
from fit.fitted_law.law import Law, warning_of
from fit.messages import sentences
from fit.messages.units import say
from fit.planning import building, optimum, recipe, startable, target, verdict
from fit.planning.constraints import Constraints
from fit.shape import hardware
from fit.shape.architecture import INFERENCE, PAPER, WHOLE_EXPERTS, Architecture, training_flops

FORMS_APART, LOSSES_APART = 1.25, 0.01  # of both forms' medians: a factor of size, a difference of ln loss
DECIDED = 0.8  # share of the draws in which the best number of experts must be the best


def plan(
    law: Law,
    architecture: Architecture,
    constraints: Constraints,
    experts: Floats,
    shapes: startable.Shapes | None = None,
) -> Json:
    """The plan as a dictionary of plain numbers, ready for JSON. Raises UserError if nothing is feasible.

    shapes: what the buildable model's shape and mesh are to be; None for the paper's shapes.
    """
    optima = optimum.optima(law, architecture, constraints, experts)
    low, high = optimum.near_optimal(law, architecture, constraints, optima)
    rows, out = [], []
    for i, e in enumerate(optima.n_experts):
        if not optima.feasible[i]:
            out.append(dict(n_experts=int(e), why=optimum.why_infeasible(architecture, constraints.at(e), e)))
            continue
        row = optima.row(i, ("n_active", "n_total", "n_tokens", "loss", "d_model")) | dict(
            size_bound=str(optima.size_bound[i]),
            memory_bytes=float(constraints.memory(architecture, optima.d_model[i], e)),
            training_flops=float(training_flops(optima.n_active[i], optima.n_tokens[i])),
            inference_flops_per_token=float(INFERENCE * optima.n_active[i]),
            near_optimal_n_active=[float(low[i]), float(high[i])] if np.isfinite(low[i]) else None,
        )
        rows.append(marked(law, row, architecture))
    best = min(rows, key=lambda row: row["loss"])
    built, planned = buildable(law, architecture, constraints, rows, best, shapes)
    if built:
        built |= loss_interval(law, built, architecture)
    result = dict(
        law=law.name,
        form=law.form.name,
        **architecture.to_json(),
        constraints=constraints.to_json(),
        optima=rows,
        infeasible=out,
        best=best,
        buildable=built,
    )
    fresh = getattr(law, "fresh", law)  # of a law of repeated text, the same of text without end
    drawn = None
    if law.draws:
        drawn = bootstrap(law, architecture, constraints, optima.n_experts, best["n_experts"])
        result["bootstrap"] = drawn
    result["verdict"] = verdict.of_plan(rows, best, drawn)
    if constraints.max_tokens is not None and constraints.has_budget:
        uncapped = dataclasses.replace(constraints, max_tokens=None)
        free = optimum.optima(fresh, architecture, uncapped, experts)
        result["loss_of_token_cap"] = best["loss"] - float(np.nanmin(free.loss))
    if constraints.has_budget and law.knows_dense and not law.record.get("dense"):  # else by another law, or none
        result["dense"] = against_dense(law, architecture, constraints, best)
    if "dense" in result and constraints.clock is None:
        flops = constraints.at(best["n_experts"]).flops
        rows = rule_of_thumb(fresh, architecture, flops, optima.n_experts)
        result["rule_of_thumb"] = [marked(law, row, architecture) for row in rows]
    base, overrides = recipe.runs_config(law, architecture == PAPER)
    if planned:
        base, overrides = planned.base_config, planned.overrides
    result |= dict(base_config=base, overrides=overrides)
    return result | marks(law, architecture, constraints, result, experts, planned)


def bootstrap(
    law: Law, architecture: Architecture, constraints: Constraints, experts: Floats, planned: float
) -> Json | None:
    """The plan solved again for each draw: intervals at each number of experts, and how often each is the best.

    planned: the number of experts of the plan's best. behind: the interval of how far each lies above it, in nats, in
    the same draw; regret: the upper percentile of how far it lies above the best of its draw.
    """
    usable = optimum.usable_draws(law, experts)
    if not usable.any():
        return None
    draws = {name: values[usable] for name, values in (law.draws or {}).items()}
    solved = [optimum.solve(law, e, architecture, constraints.at(e), draws) for e in experts]
    losses = np.array([np.where(s.feasible, s.loss, np.inf) for s in solved])
    best = np.argmin(losses, axis=0)
    chosen = losses[list(experts).index(planned)]
    rows = []
    for i, s in enumerate(solved):
        if s.feasible.all():
            # the form's own error is the same for all numbers of experts: it widens the losses, and changes no best one
            drifted = s.loss * np.exp(law.log_change(training_flops(s.n_active, s.n_tokens), usable))
            columns = dict(n_active=s.n_active, n_tokens=s.n_tokens, loss=drifted)
            ends = np.percentile(list(columns.values()), law.percentiles, axis=1, method="weibull").T.tolist()
            behind = np.percentile(losses[i] - chosen, law.percentiles, method="weibull").tolist()
            row = dict(n_experts=int(experts[i]), best_in_draws=int(np.sum(best == i)), behind=behind)
            row |= dict(zip(columns, ends))
            if by_form := medians_by_form(draws, columns):
                row["forms"] = by_form
            rows.append(row)
    return dict(
        form=law.record["bootstrap"]["form"],
        percentiles=law.percentiles,
        by=law.record["bootstrap"].get("by", "runs"),
        draws=int(usable.sum()),
        draws_without_optimum=int((~usable).sum()),
        regret=float(np.percentile(chosen - losses.min(axis=0), law.percentiles[1], method="weibull")),
        optima=rows,
    )


def medians_by_form(draws: ByName, columns: ByName) -> Json | None:
    """{additive, coupled: {draws, and the median of each column}} of draws of both forms, those with k = 1 and the
    others; None where all are of one form. columns: {name: [n_draws]}."""
    if "k" not in draws:
        return None
    is_additive = np.asarray(draws["k"]) == 1
    if is_additive.all() or not is_additive.any():
        return None
    found = {}
    for name, part in (("additive", is_additive), ("coupled", ~is_additive)):
        medians = {column: float(np.median(np.asarray(values)[part])) for column, values in columns.items()}
        found[name] = dict(draws=int(part.sum())) | medians
    return found


def disagreement(drawn: Json, n_experts: float) -> str:
    """A sentence where the additive and the coupled draws' medians of the best model at this number of experts differ
    by FORMS_APART in size, or in loss by more than LOSSES_APART; else ""."""
    row = next((row for row in drawn["optima"] if row["n_experts"] == n_experts), {})
    if "forms" not in row:
        return ""
    additive, coupled = row["forms"]["additive"], row["forms"]["coupled"]
    sizes = abs(np.log(additive["n_active"] / coupled["n_active"]))
    losses = abs(np.log(additive["loss"] / coupled["loss"]))
    if sizes < np.log(FORMS_APART) and losses < LOSSES_APART:
        return ""
    values = {f"additive_{name}": value for name, value in additive.items()}
    values |= {f"coupled_{name}": value for name, value in coupled.items()}
    return say(sentences.FORMS_DISAGREE, draws=drawn["draws"], **values)


def buildable(
    law: Law,
    architecture: Architecture,
    constraints: Constraints,
    optima: list[Json],
    best: Json,
    shapes: startable.Shapes | None = None,
) -> tuple[Json | None, recipe.Recipe | None]:
    """The model of whole blocks and heads to build, with exact counts, and the recipe to train it by. None if none
    fits. loss_of_building: by how much its loss is above the best optimum's."""
    if shapes and best["d_model"] >= hardware.NARROW:
        built, planned = startable.buildable(law, architecture, constraints, optima, best, shapes)
        return built and marked(law, built, architecture), planned
    found = building.nearest(law, architecture, constraints, optima, best)
    if found is None:
        return None, None
    loss, model, n_tokens, memory = found
    planned = recipe.recipe_of(law, model, n_tokens)
    forward = model.exact_flops_per_token(planned.sequence)
    row = dict(
        n_experts=model.n_experts,
        **model.shape,
        n_active=model.n_active,
        n_total=model.n_total,
        exact_parameters=planned.exact_parameters(model),
        n_tokens=n_tokens,
        loss=loss,
        loss_of_building=loss - best["loss"],
        memory_bytes=memory,
        training_flops=training_flops(model.n_active, n_tokens),
        exact_forward_flops_per_token=forward,
        exact_training_flops=3 * forward * n_tokens,
        **planned.row(),
    )
    return marked(law, row, architecture), planned


def loss_interval(law: Law, built: Json, architecture: Architecture) -> Json:
    """loss_interval: [low, high] of the loss of the buildable model, by the law's draws; None for a law without draws
    or of repeated text. interval_of_a_run: whether the run's own noise is in it, as where the law knows that."""
    if not law.draws or hasattr(law, "fresh"):
        return dict(loss_interval=None, interval_of_a_run=False)
    less = 0 if law.counts_embedding else built["d_model"] * architecture.embedding_and_head_rows
    columns = architecture.structure(built.get("law_experts", built["n_experts"])) | dict(
        n_active=built["n_active"] - less, n_total=built["n_total"] - less, n_tokens=built["n_tokens"]
    )
    columns = {name: columns[name] for name in dict.fromkeys((*law.form.columns, "n_active", "n_tokens"))}
    of_a_run = law.noise is not None
    ends = law.predict_interval(**columns, new_run=of_a_run)
    return dict(loss_interval=[float(end) for end in ends], interval_of_a_run=of_a_run)


def against_dense(law: Law, architecture: Architecture, constraints: Constraints, best: Json) -> Json | None:
    """What the best plan saves against the best dense model under the same constraints (Fig. 2b), FLOPs
    included; by the clock, hours instead of FLOPs."""
    constraints = constraints.at(best["n_experts"])
    dense = optimum.solve(law, 1.0, architecture, constraints)
    if not dense.feasible:
        return None
    needed = constraints.amount  # of the best itself, whose loss rounding may leave just out of reach
    if best["n_experts"] > 1:
        needed = target.least_flops(law, 1.0, architecture, constraints, best["loss"])
    saved = None if needed is None else 1 - constraints.amount / needed
    if constraints.clock is None:
        against = dict(flops_for_the_same_loss=needed, flops_saved=saved)
    else:
        against = dict(hours_for_the_same_loss=needed, hours_saved=saved)
    return marked(law, dense.row(), architecture) | dict(
        loss_saved=float(dense.loss) - best["loss"],
        **against,
        inference_flops_ratio=best["n_active"] / float(dense.n_active),
    )


def rule_of_thumb(law: Law, architecture: Architecture, flops: float, experts: Floats) -> list[Json]:
    """Checks Sec. 4.5: an MoE of E <= 8 with the compute-optimal dense model's total parameters, on E times its tokens,
    is better. Returns one dictionary for each E of `experts` from 2 to 8."""
    dense = optimum.solve(law, 1.0, architecture, Constraints(flops=flops))
    rows, same_size = [], Constraints(memory_bytes=float(dense.n_total), bytes_per_parameter=1.0)
    for e in (e for e in experts if 1 < e <= 8):
        on_more = dataclasses.replace(same_size, max_tokens=float(e * dense.n_tokens))
        moe = optimum.solve(law, e, architecture, on_more)
        if moe.feasible:
            spent = training_flops(moe.n_active, moe.n_tokens)
            against = dict(dense_loss=float(dense.loss), holds=bool(moe.loss < dense.loss))
            rows.append(moe.row() | against | dict(flops_ratio=float(spent / flops)))
    return rows


def marked(law: Law, row: Json, architecture: Architecture) -> Json:
    """The row plus `extrapolation`: its values outside what the law was fitted to, as Law.extrapolation lists them."""
    n_total = row.get("n_total")
    if n_total and not law.counts_embedding:
        n_total -= row["d_model"] * architecture.embedding_and_head_rows
    more = architecture.structure(row.get("law_experts", row["n_experts"])) | dict(
        n_total=n_total, n_active=row["n_active"]
    )
    return row | dict(extrapolation=law.extrapolation(n_tokens=row["n_tokens"], **more))


def marks(
    law: Law,
    architecture: Architecture,
    constraints: Constraints,
    plan: Json,
    experts: Floats,
    planned: recipe.Recipe | None,
) -> Json:
    """What to know before trusting the best row: its values outside what was fitted (extrapolation), whether its number
    of experts is the largest or smallest compared (best_at_edge) or left undecided by the draws (best_undecided, None
    without draws, or where no others are compared); and all this in sentences (warnings)."""
    best, warnings = plan["best"], []
    e = best["n_experts"]
    if best["extrapolation"]:
        warnings.append(sentences.BEST_OUTSIDE.format(outside=warning_of(best["extrapolation"])))
        warnings += [law.warning] if law.warning else []
    if odd := unlikely(best):
        warnings.append(odd)
    edge = law.knows_experts and at_edge(experts, e)
    if edge:
        warnings.append(sentences.AT_EDGE.format(e=e, which="largest" if e == max(experts) else "smallest"))
        if e == max(experts) and not_bounded(law, architecture, constraints.at(e)):
            warnings.append(sentences.NOT_BOUNDED)
    undecided, drawn = None, plan.get("bootstrap")
    if drawn and len(optimum.allowed_experts(law, experts)) > 1:
        often = sorted(drawn["optima"], key=lambda row: -row["best_in_draws"])
        undecided = sum(row["best_in_draws"] for row in often if row["n_experts"] == e) < DECIDED * drawn["draws"]
        if undecided:
            wins = ", ".join(sentences.WIN.format(**row) for row in often if row["best_in_draws"])
            warnings.append(sentences.UNDECIDED.format(draws=drawn["draws"], wins=wins))
    if drawn and (apart := disagreement(drawn, e)):
        warnings.append(apart)
    warnings += assumed(law, architecture)
    if not law.ranges:
        warnings.append(sentences.NO_RANGE)
    unknown = [name for name in ("vocab_size", "width_per_block") if law.models[name] is None]
    if unknown and architecture == PAPER:
        values = " and ".join(f"{getattr(architecture, name):,}" for name in unknown)
        warnings.append(sentences.SHAPE_UNKNOWN.format(names=" and ".join(unknown), values=values))
    if planned:
        warnings += planned.warnings
    return dict(extrapolation=best["extrapolation"], best_at_edge=edge, best_undecided=undecided, warnings=warnings)


def assumed(law: Law, architecture: Architecture) -> Iterator[str]:
    """Sentences on what the law cannot know of these models: properties that differ from its own models' and are not in
    its columns; and on properties in which its own runs differ."""
    own = law.shaped(architecture.vocab_size, architecture.width_per_block)
    flags = dict(active_width="used", kv_share="kv_share", n_dense="dense_blocks")
    if law.reads_used:
        del flags["active_width"]
    both = [(flag, getattr(architecture, name), getattr(own, name)) for name, flag in flags.items()]
    if other := [values for values in both if values[1] != values[2]]:
        yield sentences.NOT_READ.format(
            asked=", ".join(f"--{flag}={value:g}" for flag, value, _ in other),
            form=law.form.name,
            own=", ".join(f"{flag} {value:g}" for flag, _, value in other),
            columns=", ".join(law.form.columns),
        )
    whole = [name for name in WHOLE_EXPERTS if name in law.form.columns]
    if whole and not law.models["architecture"] and max(law.experts) > 1:
        values = ", ".join(f"{name} {architecture.structure(2)[name]:g}" for name in whole)
        yield sentences.WHOLE_EXPERTS.format(form=law.form.name, columns=" and ".join(whole), values=values)
    yield from models.architecture_notes(law.models)


def at_edge(experts: Floats, e: float) -> bool:
    """Whether e is the largest or the smallest of several numbers of experts, and there may be others beyond it."""
    return bool(len(experts) > 1 and (e == max(experts) or e == min(experts) > 1))


def not_bounded(law: Law, architecture: Architecture, constraints: Constraints) -> bool:
    """Whether, without a limit on memory, the loss still falls at numbers of experts far beyond any that can be built.

    False for laws with a closed form. By the clock, too: such models are not timed.
    """
    if law.closed_form or constraints.memory_bytes is not None or law.fixes_experts or constraints.clock is not None:
        return False
    many, more = optimum.solve(law, np.array([1e6, 1e7]), architecture, constraints).loss
    return bool(more < many * (1 - optimum.BAND))
