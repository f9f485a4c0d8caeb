"""Tables that are not what they seem: of one number of experts, with columns that say how models are built, in other
units, with rows twice; and large ones."""

import csv
import json
import subprocess
import sys

import fit_command
import fit_runs
import helpers
import numpy as np
import pytest

import fit
from fit import __main__ as command_line
from fit.fitted_law.architecture_ratios import ArchitectureRatios
from fit.fitted_law.law import Law
from fit.fitting.noise import _freedom, projection
from fit.laws import FORMS
from fit.messages.finding import in_words
from fit.studies.next_runs import linearised
from fit.table import histories, mixed_columns, validate
from fit.table.table import Table, read, write

ROOT = helpers.ROOT
MIXTURES = ROOT / "benchmarks/tables/marin_v16.csv"  # 47 runs, all with n_experts = 64
DENSE = ROOT / "tests/data/chinchilla_svg_245.csv"
SOUND = [MIXTURES, DENSE, ROOT / "results/runs.csv", ROOT / "results/second/fit.csv", ROOT / "examples/runs.csv"]
SOUND += [ROOT / "results/sparsity.csv", ROOT / "results/mixtures.csv", ROOT / "results/holistic.csv"]
SOUND += [ROOT / f"benchmarks/tables/marin_{name}.csv" for name in ("comma", "dclm", "nemotron")]
SOUND += [ROOT / "results/tuned/rates.csv", ROOT / "results/tuned/recipes.csv", ROOT / "results/second/tests.csv"]


@pytest.fixture(scope="module")
def mixture_law(tmp_path_factory):
    """The path of a law of the 47 mixtures."""
    path = tmp_path_factory.mktemp("law") / "v16.json"
    fit.save(fit.law(MIXTURES, "chinchilla_coupled", starts=16, bootstrap=20), path)
    return str(path)


def words_of(findings):
    """All findings in one text."""
    return " ".join(in_words(findings))


# Runs a command of fit, and prints the most memory that its process held, in kilobytes. getrusage would count what the
# process that started it held.
PEAK = """
import re, sys
from fit import __main__
code = __main__.run(sys.argv[1:])
print("peak", re.search(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read())[1])
sys.exit(code)
"""


def run_with_peak(*words):
    """What a command says, and the most memory that its process held, in kilobytes."""
    done = subprocess.run([sys.executable, "-c", PEAK, *words], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    said, _, peak = done.stdout.rpartition("peak ")
    return said + done.stderr, int(peak)


def columns_of(path):
    """{column: float64} of a table of plain numbers."""
    with open(path) as f:
        rows = list(csv.DictReader(f))
    return {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}


def table(**columns):
    """A Table of these, numbers or arrays."""
    length = max(np.size(values) for values in columns.values())
    values = {name: np.broadcast_to(v, length).tolist() for name, v in columns.items()}
    return Table("runs.csv", values, list(range(2, length + 2)))


def law_of(runs, form="chinchilla"):
    """A law with published coefficients of the models in `runs`."""
    published = fit.load({"chinchilla": "chinchilla-refit-2024", "joint": "joint-moe-2025"}[form])
    return Law("law", FORMS[form], published.coefficients, models=fit_runs.models_of(runs))


# A law of one number of experts


def test_a_law_of_one_number_of_experts_plans_such_mixtures(mixture_law, tmp_path):
    config = tmp_path / "config.py"
    flags = ["plan", f"--law={mixture_law}", "--flops=1e20", "--memory_gb=80", f"--emit_config={config}"]
    said = fit_command.printed(*flags)
    assert said.startswith("Train a mixture of 64 experts with ") and "dense" not in said.splitlines()[0]
    assert "best in" not in said and "we assume that a token uses 1 of the experts" in said
    assert "config.model.n_experts = 64" in config.read_text()
    plan = fit.plan(mixture_law, flops=1e20, memory_gb=20)
    assert [row["n_experts"] for row in plan.optima] == [64] and plan.odds.settled is None
    assert "dense" not in plan and not plan.rule_of_thumb
    # 9 d^2 weights in each of 64 experts, 4 d^2 of attention, and embedding and head, on d / 64 blocks
    d = plan.best["d_model"]
    assert plan.best["n_total"] == pytest.approx(2 * 50257 * d + (4 + 9 * 64) * d**3 / 64)
    assert plan.best["memory_bytes"] == pytest.approx(20e9) and plan.best["size_bound"] == "memory"


def test_other_numbers_of_experts_are_refused(mixture_law, tmp_path, capsys):
    alone = "was fitted to mixtures of 64 experts alone and says nothing of other numbers of experts"
    plan, predict = ["plan", f"--law={mixture_law}", "--flops=1e20"], ["predict", f"--law={mixture_law}"]
    one = ["--n_active=1e9", "--n_tokens=2e10"]
    assert alone in fit_command.refused(*plan, "--experts=1,64") and alone in fit_command.refused(*plan, "--experts=8")
    assert alone in fit_command.refused(*predict, *one, "--n_experts=1")
    assert command_line.run([*predict, *one]) == 0 and command_line.run([*predict, *one, "--n_experts=64"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[: len(printed) // 2] == printed[len(printed) // 2 :]
    dense = tmp_path / "dense.csv"
    dense.write_text("n_active,n_tokens,n_experts\n1e9,2e10,64\n1e9,2e10,1\n")
    said = fit_command.refused(*predict, f"--runs={dense}", f"--out={tmp_path / 'out.csv'}")
    assert "row 3, column n_experts: found 1; " in said and alone in said
    with pytest.raises(fit.UserError, match="law of dense models"):
        fit.load("chinchilla-2022").predict(1e9, 2e10, n_experts=8)
    found = fit.compare([mixture_law, "joint-moe-2025"], flops=1e21, experts=[1, 8])
    assert [row["law"] for row in found.laws] == ["joint-moe-2025"] and alone in found.infeasible[0]["why"]
    found = fit.compare([mixture_law, "joint-moe-2025"], flops=1e21)
    assert found.laws[0]["n_experts"] == 64 and found.laws[0]["mixtures"] and found.laws[0]["dense"] is None


# What a table knows of how its models are built


@pytest.mark.parametrize("seed", range(3))
def test_random_shapes_are_planned_as_they_are_counted(seed):
    """Tables of shapes, whole and in part: n_total over n_active of plans is that of a count by hand."""
    rng = np.random.default_rng(seed)
    top_k, shared, n_experts = int(rng.choice([1, 2, 4, 8])), int(rng.integers(0, 3)), int(rng.choice([16, 64, 128]))
    vocab, split, wide = (
        int(rng.choice([32000, 50257, 128256])),
        int(rng.choice([1, 2, 4, 8])),
        int(rng.choice([2, 3, 4])),
    )
    d = np.array([512, 768, 1024, 1536, 2048, 3072])
    blocks, d_ff, d_expert = d // 64, wide * d, wide * d // split

    def count(d, blocks, d_expert, experts):
        return 2 * vocab * d + blocks * (4 * d**2 + 3 * d * d_expert * (experts + shared))

    active, total = (count(d, blocks, d_expert, experts).astype(float) for experts in (top_k, n_experts))
    columns = dict(n_active=active, n_tokens=20 * active, n_experts=n_experts, loss=3.0)
    shapes = dict(d_model=d, n_blocks=blocks, d_ff=d_ff)
    narrow = dict(top_k=top_k, n_shared_experts=shared)
    for more in (
        shapes | narrow | dict(d_expert=d_expert, vocab_size=vocab),
        shapes | narrow | dict(d_expert=d_expert, n_total=total),  # the vocabulary follows from n_active
        narrow | dict(n_total=total),
    ):
        law = law_of(table(**columns, **more))
        assert (law.models.architecture or ArchitectureRatios()).top_k == top_k and not law.models.assumed
        for size, ratio in zip(active[2:], (total / active)[2:], strict=True):
            plan = fit.plan(law, max_tokens=20 * size, flops=6 * size * 20 * size * 0.999, shape="paper")
            best, built = plan.best, plan.buildable
            here = np.interp(np.log(best["n_active"]), np.log(active), total / active)
            assert best["n_total"] / best["n_active"] == pytest.approx(here, rel=0.04), (more.keys(), size, ratio)
            assert built["n_total"] / built["n_active"] == pytest.approx(here, rel=0.1)
            assert built["n_experts"] == n_experts and best["memory_bytes"] == pytest.approx(2 * best["n_total"])


def test_the_ratio_of_a_table_holds_at_all_sizes():
    """8 of 128 experts at ten times n_active: 12B at 1.2B, not 128 experts as wide as a dense layer."""
    n = np.geomspace(1e8, 2e9, 24)
    law = law_of(table(n_active=n, n_total=10 * n, n_tokens=20 * n, n_experts=128, top_k=8, loss=3.0))
    for flops in (1e20, 1e22, 1e24):
        plan = fit.plan(law, flops=flops, shape="paper")
        assert plan.best["n_total"] == pytest.approx(10 * plan.best["n_active"], rel=2e-3)
        assert plan.buildable["n_total"] == pytest.approx(10 * plan.buildable["n_active"], rel=0.02)
        assert plan.buildable["top_k"] == 8 and plan.buildable["n_experts"] == 128


def test_plans_of_several_numbers_of_experts_have_the_ratio_of_each():
    n, e = (a.ravel() for a in np.meshgrid(np.geomspace(1e8, 2e9, 8), [1, 16, 64]))
    total = n * np.where(e > 1, 1 + 0.6 * (e - 2) / 2, 1)  # 60% of n_active are the 2 experts of a token
    law = law_of(table(n_active=n, n_total=total, n_tokens=20 * n, n_experts=e, top_k=2, loss=3.0), "joint")
    rows = fit.plan(law, flops=1e21).optima
    ratios = {row["n_experts"]: row["n_total"] / row["n_active"] for row in rows}
    assert ratios == {1: pytest.approx(1), 16: pytest.approx(5.2, rel=0.03), 64: pytest.approx(19.6, rel=0.03)}


# Units


@pytest.mark.parametrize(
    "changes, flag",
    [
        (dict(loss=lambda c: np.exp(c["loss"])), "loss:perplexity"),
        (dict(n_active=lambda c: c["n_active"] / 1e9), "n_active:billions"),
        (
            dict(n_active=lambda c: c["n_active"] / 1e6, n_tokens=lambda c: c["n_tokens"] / 1e6),
            "n_active:millions,n_tokens:millions",
        ),
    ],
)
def test_impossible_units_are_refused_with_the_flag_that_mends_them(changes, flag, tmp_path):
    columns = columns_of(DENSE)
    path = tmp_path / "other.csv"
    write(table(**columns | {name: change(columns) for name, change in changes.items()}), str(path))
    law = ["law", f"--runs={path}", f"--out={tmp_path / 'law.json'}", "--form=chinchilla"]
    assert f"--units={flag}" in fit_command.refused(*law)
    assert command_line.run([*law, f"--units={flag}"]) == 0
    record, same = json.loads((tmp_path / "law.json").read_text()), fit.law(DENSE, "chinchilla", starts=8)
    assert record["coefficients"] == pytest.approx(same.coefficients, rel=1e-3)
    assert record["settings"]["units"] == dict(part.split(":") for part in flag.split(","))
    found = fit.next(str(tmp_path / "law.json"), str(path), flops=1e20, target_flops=1e22)  # read in the same units
    assert found.trunks


def test_losses_are_doubted_unless_their_unit_is_said():
    """That losses too high or too low, or of another name, are doubted is a test of fit/messages."""
    columns = columns_of(DENSE)
    in_bytes = table(**columns | dict(loss=columns["loss"] / 3.3, vocab_size=257))
    assert not validate.doubts(in_bytes)
    _, low = validate.doubts(read(str(ROOT / "benchmarks/tables/llama3.csv"), None, {"n_active": "ones"}))
    assert low.code == "losses_low" and "--units=loss:nats" in str(low)
    bits = columns | dict(loss=columns["loss"] / np.log(2))
    assert [doubt.code for doubt in validate.doubts(table(**bits))] == ["losses_high"]
    for unit in ("nats", "0.6931"):
        assert "nats" not in words_of(validate.doubts(read(bits, None, {"loss": unit})))


def test_flops_and_totals_are_set_against_sizes_and_tokens():
    c = columns_of(DENSE)
    flops = 6 * c["n_active"] * c["n_tokens"]
    with pytest.raises(fit.UserError, match="units=n_active:millions"):
        validate.check(table(**c | dict(n_active=c["n_active"] / 1e6, n_tokens=c["n_tokens"] / 1e2), flops=flops / 1e2))
    said = words_of(validate.doubts(table(**c, flops=flops / 50)))
    assert "the column flops is 0.02 times 6 n_active n_tokens" in said
    with pytest.raises(fit.UserError, match="row 2: n_total .* is below n_active .* in 245 of 245 rows"):
        validate.check(table(**c, n_total=c["n_active"] / 3))


@pytest.mark.parametrize("path", SOUND, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_sound_tables_raise_no_alarm(path):
    runs = read(str(path))
    validate.check(runs)
    assert [doubt for doubt in validate.doubts(runs) if doubt.code != "no_n_experts"] == []
    assert not [*histories.named_histories(runs), *histories.unnamed_histories(runs)]
    assert not [*histories.rows_above_others(runs)]
    assert not [*mixed_columns.text_problems(runs)]
    is_of_rates = path.parent.name == "tuned" or path == ROOT / "results/runs.csv"  # several rates at one size
    assert bool([*mixed_columns.rate_doubts(runs)]) == is_of_rates


# Rows


def test_repeated_and_crashed_rows_are_counted_and_named():
    c = columns_of(MIXTURES)
    repeated = {name: np.append(values, values[[3, 3, 5]]) for name, values in c.items()}
    twice = c | dict(run=np.array([*(f"run {i}" for i in range(46)), "run 4"]))
    twice |= {name: np.append(twice[name][:-1], twice[name][4]) for name in ("n_active", "n_tokens")}
    crashed = c["loss"].copy()
    crashed[[7, 9]] = 10.9, 11.1
    for columns, words in (
        (repeated, "3 of 50 rows repeat others (rows 49, 50, 51)"),
        (twice, "1 of 47 rows have the name, size and tokens of others but another loss (row 48 (run 4))"),
        (c | dict(loss=crashed, state=["finished"] * 47), "2 of 47 runs have a loss of more than 2.2 times the median"),
    ):
        (said,) = in_words(validate.doubts(table(**columns)))
        assert words in said
    assert "rows 9, 11;" in said
    crashed[[7, 9]] = np.nan
    with pytest.raises(fit.UserError, match="row 9, column loss: found nan.*2 of 47 rows have none: 9, 11"):
        table(**c | dict(loss=crashed)).numbers("loss")


def test_losses_that_rise_with_compute_are_refused():
    c = columns_of(DENSE)
    with pytest.raises(fit.UserError, match="the losses rise with compute"):
        fit.law(table(**c | dict(loss=7 - c["loss"])))


# Large tables and far limits


def test_sums_without_matrices_of_runs_are_those_with_them():
    rng = np.random.default_rng(0)
    rows, weight, decay = rng.normal(size=(40, 5)), rng.uniform(0, 2, 40), np.full(5, 0.1)
    trunks = np.unique(rng.integers(0, 12, 40), return_inverse=True)[1]
    errors = linearised.correlation(trunks, 0.4)
    assert np.allclose(linearised.with_correlation(rows, trunks, 0.4), rows.T @ errors @ rows)
    inverse = linearised.with_correlation(rows, trunks, 0.4, inverse=True)
    assert np.allclose(inverse, rows.T @ np.linalg.solve(errors, rows))
    residual = np.eye(40) - projection(rows, weight, decay)
    assert _freedom(rows, weight, decay) == pytest.approx(np.sum(residual**2))


def test_a_large_table_is_fitted_and_drawn_within_two_gigabytes(tmp_path):
    """20,000 runs, of which a matrix of all pairs would take 3 GB."""
    path = fit_runs.write_csv(tmp_path / "runs.csv", fit_runs.dense_runs(20_000))
    law = tmp_path / "law.json"
    said, peak = run_with_peak("law", f"--runs={path}", f"--out={law}", "--form=chinchilla", "--verbose")
    assert "a random sample of 2,048 of the 20,000 fitted runs" in said
    assert peak < 2e6
    _, peak = run_with_peak("next", f"--law={law}", f"--runs={path}", "--flops=1e23", "--target_flops=1e26")
    assert peak < 2e6
