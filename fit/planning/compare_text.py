"""What several laws answered, in words."""

import textwrap
from collections.abc import Iterator

from fit.lawbook.lawfile import in_words
from fit.planning.compare import AGREE
from fit.words import sentences
from fit.words.units import amount, say, table

COLUMNS = (
    "{law:{wide}} {n_experts:>9} {split::>5} {shared::>6} {n_active:amount:>9} {n_total:amount:>9} "
    "{n_tokens:amount:>9} {below:.1%:>11} {ratio::>11}  {size_bound::}"
)


def text(result: dict) -> str:
    """The comparison in words."""
    wide = max(len(row["law"]) for row in result["laws"])
    rows: list = []
    for row in result["laws"]:
        dense = (row["n_experts"] > 1 and row["dense"]) or {}
        ratio = say("x {flops_ratio:.3g}", **dense) if dense.get("flops_ratio") else "never" * ("flops_ratio" in dense)
        split = row["split"] if row["split"] > 1 else None
        own = dict(split=split, shared=row["shared"] or None, below=dense.get("loss_saved_share"), ratio=ratio)
        rows.append(row | own | dict(wide=wide))
    rows += [f"{row['law']:{wide}} not feasible: {row['why']}" for row in result["infeasible"]]
    heads = dict(wide=str(wide), below="below dense", ratio="dense FLOPs", size_bound="size bound by")
    parts = [
        known_in_words(result["like"], result["laws"]) if "like" in result else [],
        table(COLUMNS, rows, **heads),
        [textwrap.fill(result["about"], 120)],
        [f"{row['law']}: {note}" for row in result["laws"] for note in notes(row)],
        together(result),
    ]
    return "\n\n".join(part for part in map("\n".join, parts) if part)


def known_in_words(known: dict, rows: list[dict]) -> Iterator[str]:
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


def notes(row: dict) -> Iterator[str]:
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


def together(result: dict) -> Iterator[str]:
    """Lines on what mixtures save by the laws that know them, on the FLOPs of a dense model of equal loss by the law of
    efficiency leverage, which has no loss, and on how far the answers lie apart."""
    dense = [row for row in result["laws"] if row["mixtures"] and row["dense"]]
    if dense:
        saved = [row["dense"]["loss_saved_share"] for row in dense]
        yield (
            f"{sum(row['n_experts'] > 1 for row in dense)} of {len(dense)} laws of mixtures prefer a mixture to a "
            f"dense model, with a loss {min(saved):.1%} to {max(saved):.1%} below it"
        )
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
