"""Fit the law of peak learning rates, Eq. 10: ln LR = constant + n_active ln(n_active) + n_experts ln(n_experts).

python -m fit lr --runs=runs.csv --experts=1,8

Takes the best learning rate of each model from runs that differ in peak_learning_rate alone, and fits by least squares;
numbers of experts that --experts leaves out are predicted, as a check (the paper fits 1 and 8, checks 4 and 32).
"""

import dataclasses
import json

import numpy as np

from fit.asked import fields
from fit.commands import flags
from fit.data.files import write_text
from fit.data.table import read
from fit.equal_flops import learning_rate
from fit.errors import UserError


@dataclasses.dataclass(kw_only=True)
class Flags(flags.Columns):
    runs: str | None = fields.text(
        "Table of runs with n_active, n_experts, n_tokens, loss and peak_learning_rate (.csv, .jsonl, .parquet)."
    )
    experts: tuple[int, ...] = fields.experts("Numbers of experts to fit. Default: all.", ())
    out: str | None = fields.text("File to write the coefficients to (JSON).")
    with_tokens: bool = fields.switch(
        "Also fit an exponent of n_tokens, which Eq. 10 lacks: the best rate depends on the tokens per parameter."
    )


def run(asked: Flags) -> None:
    if asked.runs is None:
        raise UserError("--runs is missing: a table with the column peak_learning_rate, as launch.sweep writes it")
    optima = learning_rate.best_rates(read(asked.runs, asked.columns))
    trained = sorted({o.n_experts for o in optima})
    wanted = asked.experts or trained
    if absent := [e for e in wanted if e not in trained]:
        others = ", ".join(f"{e:g}" for e in trained)
        raise UserError(
            f"--experts={','.join(map(str, asked.experts))}: {absent[0]:g} is in none of the runs, which have {others}"
        )
    fitted = [o for o in optima if o.n_experts in wanted]
    law = learning_rate.fit(fitted, asked.runs, asked.with_tokens)
    print(f"{'n_experts':>9} {'n_active':>13} {'n_tokens':>15} {'best LR':>10} {'law':>10} {'law/best':>8}  loss lost")
    for o in optima:
        rate = learning_rate.predict(law, o.n_active, o.n_experts, o.n_tokens)
        notes = ["" if o in fitted else "not fitted"] + ["best at the end of its grid: widen it"] * o.at_edge
        print(
            f"{o.n_experts:9g} {o.n_active:13,.0f} {o.n_tokens:15,.0f} {o.rate:10.3e} {rate:10.3e} {rate / o.rate:8.2f}"
            f"  {learning_rate.loss_lost(o, rate):9.5f} {'; '.join(note for note in notes if note)}".rstrip()
        )
    print(
        "\n"
        + "\n".join(
            f"config.optimizer.lr_law.{name} = {value:.6f}" for name, value in law.items() if name != "n_tokens"
        )
    )
    if asked.with_tokens:
        print(
            f"exponent of n_tokens = {law['n_tokens']:.6f}: LR goes as n_tokens^{law['n_tokens']:.3f}. "
            f"config.optimizer.lr_law has no tokens in it: to its constant add {law['n_tokens']:.6f} ln n_tokens"
        )
    print(f"root mean square error of ln LR: {learning_rate.rms_error(law, fitted):.4f} on {len(fitted)} fitted models")
    if checked := [o for o in optima if o not in fitted]:
        print(f"  {learning_rate.rms_error(law, checked):.4f} on {len(checked)} not fitted")
    if asked.out:
        record = {"lr_law": law, "experts": wanted, "optima": [dataclasses.asdict(o) for o in optima]}
        write_text(asked.out, json.dumps(record, indent=1, default=float))
    if not np.isfinite(list(law.values())).all():
        raise UserError(f"{asked.runs}: the fit is not finite")
