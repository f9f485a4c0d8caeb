"""The command that makes a table of runs of what another tool wrote."""

import dataclasses
from typing import ClassVar

from fit import options
from fit.commands import flags
from fit.table import selection
from fit.table.importers import import_answer, tools
from fit.table.reading import with_set
from fit.table.table import checked_units, write


@dataclasses.dataclass(kw_only=True)
class ImportCommand(flags.Columns):
    """Make a table of runs of what another tool wrote: Weights & Biases, trackio, nanochat, TensorBoard, MaxText,
    levanter, Hugging Face.

    python -m fit import export.csv --out=runs.csv --where=state=finished --columns=loss:eval/loss,n_tokens:tokens
    python -m fit import logs --out=runs.csv --columns=loss:eval/loss --tokens_per_step=524288 --sizes=models.csv
    python -m fit import wandb:entity/project --out=runs.csv --where=state=finished
    python -m fit import checkpoints --out=runs.csv

    SOURCE is a file or a folder: a table of runs or a chart exported by Weights & Biases (.csv, .parquet), a project of
    trackio (.db, .parquet), nanochat's results.csv, a folder of TensorBoard event files, a metrics file of MaxText,
    levanter's tracker_metrics.jsonl, checkpoints with a trainer_state.json. Or it is a project on the server of Weights
    & Biases, wandb:ENTITY/PROJECT, read with the key WANDB_API_KEY.
    All that it does not say is asked for at once, with the command that would work. Only finished runs belong into a
    law: give --where=state=finished.
    """

    SOURCE: ClassVar[str] = "SOURCE"  # what the command line wants beside flags
    out: str = options.required(options.text("Table to write: .csv, .jsonl or .parquet."), ": the table to write")
    tool: str | None = options.choice("Whose files these are; by default their names say it.", None, tools.TOOLS)
    sizes: str | None = options.text("Table with the column run and others for it: n_active, n_experts, ...")
    tokens_per_step: float | None = options.number("Tokens of a batch, where the source counts steps only.", least=1)

    def run(self, source: str) -> None:
        tool, rows = tools.runs(source, self.tool)
        runs = selection.select(tools.as_table(source, rows, self.columns, tool), selection.parse(self.where))
        joined = tools.with_sizes(runs, self.sizes)
        if self.tokens_per_step is not None:
            joined = tools.with_tokens(joined, self.tokens_per_step)
        joined = with_set(joined, self.set, checked_units(self.units))
        table = tools.table(joined, self.set, self.sizes)
        write(table, self.out)
        for line in import_answer.answer(source, tool, len(rows), runs, self.units):
            print(line)
        flags.print_findings(import_answer.warnings(joined))
        print(f"columns: {', '.join(table.columns)}\nwritten to {self.out}")
