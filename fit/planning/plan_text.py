"""A plan in words: a table, and what follows from it."""

from collections.abc import Iterator

from fit.aliases import Json
from fit.fitting import summary
from fit.lawbook.lawfile import in_words, warning_of
from fit.planning.compare_text import known_in_words
from fit.planning.cost import CHIPS
from fit.words import sentences
from fit.words.units import amount, duration, memory


def text(plan: Json) -> str:
    """The plan that planning.plan made, as text."""
    parts = [answer(plan), _optima(plan)]
    if known := plan.get("like"):
        parts.insert(0, "\n".join(known_in_words(known, known.get("laws", []))))
    if plan.get("bootstrap"):
        parts.append(_bootstrap(plan["bootstrap"]))
    if "architectures" in plan:
        parts.append(_architectures(plan))
    if plan["buildable"]:
        parts.append(_buildable(plan["buildable"]))
    if "chips" in plan:
        parts.append(_costs(plan))
    if "repeats" in plan:
        parts.append(_repeated(plan["repeats"], plan["best"]))
    if "target" in plan:
        parts += [_target(plan["target"], plan["constraints"]), _front(plan["target"]["front"])]
    if compared := [*_against_dense(plan), *_rules_of_thumb(plan)]:
        parts.append("\n".join(compared))
    if plan["warnings"]:
        parts.append("\n".join(f"warning: {sentence}" for sentence in plan["warnings"]))
    return "\n\n".join(parts)


def _optima(plan: Json) -> str:
    """One line for each number of experts. The end of a line names what lies outside the fitted range, except for the
    FLOPs: these are those asked for, and the warning below names them."""
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


def answer(plan: Json) -> str:
    """What to train and how sure its loss is, in a sentence."""
    best, drawn = plan["best"], plan.get("bootstrap")
    e, interval = best["n_experts"], ""
    row = drawn and next((row for row in drawn["optima"] if row["n_experts"] == e), None)
    if row:
        (low, high), (first, last) = row["loss"], drawn["percentiles"]
        interval = sentences.INTERVAL.format(low=low, high=high, first=first, last=last, draws=drawn["draws"])
    return sentences.ANSWER.format(
        model=sentences.MIXTURE.format(e=e) if e > 1 else sentences.DENSE,
        n_active=amount(best["n_active"]),
        total=sentences.TOTAL.format(n_total=amount(best["n_total"])) if e > 1 else "",
        n_tokens=amount(best["n_tokens"]),
        loss=best["loss"],
        interval=interval,
        built=_built(plan["buildable"], e),
    )


def _built(built: Json | None, n_experts: int) -> str:
    """What building costs in loss."""
    if built is None:
        return sentences.NOT_BUILT
    cost = built["loss_of_building"]
    sentence = sentences.BUILT if built["n_experts"] == n_experts else sentences.BUILT_OTHER
    return sentence.format(
        e=built["n_experts"],
        n_active=amount(built["n_active"]),
        n_tokens=amount(built["n_tokens"]),
        loss=built["loss"],
        cost=abs(cost),
        which="more" if cost >= 0 else "less",
    )


def _bootstrap(b: Json) -> str:
    often = max(b["optima"], key=lambda row: row["best_in_draws"])
    first, last = b["percentiles"]
    e, count, drawn = often["n_experts"], often["best_in_draws"], summary.drawn(b)
    lines = [
        sentences.BEST_IN_DRAWS.format(e=e, count=count, draws=b["draws"], first=first, last=last, drawn=drawn),
    ]
    for row in b["optima"]:
        lines.append(
            f"{row['n_experts']:9d} n_active {' to '.join(map(amount, row['n_active'])):16} n_tokens "
            f"{' to '.join(map(amount, row['n_tokens'])):16} loss {row['loss'][0]:.4f} to {row['loss'][1]:.4f}, "
            f"best in {row['best_in_draws']}"
        )
    return "\n".join(lines)


def _buildable(built: Json) -> str:
    rate = built["learning_rate"]
    ramp = ", ".join(
        (sentences.BATCH_FROM if start else sentences.BATCH).format(tokens=tokens, start=amount(start))
        for start, tokens in built["batch_tokens"] or []
    )
    return "\n  ".join(
        [
            "buildable: " + sentences.BUILT_SHAPE.format(**built, memory=memory(built["memory_bytes"])),
            *([_more(built)] if "top_k" in built else []),
            sentences.BUILT_PARAMETERS.format(**built),
            sentences.BUILT_FLOPS.format(**built),
            sentences.BUILT_RATE.format(
                rate=f"{rate:.3e}" if rate else sentences.NOT_KNOWN,
                source=built["learning_rate_from"],
                batch=f"; batch {ramp}" if ramp else "",
            ),
        ]
    )


def _architectures(plan: Json) -> str:
    """A line for each of the architectures that were compared; the rows above are of the best of them."""
    lines = [sentences.ARCHITECTURES.format(used=plan["used"])]
    lines += [
        sentences.ARCHITECTURE.format(**row | {name: amount(row[name]) for name in ("n_active", "n_total", "n_tokens")})
        for row in plan["architectures"]
    ]
    return "\n".join(lines)


def _more(built: Json) -> str:
    """The fields of the buildable model that the paper's models do not have."""
    d_expert = built["d_expert"] or built["d_ff"]
    tied = sentences.TIED if built["tied_embeddings"] else ""
    return sentences.BUILT_MORE.format(**built | dict(d_expert=d_expert, tied=tied))


def _costs(plan: Json) -> str:
    """A line for each number of experts: what training costs and keeps in memory, and how fast the model answers."""
    chips, columns = plan["chips"], sentences.COST_COLUMNS
    mfu, dollars, kind = chips["mfu"], chips["dollars_per_hour"], chips["kind"]
    names = dict(hours="training", dollars="price", memory="training takes", chips="chips", serving="served on")
    lines = [
        sentences.COST_HEAD.format(
            count=chips["count"],
            kind=kind,
            mfu=", ".join(f"{v:g} (E = {e})" for e, v in mfu.items()) if isinstance(mfu, dict) else f"{mfu:g}",
            dollars="" if dollars is None else sentences.DOLLARS_EACH.format(dollars=dollars),
        ),
        columns.format(n_experts="n_experts", alone="tokens/s", among_many="among many", **names),
    ]
    for row in plan["optima"]:
        cost = row["cost"]
        lines.append(
            columns.format(
                n_experts=row["n_experts"],
                hours=duration(cost["training_hours"]),
                dollars="-" if dollars is None else f"${amount(cost['training_dollars'])}",
                memory=memory(cost["training_bytes"]),
                chips=amount(cost["training_chips"]),
                serving=amount(cost["serving_chips"]),
                **{name: amount(speed) for name, speed in cost["tokens_per_second"].items()},
            )
        )
    lines.append(sentences.COST_NOTE)
    cost = (plan["buildable"] or {}).get("cost") or {}
    if cost.get("step_bytes"):
        lines.append(sentences.STEP_TAKES.format(memory=memory(cost["step_bytes"]), **cost))
    if mesh := cost.get("mesh"):
        lines.append(_on_mesh(mesh, cost["step_tokens"], chips["kind"]))
    return "\n".join(lines)


def _on_mesh(mesh: Json, step_tokens: int | None, kind: str) -> str:
    step = step_tokens and sentences.ON_MESH_STEP.format(step=memory(mesh["step_bytes"]), step_tokens=step_tokens)
    return sentences.ON_MESH.format(
        **mesh,
        least=memory(mesh["least_bytes"]),
        step=step or "",
        limit=memory(CHIPS[kind].memory),
        needed=sentences.ON_MESH_CHIPS.format(**mesh) if mesh["chips"] else sentences.ON_MESH_NONE,
    )


def _repeated(repeats: Json, row: Json) -> str:
    best = repeats["best"]
    return sentences.REPEATED.format(
        epochs=best["epochs"],
        unique=amount(repeats["unique_tokens"]),
        effective=amount(best["effective_tokens"]),
        n_active=amount(row["n_active"]),
        effective_n_active=amount(best["effective_n_active"]),
        saved=repeats["loss_saved"],
        source=repeats["source"],
    )


def _target(target: Json, constraints: Json) -> str:
    """A line for each number of experts: the cheapest model that reaches the loss."""
    lines, columns = [], sentences.TARGET_COLUMNS
    served = constraints["inference_tokens"]
    inference = sentences.AND_INFERENCE.format(n_tokens=amount(served)) if served else ""
    lines.append(sentences.TARGET_HEAD.format(loss=target["loss"], inference=inference))
    names = ("n_experts", "n_active", "n_tokens")
    lines.append(columns.format(**{n: n for n in names}, training="training", inference="inference", total="FLOPs"))
    for row in target["optima"]:
        if row["flops"] is None:
            lines.append(f"{row['n_experts']:9d} never reaches it")
            continue
        values = {name: amount(row[name]) for name in names}
        flops = dict(training="training_flops", inference="inference_flops", total="flops")
        line = columns.format(**values, **{name: f"{row[key]:.3g}" for name, key in flops.items()})
        lines.append(line + _price(row) + " <- cheapest" * (row["n_experts"] == target["best"]["n_experts"]))
    return "\n".join(lines)


def _front(rows: list[Json]) -> str:
    lines = [
        sentences.FRONT_ROW.format(
            total=f"{row['flops']:.3g}",
            price=_price(row),
            loss=row["loss"],
            n_experts=row["n_experts"],
            n_active=amount(row["n_active"]),
            n_tokens=amount(row["n_tokens"]),
        )
        for row in rows
    ]
    return "\n".join([sentences.FRONT_HEAD, *lines])


def _price(row: Json) -> str:
    """Hours and dollars of a row, where it has them."""
    hours, dollars = (row.get(name) for name in ("hours", "dollars"))
    words = [duration(hours)] if hours is not None else []
    words += [f"${amount(dollars)}"] if dollars is not None else []
    return "".join(f", {word}" for word in words)


def _against_dense(plan: Json) -> Iterator[str]:
    """Lines on the best dense model, none where the best is dense itself, and on the loss of a cap on tokens."""
    dense = plan.get("dense")
    if dense and plan["best"]["n_experts"] > 1:
        saved = dense["flops_saved"]
        line = sentences.AGAINST_DENSE.format(
            n_active=amount(dense["n_active"]),
            n_tokens=amount(dense["n_tokens"]),
            loss=dense["loss"],
            saved=dense["loss_saved"],
            flops=sentences.NEVER_DENSE if saved is None else sentences.FLOPS_SAVED.format(saved=saved),
            inference=dense["inference_flops_ratio"],
        )
        yield line + _suffix(dense)
    if "loss_of_token_cap" in plan:
        yield sentences.TOKEN_CAP.format(loss=plan["loss_of_token_cap"])


def _rules_of_thumb(plan: Json) -> Iterator[str]:
    cap = plan["constraints"].get("max_tokens")
    for row in plan.get("rule_of_thumb", []):
        line = sentences.RULE_OF_THUMB.format(
            e=row["n_experts"],
            loss=row["loss"],
            dense=row["dense_loss"],
            holds="holds" if row["holds"] else "does not hold",
            ratio=row["flops_ratio"],
        )
        if cap is not None and row["n_tokens"] > cap:
            line += sentences.MORE_THAN_THERE_IS.format(n_tokens=amount(row["n_tokens"]), max_tokens=amount(cap))
        yield line + _suffix(row)


def _suffix(row: Json) -> str:
    warning = warning_of(row["extrapolation"])
    return warning and f"; {warning}"
