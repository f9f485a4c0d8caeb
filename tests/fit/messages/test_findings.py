"""Each code of the catalogue is found by a question that calls for it, in words of its own template."""

import argparse
import dataclasses
import functools
import json
import pathlib
import re
import string

import fit_runs
import numpy as np
import pytest

import fit
from fit.fitting import fit_warnings, fixed_values, forms, with_rate
from fit.laws import FORMS
from fit.messages.catalogue import CATALOGUE, NOTE, URGENT, WARNING
from fit.messages.finding import Finding, finding
from fit.planning.context import plan_findings
from fit.studies.added_runs import new_rows
from fit.table.runs import read_runs, subset
from fit.table.table import Table, read
from results import make

LAW = "joint-moe-2025"
MARIN = "benchmarks/tables/mixtures/marin_experts.csv"


def with_shape(options):
    """The options, with fields of a shape as a dictionary again: what is cached is hashed."""
    is_fields = isinstance(options.get("shape"), tuple)
    return options | dict(shape=dict(options["shape"])) if is_fields else options


@functools.cache
def planned(law=LAW, **options):
    return fit.plan(law, **with_shape(options))


@functools.cache
def compared(**options):
    result = fit.compare(**with_shape(options))
    return [*result.findings, *(finding for answer in result.laws for finding in answer.findings)]


WIDE = (("used", (2,)),)  # a token uses two experts
EPOCHS = dict(flops=1e21, max_tokens=1e9, epochs=4)
PLANS = {
    "best_outside": dict(flops=1e22),
    "at_edge": dict(flops=1e22),
    "rates_differ": dict(flops=1e22),
    "batches_differ": dict(flops=1e22),
    "undecided": dict(flops=1e28),
    "mostly_embedding": dict(flops=1e18, shape=(("vocab_size", 256000),)),
    "not_read": dict(flops=1e21, shape=WIDE, experts=(1, 2, 8)),
    "not_bounded": dict(law="sparsity-2025", flops=1e22),
    "whole_experts": dict(law="fine-grained-2024", flops=1e22),
    "shape_unknown": dict(law="fine-grained-2024", flops=1e22),
    "older_words": dict(law="jmoe-bytes-2026", flops=1e11, experts=(1, 8)),
    "repeats_dense": EPOCHS,
    "plateau": EPOCHS,
    "chips_bind": dict(chips="A100:1", memory_gb=1000, max_tokens=1e12, mfu=0.4),
    "chips_bind_by_time": dict(chips="H100:1", hours=50000, experts=(32,)),
    "many_steps": dict(chips="H100:1", hours=50000, experts=(32,)),
    "step_too_large": dict(flops=1e22, chips="H100:2", mfu=0.4, shape="paper"),
    "data_axis_uneven": dict(flops=1e21, chips="H100:56", experts=(8,), mesh="expert:8", shape="paper"),
    "mesh_uneven": dict(flops=1e21, chips="H100:48", experts=(8,), mesh="expert:3", shape="paper"),
    "tokens_per_parameter": dict(flops=1e26, max_tokens=1e9),
    "worse_than_guess": dict(flops=1e9),
    "width_left_out": dict(law="sparsity-2025", flops=1e21, experts=(2,), shape=(("used", (1, 4)),)),
    "batch_of_layout": dict(law="jmoe-bytes-2026", chips="H100:8", hours=0.01),
    "few_steps": dict(law="chinchilla-2022", flops=1e15),
}
COMPARISONS = {
    "law_outside": dict(flops=1e21, shape=WIDE),
    "law_at_edge": dict(flops=1e21, shape=WIDE),
    "law_note": dict(flops=1e21, shape=WIDE),
    "law_width": dict(flops=1e21, shape=WIDE),
    "law_finest": dict(flops=1e21, shape=WIDE),
    "law_dense": dict(flops=1e21, shape=WIDE),
    "laws_prefer": dict(flops=1e21, shape=WIDE),
    "laws_disagree": dict(flops=1e21, shape=WIDE),
    "laws_agree": dict(flops=1e21, shape=WIDE),
    "laws_vote": dict(flops=1e21, shape=WIDE),
    "law_mostly_embedding": dict(flops=1e15),
    "law_not_counted": dict(flops=1e26),
}


def of_record(folder, change):
    """The findings of a plan by the demo's law, whose record `change` has changed."""
    path = pathlib.Path(fit_runs.write_demo_law(folder / "law.json"))
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))
    return planned(str(path), flops=2e11).findings


def no_range(folder):
    return of_record(folder, lambda record: record["runs"].pop("ranges"))


def miscounted(folder):
    return of_record(folder, lambda record: record["models"].update(miscounted=0.2))


def forms_disagree(folder):
    odds = fit.plan(LAW, flops=1e21).odds
    medians = {
        "additive": dict(draws=30, n_active=2e9, n_tokens=1e10, loss=2.5),
        "coupled": dict(draws=30, n_active=1e9, n_tokens=2e10, loss=2.5),
    }
    row = dataclasses.replace(odds.row(odds.recommended), forms=medians)
    return [plan_findings.forms_disagree(dataclasses.replace(odds, experts=[row]), odds.recommended)]


def sends_longer(folder):
    """A plan whose step would send for longer than it computes."""
    plan = fit.plan(LAW, flops=1e21, chips="H100:64", mfu=0.4)
    built = plan.buildable
    mesh = dataclasses.replace(built.cost.mesh, sending_share=2.0)
    built = dataclasses.replace(built, cost=dataclasses.replace(built.cost, mesh=mesh))
    return plan_findings.of_chips(plan.problem, plan.best, built)


def predicted(law=LAW, **model):
    return fit.predict(law, **model).findings


def beyond_the_law(folder):
    """A speed-up of runs smaller than any that the law was fitted to."""
    return fit.speedup(LAW, dict(n_active=[1e6, 2e6], n_tokens=[2e7, 4e7], n_experts=[1, 1], loss=[6.0, 5.5])).findings


def without_a_loss(folder):
    """Predictions for two models, one of which has no loss to compare with."""
    models = dict(n_active=[1e9, 2e9], n_tokens=[2e10, 4e10], n_experts=[8, 8], loss=["", 2.5])
    return fit.predict(LAW, models).findings


def of_baseline(folder):
    text = pathlib.Path(MARIN).read_text()
    header, *rows = text.splitlines()
    loss = header.split(",").index("loss")
    without = rows[0].split(",")
    without[loss] = ""
    path = folder / "marin.csv"
    path.write_text("\n".join([header, *rows, ",".join(without)]) + "\n")
    return fit.speedup(runs=str(path), baseline={"n_experts": 64, "top_k": 4}, by="flops").findings


def beyond_baseline(folder):
    return fit.speedup(runs=MARIN, baseline={"n_experts": 64, "top_k": 4}, by="time").findings


def taken_from_table(folder):
    path = fit_runs.write_demo_csv(folder / "runs.csv")
    return new_rows.with_shared([dict(loss=2.0)], read(path))[1]


def other_table(folder):
    """A law of one table, and a run added to another."""
    law = str(folder / "law.json")
    fit.save(fit.law(fit_runs.write_demo_csv(folder / "fitted.csv", seed=1), form="joint", starts=16), law)
    path = fit_runs.write_demo_csv(folder / "runs.csv")
    header, first, *rest = pathlib.Path(path).read_text().splitlines()
    (folder / "run.csv").write_text(f"{header}\n{first}\n")
    pathlib.Path(path).write_text("\n".join([header, *rest]) + "\n")
    return fit.add(law, str(folder / "run.csv"), path).findings


def runs_of(n_experts, **columns):
    """Runs of two sizes with each of these numbers of experts; further columns by name."""
    rows = []
    for i, e in enumerate(n_experts):
        row = dict(n_active=1e8 * (1 + i % 2), n_tokens=2e9, n_experts=e, loss=3.0)
        rows.append(row | {name: values[i] for name, values in columns.items()})
    return read_runs(fit.read(rows), ("n_active", "n_tokens"))


def transition(folder):
    """A loss at the end of a row that one of five runs brings far down."""
    early, late = [2.2] * 5, [2.18, 2.17, 1.99, 2.16, 2.15]
    parts = dict(loss_1_2=[2.6] * 5, loss_3_4=early, loss_5_8=[2.1] * 5, loss_9_16=late)
    return fit_warnings.transition(runs_of([1] * 5, **parts))


def far_off(folder):
    """Nineteen runs on the law, and one whose loss is 10% above it."""
    runs = runs_of([1] * 20, run=[f"run {i}" for i in range(20)])
    log_loss = np.log(runs.loss) + 1e-3 * np.cos(np.arange(20))
    log_loss[7] -= 0.1
    return fit_warnings.far_off(log_loss, runs)


def plan_refuses(folder):
    """A law whose loss rises with size."""
    form = FORMS["chinchilla"]
    coefficients = dict(A=400.0, alpha=-0.1, B=400.0, beta=0.3, E=1.7)
    rising = argparse.Namespace(form=form, coefficients=coefficients)
    return fit_warnings.refusals(rising, runs_of([1, 1, 1]))


SIZES = np.repeat(np.geomspace(1e8, 1.6e9, 5), 3)
TOKENS = SIZES * np.tile([10.0, 20.0, 40.0], 5)


def true_loss(n_active, n_tokens):
    return 1.8172 + 482.01 / n_active**0.3478 + 2085.43 / n_tokens**0.3658


LOSSES = true_loss(SIZES, TOKENS)


def but_first(values, first):
    """The values, the first of them another."""
    return [first, *list(values)[1:]]


EVEN = dict(n_active=np.repeat([1e8, 3e8, 9e8], 12), n_tokens=np.tile(np.arange(1, 13) * 1e9, 3))
BUDGETS = dict(n_active=np.repeat(np.geomspace(1e8, 1e9, 6), 6), n_tokens=np.tile(np.geomspace(1e9, 3.2e10, 6), 6))
OF_BUDGETS = true_loss(**BUDGETS)
UNDECAYED = np.where(BUDGETS["n_tokens"] < 3e10, 1.03, 1.0)  # times the loss
LONGEST = np.where(TOKENS == 40 * SIZES, 1.4, 1.0)
RATES = np.tile([1e-4, 1e-3, 1e-2], 5)
SHAPE = dict(d_model=1024.0, n_blocks=16.0, n_heads=16.0, vocab_size=50_257)
# {code: the columns in which a table differs from one of dense runs on the law of web text}
TABLES = {
    "no_n_experts": dict(n_experts=None),
    "top_k_above_n_experts": dict(n_experts=4, top_k=8),
    "tokens_of_runs": dict(n_tokens=but_first(TOKENS, 1e4)),
    "flops_leave_out": dict(flops=6 * (SIZES - 3e7) * TOKENS),
    "counts_without_embedding": dict(n_active_no_embedding=SIZES),
    "flops_far_off": dict(flops=6 * SIZES * TOKENS / 50),
    "rival_column": dict(actual_tokens=1.2 * TOKENS),
    "losses_do_not_fall": dict(loss=LOSSES[::-1]),
    "losses_named_otherwise": dict(loss=None, val_bpb=LOSSES),
    "losses_high": dict(loss=LOSSES / np.log(2)),
    "losses_low": dict(loss=LOSSES / 3.3),
    "nothing_learnt": dict(loss=but_first(LOSSES, 11.0)),
    "unfinished": dict(state=but_first(["finished"] * 15, "crashed")),
    "marked_unfinished": dict(diverged=but_first([0] * 15, 1)),
    "rows_repeated": {
        name: but_first(values, values[1]) for name, values in dict(n_tokens=TOKENS, loss=LOSSES).items()
    },
    "run_twice": dict(run=but_first([f"run {i}" for i in range(15)], "run 1"), n_tokens=but_first(TOKENS, TOKENS[1])),
    "tokens_even": EVEN | dict(loss=true_loss(**EVEN)),
    "losses_fall_at_end": BUDGETS | dict(loss=OF_BUDGETS * UNDECAYED),
    "names_repeat": BUDGETS | dict(loss=OF_BUDGETS, model=[f"{n:g}" for n in BUDGETS["n_active"]]),
    "rows_above_others": dict(loss=LOSSES * LONGEST),
    "schedules_differ": dict(lr_schedule=["cosine"] * 10 + ["wsd"] * 5),
    "row_lengths_differ": dict(seq_len=[512] * 10 + [2048] * 5),
    "optimizers_differ": dict(optimizer=["adamw"] * 10 + ["muon"] * 5),
    "rates_differ_in_table": dict(
        n_tokens=1e10, learning_rate=[1e-4, 2e-4, 4e-4] * 5, loss=true_loss(SIZES, 1e10) * np.tile([1, 1.02, 1.05], 5)
    ),
    "text_repeated": dict(epochs=TOKENS / 3e9),
    "values_differ": dict(vocab_size=[257] * 10 + [512] * 5),
    "shapes_differ": dict(n_experts=64, top_k=8, granularity=[4] * 10 + [8] * 5),
    "totals_miscounted": SHAPE | dict(n_experts=64, top_k=2, d_expert=512, n_total=3 * SIZES),
    "d_expert_unread": dict(n_experts=64, top_k=8, n_total=5 * SIZES, d_expert=512),
    "n_total_unread": dict(n_experts=64, top_k=8, n_total=9 * SIZES),
    "top_k_by_totals": dict(n_experts=64, n_total=6 * SIZES),
    "mixtures_assumed": dict(n_experts=64),
    "width_assumed": dict(n_experts=64, top_k=8),
    "top_k_assumed": dict(n_experts=64, granularity=4),
}


def table_of(columns):
    """A table of these columns, of numbers for all rows or of rows."""
    count = len(columns["n_active"])
    full = {name: np.broadcast_to(v, count).tolist() for name, v in columns.items() if v is not None}
    theirs = dict(val_bpb="loss", val_ppl="loss", n_active_no_embedding="n_active")
    names = {theirs[name]: name for name in full if name in theirs}
    return Table("runs.csv", full, list(range(2, 2 + count)), names)


def of_columns(changes):
    """All findings on a table and on its models."""
    runs = table_of(dict(n_active=SIZES, n_tokens=TOKENS, n_experts=1, loss=LOSSES) | changes)
    return [*fit_warnings.doubts_of(runs, is_rated=False), *fit_runs.models_of(runs).findings()]


def law_of(runs, form, **options):
    """A law of Runs."""
    return fit.law(table_of(runs.columns | dict(loss=runs.loss)), form, starts=16, **options)


@functools.cache
def few_numbers_of_experts():
    """The findings of a law of the demo's runs of one and of two experts."""
    runs, _ = fit_runs.demo_runs()
    return law_of(subset(runs, runs.n_experts <= 2), "joint").findings


def lack_of_fit(folder):
    """A law of runs, the largest of which have losses 2% lower."""
    runs = fit_runs.dense_runs(n=90)
    runs.loss[runs.flops > runs.flops.max() / 4] *= 0.98
    return [law_of(runs, "chinchilla").beyond_runs]


def best_outside_tried(folder):
    """Three rates for each model, the law's best rate a hundred times above all of them."""
    columns = dict(n_active=SIZES, n_tokens=1e10, loss=LOSSES, peak_learning_rate=RATES)
    runs = read_runs(table_of(columns), ("n_active", "n_tokens", "peak_learning_rate"))
    form = with_rate.rated_form(FORMS["chinchilla"], runs.table)
    rates = dict(rate=1.0, rate_n_active=0.0, rate_cost=0.01, skew=0.1)
    return with_rate.extrapolated(form, form.to_params(rates | fit_runs.CHINCHILLA), runs)


def chosen(runs, **options):
    """Why a law of Runs has its form."""
    return law_of(runs, None, **options).choice.reason


def form_of_prior(folder):
    """A law whose exponents are drawn to those of the additive law of other runs."""
    prior = str(folder / "law.json")
    fit.save(law_of(fit_runs.dense_runs(n=40, seed=1), "chinchilla"), prior)
    return [chosen(fit_runs.dense_runs(n=12), prior=prior)]


FITTED = {
    "not_identified": lambda folder: few_numbers_of_experts(),
    "not_identified_open": lambda folder: few_numbers_of_experts(),
    "not_identified_yet": lambda folder: few_numbers_of_experts(),
    "signs_open": lambda folder: few_numbers_of_experts(),
    "lack_of_fit": lack_of_fit,
    "failed_tests": lambda folder: [make.BEYOND_RUNS],
    "prior_yields": lambda folder: law_of(fit_runs.dense_runs(n=7, noise=0.03), None).findings,
    "prior_by_default": lambda folder: law_of(fit_runs.dense_runs(n=7, noise=0.003, seed=1), None).findings,
    "fewer_runs_than_coefficients": lambda folder: law_of(fit_runs.dense_runs(n=4), None, prior="population").findings,
    "fixed_in_coupled": lambda folder: fixed_values.meaning("chinchilla_coupled", dict(alpha="0.3")),
    "best_outside_tried": best_outside_tried,
    "form_better": lambda folder: [chosen(fit_runs.dense_runs(n=40))],
    "form_kept": lambda folder: [forms.reason_of("chinchilla", 0.010, "chinchilla_coupled", 0.012)],
    "forms_tie": lambda folder: [forms.reason_of("chinchilla", 0.01202, "chinchilla_coupled", 0.012)],
    "form_not_compared": lambda folder: [chosen(fit_runs.dense_runs(n=12))],
    "form_of_enough_runs": lambda folder: [chosen(fit_runs.dense_runs(n=5), prior="none")],
    "form_of_prior": form_of_prior,
    "form_of_fixed_k": lambda folder: [chosen(fit_runs.dense_runs(n=40), fix=dict(k=0.5))],
    "form_of_few_runs": lambda folder: [chosen(fit_runs.dense_runs(n=4), prior="population")],
}
MADE = FITTED | {
    "mixtures_unread": lambda folder: fit_warnings.of_table(FORMS["chinchilla"], runs_of([1, 1, 8, 8])),
    "one_n_experts": lambda folder: fit_warnings.of_table(FORMS["chinchilla"], runs_of([8, 8])),
    "lonely_experts": lambda folder: fit_warnings.lonely_experts(runs_of([1, 1, 8, 8, 64]).table),
    "transition": transition,
    "far_off": far_off,
    "plan_refuses": plan_refuses,
    "no_range": no_range,
    "miscounted": miscounted,
    "forms_disagree": forms_disagree,
    "sends_longer": sends_longer,
    "outside": lambda folder: predicted(n_active=1e9, n_tokens=2e14, n_experts=8),
    "experts_not_read": lambda folder: predicted(n_active=1e9, n_tokens=2e10, n_experts=8, top_k=2),
    "law_used_outside": beyond_the_law,
    "losses_not_compared": without_a_loss,
    "rows_without_loss": of_baseline,
    "beyond_baseline": beyond_baseline,
    "taken_from_table": taken_from_table,
    "other_table": other_table,
}


@pytest.mark.parametrize("code", CATALOGUE)
def test_each_code_is_found_in_the_words_of_its_template(code, tmp_path):
    if code in PLANS:
        findings = planned(**PLANS[code]).findings
    elif code in COMPARISONS:
        findings = compared(**COMPARISONS[code])
    elif code in TABLES:
        findings = of_columns(TABLES[code])
    else:
        findings = list(MADE[code](tmp_path))
    found = [each for each in findings if each.code == code]
    assert found, [each.code for each in findings]
    literals = [literal for literal, *_ in string.Formatter().parse(CATALOGUE[code].template) if literal]
    for each in found:
        assert re.fullmatch(".*".join(["", *map(re.escape, literals), ""]), str(each))
        assert each.severity == CATALOGUE[code].severity
        assert json.loads(json.dumps(each.to_dict()))["values"] == json.loads(json.dumps(dict(each.values)))


RATED = dict(n_tokens=1e10, loss=true_loss(SIZES, 1e10) * np.tile([1, 1.02, 1.05], 5))
# (code, the columns of a table, words of the sentence; | is its end)
CLAUSES = [
    (
        "no_n_experts",
        dict(n_experts=None, num_experts=8, n_total=2 * SIZES),
        "; --columns=n_experts:num_experts if num_experts holds it, but n_total is above n_active in 15 of them, as in "
        "mixtures: give n_experts|",
    ),
    ("flops_leave_out", dict(vocab_size=50_000, flops=6 * (SIZES - 3e7) * TOKENS), "of the vocabulary of 50,000. The"),
    ("losses_named_otherwise", dict(loss=None, val_ppl=LOSSES), "; say --units=loss:perplexity|"),
    (
        "nothing_learnt",
        dict(loss=but_first(LOSSES, 10.0), vocab_size=50_257),
        "of the vocabulary of 50,257, as",
    ),
    ("unfinished", dict(state=but_first([""] * 15, "crashed")), "(column state: crashed): row 2; leave them out|"),
    ("schedules_differ", dict(lr_schedule=["cosine", "wsd", "linear"] * 5), "for one of size or tokens|"),
    ("values_differ", dict(vocab_size=[257, 512, 1024] * 5), "(257, 512, 1024): the law uses none of them|"),
    ("rates_differ_in_table", RATED | dict(peak_learning_rate=RATES), "for a worse model; --with_rate fits"),
]


@pytest.mark.parametrize("code, changes, words", CLAUSES)
def test_a_clause_is_said_where_its_values_are_known(code, changes, words):
    (found,) = [each for each in of_columns(changes) if each.code == code]
    assert words in f"{found}|"


def test_a_code_that_the_catalogue_lacks_is_refused():
    with pytest.raises(KeyError, match="at_the_edge"):
        finding("at_the_edge")
    assert {kind.severity for kind in CATALOGUE.values()} == {URGENT, WARNING, NOTE}


def test_the_first_warning_of_a_plan_goes_by_severity_and_not_by_words():
    """Of what no line says otherwise, the urgent finding is printed, wherever it stands and however it is worded."""
    plan = planned(**PLANS["best_outside"])
    first = finding("plateau", near=1e-4)
    urgent = Finding("older_words", URGENT, dict(sentence="the best is outside of everything"))
    said = str(dataclasses.replace(plan, findings=[first, *plan.findings, urgent]))
    assert f"warning: {urgent} (1 more: --verbose)" in said and str(first) not in said
    alone = str(plan)
    assert "warning:" not in alone


def test_json_has_codes_beside_the_sentences_and_a_version():
    plan = planned(flops=1e22)
    printed = json.loads(json.dumps(plan.to_dict()))
    assert printed["version"] == 2
    assert [each["text"] for each in printed["findings"]] == printed["warnings"] == plan.warnings
    edge = next(each for each in printed["findings"] if each["code"] == "at_edge")
    assert edge["values"] == dict(n_experts=printed["best"]["n_experts"], which="largest")


def test_a_finding_needs_each_value_of_its_template_and_none_of_its_clauses():
    with pytest.raises(KeyError, match="worse_than_guess: no value of vocab_size"):
        finding("worse_than_guess", loss=3.0, vocab_size=None, guess=2.0)
    for code, kind in CATALOGUE.items():
        names = {name for _, name, _, _ in string.Formatter().parse(kind.template) if name} - kind.clauses.keys()
        for left_out in names:
            with pytest.raises(KeyError, match=f"{code}: no value of {left_out}"):
                finding(code, **dict.fromkeys(names - {left_out}, 1))
        assert finding(code, **dict.fromkeys(names, 1)).severity == kind.severity
