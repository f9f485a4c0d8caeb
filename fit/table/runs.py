"""The runs of a table, as arrays for a law: columns, losses, trunks, held-out runs and weights; and the errors of
predicted log losses.

A trunk is a training run from which branches decay at several budgets: its runs share an error.
"""

import dataclasses
import hashlib
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from fit.aliases import Array, ByName, Floats, Json
from fit.errors import UserError
from fit.messages.finding import Finding, finding
from fit.messages.printable import printable
from fit.model.architecture import training_flops
from fit.results import Record, optional
from fit.table.known_columns import FEWEST_TOKENS, MOST_TOKENS
from fit.table.table import Table, read
from fit.table.validate import require

ALWAYS = ("n_active", "n_tokens", "n_experts")  # columns of every Runs, of ones if the law does not read them
BRANCH = re.compile(r"(.+)/branch[-_][^/]*/?")  # the column `run` of a sweep: jobs/NAME/branch-TOKENS
# Without such names, runs that agree in all of these share a trunk, if the table has both of the last two.
SAME = (
    "n_active",
    "n_total",
    "n_experts",
    "d_model",
    "n_blocks",
    "peak_learning_rate",
    "corpus_fingerprint",
    "overrides",
    "seed",
    "config",
)
ROLLING = "compute:rolling"  # a rule of held_out
HELD_OUT_WORDS = ("validation", "valid", "val", "test", "holdout", "held-out", "true", "1", "1.0")
FITTED_WORDS = ("train", "fit", "false", "0", "0.0", "")


@dataclasses.dataclass
class Runs:
    """The runs of a table, as arrays for a law.

    Attributes:
      path: the file of the table.
      columns: {name: float64 [n_runs]}; n_active, n_tokens and n_experts are always there.
      loss: nats per token, [n_runs].
      table: the table; without rows where no table holds the runs.
      index: each run's row in the table, [n_runs].
      weights: how much each run counts in a fit, [n_runs].
      trunks: labels int [n_runs] of the runs that share an error; None if no runs share one.
      shared_by: what shares an error, in words.
      near: which runs lie near their best rate, boolean [n_runs]: intervals count them alone. None for all.
    """

    path: str
    columns: dict[str, Array]
    loss: Array
    table: Table
    index: Any = None
    weights: Any = None
    trunks: Array | None = None
    shared_by: str = "runs"
    near: Array | None = None

    def __post_init__(self) -> None:
        ones = np.ones(len(self.loss))
        self.columns = {name: self.columns.get(name, ones) for name in ALWAYS} | self.columns
        self.index = np.arange(len(self.loss)) if self.index is None else self.index
        self.weights = ones if self.weights is None else self.weights

    def __len__(self) -> int:
        return len(self.loss)

    @property
    def n_active(self) -> Array:
        """Active parameters, [n_runs]."""
        return self.columns["n_active"]

    @property
    def n_tokens(self) -> Array:
        """Training tokens, [n_runs]."""
        return self.columns["n_tokens"]

    @property
    def n_experts(self) -> Array:
        """Experts of a layer, 1 for dense models, [n_runs]."""
        return self.columns["n_experts"]

    @property
    def flops(self) -> Array:
        """Training FLOPs, [n_runs]."""
        return training_flops(self.n_active, self.n_tokens)

    def fingerprint(self) -> str:
        """SHA-256 of the numbers, so a law can say what it was fitted to."""
        return hashlib.sha256(np.stack([*self.columns.values(), self.loss]).tobytes()).hexdigest()

    def has(self, fingerprint: str) -> bool:
        """Whether these are the runs of this fingerprint.

        Earlier versions took 1 for every number of experts that the law does not read.
        """
        without_experts = dataclasses.replace(self, columns=self.columns | dict(n_experts=np.ones(len(self))))
        return fingerprint in (self.fingerprint(), without_experts.fingerprint())

    def name(self, i: int) -> Json:
        """{row, run} of the i-th run: its row in the file and, where the table has the column, its name."""
        if not self.table.rows:
            return {}
        place = self.index[i]
        name: Json = dict(row=int(self.table.rows[place]))
        if "run" in self.table:
            name["run"] = printable(str(self.table.column("run")[place]))
        return name


def subset(runs: Runs, rows: Array) -> Runs:
    """Some of the runs, with new labels of trunks.

    Args:
      rows: which of them, boolean [n_runs] or indices.
    """
    columns = {name: values[rows] for name, values in runs.columns.items()}
    trunks = None if runs.trunks is None else np.unique(runs.trunks[rows], return_inverse=True)[1]
    return dataclasses.replace(
        runs,
        columns=columns,
        loss=runs.loss[rows],
        index=runs.index[rows],
        weights=runs.weights[rows],
        trunks=trunks,
        near=None if runs.near is None else runs.near[rows],
    )


def corpora(table: Table) -> list[str]:
    """Fingerprints of the text that the runs of a table were trained on, where it has them."""
    if "corpus_fingerprint" not in table:
        return []
    fingerprints = [value for value in table.column("corpus_fingerprint") if value not in (None, "")]
    return sorted({printable(str(value)) for value in fingerprints})


def read_runs(path: str | Table, columns: Sequence[str], mix_corpora: bool = False) -> Runs:
    """Reads the runs of a file or a Table for a law.

    Args:
      columns: those that the law reads.
      mix_corpora: accept runs that were trained on several corpora.

    Raises:
      UserError: on missing columns, a bad value, or on several corpora.
    """
    table = read(path)
    path = table.path
    require(table, (*columns, "loss"))
    wanted = list(dict.fromkeys(columns))
    if "n_active" in table and "n_active" not in wanted:  # for the training FLOPs
        wanted.append("n_active")
    numbers = {name: table.numbers(name) for name in wanted}
    loss = table.numbers("loss")
    if "n_experts" in table:  # a law that does not read it holds for these numbers of experts
        numbers["n_experts"] = table.numbers("n_experts")
    texts = corpora(table)
    if len(texts) > 1 and not mix_corpora:
        more = ", ..." if len(texts) > 3 else ""
        raise UserError(
            f"{path}, column corpus_fingerprint: found {len(texts)} corpora ({', '.join(texts[:3])}{more}); losses on "
            "different text do not compare: fit one corpus, or say --mix_corpora"
        )
    return Runs(path, numbers, loss, table)


def unlikely(columns: ByName, share: float = 0.0) -> Finding | None:
    """A finding if the tokens per parameter of the models suggest that a number is in other units.

    Args:
      columns: of the models by name; active parameters count where they are known, else total ones.
      share: of the models, above which the finding is given.
    """
    sizes = columns.get("n_active", columns.get("n_total"))
    if sizes is None or "n_tokens" not in columns:
        return None
    ratio = np.atleast_1d(np.asarray(columns["n_tokens"], float) / sizes)
    odd = (ratio < FEWEST_TOKENS) | (ratio > MOST_TOKENS)
    if not np.mean(odd) > share:
        return None
    what = "the model has"
    if ratio.size > 1:
        what = f"{odd.sum():,} of {ratio.size:,} models, the first of them with"
    return finding("tokens_per_parameter", what=what, ratio=float(ratio[odd][0]))


def trunks_of(table: Table, by: str = "trunk") -> tuple[Array | None, str]:
    """Which runs share a trunk, and with it an error: resampling and intervals must take them together.

    Args:
      by: "trunk" for the trunks that the table shows, "row" for each run by itself, or a column's name.

    Returns:
      Labels int [n_runs], None if no runs share a label; and the name of what they share.

    Raises:
      UserError: where the table has no column `by`.
    """
    alone = None, "runs"
    if by == "row":
        return alone
    if by != "trunk":
        if by not in table:
            raise UserError(
                f"--bootstrap_by={by}: expected trunk, row, or one of the columns of {table.path}: "
                f"{', '.join(table.columns)}"
            )
        return _labels([str(value) for value in table.column(by)]), f"groups of equal {by}"
    branches = [BRANCH.fullmatch(str(value)) for value in (table.column("run") if "run" in table else [])]
    if branches and all(branches):
        labels = _labels([branch[1] for branch in branches if branch])
        words = "trunks (column run)"
    elif "seed" in table and "config" in table:
        columns = [name for name in SAME if name in table]
        rows = zip(*(table.column(name) for name in columns), strict=True)
        labels = _labels([str(row) for row in rows])
        words = f"trunks (same {', '.join(columns)})"
    else:
        return alone
    each_by_itself = labels.max() + 1 == len(labels)
    return alone if each_by_itself else (labels, words)


def _labels(names: Sequence[str]) -> Array:
    """int [n]: the same number for equal names, in the order of the sorted names."""
    return np.unique(names, return_inverse=True)[1]


def held_out(runs: Runs, rule: str) -> Array:
    """Which runs a rule keeps out of the fit.

    Args:
      rule: none; lowest-loss:N or largest-compute:N (n_active times n_tokens), with N a count or a percentage;
        column:NAME; or compute:rolling, which keeps none out of the law that is written
        (fit/fitting/rolling.py). Ties are broken by the order of the file.

    Returns:
      Boolean [n_runs].

    Raises:
      UserError: for another rule, or one that keeps none or all of the runs.
    """
    if rule in ("none", ROLLING):
        return np.zeros(len(runs), bool)
    kind, _, amount = rule.partition(":")
    if kind == "column" and amount:
        out = _held_out_by_column(runs, amount)
        count = int(out.sum())
    elif kind in ("lowest-loss", "largest-compute"):
        count = _count_of(rule, amount, len(runs))
        key = runs.loss if kind == "lowest-loss" else -runs.n_active * runs.n_tokens
        out = np.zeros(len(runs), bool)
        if 0 < count < len(runs):
            out[np.argsort(key, kind="stable")[:count]] = True
    else:
        raise UserError(
            f"--holdout={rule}: expected none, lowest-loss:N or largest-compute:N (N runs or N%), column:NAME or "
            f"{ROLLING}"
        )
    if not 0 < count < len(runs):
        raise UserError(f"--holdout={rule}: holds out {count} of {len(runs)} runs, expected at least 1 and not all")
    return out


def _held_out_by_column(runs: Runs, name: str) -> Array:
    """Boolean [n_runs]: the runs for which the column says validation, true or 1."""
    out = np.zeros(len(runs), bool)
    for i, value in enumerate(runs.table.column(name)):
        word = str(value).strip().lower()
        if word in HELD_OUT_WORDS:
            out[i] = True
        elif word not in FITTED_WORDS:
            raise UserError(
                f"{runs.path}, row {runs.table.rows[i]}, column {name}: found {value!r}, expected validation "
                "or train, true or false, 1 or 0"
            )
    return out


def _count_of(rule: str, amount: str, n_runs: int) -> int:
    """How many runs a rule of held_out means by "10" or "10%"."""
    try:
        if amount.endswith("%"):
            return int(round(float(amount[:-1]) / 100 * n_runs))
        return int(amount)
    except (ValueError, OverflowError):
        raise UserError(f"--holdout={rule}: found {amount!r}, expected a count or a percentage") from None


def run_weights(runs: Runs, rule: str | None) -> Array:
    """How much each run counts in a fit.

    Args:
      rule: none or None; inverse-loss (App. B of the joint law's paper: worse runs count less); compute^POWER of the
        training FLOPs (small runs count less); or column:NAME.

    Returns:
      float64 [n_runs], of mean 1.

    Raises:
      UserError: for another rule, or a column of zeros.
    """
    if rule in ("none", None):
        return np.ones(len(runs))
    power = re.fullmatch(r"compute\^(\d*\.?\d+)", rule)
    if rule == "inverse-loss":
        weights = 1 / runs.loss
    elif power and float(power[1]) <= 2:
        weights = (runs.flops / runs.flops.max()) ** float(power[1])
    elif rule.startswith("column:"):
        name = rule.removeprefix("column:")
        weights = runs.table.numbers(name, (0, 1e12))
        if not weights.any():
            raise UserError(f"{runs.path}, column {name}: every weight is 0")
    else:
        raise UserError(
            f"--weights={rule}: expected none, inverse-loss, compute^POWER with a power up to 2, or column:NAME"
        )
    return weights / weights.mean()


def split(runs: Runs, rule: str, weights: str | None = None, by: str = "trunk") -> tuple[Runs, Runs]:
    """The runs to fit and those held out, with weights and trunks.

    Args:
      rule: of held_out.
      weights: a rule of run_weights.
      by: what shares an error, as trunks_of takes it.

    Raises:
      UserError: where these runs do not allow one of the rules.
    """
    trunks, shared_by = trunks_of(runs.table, by)
    out = held_out(runs, rule)
    runs = dataclasses.replace(runs, weights=run_weights(runs, weights), trunks=trunks, shared_by=shared_by)
    return subset(runs, ~out), subset(runs, out)


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorstRun(Record):
    """The run with the largest error: its row in the file, its name, and both losses in nats per token."""

    row: int | None = optional()
    run: str | None = optional()
    predicted: float
    measured: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Errors(Record):
    """How far predicted losses are from those of runs.

    Attributes:
      runs: How many runs.
      rmse_nats, rmse_log: Root mean square error of the loss and of its logarithm.
      mean_relative_error, max_relative_error: Of the loss.
      worst: The run with the largest error.
    """

    runs: int
    rmse_nats: float
    rmse_log: float | None = optional()
    mean_relative_error: float
    max_relative_error: float
    worst: WorstRun | None = optional()


def errors(log_loss: Array, runs: Runs) -> Errors:
    """How far predicted log losses [n_runs] are from those of runs."""
    log_error = log_loss - np.log(runs.loss)
    relative = np.abs(np.expm1(log_error))
    worst = int(np.argmax(relative))
    return Errors(
        runs=len(runs),
        rmse_nats=rms(np.exp(log_loss) - runs.loss),
        rmse_log=rms(log_error),
        mean_relative_error=float(relative.mean()),
        max_relative_error=float(relative[worst]),
        worst=WorstRun(**runs.name(worst), predicted=float(np.exp(log_loss[worst])), measured=float(runs.loss[worst])),
    )


def rms(x: Floats) -> float:
    """Root mean square."""
    return float(np.sqrt(np.mean(np.square(x))))
