"""What a law counts: blocks with the vocabulary of its own runs, or no embedding at all; all costs count the real one.

The law's own vocabulary is 50,257 in these tests, one width per block 64: counts are written out by hand.
"""

import dataclasses

import fit_command
import fit_runs
import numpy as np
import pytest

import fit
from fit.fitted_law import extrapolation
from fit.fitted_law.law_files import load
from fit.fitted_law.parts import Beyond, FittedRuns, Scatter
from fit.fitting import fitting
from fit.laws import FORMS
from fit.model import reference_model
from fit.model.architecture import Architecture
from fit.table.runs import read_runs, subset

OWN = 50257
LAW = "joint-moe-2025"
NO_EMBEDDING = ("fine-grained-dense-2024", "kaplan-2020")  # laws of dense models that count their blocks alone
WIDTHS = np.geomspace(64, 40_000, 20_001)


def blocks(widths, experts=1):
    """Weights of blocks of width / 64 deep."""
    return (4 + 9 * experts) * widths**3 / 64


def law_loss(name, widths, n_tokens, e):
    """The loss by the law's formula, of counts with its own vocabulary, or without embedding and head."""
    if name == "kaplan-2020":
        return ((8.8e13 / blocks(widths)) ** (0.076 / 0.095) + 5.4e13 / n_tokens) ** 0.095
    if name == "fine-grained-dense-2024":
        return 0.47 + 16.3 / blocks(widths) ** 0.126 + 26.7 / n_tokens**0.127
    columns = dict(n_active=blocks(widths) + 2 * OWN * widths, n_total=blocks(widths, e) + 2 * OWN * widths)
    law = load(name)
    known = columns | dict(n_tokens=n_tokens, n_experts=float(e), sparsity=1 - 1 / e)
    return law.loss(law.coefficients, known)


def least_of(loss):
    """(width, loss) of the least loss on a grid that is made finer twice around its best width."""
    widths = WIDTHS
    for _ in range(3):
        losses = loss(widths)
        best = int(np.argmin(losses))
        width = widths[best]
        widths = np.linspace(widths[max(best - 2, 0)], widths[best + 2], len(widths))
    return width, losses[best]


BUDGETS = [
    (257, dict(flops=1e18)),
    (32_000, dict(flops=1e21, memory_gb=8)),
    (OWN, dict(flops=1e20)),
    (256_000, dict(flops=3e22, inference_tokens=1e12)),
    (256_000, dict(flops=1e21, memory_gb=8)),
]


@pytest.mark.parametrize("vocab_size, limits", BUDGETS)
@pytest.mark.parametrize("name", [LAW, "sparsity-2025", *NO_EMBEDDING])
def test_by_flops_it_is_the_best_of_a_grid(name, vocab_size, limits):
    law = load(name)
    experts = [1] if name in NO_EMBEDDING else [1, 8, 32]
    if name == "sparsity-2025":  # as if its runs had the paper's vocabulary
        law = dataclasses.replace(law, models=dataclasses.replace(law.models, vocab_size=OWN))
    found = fit.plan(law, **limits, shape=dict(vocab_size=vocab_size, width_per_block=64), experts=experts)
    for row in found.optima:

        def loss(widths, e=row.n_experts):
            n_active = blocks(widths) + 2 * vocab_size * widths
            n_tokens = (limits["flops"] / n_active - 2 * limits.get("inference_tokens", 0)) / 6
            n_total = blocks(widths, e) + 2 * vocab_size * widths
            fits = (n_tokens >= 1) & (2 * n_total <= 1e9 * limits.get("memory_gb", np.inf))
            return np.where(fits, law_loss(name, widths, np.maximum(n_tokens, 1), e), np.inf)

        width, least = least_of(loss)
        assert row.loss == pytest.approx(least, rel=1e-7)
        assert row.d_model == pytest.approx(width, rel=1e-4)
        assert row.n_active == pytest.approx(blocks(row.d_model) + 2 * vocab_size * row.d_model)
    assert [row.n_experts for row in found.optima] == experts
    built = found.buildable
    if name != "sparsity-2025":  # which reads total parameters
        rows = built.vocab_size - OWN if vocab_size != OWN else 0  # the law's own, whose padding it counts
        if name in NO_EMBEDDING:
            rows = built.vocab_size
        counted = built.n_active - 2 * rows * built.d_model
        expected = law.predict(counted, built.n_tokens, built.law_experts)
        assert built.loss == pytest.approx(float(expected), rel=1e-9)


def test_by_hours_the_law_sees_its_own_vocabulary_and_the_clock_the_real_one():
    """The loss of each model is that of its blocks with the law's vocabulary, on the tokens of its own speed."""
    law = load(LAW)
    plan = fit.plan(LAW, chips="H100:8", hours=24, shape=dict(vocab_size=256_000), experts=(1, 8))
    assert [row.n_experts for row in plan.optima] == [1, 8]
    for row in [*plan.optima, plan.buildable]:
        n_active_of_law = row.n_active + 2 * (OWN - 256_000) * row.d_model
        expected = law.predict(n_active=n_active_of_law, n_tokens=row.n_tokens, n_experts=row.law_experts)
        assert row.loss == pytest.approx(float(expected), rel=1e-9)
        hours = row.n_tokens / row.speed.tokens_per_second[1] / 3600
        assert hours == pytest.approx(row.speed.hours[1], rel=1e-9) and hours <= 24 * (1 + 1e-9)
        cost = np.array(row.speed.mfu) * 8 * 989e12 / np.array(row.speed.tokens_per_second)
        assert cost == pytest.approx(6 * row.n_active, rel=1e-6)


def test_its_own_vocabulary_and_that_of_any_run_stay_as_they_are():
    law = load(LAW)
    for vocab_size in (OWN, 50304):  # with padding
        assert law.counting.extra_rows(Architecture(vocab_size)) == 0
    assert law.counting.extra_rows(Architecture(OWN + 1000)) == 2000
    assert law.counting.extra_rows(Architecture(OWN - 1000, tied=True)) == -1000
    models = dataclasses.replace(law.models, differing=dict(vocab_size=(32000.0, float(OWN))))
    several = dataclasses.replace(law, name="mine", models=models)
    assert several.counting.extra_rows(Architecture(32000)) == 0
    assert several.counting.extra_rows(Architecture(32001)) == 2 * (32001 - OWN)
    unknown = dataclasses.replace(law, name="mine", models=dataclasses.replace(law.models, vocab_size=None))
    assert unknown.counting.extra_rows(Architecture(32000)) == 0


def test_draws_and_intervals_follow():
    """Draws that are the law itself say what the law says, beyond the fitted compute too."""
    law = load(LAW)
    row = list(law.coefficients.values())
    bootstrap = fit_runs.bootstrap([row] * 10, beyond=Beyond(training_flops=1e20, drift=(0.01,) * 10))
    drawn = dataclasses.replace(law, name="drawn", bootstrap=bootstrap, noise=Scatter(total=0.0))
    plan = fit.plan(drawn, flops=1e22, shape=dict(vocab_size=256_000), experts=[8])
    counted = blocks(plan.best.d_model) + 2 * OWN * plan.best.d_model
    drift = (6 * counted * plan.best.n_tokens / 1e20) ** 0.01
    assert plan.odds.experts[0].loss == pytest.approx([plan.best.loss * drift] * 2, rel=1e-9)
    built = plan.buildable
    counted = built.n_active - 2 * (built.vocab_size - OWN) * built.d_model
    drift = (6 * counted * built.n_tokens / 1e20) ** 0.01
    assert built.loss_interval == pytest.approx([built.loss * drift] * 2, rel=1e-9)


def test_width_and_depth_outside_the_runs_are_said():
    """By the ends that a table's columns had, or by the sizes of runs of one width per block: 512 to 2,304, 8 to 36."""
    plan = fit.plan(LAW, flops=1e20, shape=dict(width_per_block=1024))
    depth = {row["column"]: row for row in plan.best.extrapolation}["n_blocks"]
    assert depth["value"] == pytest.approx(plan.best.d_model / 1024)
    assert [depth["low"], depth["high"]] == pytest.approx([8, 36])
    assert not {"d_model", "n_blocks"} & {row["column"] for row in fit.plan(LAW, flops=1e24).best.extrapolation}
    law = load(LAW)
    ranges = law.runs.ranges | dict(d_model=(512.0, 1024.0), n_blocks=(8.0, 40.0))
    measured = dataclasses.replace(law, name="mine", runs=FittedRuns(ranges=ranges))
    plan = fit.plan(measured, flops=1e21, shape="paper", experts=[8])
    width = {row["column"]: row for row in plan.best.extrapolation}["d_model"]
    assert width["factor"] == pytest.approx(plan.best.d_model / 1024) and width["high"] == 1024
    (answer,) = fit.compare([measured], flops=1e21, shape="paper", experts=[8]).laws
    assert {row["column"] for row in answer.extrapolation} == {row["column"] for row in plan.best.extrapolation}


def test_a_model_to_start_from_is_counted_by_its_blocks():
    model = reference_model.read("Qwen3-30B-A3B")
    law = load(LAW)
    plan = fit.plan(LAW, flops=1e23, like="Qwen3-30B-A3B")
    (answer,) = [row for row in plan.like["laws"] if row.law == LAW]
    foreign = 2 * (model.shape.vocab_size - OWN) * model.shape.d_model
    n_tokens = 1e23 / 6 / model.n_active
    expected = law.predict(model.n_active - foreign, n_tokens, model.whole_experts)
    assert answer.like.loss == pytest.approx(float(expected), rel=1e-12)


def test_rows_of_a_table_are_predicted_by_their_blocks():
    """Where the row says its vocabulary and width, tied or not; else by its counts."""
    width = 1024.0
    rows = []
    for vocab_size, ends in ((OWN, 2), (256_000, 2), (32_000, 1)):
        n_active = blocks(width) + ends * vocab_size * width
        row = dict(n_active=n_active, n_tokens=1e10, n_experts=1, vocab_size=vocab_size, d_model=width)
        rows.append(row | dict(tied_embeddings=str(ends == 1)))
    predicted = fit.predict(LAW, rows).columns["predicted_loss"]
    law = load(LAW)
    counted = blocks(width) + OWN * width * np.array([2, 2, 1])
    assert predicted == pytest.approx(law.predict(counted, 1e10, 1).tolist(), rel=1e-12)
    without = [{name: value for name, value in row.items() if name != "d_model"} for row in rows]
    empty = [row | dict(vocab_size="") for row in rows]
    sizes = [row["n_active"] for row in rows]
    for table in (without, empty):
        assert fit.predict(LAW, table).columns["predicted_loss"] == pytest.approx(law.predict(sizes, 1e10, 1).tolist())


def test_a_fit_notes_how_wide_and_deep_its_runs_were(tmp_path):
    """Those that are fitted, where the table has the columns."""
    runs = read_runs(fit_runs.write_demo_csv(tmp_path / "runs.csv"), ("n_active", "n_tokens", "n_experts"))
    fitted = subset(runs, runs.n_active < np.median(runs.n_active))
    ranges = fitting.described(runs, fitted, FORMS["joint"]).ranges
    for name in ("d_model", "n_blocks"):
        values = runs.table.numbers(name)[fitted.index]
        assert ranges[name] == (values.min(), values.max())
        assert values.max() < runs.table.numbers(name).max()


def test_one_model_is_predicted_by_laws_that_read_more_than_its_size():
    """By the printed formulas; the fine-grained law's N leaves the embedding out, which --n_embedding says."""
    model = ["--n_active=1e9", "--n_total=8e9", "--n_tokens=2e10", "--n_experts=16", "--n_embedding=1e8"]
    fine = 0.47 + (2.1 / 2**0.58 + 18.1) / 7.9e9**0.115 + 30.8 / 2e10**0.147
    sparse = (
        16612.50 / 8e9**0.5962
        + 5455.67 / 2e10**0.3954
        + 0.4598 / (1 / 8) ** -0.1666
        + 17.26 / ((1 / 8) ** 0.1603 * 8e9**0.1595)
        + 0.94
    )
    for law, read, loss in (("fine-grained-2024", "granularity", fine), ("sparsity-2025", "top_k", sparse)):
        printed = fit_command.printed("predict", f"--law={law}", f"--{read}=2", *model)
        assert float(printed) == pytest.approx(loss, abs=1e-6)
    said = fit_command.refused("predict", "--law=comprehensive-2025", "--n_active=1e9", "--n_tokens=2e10")
    assert "--n_total is missing" in said


def test_a_law_without_embedding_is_held_against_its_own_counts():
    """Its runs' sizes and FLOPs are without embedding and head, and so are those of a model beside them."""
    law = dataclasses.replace(load("joint-moe-2025"), counts_embedding=False)
    n_active, n_tokens = 1e10, 1e12
    d_model = float(law.architecture.d_model(n_active, 8))
    counted = n_active - 2 * law.architecture.vocab_size * d_model
    rows = extrapolation.of_model(law, law.architecture, 8, n_active, n_tokens)
    values = {row["column"]: row["value"] for row in rows}
    assert values["n_active"] == pytest.approx(counted)
    assert values["training_flops"] == pytest.approx(6 * counted * n_tokens)
