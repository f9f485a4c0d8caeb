"""Runs of other tools."""

import dataclasses
from typing import ClassVar

from fit.asked import fields
from fit.commands import flags
from fit.data.files import check_writable
from fit.data.table import write
from fit.errors import UserError
from fit.importers import tools


@dataclasses.dataclass(kw_only=True)
class Import(flags.Columns):
    """Make a table of runs of what another tool wrote: Weights & Biases, TensorBoard, MaxText, levanter, Hugging Face.

    python -m fit import export.csv --out=runs.csv --where=state=finished --columns=loss:eval/loss,n_tokens:tokens
    python -m fit import logs --out=runs.csv --columns=loss:eval/loss --tokens_per_step=524288 --sizes=models.csv
    python -m fit import checkpoints --out=runs.csv

    SOURCE is a file or a folder: a table of runs exported by Weights & Biases (.csv, .parquet), a folder of TensorBoard
    event files, a metrics file of MaxText, levanter's tracker_metrics.jsonl, checkpoints with a trainer_state.json.
    What it does not say is asked for. Only finished runs belong into a law: give --where=state=finished.
    """

    SOURCE: ClassVar[str] = "SOURCE"  # what the command line wants beside flags
    out: str = fields.needed(fields.text("Table to write: .csv, .jsonl or .parquet."), ": the table to write")
    tool: str | None = fields.choice("Whose files these are; by default their names say it.", None, tools.TOOLS)
    where: dict[str, str] = fields.pairs(
        "Only runs whose column has this value (state=finished), or another one (loss!=NaN); all of several.",
        "COLUMN=VALUE",
        "=",
    )
    set: dict[str, str] = fields.pairs("Columns that are the same for all runs: n_experts=1.", "NAME=VALUE", "=")
    sizes: str | None = fields.text("Table with the column run and others for it: n_active, n_experts, ...")
    tokens_per_step: float | None = fields.number("Tokens of a batch, where the source counts steps only.", least=1)

    def run(self, source: str) -> None:
        check_writable(self.out)
        tool, rows = tools.runs(source, self.tool)
        kept, dropped = tools.where(rows, self.where)
        if not kept:
            raise UserError(f"{source}: no run is left of {len(rows)}; left out: {_counted(dropped)}")
        if self.tokens_per_step is not None:
            tools.count_tokens(source, kept, self.tokens_per_step)
        table = tools.table(source, kept, self.columns, self.set, self.sizes)
        write(table, self.out)
        print(f"{source}: read as {tool}'s; {len(kept)} of {len(rows)} runs kept")
        if dropped:
            print(f"left out by --where: {_counted(dropped)}")
        print(f"columns: {', '.join(table.columns)}\nwritten to {self.out}")


def _counted(dropped: dict[str, int]) -> str:
    return ", ".join(f"{count} with {words}" for words, count in dropped.items())
