"""The command that maps loss to the accuracies of tasks."""

import dataclasses

from fit import options
from fit.commands import flags
from fit.task_maps import fit_maps
from fit.task_maps.options import TaskOptions


@dataclasses.dataclass(kw_only=True)
class TasksCommand(TaskOptions, flags.Columns, flags.JsonOutput):
    """Map loss to the accuracies of tasks by bounded curves, pooled over sizes, and test whether E shifts them.

    python -m fit tasks --runs=runs.csv --tasks=acc_*
    python -m fit tasks --runs=runs.csv --tasks=acc_piqa,acc_mine --chance=acc_mine:0.1 --out=tasks.json

    The table has a column loss, and one for each task with accuracies from 0 to 1. jmoe.evaluate --lm_eval makes such
    columns of lm-evaluation-harness. fit plan --task_map=tasks.json prints what a plan's model is expected to reach.
    """

    runs: str = options.required(options.text("Table of runs: .csv, .jsonl or .parquet."))
    out: str | None = options.text("File to write the maps to (JSON), for fit plan --task_map.")

    def run(self) -> None:
        maps = fit_maps.fit_tasks(self.read(self.runs), self)
        self.show(maps)
        if self.out is not None:
            maps.save(self.out)
            if not self.json:
                print(f"written to {self.out}")
