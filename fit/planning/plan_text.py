"""A plan in words: tables, and what follows from them; and what several laws answered to one budget."""

import textwrap
from collections.abc import Iterator

from fit.aliases import Json
from fit.fitted_law import summary
from fit.fitted_law.law import in_words, warning_of
from fit.messages import sentences
from fit.messages.units import amount, duration, say, table
from fit.planning import by_time
from fit.planning.compare import AGREE
from fit.planning.constraints import CHIPS

OPTIMA = (
    "{n_experts:>9} {n_active:amount:>9} {n_total:amount:>9} {n_tokens:amount:>9} {loss:.4f:>8} "
    "{memory_bytes:memory:>9}  {near_optimal_n_active:amount:33} {size_bound::13} {end}"
)
DRAWN = "{n_experts:>9} n_active {n_active:amount:16} n_tokens {n_tokens:amount:16} loss {loss:.4f}"
ARCHITECTURES = "by the experts' width that a token uses, each at its best; above and below it is {used:g}:"
ARCHITECTURE = (
    "used {used:g}: n_experts {n_experts}, n_active {n_active:amount}, n_total {n_total:amount} on {n_tokens:amount} "
    "tokens, loss {loss:.4f}"
)
COSTS = (
    "{n_experts:>9} {training_hours:duration:>10} {training_dollars:dollars:>10} {training_bytes:memory:>15} "
    "{training_chips:amount:>9} {serving_chips:amount:>9} {alone:amount:>12} {among_many:amount:>12}"
)
TARGETS = (
    "{n_experts:>9} {n_active:amount:>9} {n_tokens:amount:>9} {training_flops:.3g:>11} {inference_flops:.3g:>11} "
    "{flops:.3g:>11}{end}"
)
FRONT = (
    "{flops:.3g:>9} FLOPs{price}: loss {loss:.4f}, E = {n_experts}, n_active {n_active:amount} on {n_tokens:amount} "
    "tokens"
)
LAWS = (
    "{law:{wide}} {n_experts:>9} {split::>5} {shared::>6} {n_active:amount:>9} {n_total:amount:>9} "
    "{n_tokens:amount:>9} {below:.1%:>11} {ratio::>11}  {size_bound::}"
)


def details(plan: Json) -> str:
    """All of the plan that planning.plan made but its answer (plan_answer.py), as text."""
    parts = [_optima(plan)]
    if known := plan.get("like"):
        parts.insert(0, [*_known(known, known.get("laws", []))])
    if drawn := plan.get("bootstrap"):
        parts.append([*_draws(drawn, len(plan["optima"]) + len(plan["infeasible"]))])
    if rows := plan.get("architectures"):
        parts.append([say(ARCHITECTURES, **plan), *(say(ARCHITECTURE, **row) for row in rows)])
    if plan["buildable"]:
        parts.append(["\n  ".join(_buildable(plan["buildable"]))])
    if "chips" in plan:
        parts.append([*_costs(plan)])
    if repeats := plan.get("repeats"):
        sizes = repeats["best"] | dict(n_active=plan["best"]["n_active"])
        parts.append([say(sentences.REPEATED, **repeats | sizes)])
    if "target" in plan:
        rows = [say(FRONT, **row, price=_price(row)) for row in plan["target"]["front"]]
        parts += [_target(plan), ["loss against cost:", *rows]]
    parts += [[*_compared(plan)], [f"warning: {sentence}" for sentence in plan["warnings"]]]
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _draws(drawn: Json, compared: int) -> Iterator[str]:
    """The intervals of each number of experts and, where several are compared, how often each is the best."""
    words = _of_draws(drawn) | dict(drawn=summary.drawn(drawn))
    if compared == 1:
        yield say(sentences.OF_DRAWS, **words)
        yield from (say(DRAWN, **row) for row in drawn["optima"])
        return
    often = max(drawn["optima"], key=lambda row: row["best_in_draws"])
    yield say(sentences.BEST_IN_DRAWS, **often, **words)
    yield from (say(DRAWN + ", best in {best_in_draws}", **row) for row in drawn["optima"])


def _optima(plan: Json) -> list[str]:
    """A line for each number of experts. The end of a line names what lies outside the fitted range, except for the
    FLOPs: these are those asked for, and the warning below names them."""
    outside = [in_words(o for o in row["extrapolation"] if o["column"] != "training_flops") for row in plan["optima"]]
    heads = dict(memory_bytes="memory", near_optimal_n_active="n_active within 0.1% of the best")
    heads |= dict(size_bound="size bound by", end="outside the fitted range" * any(outside))
    rows: list = [
        row | dict(end=words + " <- best" * (row is plan["best"])) for row, words in zip(plan["optima"], outside)
    ]
    rows += [f"{row['n_experts']:9d} not feasible: {row['why']}" for row in plan["infeasible"]]
    return table(OPTIMA, rows, **heads)


def answer(plan: Json) -> str:
    """What to train and how sure its loss is, in a sentence."""
    best, built, drawn = plan["best"], plan["buildable"], plan.get("bootstrap")
    mixture = best["n_experts"] > 1
    row = drawn and next((row for row in drawn["optima"] if row["n_experts"] == best["n_experts"]), None)
    if built:
        more = built["loss_of_building"]
        experts = built.get("law_experts", built["n_experts"])
        sentence = sentences.BUILT if experts == best["n_experts"] else sentences.BUILT_OTHER
        in_blocks = say(sentence, **built, apart=abs(more), which="more" if more >= 0 else "less")
        if experts != built["n_experts"]:
            in_blocks += say(sentences.BUILT_SPLIT, **built)
    return say(
        sentences.ANSWER,
        **best,
        model=say(sentences.MIXTURE if mixture else sentences.DENSE, **best),
        total=say(sentences.TOTAL, **best) if mixture else "",
        interval=say(sentences.INTERVAL, **_of_draws(drawn), loss=row["loss"]) if row else "",
        built=in_blocks if built else sentences.NOT_BUILT,
    )


def _of_draws(drawn: Json) -> Json:
    first, last = drawn["percentiles"]
    return dict(draws=drawn["draws"], first=first, last=last)


def _buildable(built: Json) -> Iterator[str]:
    yield "buildable: " + say(sentences.BUILT_SHAPE, **built)
    if "top_k" in built:  # what the paper's models do not have
        d_expert, tied = built["d_expert"] or built["d_ff"], sentences.TIED * built["tied_embeddings"]
        yield say(sentences.BUILT_MORE, **built | dict(d_expert=d_expert, tied=tied))
    yield say(sentences.BUILT_PARAMETERS, **built)
    yield say(sentences.BUILT_FLOPS, **built)
    yield _recipe(built)
    if built["recipe_note"]:
        yield built["recipe_note"]


def _recipe(built: Json) -> str:
    """Peak learning rate and batches, each with its range and its source."""
    ramp = ", ".join(
        say(sentences.BATCH_FROM if start else sentences.BATCH, tokens=tokens, start=start)
        for start, tokens in built["batch_tokens"] or []
    )
    batch = f"; batch {ramp}" if ramp else ""
    rate, source = sentences.NOT_KNOWN, built["learning_rate_from"]
    if built["learning_rate"]:
        rate = say("{learning_rate:.2e}" if built["recipe_laws"] else "{learning_rate:.3e}", **built)
        source = _range_of_rates(built)
    if built["batch_range"]:
        low, high = built["batch_range"]
        batch += say(sentences.BATCH_BY_LAWS, low=low, high=high)
        batch += say(sentences.ROWS_AND_WARMUP, **built)
    return say(sentences.BUILT_RATE, rate=rate, source=source, batch=batch)


def _range_of_rates(built: Json) -> str:
    """The source of the peak learning rate, its range, and how far that extrapolates."""
    low, high = built["learning_rate_range"]
    ends = dict(low=low, high=high, source=built["learning_rate_from"])
    factor = built["recipe_extrapolation"]
    if built["recipe_laws"]:
        beyond = say(sentences.BEYOND_LAWS, factor=factor) if factor > 1 else sentences.WITHIN_LAWS
        return say(sentences.BY_LAWS, **ends, beyond=beyond)
    beyond = say(sentences.BEYOND_RUNS, factor=factor) if factor > 1 else ""
    return say(sentences.NEAR_OPTIMAL, **ends, beyond=beyond)


def _costs(plan: Json) -> Iterator[str]:
    """A line for each number of experts: what training costs and keeps in memory, and how fast the model answers."""
    chips = plan["chips"]
    mfu, dollars = chips["mfu"], chips["dollars_per_hour"]
    mfu = ", ".join(f"{v:g} (E = {e})" for e, v in mfu.items()) if isinstance(mfu, dict) else f"{mfu:g}"
    dollars = "" if dollars is None else say(sentences.DOLLARS_EACH, **chips)
    yield say(sentences.COST_HEAD, **chips | dict(mfu=mfu), dollars=dollars)
    heads = dict(training_hours="training", training_dollars="price", training_bytes="training takes")
    heads |= dict(training_chips="chips", serving_chips="served on", alone="tokens/s", among_many="among many")
    rows = [row["cost"] | row["cost"]["tokens_per_second"] | dict(n_experts=row["n_experts"]) for row in plan["optima"]]
    yield from table(COSTS, rows, **heads)
    yield sentences.COST_NOTE
    cost = (plan["buildable"] or {}).get("cost") or {}
    if chosen := cost.get("mesh", {}).get("tokens_at_once"):
        yield say(sentences.LAYOUT, **cost["mesh"] | dict(tokens_at_once=chosen))
        return
    if cost.get("step_bytes"):
        yield say(sentences.STEP_TAKES, **cost)
    if mesh := cost.get("mesh"):
        step = say(sentences.ON_MESH_STEP, **cost | mesh) if cost["step_tokens"] else ""
        needed = say(sentences.ON_MESH_CHIPS if mesh["chips"] else sentences.ON_MESH_NONE, **mesh)
        yield say(sentences.ON_MESH, **mesh, step=step, limit=CHIPS[chips["kind"]].memory, needed=needed)


def _target(plan: Json) -> list[str]:
    """A line for each number of experts: the cheapest model that reaches the loss."""
    target, given, rows = plan["target"], plan["constraints"], []
    for row in target["optima"]:
        if row["flops"] is None:
            rows.append(f"{row['n_experts']:9d} never reaches it")
            continue
        cheapest = row["n_experts"] == target["best"]["n_experts"]
        rows.append(row | dict(end=_price(row) + " <- cheapest" * cheapest))
    inference = say(sentences.AND_INFERENCE, **given) if given["inference_tokens"] else ""
    heads = dict(training_flops="training", inference_flops="inference", flops="FLOPs", end="")
    return [say(sentences.TARGET_HEAD, **target, inference=inference), *table(TARGETS, rows, **heads)]


def _price(row: Json) -> str:
    """Hours and dollars of a row, where it has them."""
    hours, dollars = (row.get(name) for name in ("hours", "dollars"))
    price = "" if hours is None else f", {duration(hours)}"
    return price if dollars is None else f"{price}, ${amount(dollars)}"


def _compared(plan: Json) -> Iterator[str]:
    """Lines on the best dense model, on the loss of a cap on tokens, and on the paper's rule of thumb."""
    dense, cap = plan.get("dense"), plan["constraints"].get("max_tokens")
    if dense and plan["best"]["n_experts"] > 1:
        by_clock = "hours_saved" in dense
        saved = dense["hours_saved" if by_clock else "flops_saved"]
        words = sentences.HOURS_SAVED if by_clock else sentences.FLOPS_SAVED
        flops = sentences.NEVER_DENSE if saved is None else say(words, **dense)
        yield say(sentences.AGAINST_DENSE, **dense, flops=flops) + _suffix(dense)
    if "loss_of_token_cap" in plan:
        yield say(sentences.TOKEN_CAP, **plan)
    if plan.get("rule_of_thumb"):
        yield sentences.RULE_OF_THUMB_HEAD
    for row in plan.get("rule_of_thumb", []):
        line = say(sentences.RULE_OF_THUMB, **row, so="holds" if row["holds"] else "does not hold")
        if cap is not None and row["n_tokens"] > cap:
            line += say(sentences.MORE_THAN_THERE_IS, **row, max_tokens=cap)
        yield line + _suffix(row)


def _suffix(row: Json) -> str:
    warning = warning_of(row["extrapolation"])
    return warning and f"; {warning}"


def comparison(result: Json) -> str:
    """What several laws answered, in words."""
    wide = max(len(row["law"]) for row in result["laws"])
    rows: list = []
    for row in result["laws"]:
        dense = (row["n_experts"] > 1 and row["dense"]) or {}
        kind = "hours_ratio" if "hours_ratio" in dense else "flops_ratio"
        ratio = f"x {dense[kind]:.3g}" if dense.get(kind) else "never" * (kind in dense)
        split = row["split"] if row["split"] > 1 else None
        own = dict(split=split, shared=row["shared"] or None, below=dense.get("loss_saved_share"), ratio=ratio)
        rows.append(row | own | dict(wide=wide))
    rows += [f"{row['law']:{wide}} not feasible: {row['why']}" for row in result["infeasible"]]
    by_clock = [row for row in result["laws"] if "speed" in row]
    of_dense = "dense hours" if by_clock else "dense FLOPs"
    heads = dict(wide=str(wide), below="below dense", ratio=of_dense, size_bound="size bound by")
    parts = [
        _known(result["like"], result["laws"]) if "like" in result else [],
        table(LAWS, rows, **heads),
        [*_by_the_clock(by_clock)],
        [textwrap.fill(result["about"], 120)],
        [f"{row['law']}: {note}" for row in result["laws"] for note in _notes(row)],
        _together(result),
    ]
    return "\n\n".join(part for part in map("\n".join, parts) if part)


def _by_the_clock(rows: list[Json]) -> Iterator[str]:
    """Lines on the speed of each law's best model, and on what FLOPs would choose instead."""
    if not rows:
        return
    yield say(sentences.CLOCK_HEAD_LAWS, **rows[0]["clock"])
    for row in rows:
        yield say(sentences.CLOCK_ROW_LAW, **row, words=by_time.words(row["speed"]))
        for sentence in by_time.differing(row["clock"], row["n_experts"]):
            yield f"    {sentence}"


def _known(known: Json, rows: list[Json]) -> Iterator[str]:
    """What a published model counts; then what each law says of it and would build instead, a line each."""
    yield say(sentences.KNOWN, **known, cache=2 * known["cache_elements_per_token"])
    yield from known["notes"]
    for row in rows:
        if (like := row["like"]) is None:
            continue
        share, outside = like["flops_share"], in_words(like["extrapolation"])
        better = share is not None and share < 1
        yield say(
            sentences.KNOWN_BY_LAW,
            **row,
            its_tokens=like["n_tokens"],
            verdict=say(sentences.KNOWN_SAVES, saved=1 - share) if better else sentences.KNOWN_STANDS,
            far=say(sentences.KNOWN_FAR, outside=outside) if outside else "",
        )


def _notes(row: Json) -> Iterator[str]:
    """What to know before trusting a law's answer, a line each."""
    if row["extrapolation"]:
        yield f"outside its data: {in_words(row['extrapolation'])}"
    if row["at_edge"]:
        yield f"{row['n_experts']} experts are at the edge of those compared: one beyond may be better"
    if row["not_bounded"]:
        yield sentences.NOT_BOUNDED
    if row["used"] != 1 and row["n_experts"] > 1:
        yield f"a token uses {row['used']:g} experts' width, of {row['n_experts']}"
    if row["not_read"]:
        flags = ", ".join(f"--{name}={value}" for name, value in row["not_read"].items())
        asked = f"asked of {row['used']:g} experts' width a token, and" if "used" in row["not_read"] else "it is"
        yield f"{flags}: the {row['form']} law has no column for that; {asked} taken to hold for models of equal counts"
    if row["finest"]:
        yield f"experts split in {row['split']} are the finest of its data: finer ones may be better"
    if row["note"]:
        yield row["note"]
    if row["dense"] and row["dense"]["law"] != row["law"]:
        yield f"its dense models follow {row['dense']['law']}"


def _together(result: Json) -> Iterator[str]:
    """Lines on what the laws together say, on the FLOPs of a dense model of equal loss by the law of
    efficiency leverage, which has no loss, and on how far the answers lie apart."""
    yield from result["conclusion"]
    if rows := [row for row in result["laws"] if row["leverage"]]:
        words = ", ".join(f"x {row['leverage']['leverage']:.3g} ({row['law']})" for row in rows)
        outside = dict.fromkeys(name for row in rows for name in row["leverage"]["outside"])
        note = f"; outside its data: {', '.join(outside)}" if outside else ""
        yield f"dense FLOPs of these architectures by the efficiency leverage of Tian et al. 2025: {words}{note}"
    limited = dict(memory="set by the limit of memory", experts="set by the numbers compared")
    for a in result["agreement"]:
        agreed = f"they agree within a factor of {AGREE:g}" if a["agree"] else "not settled"
        yield (
            f"{'best dense model, ' * (a['of'] == 'dense')}{a['column']}: {amount(a['low'])} ({a['low_law']}) to "
            f"{amount(a['high'])} ({a['high_law']}), a factor of {a['factor']:.3g}: {limited.get(a['limit'], agreed)}"
        )
