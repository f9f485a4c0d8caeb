"""Whether the numbers of a table of runs can be what they are taken for: units, rows that stand there twice, runs that
crashed. What cannot be is refused, what is suspicious is said; nothing is converted unless the user says so (--units).

Losses are set against a law of dense models on web text (Besiroglu et al. 2024, arXiv 2404.10102): sweeps on other text
and with other tokenizers lie between 0.88 and 1.28 times its loss of equal size and tokens.
"""

import math
from collections.abc import Iterator

import numpy as np

from fit.aliases import Array
from fit.data.runs import FEWEST_TOKENS, MOST_TOKENS
from fit.data.table import COUNT_UNITS, Table
from fit.errors import UserError
from fit.messages import sentences

USUAL_TOKENS = 20.0  # for each parameter
POSSIBLE_TOKENS = 1e-3, 1e6  # for each parameter, of most runs of a table

SMALLEST = dict(n_active=3e3, n_tokens=3e4)  # of most runs of a table
FAR_OFF = 100  # times outside FEWEST_TOKENS and MOST_TOKENS a single run is named
ODD_SHARE = 0.02  # of the runs outside these, from which on they are named
LARGEST_VOCABULARY = 2**18  # of tokenizers in use
BYTES = 1024  # a vocabulary up to this size is of bytes or characters
LEAST_SIZE, LEAST_FLOPS = 1e7, 1e17  # of a model whose loss the law of web text can be set against
LOW, HIGH, TOO_HIGH = 0.45, 1.38, 2.5  # times the loss of that law: suspicious below and above, impossible above
CRASHED = 0.9  # of ln(vocabulary): nothing was learnt
CRASHED_OF_MEDIAN = 2.2  # the same where the vocabulary is not known, in losses of the median run
FLOPS = ("flops", "training_flops", "train_flops", "compute", "budget", "c")  # names of columns of training FLOPs
STATES = ("crashed", "failed", "killed", "running", "preempted", "unfinished", "preempting", "error", "oom")
NAMED = 5  # rows
FEW, SAME_COMPUTE = 8, 4.0  # runs, and the factor of their compute, from which on losses must fall with it
RISES = 0.5  # rank correlation of loss and compute that no sweep has

Columns = dict[str, Array]  # by name, float64, a value for each row


def check(table: Table) -> None:
    """UserError where counts or losses of the table cannot be numbers, tokens and nats per token."""
    known = _known(table)
    _check_counts(table, known)
    _check_loss(table, known)
    rises = _rises(known)
    if rises > RISES:
        raise UserError(
            f"{table.path}, column {table.names.get('loss', 'loss')}: the losses rise with compute (rank correlation "
            f"{rises:.2f}), so no law of losses holds: is the column an accuracy, or the compute another's?"
        )


def impossible(table: Table) -> list[str]:
    """The sentence with which `check` refuses the table, if it does."""
    try:
        check(table)
    except UserError as error:
        return [error.sentence]
    return []


def doubts(table: Table) -> list[str]:
    """Sentences on what is suspicious in a table of runs; for one that `check` lets pass."""
    known = _known(table)
    found = [*_of_experts(table, known), *_of_tokens(table, known), *_of_flops(table, known)]
    rises = _rises(known)
    if rises > 0:
        found.append(
            f"the losses do not fall with compute (rank correlation {rises:+.2f}): no law is well fitted to that"
        )
    return [*found, *_of_loss(table, known), *_crashed(table, known), *_twice(table, known)]


def _known(table: Table) -> Columns:
    """Columns as float64, as far as the table has them and all their values are numbers."""
    known: Columns = {}
    for name in ("n_active", "n_tokens", "n_total", "n_experts", "top_k", "loss", "vocab_size"):
        if name in table:
            try:
                known[name] = table.numbers(name)
            except UserError:  # said by what reads the column
                continue
    return known


def _rows(table: Table, rows: Array) -> str:
    """The rows (boolean) by their numbers in the file and, where the table has them, names."""
    at = np.flatnonzero(rows)
    named = [f"{table.rows[i]}" for i in at[:NAMED]]
    if "run" in table:
        named = [f"{table.rows[i]} ({table.column('run')[i]})" for i in at[:NAMED]]
    more = ", ..." if len(at) > NAMED else ""
    return f"{'row' if len(at) == 1 else 'rows'} {', '.join(named)}{more}"


def _rises(known: Columns) -> float:
    """The rank correlation of loss and training FLOPs, of size where there are no tokens; -1 for few runs, or runs of
    about the same compute."""
    if not {"n_active", "loss"} <= known.keys():
        return -1.0
    compute = known["n_active"] * known.get("n_tokens", np.ones(1))
    if len(compute) < FEW or compute.max() < SAME_COMPUTE * compute.min() or np.ptp(known["loss"]) == 0:
        return -1.0
    middle = (len(compute) - 1) / 2
    of_compute, of_loss = (
        np.argsort(np.argsort(values, kind="stable"), kind="stable") - middle for values in (compute, known["loss"])
    )
    return float(np.sum(of_compute * of_loss) / np.sum(of_compute**2))


def _unless_said(table: Table, *names: str) -> bool:
    """Whether the user said nothing of the units of these columns."""
    return not set(names) & set(table.units)


def _flops(table: Table, known: Columns) -> tuple[str, Array] | None:
    """(name, ln of it over 6 N D) of the column of training FLOPs; None where there is none."""
    if not {"n_active", "n_tokens"} <= known.keys():
        return None
    for name in table.columns:
        if name.lower() in FLOPS:
            try:
                flops = table.numbers(name, (1e8, 1e40))
            except UserError:
                continue
            return name, np.log(flops / (6 * known["n_active"] * known["n_tokens"]))
    return None


def _check_counts(table: Table, known: Columns) -> None:
    if "n_total" in known and "n_active" in known:
        fewer = known["n_total"] < known["n_active"] * 0.99
        if fewer.any():
            i = int(np.argmax(fewer))
            raise UserError(
                f"{table.path}, row {table.rows[i]}: n_total {known['n_total'][i]:g} is below n_active "
                f"{known['n_active'][i]:g}, in {fewer.sum()} of {len(table)} rows: are the columns exchanged?"
            )
    if not {"n_active", "n_tokens"} <= known.keys() or not _unless_said(table, "n_active", "n_tokens"):
        return
    n_active, n_tokens = known["n_active"], known["n_tokens"]
    ratio, size, tokens = (float(np.median(values)) for values in (n_tokens / n_active, n_active, n_tokens))
    flops = _flops(table, known)
    off = None if flops is None else float(np.median(flops[1])) / math.log(10)
    impossible = not POSSIBLE_TOKENS[0] <= ratio <= POSSIBLE_TOKENS[1]
    impossible |= size < SMALLEST["n_active"] or tokens < SMALLEST["n_tokens"]
    if not impossible and (off is None or abs(off) < 2.5):
        return
    meant = _meant(ratio, size, tokens, off)
    if meant is None:
        return
    words = ",".join(f"{name}:{unit}" for name, unit in meant.items())
    says = f", and column {flops[0]} is 10^{off:.1f} times 6 N D" if flops and off and abs(off) >= 2.5 else ""
    raise UserError(
        f"{table.path}: the median run has n_active {size:g} and n_tokens {tokens:g}, {ratio:.3g} tokens for each "
        f"parameter{says}, which no language model has: if they are so many {' and '.join(meant.values())}, say "
        f"--units={words}; if they are what they seem, --units=n_active:ones"
    )


def _meant(ratio: float, size: float, tokens: float, off: float | None) -> dict[str, str] | None:
    """{column: unit} of those that would make sense; None where no units do. off: log10 of the FLOPs over 6 N D."""
    found = []
    for of_size, n in COUNT_UNITS.items():
        for of_tokens, d in COUNT_UNITS.items():
            units = dict(n_active=of_size, n_tokens=of_tokens)
            units = {name: unit for name, unit in units.items() if unit != "ones"}
            sensible = (
                FEWEST_TOKENS <= ratio * d / n <= MOST_TOKENS and 1e4 <= size * n <= 1e13 and 1e5 <= tokens * d <= 1e16
            )
            agrees = off is None or abs(off - math.log10(n * d)) < 1
            if units and sensible and agrees:
                found.append((abs(math.log(ratio * d / n / USUAL_TOKENS)), n * d, units))
    return min(found, key=lambda one: one[:2])[2] if found else None


def _of_tokens(table: Table, known: Columns) -> Iterator[str]:
    size = known.get("n_active", known.get("n_total"))
    if size is None or "n_tokens" not in known:
        return
    ratio = known["n_tokens"] / size
    odd = (ratio < FEWEST_TOKENS) | (ratio > MOST_TOKENS)
    far = (ratio < FEWEST_TOKENS / FAR_OFF) | (ratio > MOST_TOKENS * FAR_OFF)
    if not far.any() and odd.mean() <= ODD_SHARE:
        return
    named = far if far.any() else odd
    what = f"{named.sum():,} of {len(table):,} models, the first of them with"
    yield f"{sentences.TOKENS_PER_PARAMETER.format(what=what, ratio=ratio[named][0])} {_rows(table, named)}"


def _of_flops(table: Table, known: Columns) -> Iterator[str]:
    flops = _flops(table, known)
    if flops is None:
        return
    name, log_off = flops
    if abs(median := float(np.median(log_off))) > math.log(10):
        yield (
            f"the column {name} is {math.exp(median):.3g} times 6 n_active n_tokens at the median run: are these "
            "columns what they are called?"
        )


def _of_experts(table: Table, known: Columns) -> Iterator[str]:
    if "n_experts" in table:
        if "n_experts" in known and "top_k" in known:
            more = (known["top_k"] > known["n_experts"]) & (known["n_experts"] > 1)
            if more.any():
                yield f"{more.sum()} runs use more experts than they have ({_rows(table, more)}): top_k above n_experts"
        return
    taken = "the table has no column n_experts: all its runs are taken as dense (n_experts = 1)"
    if {"n_total", "n_active"} <= known.keys() and (more := known["n_total"] > 1.05 * known["n_active"]).any():
        taken += f", but n_total is above n_active in {more.sum()} of them, as in mixtures: give n_experts"
    yield taken


def _ceiling(known: Columns) -> tuple[float, str]:
    """(the loss in nats per token of a model that knows nothing, what it follows from)."""
    if "vocab_size" in known and np.all(known["vocab_size"] >= 2):
        size = float(known["vocab_size"].max())
        return math.log(size), f"the logarithm of the vocabulary of {size:,.0f}"
    return math.log(LARGEST_VOCABULARY), f"the logarithm of the largest vocabularies, {LARGEST_VOCABULARY:,}"


def _against_text(known: Columns) -> tuple[Array, Array] | None:
    """(loss, that of the law of web text) of the runs that can be set against it; None where these are not most of the
    runs, or the tokens are bytes or characters."""
    of_bytes = "vocab_size" in known and known["vocab_size"].min() <= BYTES
    if of_bytes or not {"n_active", "n_tokens", "loss"} <= known.keys():
        return None
    n_active, n_tokens = known["n_active"], known["n_tokens"]
    fine = (n_active >= LEAST_SIZE) & (6 * n_active * n_tokens >= LEAST_FLOPS)
    if fine.mean() <= 0.5:
        return None
    reference = 1.8172 + 482.01 / n_active[fine] ** 0.3478 + 2085.43 / n_tokens[fine] ** 0.3658
    return known["loss"][fine], reference


def _likely_unit(loss: Array, reference: Array | None) -> str:
    """The unit in which the losses are nearest to those of the law of web text, or else are possible at all."""
    as_nats = dict(bits=loss * math.log(2), perplexity=np.log(np.maximum(loss, 1.0 + 1e-9)))
    if reference is None:
        return "perplexity" if np.median(loss) > 2 * math.log(LARGEST_VOCABULARY) else "bits"
    return min(as_nats, key=lambda unit: abs(math.log(np.median(as_nats[unit] / reference))))


def _check_loss(table: Table, known: Columns) -> None:
    if "loss" not in known or not _unless_said(table, "loss"):
        return
    median, (ceiling, of) = float(np.median(known["loss"])), _ceiling(known)
    against = _against_text(known)
    times = None if against is None else float(np.median(against[0] / against[1]))
    if median > ceiling:
        why = f"above {ceiling:.2f}, {of}, which a model that knows nothing has"
    elif times is not None and times > TOO_HIGH:
        why = f"{times:.2g} times what models of these sizes and tokens reach on web text"
    else:
        return
    unit = _likely_unit(*against) if against else _likely_unit(known["loss"], None)
    raise UserError(
        f"{table.path}, column {table.names.get('loss', 'loss')}: the median loss is {median:.4g}, {why}: it is not in "
        f"nats per token; say --units=loss:{unit} if that is its unit (nats, bits, perplexity, or a number to multiply "
        "it by)"
    )


def _of_loss(table: Table, known: Columns) -> Iterator[str]:
    if "loss" not in known or not _unless_said(table, "loss"):
        return
    theirs = table.names.get("loss", "loss")
    by_name = dict(ppl="perplexity", perplex="perplexity", bpb="FACTOR", bpc="FACTOR", per_byte="FACTOR", bits="bits")
    for part, unit in by_name.items():
        if part in theirs.lower():
            yield (
                f"the column {theirs} is taken as nats per token: by its name it is not; say --units=loss:{unit}"
                f"{_factor(unit)}"
            )
            return
    against = _against_text(known)
    if against is None:
        return
    times = float(np.median(against[0] / against[1]))
    reach = f"the losses are {times:.2g} times what models of these sizes and tokens reach on web text"
    if times > HIGH:
        unit = _likely_unit(*against)
        yield f"{reach}: if they are {unit}, say --units=loss:{unit}; if they are nats per token, --units=loss:nats"
    elif times < LOW:
        yield (
            f"{reach}, so they are hardly nats per token: if they are per byte or per character, say "
            f"--units=loss:FACTOR{_factor('FACTOR')}; if they are nats per token, --units=loss:nats. Sizes and tokens "
            "of plans hold in any such unit, losses are in the table's"
        )


def _factor(unit: str) -> str:
    return ", with bytes per token as the factor, times 0.6931 for bits" if unit == "FACTOR" else ""


def _crashed(table: Table, known: Columns) -> Iterator[str]:
    state = next((name for name in table.columns if name.lower() in ("state", "status")), None)
    if state is not None:
        bad = np.array([str(value).strip().lower() in STATES for value in table.columns[state]])
        if bad.any():
            values = ", ".join(sorted({str(table.columns[state][i]) for i in np.flatnonzero(bad)}))
            yield f"{bad.sum()} of {len(table)} runs did not finish (column {state}: {values}): {_rows(table, bad)}"
    if "loss" not in known:
        return
    loss, median = known["loss"], float(np.median(known["loss"]))
    limit, words = CRASHED_OF_MEDIAN * median, f"more than {CRASHED_OF_MEDIAN:g} times the median loss"
    if "vocab_size" in known:
        ceiling, of = _ceiling(known)
        limit, words = CRASHED * ceiling, f"next to {of}"
    bad = loss > limit
    if bad.any():
        yield (
            f"{bad.sum()} of {len(table)} runs have a loss of {words}, as after a few steps or a crash: "
            f"{_rows(table, bad)}; leave them out"
        )


def _twice(table: Table, known: Columns) -> Iterator[str]:
    """Sentences on rows that repeat others, and on runs of one name that stand there with several losses."""
    names = [name for name in ("n_active", "n_tokens", "n_experts", "n_total", "loss") if name in known]
    if "loss" not in known or len(names) < 2:
        return
    seeds = table.columns.get("seed") or [""] * len(table)
    first: dict[tuple, int] = {}
    repeated = np.zeros(len(table), bool)
    for i, row in enumerate(zip(*(known[name].tolist() for name in names), map(str, seeds), strict=False)):
        repeated[i] = first.setdefault(row, i) != i
    if repeated.any():
        yield (
            f"{repeated.sum()} of {len(table)} rows repeat others ({_rows(table, repeated)}): they count twice and "
            "make intervals too narrow; leave them out"
        )
    if "run" not in table or not {"n_active", "n_tokens"} <= known.keys():
        return
    sizes = zip(map(str, table.column("run")), known["n_active"].tolist(), known["n_tokens"].tolist(), strict=True)
    seen: dict[tuple, int] = {}
    again = np.zeros(len(table), bool)
    for i, row in enumerate(sizes):
        again[i] = row[0] != "" and seen.setdefault(row, i) != i and not repeated[i]
    if again.any():
        yield (
            f"{again.sum()} of {len(table)} rows have the name, size and tokens of others but another loss "
            f"({_rows(table, again)}): was a run exported twice?"
        )
