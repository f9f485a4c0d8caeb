"""Runs as a law reads them: n_active, n_tokens, n_experts and loss of each, from a table checked strictly."""

import dataclasses
import hashlib

import numpy as np

from fit import UserError
from fit.files import BOUNDS, Table, check_writable, read, replacing, write, write_text  # noqa: F401, what every command needs

# Columns that --columns may find under another name: those of runs.csv that fit reads.
NAMES = (*BOUNDS, "peak_learning_rate", "epochs", "corpus_fingerprint", "run", "seed", "config")


def define_columns(f):
    """The flag --columns of a command that reads a table of runs."""
    from absl import flags

    flags.DEFINE_list(
        "columns",
        [],
        "What the table calls its columns, where it is not as here: loss:val_loss,n_tokens:D.",
        flag_values=f,
    )


def columns_of(f):
    """{ours: theirs} of the flag --columns; UserError where it is not that."""
    names = {}
    for text in f.columns:
        ours, colon, theirs = (part.strip() for part in text.partition(":"))
        if not colon or not theirs or ours not in NAMES or ours in names:
            raise UserError(
                f"--columns={','.join(f.columns)}: found {text!r}, expected name:column once for each name, such as "
                f"loss:val_loss; names: {', '.join(NAMES)}"
            )
        names[ours] = theirs
    return names


@dataclasses.dataclass
class Runs:
    """What a law reads of the runs, float64 [n_runs] each; a column that the law does not use is all ones.

    index [n_runs]: where in the table each stands.
    """

    path: str
    n_active: np.ndarray
    n_tokens: np.ndarray
    n_experts: np.ndarray
    loss: np.ndarray
    table: Table
    index: np.ndarray = None

    def __post_init__(self):
        if self.index is None:
            self.index = np.arange(len(self.loss))

    def __len__(self):
        return len(self.loss)

    def fingerprint(self):
        """SHA-256 of the numbers, so a law can say what it was fitted to."""
        return hashlib.sha256(np.stack([self.n_active, self.n_tokens, self.n_experts, self.loss]).tobytes()).hexdigest()

    def name(self, i):
        """{row, run} of the i-th run: its row in the file and, where the table has the column, what it is called."""
        if self.table is None:
            return {}
        row = dict(row=int(self.table.rows[self.index[i]]))
        return row | ({"run": str(self.table.column("run")[self.index[i]])} if "run" in self.table else {})


def subset(runs, rows):
    """The runs where `rows` (boolean [n_runs], or indices) says so."""
    values = {name: getattr(runs, name)[rows] for name in ("n_active", "n_tokens", "n_experts", "loss", "index")}
    return Runs(runs.path, table=runs.table, **values)


def read_runs(path, columns, mix_corpora=False, names=None):
    """Runs for a law that reads `columns`; names: as columns_of gives them. UserError on a bad value, or on two corpora
    unless mix_corpora."""
    table = read(path, names)
    for name in (*columns, "loss"):
        table.column(name)
    values = {
        name: table.numbers(name) if name in columns else np.ones(len(table))
        for name in ("n_active", "n_tokens", "n_experts")
    }
    runs = Runs(path, loss=table.numbers("loss"), table=table, **values)
    corpora = (
        sorted({str(value) for value in table.column("corpus_fingerprint")}) if "corpus_fingerprint" in table else []
    )
    if len(corpora) > 1 and not mix_corpora:
        raise UserError(
            f"{path}, column corpus_fingerprint: found {len(corpora)} corpora ({', '.join(corpora[:3])}"
            f"{', ...' if len(corpora) > 3 else ''}); losses on different text do not compare: fit one corpus, "
            "or say --mix_corpora"
        )
    return runs
