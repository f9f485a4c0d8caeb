"""Fit a law to a table of runs with the columns n_active, n_tokens, n_experts and loss (nats per token).

python -m fit law --runs=runs.csv --out=law.json --holdout=largest-compute:3 --bootstrap=100
python -m fit law --runs=runs.csv --form=joint,chinchilla,sparsity
python -m fit law --runs=theirs.jsonl --columns=loss:val_loss,n_tokens:D --out=law.json --fix=E_max=290.4521,c=1.2
"""

import dataclasses

from fit import api
from fit.asked import fields, fits
from fit.commands import flags
from fit.data.files import check_writable
from fit.errors import UserError


@dataclasses.dataclass(kw_only=True)
class Flags(fits.Fit, flags.Columns):
    runs: str | None = fields.text("Table of runs: .csv, .jsonl or .parquet.")
    out: str | None = fields.text("File to write the law to (JSON).")


def run(asked: Flags) -> None:
    alone = len(asked.forms) <= 1
    if not alone and asked.out is not None:
        raise UserError(f"--form={','.join(asked.form or ())}: --out is for a single form")
    if asked.runs is None:
        raise UserError("--runs is missing")
    from fit.fitting import summary

    if not alone:
        print("\n".join(summary.of_forms(api.compare_forms(asked.read(asked.runs), asked=asked, quiet=False))))
        return
    if asked.out is None:
        raise UserError("--out is missing")
    check_writable(asked.out)
    law = api.law(asked.read(asked.runs), asked=asked, quiet=False)
    api.save(law, asked.out)
    for line in summary.summary(law.record):
        print(line)
    print(f"written to {asked.out}")
