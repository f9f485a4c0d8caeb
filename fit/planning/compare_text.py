"""What several laws answered, in words."""

import textwrap
from collections.abc import Iterator

from fit.lawbook.lawfile import in_words
from fit.planning.compare import AGREE
from fit.words import sentences
from fit.words.units import amount, flops, memory


def text(result: dict) -> str:
    """The comparison in words."""
    wide = max(len(row["law"]) for row in result["laws"])
    lines = [
        f"{'law':{wide}} {'n_experts':>9} {'split':>5} {'shared':>6} {'n_active':>9} {'n_total':>9} {'n_tokens':>9} "
        f"{'below dense':>11} {'dense FLOPs':>11}  size bound by"
    ]
    for row in result["laws"]:
        dense, split = row["dense"], row["split"]
        better = dense and row["n_experts"] > 1
        ratio = better and dense.get("flops_ratio")
        lines.append(
            f"{row['law']:{wide}} {row['n_experts']:9d} {split if split > 1 else '-':>5} {row['shared'] or '-':>6} "
            f"{amount(row['n_active']):>9} {amount(row['n_total']):>9} {amount(row['n_tokens']):>9} "
            f"{format(dense['loss_saved_share'], '.1%') if better else '-':>11} "
            f"{'x ' + format(ratio, '.3g') if ratio else 'never' if better and 'flops_ratio' in dense else '-':>11}  "
            f"{row['size_bound'] or '-'}"
        )
    lines += [f"{row['law']:{wide}} not feasible: {row['why']}" for row in result["infeasible"]]
    parts = [
        "\n".join(known_in_words(result["like"], result["laws"])) if "like" in result else "",
        "\n".join(lines),
        textwrap.fill(result["about"], 120),
        "\n".join(note for row in result["laws"] for note in notes(row)),
    ]
    agreed = [agreement_in_words(a) for a in result["agreement"]]
    together = mixtures_in_words(result["laws"]) + leverage_in_words(result["laws"]) + agreed
    return "\n\n".join(part for part in (*parts, "\n".join(together)) if part)


def known_in_words(known: dict, rows: list[dict]) -> Iterator[str]:
    """What a published model counts; then what each law says of it and would build instead, a line each."""
    yield sentences.KNOWN.format(
        name=known["name"],
        n_active=amount(known["n_active"]),
        n_total=amount(known["n_total"]),
        e=known["whole_experts"],
        cache=memory(2 * known["cache_elements_per_token"]),
        training=memory(known["training_bytes"]),
        flops=flops(known["training_flops_per_token"]),
    )
    yield from known["notes"]
    for row in rows:
        if (like := row["like"]) is None:
            continue
        share = like["flops_share"]
        better = share is not None and share < 1
        far = sentences.KNOWN_FAR.format(outside=in_words(like["extrapolation"])) if like["extrapolation"] else ""
        yield sentences.KNOWN_BY_LAW.format(
            law=row["law"],
            n_tokens=amount(like["n_tokens"]),
            best_active=amount(row["n_active"]),
            best_total=amount(row["n_total"]),
            best_tokens=amount(row["n_tokens"]),
            e=row["n_experts"],
            verdict=sentences.KNOWN_SAVES.format(saved=1 - share) if better else sentences.KNOWN_STANDS,
            far=far,
        )


def notes(row: dict) -> Iterator[str]:
    """What to know before trusting a law's answer, a line each."""
    if row["extrapolation"]:
        yield f"{row['law']}: outside its data: {in_words(row['extrapolation'])}"
    if row["at_edge"]:
        yield f"{row['law']}: {row['n_experts']} experts are at the edge of those compared: one beyond may be better"
    if row["not_bounded"]:
        yield f"{row['law']}: {sentences.NOT_BOUNDED}"
    if row["used"] != 1 and row["n_experts"] > 1:
        yield f"{row['law']}: a token uses {row['used']:g} experts' width, of {row['n_experts']}"
    if row["not_read"]:
        words = ", ".join(f"--{name}={value}" for name, value in row["not_read"].items())
        yield (
            f"{row['law']}: {words}: the {row['form']} law has no column for that; "
            + (f"asked of {row['used']:g} experts' width a token, and" if "used" in row["not_read"] else "it is")
            + " taken to hold for models of equal counts"
        )
    if row["finest"]:
        yield f"{row['law']}: experts split in {row['split']} are the finest of its data: finer ones may be better"
    if row["note"]:
        yield f"{row['law']}: {row['note']}"
    if row["dense"] and row["dense"]["law"] != row["law"]:
        yield f"{row['law']}: its dense models follow {row['dense']['law']}"


def mixtures_in_words(rows: list[dict]) -> list[str]:
    """A line on what mixtures save, by the laws that know them; none without such a law."""
    saved = [row["dense"]["loss_saved_share"] for row in rows if row["mixtures"] and row["dense"]]
    if not saved:
        return []
    better = sum(row["n_experts"] > 1 for row in rows if row["mixtures"] and row["dense"])
    return [
        f"{better} of {len(saved)} laws of mixtures prefer a mixture to a dense model, with a loss {min(saved):.1%} to "
        f"{max(saved):.1%} below it"
    ]


def leverage_in_words(rows: list[dict]) -> list[str]:
    """A line on the FLOPs of a dense model of equal loss by the law of efficiency leverage, which has no loss; none
    without mixtures."""
    rows = [row for row in rows if row["leverage"]]
    if not rows:
        return []
    words = ", ".join(f"x {row['leverage']['leverage']:.3g} ({row['law']})" for row in rows)
    outside = dict.fromkeys(name for row in rows for name in row["leverage"]["outside"])
    note = f"; outside its data: {', '.join(outside)}" if outside else ""
    return [f"dense FLOPs of these architectures by the efficiency leverage of Tian et al. 2025: {words}{note}"]


def agreement_in_words(a: dict) -> str:
    """One line."""
    verdict = f"they agree within a factor of {AGREE:g}" if a["agree"] else "not settled"
    if a["limit"]:
        verdict = {"memory": "set by the limit of memory", "experts": "set by the numbers compared"}[a["limit"]]
    return (
        f"{'best dense model, ' * (a['of'] == 'dense')}{a['column']}: {amount(a['low'])} ({a['low_law']}) to "
        f"{amount(a['high'])} ({a['high_law']}), a factor of {a['factor']:.3g}: {verdict}"
    )
