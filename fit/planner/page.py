"""The planner page, and what it is given: laws, runs, chips, and the sentences and constants of a plan."""

import dataclasses
import json
import os
import pathlib
import re
from collections.abc import Sequence

import numpy as np

from fit.aliases import Array, Json
from fit.data.runs import Runs
from fit.errors import UserError
from fit.form import Form
from fit.lawbook import built, models, summary
from fit.lawbook.lawfile import OURS, PRESETS, Law, load
from fit.laws import FORMS
from fit.planner import formulas
from fit.planning import compare, constraints, memory, repeats, target, verdict
from fit.shape import like
from fit.shape.architecture import OF_EXPERTS, PAPER
from fit.words import sentences, units

MOST_RUNS = 1200  # on the page, spread evenly over the table
SCRIPTS = "numbers counts law words solve cost plan like compare form asked chart pictures map".split()
SCRIPTS += ["command", "answers", "beside", "drop", "app"]
# Imports, exports, comments and indentation: the scripts become one, with one scope for all names.
NOT_CARRIED = re.compile(r"^(import [^;]*;\n|export | *//.*\n| +)", re.MULTILINE)


def text(data: Json) -> str:
    """The page as text; data: as `of` makes it."""
    folder = pathlib.Path(__file__).parent
    read = lambda name: (folder / name).read_text(encoding="utf-8")
    forms = [FORMS[name] for name in data["forms"]]
    scripts = [NOT_CARRIED.sub("", read(f"{name}.js")) for name in SCRIPTS]
    parts = dict(
        STYLE=read("page.css"),
        # "<" within a string could end the script element, so JSON's escape stands for it
        DATA=json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
        SCRIPT="\n".join([formulas.script(forms), *scripts]),
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
    held = [*laws, *(law for law in map(load, others) if law.name not in names and formulas.has_formula(law.form))]
    return dict(
        laws=[_law(law) for law in held],
        runs=measured and _runs(*measured),
        sentences={name: template for name, template in vars(sentences).items() if name.isupper()},
        chips={name: vars(chip) for name, chip in constraints.CHIPS.items()},
        cost=dict(
            state=memory.STATE,
            remat=memory.REMAT,
            at_work=memory.AT_WORK,
            scores=memory.SCORES,
            row=memory.ROW,
            group=memory.GROUP,
            front=target.FRONT,
            room=constraints.ROOM,
        ),
        forms={name: _form(FORMS[name]) for name in sorted({law.form.name for law in held})},
        repeats=repeats.SOURCE,
        compare=dict(
            laws=compare.LAWS,
            splits=compare.SPLITS,
            agree=compare.AGREE,
            furthest=compare.FURTHEST,
            about=compare.ABOUT,
        ),
        published=like.PUBLISHED,
        like=dict(
            notes=dict(
                latent=like.LATENT, window=like.WINDOW, ahead=like.AHEAD, linear=like.LINEAR, alternate=like.ALTERNATE
            ),
            not_counted=like.NOT_COUNTED,
            two_matrices=like.TWO_MATRICES,
            ungated=like.UNGATED_ACTIVATIONS,
            tied=like.TIED_FAMILIES,
        ),
        largest=units.LARGEST,
        verdict=dict(tie=verdict.TIE, apart=verdict.APART, columns=verdict.COLUMNS),
        paper_shape=PAPER.said(),
    )


def _law(law: Law) -> Json:
    law.check_plannable()
    known, record = law.models, law.record
    own = known["architecture"]
    bootstrap = record.get("bootstrap")
    return dict(
        form=law.form.name,
        coefficients={name: law.coefficients[name] for name in law.form.names},
        **{name: getattr(law, name) for name in _LAW},
        own=own and dataclasses.asdict(built.mixture_of(own, 1, 1)),
        dense=record.get("dense") if law.published else None,
        fixed=record.get("fixed", ()) if law.published else (),
        notes=list(models.architecture_notes(known)),
        source=record.get("source"),
        note=record.get("note"),
        origin=f"{record['source']}. {record['note']}." if law.published else "",
        models={name: known[name] for name in _MODELS if known[name] is not None},
        shape={name: _own(law, name) for name in ("vocab_size", "width_per_block")},
        final_norm=bool(known["final_norm"]),
        bootstrap=bootstrap and dict(by="runs") | bootstrap | dict(drawn=summary.drawn(bootstrap)),
    )


def _form(form: Form) -> Json:
    """What its laws have in common: how coefficients make the entries that the formula reads, and of which columns."""
    names = set(form.columns)
    return dict(
        columns=form.columns,
        entries=[[name, name in form.positive, c.above, c.share] for name, c in form.coefficients.items()],
        closed=bool(form.at_experts),
        knows_experts=bool(names & set(OF_EXPERTS)),
        reads_used=bool(names & {"sparsity", "top_k"}),
    )


_LAW = ("name", "counts_embedding", "fixes_experts", "published", "experts", "ranges", "warning")
_LAW += ("only_experts", "of_mixtures", "knows_dense")
_MODELS = ("vocab_size", "width_per_block", "unique_tokens")


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
