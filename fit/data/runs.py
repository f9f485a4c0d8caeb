"""Runs as a law reads them, from a table checked strictly: columns and losses; which runs share a trunk, which are kept
out of a fit, how much each counts in it; and how far log losses are from them."""

import dataclasses
import hashlib
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from fit.aliases import Array, ByName, Floats, Json
from fit.data.table import Table, read
from fit.errors import UserError
from fit.messages import sentences
from fit.messages.printable import printable
from fit.shape.architecture import training_flops

ALWAYS = ("n_active", "n_tokens", "n_experts")  # columns of every Runs, of ones if the law does not read them
FEWEST_TOKENS, MOST_TOKENS = 0.1, 1e5  # for each parameter, of any model that is trained on purpose
BRANCH = re.compile(r"(.+)/branch[-_][^/]*/?")  # the column `run` of a sweep: jobs/NAME/branch-TOKENS
# Without such names, runs that agree in all of these share a trunk, if the table has both of the last two.
SAME = ("n_active", "n_total", "n_experts", "d_model", "n_blocks", "peak_learning_rate", "corpus_fingerprint")
SAME += ("overrides", "seed", "config")
ROLLING = "compute:rolling"  # a rule of held_out


@dataclasses.dataclass
class Runs:
    """What a law reads of the runs in `path`: columns {name: float64 [n_runs]} and loss [n_runs]. table: without rows
    where no table holds the runs; index [n_runs]: each run's place in it. weights [n_runs]: how much a run counts in a
    fit. trunks: labels int [n_runs] of the runs that share an error, None where each stands for itself; shared_by: what
    shares one, in words."""

    path: str
    columns: dict[str, Array]
    loss: Array
    table: Table
    index: Any = None
    weights: Any = None
    trunks: Array | None = None
    shared_by: str = "runs"

    def __post_init__(self) -> None:
        one = np.ones(len(self.loss))
        self.columns = {name: self.columns.get(name, one) for name in ALWAYS} | self.columns
        self.index = np.arange(len(self.loss)) if self.index is None else self.index
        self.weights = one if self.weights is None else self.weights

    def __len__(self) -> int:
        return len(self.loss)

    n_active = property(lambda self: self.columns["n_active"])
    n_tokens = property(lambda self: self.columns["n_tokens"])
    n_experts = property(lambda self: self.columns["n_experts"])

    @property
    def flops(self) -> Array:
        """Training FLOPs."""
        return training_flops(self.n_active, self.n_tokens)

    def fingerprint(self) -> str:
        """SHA-256 of the numbers, so a law can say what it was fitted to."""
        return hashlib.sha256(np.stack([*self.columns.values(), self.loss]).tobytes()).hexdigest()

    def has(self, fingerprint: str) -> bool:
        """Whether these are the runs of this fingerprint. Earlier versions took 1 for every number of experts that the
        law does not read."""
        as_before = self.columns | dict(n_experts=np.ones(len(self)))
        return fingerprint in (self.fingerprint(), dataclasses.replace(self, columns=as_before).fingerprint())

    def name(self, i: int) -> Json:
        """{row, run} of the i-th run: its row in the file and, where the table has the column, what it is called."""
        if not self.table.rows:
            return {}
        row = dict(row=int(self.table.rows[self.index[i]]))
        if "run" not in self.table:
            return row
        return row | {"run": printable(str(self.table.column("run")[self.index[i]]))}


def subset(runs: Runs, rows: Array) -> Runs:
    """The runs where `rows` (boolean [n_runs], or indices) says so."""
    columns = {name: values[rows] for name, values in runs.columns.items()}
    trunks = None if runs.trunks is None else np.unique(runs.trunks[rows], return_inverse=True)[1]
    each = {name: getattr(runs, name)[rows] for name in ("loss", "index", "weights")}
    return dataclasses.replace(runs, columns=columns, trunks=trunks, **each)


def corpora(table: Table) -> list[str]:
    """Fingerprints of the text that the runs of a table were trained on, where it has them."""
    if "corpus_fingerprint" not in table:
        return []
    named = [v for v in table.column("corpus_fingerprint") if v not in (None, "")]
    return sorted({printable(str(v)) for v in named})


def read_runs(path: str | Table, columns: Sequence[str], mix_corpora: bool = False) -> Runs:
    """Runs for a law that reads `columns`, of a file or a Table. UserError on a bad value, or on two corpora unless
    mix_corpora."""
    table = read(path)
    path = table.path
    for name in (*columns, "loss"):
        table.column(name)
    wanted = dict.fromkeys((*columns, *["n_active"] * ("n_active" in table)))  # n_active for the training FLOPs
    read_columns, loss = {name: table.numbers(name) for name in wanted}, table.numbers("loss")
    if "n_experts" in table:  # of what a law that does not read it is a law
        read_columns["n_experts"] = table.numbers("n_experts")
    runs = Runs(path, read_columns, loss, table)
    texts = corpora(table)
    if len(texts) > 1 and not mix_corpora:
        more = ", ..." if len(texts) > 3 else ""
        raise UserError(
            f"{path}, column corpus_fingerprint: found {len(texts)} corpora ({', '.join(texts[:3])}{more}); losses on "
            "different text do not compare: fit one corpus, or say --mix_corpora"
        )
    return runs


def unlikely(columns: ByName, share: float = 0.0) -> str:
    """A sentence where more than a share of the models (columns by name) have so few or many tokens for each parameter,
    active ones where these are known, that a number is likely to be in other units; else ""."""
    sizes = columns.get("n_active", columns.get("n_total"))
    if sizes is None or "n_tokens" not in columns:
        return ""
    ratio = np.atleast_1d(np.asarray(columns["n_tokens"], float) / sizes)
    odd = (ratio < FEWEST_TOKENS) | (ratio > MOST_TOKENS)
    if not np.mean(odd) > share:
        return ""
    what = "the model has" if ratio.size == 1 else f"{odd.sum():,} of {ratio.size:,} models, the first of them with"
    return sentences.TOKENS_PER_PARAMETER.format(what=what, ratio=ratio[odd][0])


def trunks_of(table: Table, by: str = "trunk") -> tuple[Array | None, str]:
    """(labels int [n_runs], what they are in words) of the runs that share a trunk, and with it an error, so that
    resampling and intervals must take them together; labels are None where each run stands for itself.

    by: "trunk" for the trunks that the table shows, "row" for each run by itself, or a column's name.
    """
    if by == "row":
        return None, "runs"
    if by != "trunk":
        if by not in table:
            raise UserError(
                f"--bootstrap_by={by}: expected trunk, row, or one of the columns of {table.path}: "
                f"{', '.join(table.columns)}"
            )
        return _labels([str(v) for v in table.column(by)]), f"groups of equal {by}"
    names = [BRANCH.fullmatch(str(v)) for v in (table.column("run") if "run" in table else [])]
    if names and all(names):
        labels, words = _labels([m[1] for m in names if m]), "trunks (column run)"
    elif "seed" in table and "config" in table:
        columns = [name for name in SAME if name in table]
        rows = zip(*(table.column(name) for name in columns), strict=True)
        labels, words = _labels([str(row) for row in rows]), f"trunks (same {', '.join(columns)})"
    else:
        return None, "runs"
    return (None, "runs") if labels.max() + 1 == len(labels) else (labels, words)


def _labels(names: Sequence[str]) -> Array:
    return np.unique(names, return_inverse=True)[1]


def held_out(runs: Runs, rule: str) -> Array:
    """Boolean [n_runs]: the runs that `rule` keeps out of the fit. UserError if the rule makes no sense.

    none, lowest-loss:N, largest-compute:N (n_active times n_tokens), N a count or a percentage, or column:NAME.
    Ties are broken by the order of the file. compute:rolling keeps none out of the law that is written
    (fit/fitting/uncertainty.py).
    """
    out = np.zeros(len(runs), bool)
    if rule in ("none", ROLLING):
        return out
    kind, _, amount = rule.partition(":")
    if kind == "column" and amount:
        for i, value in enumerate(runs.table.column(amount)):
            text = str(value).strip().lower()
            if text in ("validation", "valid", "val", "test", "holdout", "held-out", "true", "1", "1.0"):
                out[i] = True
            elif text not in ("train", "fit", "false", "0", "0.0", ""):
                raise UserError(
                    f"{runs.path}, row {runs.table.rows[i]}, column {amount}: found {value!r}, expected validation "
                    "or train, true or false, 1 or 0"
                )
        count = int(out.sum())
    elif kind in ("lowest-loss", "largest-compute"):
        try:
            count = int(round(float(amount[:-1]) / 100 * len(runs))) if amount.endswith("%") else int(amount)
        except (ValueError, OverflowError):
            raise UserError(f"--holdout={rule}: found {amount!r}, expected a count or a percentage") from None
        key = runs.loss if kind == "lowest-loss" else -runs.n_active * runs.n_tokens
        if 0 < count < len(runs):
            out[np.argsort(key, kind="stable")[:count]] = True
    else:
        raise UserError(
            f"--holdout={rule}: expected none, lowest-loss:N, largest-compute:N, N or N%, column:NAME or {ROLLING}"
        )
    if not 0 < count < len(runs):
        raise UserError(f"--holdout={rule}: holds out {count} of {len(runs)} runs, expected at least 1 and not all")
    return out


def run_weights(runs: Runs, rule: str | None) -> Array:
    """float64 [n_runs], of mean 1: none (or None), inverse-loss (App. B: worse runs count less), compute^POWER (of the
    training FLOPs: small runs count less), or column:NAME."""
    if rule in ("none", None):
        return np.ones(len(runs))
    if rule == "inverse-loss":
        weights = 1 / runs.loss
    elif (power := re.fullmatch(r"compute\^(\d*\.?\d+)", rule)) and float(power[1]) <= 2:
        weights = (runs.flops / runs.flops.max()) ** float(power[1])
    elif rule.startswith("column:"):
        weights = runs.table.numbers(rule[len("column:") :], (0, 1e12))
        if not weights.any():
            raise UserError(f"{runs.path}, column {rule[len('column:') :]}: every weight is 0")
    else:
        raise UserError(
            f"--weights={rule}: expected none, inverse-loss, compute^POWER with a power up to 2, or column:NAME"
        )
    return weights / weights.mean()


def split(runs: Runs, rule: str, weights: str | None = None, by: str = "trunk") -> tuple[Runs, Runs]:
    """(runs to fit, those held out), with weights and trunks by these rules; UserError where one of them makes no
    sense."""
    trunks, shared_by = trunks_of(runs.table, by)
    out = held_out(runs, rule)
    runs = dataclasses.replace(runs, weights=run_weights(runs, weights), trunks=trunks, shared_by=shared_by)
    return subset(runs, ~out), subset(runs, out)


def errors(log_loss: Array, runs: Runs) -> Json:
    """How far these log losses are from those of runs: count, RMSE in nats and in log loss, mean and largest relative
    error, and the run that has it."""
    log_error = log_loss - np.log(runs.loss)
    relative = np.abs(np.expm1(log_error))
    worst = int(np.argmax(relative))
    found: Json = dict(runs=len(runs), rmse_nats=rms(np.exp(log_loss) - runs.loss), rmse_log=rms(log_error))
    found |= dict(mean_relative_error=float(relative.mean()), max_relative_error=float(relative[worst]))
    of_worst = dict(predicted=float(np.exp(log_loss[worst])), measured=float(runs.loss[worst]))
    return found | dict(worst=runs.name(worst) | of_worst)


def rms(x: Floats) -> float:
    """Root mean square."""
    return float(np.sqrt(np.mean(np.square(x))))
