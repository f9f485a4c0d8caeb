"""A plan: the optima under constraints, the best model that can be built, and what it saves against a dense one.

plan_text.py tells it to people, plan_config.py makes a training config of it.
"""

import dataclasses
import math

import numpy as np
from absl import flags

from fit import UserError, marks, optimum, recipe
from fit import architecture as architecture_lib
from fit.architecture import FLOPS_PER_PARAMETER_INFERENCE as INFERENCE
from fit.architecture import FLOPS_PER_PARAMETER_TRAINING as TRAINING

LARGEST = 1e40  # of any amount that a flag gives
SEQUENCE = 512  # tokens of context in training, for the exact FLOPs, where the law does not tell


def define_flags(f):
    """The flags of a plan; shared by plan and report."""
    flags.DEFINE_float(
        "flops", None, "Training FLOPs (6 n_active n_tokens), shared with --inference_tokens.", flag_values=f
    )
    flags.DEFINE_float(
        "memory_gb", None, "Memory of one device in GB (1e9 bytes), for weights and cache.", flag_values=f
    )
    flags.DEFINE_integer("devices", 1, "Devices that share weights and cache.", lower_bound=1, flag_values=f)
    flags.DEFINE_float("bytes_per_parameter", 2, "2 is bfloat16.", flag_values=f)
    flags.DEFINE_float("kv_tokens", 0, "Tokens in the key-value cache, over all sequences.", flag_values=f)
    flags.DEFINE_float("bytes_per_kv_element", 2, "2 is bfloat16.", flag_values=f)
    flags.DEFINE_float(
        "inference_tokens",
        0,
        "Tokens to serve over the model's life, at 2 n_active FLOPs each, out of --flops.",
        flag_values=f,
    )
    flags.DEFINE_float("max_tokens", None, "Training tokens that there are.", flag_values=f)
    flags.DEFINE_list("experts", None, "Numbers of experts allowed. Default: those fitted.", flag_values=f)
    architecture_lib.define_flags(f)


def positive(f, name, zero=False):
    """The flag's value, None as it is; UserError unless it is a positive finite number (or 0 where zero)."""
    value = f[name].value
    if value is not None and not (1e-12 <= value <= LARGEST or (zero and value == 0)):
        raise UserError(
            f"--{name}={value:g}: expected a {'non-negative' if zero else 'positive'} number up to {LARGEST:g}"
        )
    return value


def positive_list(f, name):
    """The flag's values as numbers, which must be positive; UserError otherwise."""
    numbers = []
    for text in f[name].value:
        try:
            numbers.append(float(text))
        except ValueError:
            numbers.append(math.nan)
        if not 1e-12 <= numbers[-1] <= LARGEST:
            raise UserError(f"--{name}: found {text!r}, expected positive numbers separated by commas")
    return numbers


def parse_experts(f):
    """The numbers of experts of --experts, sorted; UserError unless whole numbers from 1 up."""
    numbers = positive_list(f, "experts")
    if not numbers or any(e != int(e) or e > 1e6 for e in numbers):
        raise UserError(
            f"--experts={','.join(f.experts)}: expected whole numbers from 1 to 1000000, separated by commas"
        )
    return sorted({int(e) for e in numbers})


def experts_of(f, fitted):
    """The numbers of experts of --experts, else those that the law was fitted to.

    UserError unless whole numbers from 1 up, and 1 alone for a law of dense models.
    """
    if f.experts is None:
        return fitted.experts
    asked = parse_experts(f)
    if not fitted.knows_experts and asked != [1]:
        raise UserError(f"--experts={','.join(f.experts)}: --law={fitted.name} is a law of dense models")
    return asked


def constraints_of(f):
    """The Constraints that the flags ask for; UserError where one is out of range."""
    memory = positive(f, "memory_gb")
    if f.max_tokens is not None and f.max_tokens < 1:
        raise UserError(f"--max_tokens={f.max_tokens:g}: expected at least 1 token")
    return optimum.Constraints(
        flops=positive(f, "flops"),
        memory_bytes=None if memory is None else memory * 1e9 * f.devices,
        bytes_per_parameter=positive(f, "bytes_per_parameter"),
        kv_tokens=positive(f, "kv_tokens", zero=True),
        bytes_per_kv_element=positive(f, "bytes_per_kv_element"),
        inference_tokens=positive(f, "inference_tokens", zero=True),
        max_tokens=positive(f, "max_tokens"),
    )


def plan(fitted, architecture, constraints, experts):
    """The whole plan as a dictionary of plain numbers, ready for JSON. Raises UserError if nothing is feasible."""
    found = optimum.optima(fitted, architecture, constraints, experts)
    low, high = optimum.near_optimal(fitted, architecture, constraints, found)
    rows, out = [], []
    for i, e in enumerate(found.n_experts):
        if not found.feasible[i]:
            out.append(dict(n_experts=int(e), why=optimum.why_infeasible(architecture, constraints, e)))
            continue
        row = dict(
            n_experts=int(e),
            n_active=float(found.n_active[i]),
            n_total=float(found.n_total[i]),
            n_tokens=float(found.n_tokens[i]),
            loss=float(found.loss[i]),
            d_model=float(found.d_model[i]),
            size_bound=str(found.size_bound[i]),
            memory_bytes=float(optimum.memory_bytes(architecture, constraints, found.d_model[i], e)),
            training_flops=float(TRAINING * found.n_active[i] * found.n_tokens[i]),
            inference_flops_per_token=float(INFERENCE * found.n_active[i]),
            near_optimal_n_active=[float(low[i]), float(high[i])] if np.isfinite(low[i]) else None,
        )
        rows.append(marks.marked(fitted, row))
    best = min(rows, key=lambda row: row["loss"])
    result = dict(
        law=fitted.name,
        form=fitted.form,
        **dataclasses.asdict(architecture),
        constraints={k: v for k, v in vars(constraints).items() if v is not None},
        optima=rows,
        infeasible=out,
        best=best,
        buildable=buildable(fitted, architecture, constraints, found),
    )
    if fitted.draws:
        result["bootstrap"] = bootstrap(fitted, architecture, constraints, found.n_experts)
    if constraints.max_tokens is not None and constraints.flops is not None:
        free = optimum.optima(fitted, architecture, dataclasses.replace(constraints, max_tokens=None), experts)
        result["loss_of_token_cap"] = best["loss"] - float(np.nanmin(free.loss))
    if constraints.flops is not None:
        result["dense"] = against_dense(fitted, architecture, constraints, best)
        asked = optimum.allowed_experts(fitted, experts)
        result["rule_of_thumb"] = [
            marks.marked(fitted, row) for row in optimum.rule_of_thumb(fitted, architecture, constraints.flops, asked)
        ]
    result["base_config"], result["overrides"] = recipe.base_config(fitted, architecture)
    return result | marks.of_plan(fitted, architecture, result, experts)


def bootstrap(fitted, architecture, constraints, experts):
    """The plan solved again for each draw: intervals at each number of experts, and how often each is the best."""
    usable, per_experts = None, []
    for e in experts:
        per_experts.append(np.broadcast_arrays(*fitted.law.at_experts(fitted.draws, e)))
        fine = (per_experts[-1][1] < 0) & (per_experts[-1][3] < 0)
        usable = fine if usable is None else usable & fine
    if not usable.any():
        return None
    solved = [
        optimum.solve([v[usable] for v in reduced], e, architecture, constraints)
        for reduced, e in zip(per_experts, experts)
    ]
    losses = np.stack([np.where(s.feasible, s.loss, np.inf) for s in solved])
    best = np.argmin(losses, axis=0)
    rows = [
        dict(n_experts=int(e), best_in_draws=int(np.sum(best == i)))
        | {
            name: np.percentile(getattr(s, name), fitted.percentiles, method="weibull").tolist()
            for name in ("n_active", "n_tokens", "loss")
        }
        for i, (e, s) in enumerate(zip(experts, solved))
        if s.feasible.all()
    ]
    return dict(
        form=fitted.record["bootstrap"]["form"],
        percentiles=fitted.percentiles,
        by=fitted.record["bootstrap"].get("by", "runs"),
        draws=int(usable.sum()),
        draws_without_optimum=int((~usable).sum()),
        optima=rows,
    )


def buildable(fitted, architecture, constraints, found):
    """The best model of whole blocks: each number of experts with the depths around its optimum. None if none fits."""
    best, sequence = None, fitted.models["seq_len"] or SEQUENCE
    base, _ = recipe.base_config(fitted, architecture)
    for i in np.flatnonzero(found.feasible):
        blocks = found.d_model[i] / architecture.width_per_block
        below = math.floor(blocks + 1e-9)
        for n_blocks in {max(1, below - 1), max(1, below), math.ceil(blocks - 1e-9)}:  # below by 1 if norms do not fit
            model = architecture_lib.Model(architecture, n_blocks, int(found.n_experts[i]))
            memory = constraints.bytes_per_parameter * model.exact_parameters
            memory += constraints.bytes_per_kv_element * model.kv_elements(constraints.kv_tokens)
            n_tokens = math.floor(optimum.tokens(constraints, model.n_active))
            if (constraints.memory_bytes is not None and memory > constraints.memory_bytes) or n_tokens < 1:
                continue
            m, mu, n, nu, c = fitted.at_experts(model.n_experts)
            loss = float(m * model.n_active**mu + n * float(n_tokens) ** nu + c)
            if best is None or loss < best["loss"]:
                best = dict(
                    n_experts=model.n_experts,
                    d_model=model.d_model,
                    n_blocks=n_blocks,
                    n_heads=n_blocks,
                    d_ff=3 * model.d_model,
                    vocab_size=architecture.vocab_size,
                    n_active=model.n_active,
                    n_total=model.n_total,
                    exact_parameters=model.exact_parameters,
                    n_tokens=n_tokens,
                    loss=loss,
                    memory_bytes=float(memory),
                    training_flops=TRAINING * model.n_active * n_tokens,
                    sequence=sequence,
                    exact_forward_flops_per_token=model.exact_flops_per_token(sequence),
                    exact_training_flops=3 * model.exact_flops_per_token(sequence) * n_tokens,
                )
    if best:
        best["learning_rate"], best["learning_rate_from"] = recipe.learning_rate(
            fitted, base, best["n_active"], best["n_experts"]
        )
        ramp = [list(step) for step in architecture_lib.BATCH_RAMP if step[0] < best["n_tokens"]]
        best["batch_tokens"] = ramp if base == recipe.PAPERS_CONFIG else None
        best = marks.marked(fitted, best)
    return best


def against_dense(fitted, architecture, constraints, best):
    """What the best plan saves against the best dense model under the same constraints (Fig. 2b)."""
    dense = optimum.solve(fitted.at_experts(1.0), 1.0, architecture, constraints)
    if not dense.feasible:
        return None
    needed = optimum.flops_of_dense(fitted, architecture, constraints, best["loss"])
    row = dict(n_experts=1, n_active=float(dense.n_active), n_tokens=float(dense.n_tokens), loss=float(dense.loss))
    return marks.marked(fitted, row) | dict(
        loss_saved=float(dense.loss) - best["loss"],
        flops_for_the_same_loss=needed,
        flops_saved=None if needed is None else 1 - constraints.flops / needed,
        inference_flops_ratio=best["n_active"] / float(dense.n_active),
    )


def rounded(x):
    """x to two significant digits, for budgets that people read."""
    return float(f"{x:.1e}")
