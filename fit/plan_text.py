"""A plan in words: a table, and what follows from it."""

from fit import summary
from fit.law import in_words, warning_of
from fit.units import amount, memory


def text(plan):
    """The plan that plan.plan made, as text."""
    parts = [_optima(plan)]
    if plan.get("bootstrap"):
        parts.append(_bootstrap(plan["bootstrap"]))
    if plan["buildable"]:
        parts.append(_buildable(plan["buildable"]))
    if compared := [*_against_dense(plan), *map(_rule_of_thumb, plan.get("rule_of_thumb", []))]:
        parts.append("\n".join(compared))
    if plan["warnings"]:
        parts.append("\n".join(f"warning: {sentence}" for sentence in plan["warnings"]))
    return "\n\n".join(parts)


def _optima(plan):
    """One line for each number of experts. What of it lies outside the fitted range stands at its end, but for the
    FLOPs: they are those asked for, and the warning below tells them."""
    outside = [in_words([o for o in row["extrapolation"] if o["column"] != "training_flops"]) for row in plan["optima"]]
    lines = [
        f"{'n_experts':>9} {'n_active':>9} {'n_total':>9} {'n_tokens':>9} {'loss':>8} {'memory':>9}  "
        f"{'n_active within 0.1% of the best':33} {'size bound by':13}"
        f"{' outside the fitted range' * any(outside)}".rstrip()
    ]
    for row, words in zip(plan["optima"], outside):
        near = row["near_optimal_n_active"]
        lines.append(
            f"{row['n_experts']:9d} {amount(row['n_active']):>9} {amount(row['n_total']):>9} "
            f"{amount(row['n_tokens']):>9} {row['loss']:8.4f} {memory(row['memory_bytes']):>9}  "
            f"{' to '.join(map(amount, near)) if near else '-':33} {row['size_bound'] or '-':13} "
            f"{words}{' <- best' if row is plan['best'] else ''}".rstrip()
        )
    lines += [f"{row['n_experts']:9d} not feasible: {row['why']}" for row in plan["infeasible"]]
    return "\n".join(lines)


def _bootstrap(b):
    often = max(b["optima"], key=lambda row: row["best_in_draws"])
    low, high = b["percentiles"]
    lines = [
        f"E = {often['n_experts']} is the best in {often['best_in_draws']} of {b['draws']} bootstrap fits; "
        f"{low:g}th to {high:g}th percentile ({summary.drawn(b)}):"
    ]
    for row in b["optima"]:
        lines.append(
            f"{row['n_experts']:9d} n_active {' to '.join(map(amount, row['n_active'])):16} n_tokens "
            f"{' to '.join(map(amount, row['n_tokens'])):16} loss {row['loss'][0]:.4f} to {row['loss'][1]:.4f}, best in "
            f"{row['best_in_draws']}"
        )
    return "\n".join(lines)


def _buildable(built):
    rate = built["learning_rate"]
    ramp = ", ".join(
        f"{tokens:,} tokens" + (f" from {amount(start)}" if start else "")
        for start, tokens in built["batch_tokens"] or []
    )
    return "\n".join(
        [
            f"buildable: n_experts {built['n_experts']}, d_model {built['d_model']}, {built['n_blocks']} blocks, "
            f"{built['n_heads']} heads, d_ff {built['d_ff']}, vocabulary {built['vocab_size']:,}; "
            f"{built['n_tokens']:,} tokens, loss {built['loss']:.4f}, {memory(built['memory_bytes'])}",
            f"  parameters {built['exact_parameters']:,} with norms and routers ({built['n_active']:,} active, "
            f"{built['n_total']:,} in total as the law counts)",
            f"  training FLOPs {built['training_flops']:.4g} as the law counts, "
            f"{built['exact_training_flops']:.4g} exactly ({built['sequence']} tokens of context)",
            f"  learning rate {f'{rate:.3e}' if rate else 'not known'} ({built['learning_rate_from']})"
            + (f"; batch {ramp}" if ramp else ""),
        ]
    )


def _against_dense(plan):
    """A line, or none where the best is dense itself."""
    dense = plan.get("dense")
    if dense and plan["best"]["n_experts"] > 1:
        saved = dense["flops_saved"]
        yield (
            f"against the best dense model (n_active {amount(dense['n_active'])}, {amount(dense['n_tokens'])} tokens, "
            f"loss {dense['loss']:.4f}): loss {dense['loss_saved']:.4f} lower, "
            + ("which no budget brings a dense model to" if saved is None else f"{saved:.0%} of its FLOPs saved")
            + f", {dense['inference_flops_ratio']:.0%} of its inference FLOPs per token"
            + _suffix(dense)
        )
    if "loss_of_token_cap" in plan:
        yield f"the cap on tokens costs {plan['loss_of_token_cap']:.4f} nats"


def _rule_of_thumb(row):
    return (
        f"rule of thumb, E = {row['n_experts']} of a compute-optimal dense model's size on E times its tokens: loss "
        f"{row['loss']:.4f} against {row['dense_loss']:.4f}, {'holds' if row['holds'] else 'does not hold'} "
        f"({row['flops_ratio']:.2f} of its FLOPs)" + _suffix(row)
    )


def _suffix(row):
    warning = warning_of(row["extrapolation"])
    return warning and f"; {warning}"
