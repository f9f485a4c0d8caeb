"""The planner page, and what it is given: laws, runs, chips, and the sentences and constants of a plan."""

import ast
import dataclasses
import json
import os
import pathlib
import re
from collections.abc import Sequence

import numpy as np

from fit.aliases import Array, Json
from fit.data.runs import Runs
from fit.data.table import Table
from fit.errors import UserError
from fit.form import Form
from fit.lawbook import lawcheck, models, summary
from fit.lawbook.lawfile import OURS, PRESETS, Law, load
from fit.laws import FORMS
from fit.next_runs import next_text
from fit.planner import formulas
from fit.planning import compare, constraints, memory, plan_config, planning, repeats, speedup, target
from fit.shape import like
from fit.shape.architecture import BATCH_RAMP, OF_EXPERTS, PAPER
from fit.words import sentences, units

MOST_RUNS = 1200  # on the page, spread evenly over the table
BUDGETS = (0.1, 0.3, 1.0)  # of fit next, of what the fitted runs took together; larger ones take the search long
TARGETS = (10, 100)  # times the largest run
SCRIPTS = "numbers counts law words solve cost plan config like compare fit table form asked chart pictures map"
SCRIPTS = f"{SCRIPTS} command answers beside next speedup own app".split()
# Imports, exports, comments and indentation: the scripts become one, with one scope for all names.
NOT_CARRIED = re.compile(r"^(import [^;]*;\n|export | *//.*\n| +)", re.MULTILINE)


def text(data: Json) -> str:
    """The page as text; data: as `of` makes it."""
    folder = pathlib.Path(__file__).parent
    read = lambda name: (folder / name).read_text(encoding="utf-8")
    forms = [FORMS[name] for name in data["forms"]]
    of_memory = [memory.token_bytes, memory.state_bytes, memory.least_tokens, memory.device_bytes, memory.fewest]
    scripts = [NOT_CARRIED.sub("", read(f"{name}.js")) for name in SCRIPTS]
    parts = dict(
        STYLE=read("page.css"),
        # "<" within a string could end the script element, so JSON's escape stands for it
        DATA=json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
        SCRIPT="\n".join([formulas.script(forms, of_memory), *scripts]),
    )
    return re.sub(r"\{\{(\w+)\}\}", lambda name: parts[name[1]], read("page.html"))


def of(laws: Sequence[Law], measured: tuple[Runs, Array] | None) -> Json:
    """Everything that the page computes with, ready for JSON.

    laws: Laws; the page shows the first of them at first and adds the published ones that have optima, and ours;
    measured: runs of the first law, and boolean [n_runs]: those kept out of its fit. Raises UserError where a law has
    no optimum of size and tokens.
    """
    names = {law.name for law in laws}
    others = [name for name, form in PRESETS.items() if "n_tokens" in form.columns] + list(OURS)
    return dict(
        laws=[_law(law) for law in [*laws, *(load(name) for name in others if name not in names)]],
        runs=measured and _runs(*measured),
        sentences={name: template for name, template in vars(sentences).items() if name.isupper()},
        chips={name: vars(chip) for name, chip in constraints.CHIPS.items()},
        cost=dict(state=memory.STATE, remat=memory.REMAT, row=memory.ROW, group=memory.GROUP, front=target.FRONT),
        forms={name: _form(form) for name, form in FORMS.items() if "n_tokens" in form.columns},
        drawn=lawcheck.WAYS_OF_DRAWING["errors"].format(by="runs"),
        repeats=repeats.SOURCE,
        speedup=dict(furthest=speedup.FURTHEST, points=speedup.POINTS),
        compare=dict(laws=compare.LAWS, splits=compare.SPLITS, agree=compare.AGREE, about=compare.ABOUT),
        published=like.PUBLISHED,
        known_notes=dict(latent=like.LATENT, window=like.WINDOW, ahead=like.AHEAD, linear=like.LINEAR),
        sequence=planning.SEQUENCE,
        largest=units.LARGEST,
        paper=dict(
            law=planning.PAPERS_LAW,
            shape=PAPER.said(),
            config=planning.PAPERS_CONFIG,
            learning_rate=load(planning.PAPERS_LAW).models["learning_rate"],
            smallest_tuned=planning.SMALLEST_TUNED,
            batch_ramp=BATCH_RAMP,
            far=plan_config.FAR,
        ),
    )


def _law(law: Law) -> Json:
    law.check_plannable()
    known, record = law.models, law.record
    base, overrides, own = known["base_config"], models.overrides(known), known["architecture"]
    bootstrap = record.get("bootstrap")
    return dict(
        form=law.form.name,
        coefficients={name: law.coefficients[name] for name in law.form.names},
        **{name: getattr(law, name) for name in _LAW},
        own=own and dataclasses.asdict(models.mixture_of(own, 1, 1)),
        dense=record.get("dense") if law.published else None,
        fixed=record.get("fixed", ()) if law.published else (),
        notes=list(models.architecture_notes(known)),
        source=record.get("source"),
        note=record.get("note"),
        origin=f"{record['source']}. {record['note']}." if law.published else "",
        models={name: known[name] for name in _MODELS if known[name] is not None} | {"overrides": overrides},
        shape={name: _own(law, name) for name in ("vocab_size", "width_per_block")},
        final_norm=bool(known["final_norm"]),
        configs=(known["differing"] or {}).get("config"),
        override_values={k: repr(ast.literal_eval(v)) for k, v in overrides.items()} if base else {},
        config_path=repr(os.path.abspath(base)) if base and not base.startswith("configs/") else None,
        bootstrap=bootstrap and dict(by="runs") | bootstrap | dict(drawn=summary.drawn(bootstrap)),
        holdout=(record.get("settings") or {}).get("holdout"),
    )


def _form(form: Form) -> Json:
    """What its laws have in common: how coefficients make the entries that the formula reads, and of which columns; and
    what a fit of the form needs."""
    names = set(form.columns)
    return dict(
        columns=form.columns,
        entries=[[name, name in form.positive, c.above, c.share] for name, c in form.coefficients.items()],
        closed=bool(form.at_experts),
        believed=form.prior is not None,
        bounds=form.bounds.tolist(),
        spans=form.spans,
        slopes=[c.slopes for c in form.coefficients.values()],
        knows_experts=bool(names & set(OF_EXPERTS)),
        reads_used=bool(names & {"sparsity", "top_k"}),
    )


_LAW = ("name", "counts_embedding", "fixes_experts", "published", "experts", "ranges", "warning", "noise")
_MODELS = ("vocab_size", "width_per_block", "seq_len", "unique_tokens", "base_config", "learning_rate")


def _own(law: Law, name: str) -> int | str:
    """The law's own vocab_size or width_per_block, or the sentence that asks for one where its runs had several."""
    other = "width_per_block" if name == "vocab_size" else "vocab_size"
    try:
        return getattr(law.shaped(**{other: 1}), name)
    except UserError as e:
        return e.sentence


def _runs(runs: Runs, out: Array) -> Json:
    """Columns of the runs; at most MOST_RUNS of them."""
    rows = np.unique(np.linspace(0, len(runs) - 1, min(len(runs), MOST_RUNS)).round().astype(int))
    columns = {name: values[rows].tolist() for name, values in runs.columns.items()}
    return columns | dict(
        loss=runs.loss[rows].tolist(),
        file=os.path.basename(runs.path),
        path=runs.path,
        count=len(runs),
        held_out=out[rows].tolist(),
        name=[name.get("run") or f"row {name['row']}" for name in map(runs.name, rows)],
    )


def next_answers(law: Law, runs: Runs, out: Array) -> Json:
    """{answers: what `fit next` prints and the sweep file it writes, by budget and target}, or {why: the sentence of
    why there are none}. out: boolean [n_runs], those that the fit kept out. Needs jax in float64."""
    one_digit, flops = lambda x: float(f"{x:.0e}"), runs.flops[~out].tolist()
    budgets, targets = [one_digit(b * sum(flops)) for b in BUDGETS], [one_digit(t * max(flops)) for t in TARGETS]
    answers = [dict(flops=b, target_flops=t) | _next(law, runs.table, b, t) for b in budgets for t in targets]
    whys = {answer.get("why") for answer in answers}
    if len(whys) == 1 and None not in whys:
        return dict(why=whys.pop())
    return dict(answers=answers, stages=next_text.STAGES)


def _next(law: Law, table: Table, flops: float, target_flops: float) -> Json:
    from fit.next_runs import next_runs

    answer: Json = {}
    try:
        architecture = law.shaped()
        found = next_runs.next_runs(law, table, architecture, law.experts, flops, target_flops)
        answer |= {name: getattr(next_text, name)(found) for name in ("trunks", "summary", "certainty", "notes")}
        return answer | dict(sweep=next_text.sweep_source(law, architecture, found))
    except UserError as error:
        return answer | {"no_sweep" if answer else "why": error.sentence}
