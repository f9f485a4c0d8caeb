"""Finds columns by which runs do not compare: text and tokenizer, schedule, row length, learning rate.

Losses on different text or by different tokenizers do not compare, so such tables are refused. Other differences are
warnings. A learning rate may follow from the size, so only runs of equal size and tokens are compared in it.

Axes: n runs of the table.
"""

import collections
from collections.abc import Iterator, Mapping

import numpy as np

from fit.messages.finding import Finding, finding
from fit.messages.printable import printable
from fit.table.column_guesses import guess, snake_case
from fit.table.known_columns import count_of, known_columns, models_of
from fit.table.problems import Problem
from fit.table.selection import text_of
from fit.table.table import Table
from fit.table.token_formulas import ROW_LENGTH

# usual names in snake case; a column may have others before them, as config.dataset has
CORPUS = (
    "corpus",
    "corpora",
    "dataset",
    "datasets",
    "dataset_name",
    "data_name",
    "data",
    "data_mix",
    "data_mixture",
    "data_source",
    "data_recipe",
    "train_data",
    "training_data",
    "mixture",
    "train_mix",
    "train_set",
    "training_set",
    "pretraining_data",
    "text",
)
TOKENIZER = ("tokenizer", "tokeniser", "tokenizer_name", "tokenizer_type", "tokenizer_path", "vocab", "vocabulary")
VOCABULARY = ("vocab_size", "vocabulary_size", "n_vocab", "vocab", "padded_vocab_size")
SCHEDULE = (
    "lr_schedule",
    "schedule",
    "scheduler",
    "lr_scheduler",
    "lr_scheduler_type",
    "scheduler_type",
    "schedule_type",
    "lr_schedule_type",
    "learning_rate_schedule",
    "lr_decay_style",
    "lr_decay",
    "decay",
)
OPTIMIZER = ("optimizer", "optimiser", "optimizer_name", "optim", "opt")
UNDECAYED = ("constant", "const", "none", "constant_with_warmup", "no_decay", "flat")  # schedules that do not end
# the last word of a column of text, such as train_dataset
LAST_OF_CORPUS = ("dataset", "datasets", "corpus", "corpora")
# words that a column of tokenizers or schedules may have, and those that one of learning rates may not
OF_TOKENIZER = {"tokenizer", "tokeniser"}
OF_SCHEDULE = {"schedule", "scheduler"}
NOT_OF_RATE = {"batch", "warmup", "mixture", "data", "momentum", "decay", "min", "final", "end"}
PADDED = 0.03  # vocabularies of one tokenizer may be this share apart, since models round them up
MOST_VALUES = 4  # named in a sentence
FEWEST_RUNS = 8  # that a condition must leave before it is proposed
MATTERS = 3e-3  # the least spread of the losses at one size and tokens for a warning of rates


def text_problems(table: Table) -> Iterator[Problem]:
    """Yields a problem for each column by which the runs have several texts or tokenizers."""
    for column in table.columns:
        if column == table.names.get("corpus_fingerprint", "corpus_fingerprint"):
            continue  # fit.table.runs.read_runs checks it
        kind = _kind_of_text(table, column)
        if kind is None:
            continue
        counts = _counts(table, column)
        if len(counts) < 2:
            continue
        where = _most_common(table, column, counts)
        flags = {"mix_corpora": {"": "true"}} if where is None else {"where": {where: ""}}
        hint = "" if where is None else f"--where={where} fits the most frequent; "
        yield Problem(
            f"found {len(counts)} {kind} ({_in_words(counts)}); losses on different text or tokens do not compare: "
            f"{hint}--mix_corpora fits all runs together",
            f"column {column}",
            flags,
        )


def _kind_of_text(table: Table, column: str) -> str | None:
    """ "vocabularies", "tokenizers" or "corpora" where a column tells the runs' text by them; else None."""
    if _is_called(column, VOCABULARY):
        sizes = table.values(column)
        if np.isfinite(sizes).all():
            spread = sizes.max() / sizes.min() - 1 if sizes.min() > 0 else 0.0
            return "vocabularies" if spread > PADDED else None
    if _are_mostly_numbers(table, column):
        return None
    words = snake_case(column).split("_")
    if _is_called(column, TOKENIZER) or OF_TOKENIZER & set(words):
        return "tokenizers"
    if _is_called(column, CORPUS) or words[-1] in LAST_OF_CORPUS:
        return "corpora"
    return None


def recipe_doubts(table: Table) -> Iterator[Finding]:
    """Yields findings on schedules, row lengths and optimizers that differ between the runs."""
    kinds = dict(schedules_differ=SCHEDULE, row_lengths_differ=ROW_LENGTH, optimizers_differ=OPTIMIZER)
    for code, names in kinds.items():
        for column in table.columns:
            is_schedule = names is SCHEDULE and _is_schedule(column)
            if not is_schedule and not _is_called(column, names):
                continue
            counts = _counts(table, column)
            if len(counts) < 2:
                continue
            where = _undecayed(table, column, counts)
            if where is None:
                where = _most_common(table, column, counts)
            yield finding(code, count=len(counts), column=column, values=_in_words(counts), where=where)
            break


def rate_doubts(table: Table) -> Iterator[Finding]:
    """Yields a finding where runs of one size and tokens differ in their learning rate, and with it in their loss."""
    taken = [name for name in table.columns if NOT_OF_RATE & set(snake_case(name).split("_"))]
    column = table.names.get("peak_learning_rate", guess("peak_learning_rate", table.columns, taken))
    known = known_columns(table)
    if column is None or not {"n_active", "n_tokens", "loss"} <= known.keys():
        return
    rates = table.values(column)
    models = models_of(known, "n_tokens")
    is_varied = np.zeros(len(table), bool)
    spreads = []
    wins: collections.Counter[str] = collections.Counter()  # of each rate
    for model in range(models.max() + 1):
        rows = (models == model) & np.isfinite(rates)
        if len(np.unique(rates[rows])) > 1:
            is_varied |= rows
            cells = table.columns[column]
            wins[text_of(cells[np.flatnonzero(rows)[np.argmin(known["loss"][rows])]])] += 1
            spreads.append(np.ptp(np.log(known["loss"][rows])))
    if not spreads or np.median(spreads) < MATTERS:
        return
    counts = _counts(table, column)
    best = wins.most_common(1)[0][0]
    where = _most_common(table, column, {best: counts[best]})
    is_named = column == "peak_learning_rate" or table.names.get("peak_learning_rate")
    counted = count_of(table, is_varied)
    yield finding(
        "rates_differ_in_table",
        column=column,
        varied=counted["count"],
        runs=counted["runs"],
        models=len(spreads),
        spread=float(np.median(spreads)),
        name=None if is_named else column,
        where=where,
    )


def differs_in_recipe(table: Table, column: str) -> bool:
    """Whether a column says by which text, tokenizer or recipe the runs were trained, and the runs differ in it."""
    names = (*SCHEDULE, *ROW_LENGTH, *OPTIMIZER)
    is_of_recipe = _kind_of_text(table, column) is not None or _is_called(column, names) or _is_schedule(column)
    return is_of_recipe and len(_counts(table, column)) > 1


def _is_schedule(column: str) -> bool:
    """Whether a column's name is that of a schedule of learning rates."""
    words = set(snake_case(column).split("_"))
    return bool(OF_SCHEDULE & words) and not NOT_OF_RATE & words


def _is_called(column: str, names: tuple[str, ...]) -> bool:
    """Whether a column has one of these names, or ends with one behind a dot or slash."""
    last = snake_case(column.replace("/", ".").rpartition(".")[2])
    return snake_case(column) in names or last in names


def _counts(table: Table, column: str) -> dict[str, int]:
    """How many runs have each value of a column, the most frequent first; empty cells do not count."""
    texts = [text_of(value) for value in table.columns[column]]
    return dict(collections.Counter(text for text in texts if text).most_common())


def _in_words(counts: Mapping[str, int]) -> str:
    """The values and how many runs have them."""
    named = [f"{printable(value)} in {count}" for value, count in list(counts.items())[:MOST_VALUES]]
    return ", ".join(named) + (", ..." if len(counts) > MOST_VALUES else "")


def _most_common(table: Table, column: str, counts: Mapping[str, int]) -> str | None:
    """The condition that keeps the runs with the most frequent value; None where they are too few for a law."""
    value, count = next(iter(counts.items()))
    experts = table.values("n_experts") if "n_experts" in table else np.ones(1)
    fewest = FEWEST_RUNS if len(np.unique(experts)) == 1 else 2 * FEWEST_RUNS
    return None if count < fewest or "," in value else f"{column}={value}"


def _undecayed(table: Table, column: str, counts: Mapping[str, int]) -> str | None:
    """The condition that leaves out the runs whose rate does not decay; None where there are none."""
    undecayed = [value for value in counts if value.lower().replace(" ", "_").replace("-", "_") in UNDECAYED]
    left = sum(counts.values()) - sum(counts[value] for value in undecayed)
    if not undecayed or left < FEWEST_RUNS:
        return None
    return ",".join(f"{column}!={value}" for value in undecayed)


def _are_mostly_numbers(table: Table, column: str) -> bool:
    """Whether most cells of a column are numbers, as of a column `data` that counts them."""
    return bool(np.mean(np.isfinite(table.values(column))) > 0.5)
