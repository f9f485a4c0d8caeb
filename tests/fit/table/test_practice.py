"""Tables as people have them (tests/data/practice): read right, or told what is wrong and what to type."""

import json
import re

import fit_command
import helpers
import numpy as np
import pytest

import fit
from fit import __main__ as command_line
from fit.fitting import fit_warnings, learning_rate
from fit.messages.finding import in_words
from fit.table import histories, mixed_columns, validate
from fit.table.column_guesses import guess
from fit.table.reading import read_with
from fit.table.table import read
from tests.fit.table.test_tables import table

PRACTICE = helpers.ROOT / "tests" / "data/practice"
SIZES = np.repeat([25e6, 60e6, 150e6, 350e6, 800e6], 3)
TOKENS = np.ravel([[6 * n, 20 * n, 60 * n] for n in SIZES[::3]])
LOSSES = read(str(PRACTICE / "semicolon.csv")).numbers("loss")  # the same runs in all tables of these sizes
DEFECTS = ["--form=chinchilla"]


def true_loss(n_active, n_tokens):
    """The loss of the law that the tables are made from."""
    return 1.8172 + 482.01 / n_active**0.3478 + 2085.43 / n_tokens**0.3658


@pytest.fixture
def law(tmp_path, capsys):
    """law(file, *flags): (exit code, all that `fit law` says, the record of law.json or None)."""

    def run(path, *flags):
        out = tmp_path / "law.json"
        out.unlink(missing_ok=True)
        code = command_line.run(["law", f"--runs={path}", f"--out={out}", *flags])
        said = capsys.readouterr()
        record = json.loads(out.read_text()) if out.exists() else None
        return code, " ".join((said.out + said.err).split()), record

    return run


@pytest.fixture
def settled(tmp_path, capsys):
    """settled(file, *flags): (what is refused, the record of the law that the printed command writes)."""

    def run(path, *flags):
        out = tmp_path / "law.json"
        said = fit_command.refused("law", f"--runs={path}", f"--out={out}", *flags)
        assert command_line.run(helpers.typed_again(said)) == 0, capsys.readouterr().err
        return said, json.loads(out.read_text())

    return run


# Read as they are


@pytest.mark.parametrize("name", ["euro", "semicolon", "tab", "thousands", "si"])
def test_numbers_as_spreadsheets_write_them_are_read(name):
    runs = read(str(PRACTICE / f"{name}.csv"))
    np.testing.assert_array_equal(runs.numbers("n_active"), SIZES)
    np.testing.assert_array_equal(runs.numbers("n_tokens"), TOKENS)
    np.testing.assert_array_equal(runs.numbers("loss"), LOSSES)


@pytest.mark.parametrize(
    "text, values",
    [
        ("loss;n\n5,249;1\n4,480;2\n4,023;3\n", [5.249, 4.480, 4.023]),  # between semicolons a comma is a decimal one
        ("n;loss\n1.500.000;5,2491\n2.500.000;4,48\n3.500.000;4,0\n", [5.2491, 4.48, 4.0]),
        ('n,loss\n1,"5,2491"\n2,"4,4801"\n3,"4,0231"\n', [5.2491, 4.4801, 4.0231]),
        ("n|loss\n1|5.25\n2|4.5\n", [5.25, 4.5]),
    ],
)
def test_decimal_commas_are_told_from_thousands(tmp_path, text, values):
    path = tmp_path / "runs.csv"
    path.write_text(text)
    runs = read(str(path))
    assert runs.numbers("loss").tolist() == values
    if "1.500.000" in text:
        assert runs.numbers("n").tolist() == [1.5e6, 2.5e6, 3.5e6]


@pytest.mark.parametrize("text, value", [
    ("25 000 000", 25e6), ("25'000'000", 25e6), ("25_000_000", 25e6), ("1.5 billion", 1.5e9), ("2.5e1k", 25e3),
    ("25 000 00", None), ("25,00,000", None), ("25 parsecs", None), ("1 000,000", None), ("true", None),
])  # fmt: skip
def test_other_spellings_of_counts_are_read_and_what_is_none_is_refused(text, value):
    if value:
        assert table(n_active=[text]).numbers("n_active").tolist() == [value]
        return
    with pytest.raises(fit.UserError, match="row 2, column n_active: found"):
        table(n_active=[text]).numbers("n_active")


@pytest.mark.parametrize("text", ['n,loss\n1,"5,2491"\n2,4.48\n3,"4,02"\n', 'n,loss\n1,"5,2"\n2,4\n3,4\n4,4\n'])
def test_mixed_decimal_marks_are_refused_by_row(tmp_path, text):
    path = tmp_path / "runs.csv"
    path.write_text(text)
    with pytest.raises(fit.UserError, match="row 2, column loss: found '5,2"):
        read(str(path)).numbers("loss")


# Refused with a command that works

REFUSED = {  # table: (words of the refusal, how many runs the command fits)
    "wandb_nan": ("--where=loss=finite leaves out rows 5, 9, 11", 12),
    "step_batch": ("--set=n_tokens=step*batch_size*seq_len computes it", 15),
    "no_tokens_flops": ("--set=n_tokens=flops/6/n_active computes it", 15),
    "planned_actual": ("target_params (up to 26% away) could hold it, too", 15),
    "ladder_named": ("column run: 120 of 125 rows are earlier points of 5 runs, such as ladder-0", 5),
    "minimind": ("column model: 54 of 60 rows are earlier points of 6 runs, such as m0", 60),
    "corpora": ("found 2 corpora (c4 in 8, fineweb in 7)", 8),
    "bpb_two_tok": ("found 2 tokenizers (tok32k in 8,", 8),
    "dup_header": ("rows 7, 13 repeat the header", 15),
    "pow2": ("--units=loss:exp2", 15),
}


def ranges_of(name):
    """{column: values} that the law's ranges must be of, where the command makes them out of other columns."""
    runs = read(str(PRACTICE / f"{name}.csv"))
    if name in ("step_batch", "dup_header"):
        return dict(n_active=SIZES, n_tokens=TOKENS)
    if name == "no_tokens_flops":
        return dict(n_active=SIZES, n_tokens=runs.numbers("flops") / 6 / SIZES)
    if name == "planned_actual":
        return dict(n_active=runs.numbers("actual_params"), n_tokens=TOKENS)
    if name == "ladder_named":
        last = {}
        for run, tokens in zip(runs.column("run"), map(float, runs.column("n_tokens")), strict=True):
            last[run] = max(tokens, last.get(run, 0.0))
        return dict(n_tokens=list(last.values()))
    return dict(loss=LOSSES) if name == "pow2" else {}


@pytest.mark.parametrize("name", REFUSED)
def test_a_defect_is_told_with_a_command_that_works(settled, name):
    words, n_runs = REFUSED[name]
    said, record = settled(PRACTICE / f"{name}.csv")
    assert words in said
    assert record["fitted"]["runs"] == n_runs
    for column, values in ranges_of(name).items():
        assert record["runs"]["ranges"][column] == pytest.approx([min(values), max(values)], rel=5e-3)


def test_whoever_says_so_fits_all_rows(law):
    for name, flag, n_runs in (("ladder_named", "--bootstrap_by=run", 125), ("corpora", "--mix_corpora", 15)):
        code, _, record = law(PRACTICE / f"{name}.csv", flag, *DEFECTS)
        assert code == 0 and record["fitted"]["runs"] == n_runs


def test_tokens_of_flops_and_sizes_in_millions_are_in_plain_numbers(settled, tmp_path):
    path = tmp_path / "runs.csv"
    rows = [f"{n / 1e6},{6 * n * d},{loss}" for n, d, loss in zip(SIZES, TOKENS, LOSSES, strict=True)]
    path.write_text("\n".join(["params_m,flops,loss", *rows]) + "\n")
    said, record = settled(path)
    assert "--set=n_tokens=flops/6/n_active" in said and "--units=n_active:millions" in said
    for name, values in (("n_active", SIZES), ("n_tokens", TOKENS)):
        assert record["runs"]["ranges"][name] == pytest.approx([min(values), max(values)], rel=5e-3)


def test_what_was_trained_comes_before_what_was_planned():
    renamed = table(n_active=SIZES, n_tokens=TOKENS, actual_tokens=1.2 * TOKENS, loss=LOSSES)
    assert "--columns=n_tokens:actual_tokens reads what was trained" in " ".join(in_words(validate.doubts(renamed)))
    columns = {"target_tokens": ["1e9"], "tokens": ["1.2e9"], "predicted_loss": ["3"], "eval_loss": ["3.1"]}
    assert guess("n_tokens", columns) == "tokens" and guess("loss", columns) == "eval_loss"
    assert guess("n_active", {"N_total": ["2e9"], "N_act": ["1e9"]}) == "N_act"


def test_the_last_checkpoints_of_runs_are_kept():
    kept = read_with(PRACTICE / "minimind.csv", {"n_tokens": "tokens"}, where="model=last")
    assert len(kept) == 6 and set(kept.numbers("n_tokens")) == {4.4196e9}


# Told by the law that is fitted


WARNED = {  # table: (words of the warning, the condition that it proposes, how many runs that leaves)
    "schedules": (
        "3 learning-rate schedules (column lr_schedule: cosine in 5, wsd in 5, constant in 5)",
        "lr_schedule!=constant",
        10,
    ),
    "seqlens": ("3 row lengths (column seq_len: 512 in 5, 2048 in 5, 8192 in 5)", None, 15),
    "lrmix": (
        "peak_learning_rate differs between 45 of 45 runs at 15 pairs of size and tokens",
        "peak_learning_rate=0.0004",
        15,
    ),
    "status": (
        "3 of 15 runs did not finish (column status: diverged, failed, running): rows 6, 10, 13",
        "status=finished",
        12,
    ),
    "one64": ("row 17 alone says what n_experts = 64 does", "n_experts!=64", 15),
    "headless_flops": ("flops counts 2.3% of n_active at the smallest model and 17.8% at the largest", None, 12),
}


@pytest.mark.parametrize("name", WARNED)
def test_a_fitted_law_warns_of_its_table(law, name):
    words, where, n_runs = WARNED[name]
    flags = ["--form=joint"] if name == "one64" else DEFECTS
    code, said, _ = law(PRACTICE / f"{name}.csv", *flags)
    assert code == 0 and words in said
    assert (f"--where={where}" in said) if where else ("--where=" not in said)
    assert len(read_with(PRACTICE / f"{name}.csv", where=where)) == n_runs


def test_a_state_that_nobody_knows_is_unfinished():
    odd = table(n_active=SIZES, n_tokens=TOKENS, loss=LOSSES, State=["done"] * 14 + ["zombie"])
    assert "1 of 15 runs did not finish (column State: zombie): row 16" in " ".join(in_words(validate.doubts(odd)))


@pytest.mark.parametrize(
    "column, values, where",
    [("finished", ["True"] * 14 + ["False"], "finished!=false"), ("diverged", [0] * 14 + [1], "diverged!=1")],
)
def test_flags_of_runs_that_did_not_finish_are_read(column, values, where):
    runs = table(n_active=SIZES, n_tokens=TOKENS, loss=LOSSES, **{column: values})
    said = " ".join(in_words(validate.doubts(runs)))
    assert f"1 of 15 runs have {column}" in said and f"row 16; --where={where} leaves them out" in said
    assert len(read_with(runs.columns, where=where)) == 14


@pytest.mark.parametrize("column", ["lr_scheduler_type", "optim.schedule", "LR schedule"])
def test_schedules_are_known_by_their_usual_names(column):
    runs = table(n_active=SIZES, n_tokens=TOKENS, loss=LOSSES, **{column: ["cosine"] * 10 + ["wsd"] * 5})
    (said,) = in_words(mixed_columns.recipe_doubts(runs))
    assert f"column {column}: cosine in 10, wsd in 5" in said and f"--where={column}=cosine" in said


def test_rows_far_off_are_named():
    losses = LOSSES.copy()
    losses[10] *= 1.257
    runs = dict(run=[f"run-{i}" for i in range(15)], n_active=SIZES, n_tokens=TOKENS, loss=losses)
    said = " ".join(fit.law(runs, "chinchilla").warnings)
    assert "1 of 15 fitted runs is far off the law" in said
    assert float(re.search(r"row 10 \(run-10\) \+([\d.]+)%", said)[1]) == pytest.approx(25.7, abs=3)
    for weights in ("none", "compute^0.6"):
        assert "far off" not in " ".join(fit.law(PRACTICE / "semicolon.csv", "chinchilla", weights=weights).warnings)


# Learning rates


def test_a_cliff_of_learning_rates_costs_what_the_rates_before_it_say():
    said = " ".join(fit_command.printed("lr", f"--runs={PRACTICE / 'lr_cliff2.csv'}").split())
    assert said.count("left out as diverged") == 2 and "rates 0.0016 (loss 5.5), 0.0032 (loss 6.5)" in said
    optima, _ = learning_rate.best_rates(read(str(PRACTICE / "lr_cliff2.csv")))
    for best in optima:
        assert best.rate == pytest.approx(2e-4, rel=0.15) and 0.03 < best.lost[4.0] < 0.065
        assert list(best.diverged) == pytest.approx([1.6e-3, 3.2e-3])


@pytest.mark.parametrize("seed", range(5))
def test_no_rate_costs_less_than_the_best_and_a_smooth_grid_has_no_cliff(seed):
    rng = np.random.default_rng(seed)
    x = np.log(1e-4) + np.log(2) * np.arange(8)
    loss = 3 + 0.02 * (x - x[rng.integers(2, 6)]) ** 2 + 0.004 * rng.normal(size=8)
    (best,), _ = learning_rate.best_rates(
        table(n_active=1e8, n_tokens=2e9, n_experts=1, peak_learning_rate=np.exp(x), loss=loss)
    )
    assert not best.diverged and min(best.lost.values()) >= 0


# Imports


def test_a_results_file_of_nanochat_asks_for_its_unit_and_its_two_vocabularies(capsys, tmp_path):
    out = tmp_path / "runs.csv"
    assert command_line.run(["import", str(PRACTICE / "nano.csv"), f"--out={out}"]) == 0
    assert "val_bpb is read as nats per token, but its name says otherwise" in capsys.readouterr().err
    runs = read(str(out))
    width = runs.numbers("d_model")
    matrices = 2 * runs.numbers("vocab_size") * width + 12 * runs.numbers("n_blocks") * width**2
    np.testing.assert_array_equal(runs.numbers("n_active"), matrices)
    said = fit_command.refused("law", f"--runs={out}", f"--out={tmp_path / 'law.json'}", *DEFECTS)
    assert "found 2 vocabularies (32768 in 15, 65536 in 15)" in said
    assert command_line.run(helpers.typed_again(said)) == 0


@pytest.mark.parametrize("name", ["ladder_named", "minimind"])
def test_an_imported_table_says_what_the_source_says(name, capsys, tmp_path):
    out = tmp_path / "runs.csv"
    columns = ["--columns=n_active:params,n_tokens:tokens"] if name == "minimind" else []
    words = ["import", str(PRACTICE / f"{name}.csv"), f"--out={out}", "--set=n_experts=1", *columns]
    assert command_line.run(words) == 0
    assert "warning: " in capsys.readouterr().err
    source = read(str(PRACTICE / f"{name}.csv"))
    kept = read(str(out)).columns
    for column in {"run", "model", "step", "dataset", "lr_schedule", "seq_len", "status"} & source.columns.keys():
        assert kept[column] == source.columns[column]


# Histories and mixtures of runs by their numbers alone


@pytest.mark.parametrize("seed", range(3))
def test_noise_makes_no_histories_and_checkpoints_beside_runs_are_counted(seed):
    rng = np.random.default_rng(seed)
    tokens = np.tile(np.geomspace(1e9, 6.4e10, 7), 8)
    sizes = np.repeat(np.geomspace(5e7, 2e9, 8), 7)
    losses = true_loss(sizes, tokens) * np.exp(0.01 * rng.normal(size=len(sizes)))
    runs = table(n_active=sizes, n_tokens=tokens, loss=losses)
    assert not [*histories.unnamed_histories(runs), *histories.rows_above_others(runs)]
    # runs of 4, 16 and 64 billion tokens of each size; of the longest also two checkpoints, which are 5% worse
    tokens = np.tile([4e9, 5e9, 1.6e10, 2e10, 6.4e10], 4)
    sizes = np.repeat([1e8, 2e8, 4e8, 8e8], 5)
    losses = true_loss(sizes, tokens) * np.tile([1, 1.05, 1, 1.05, 1], 4)
    (found,) = histories.rows_above_others(table(n_active=sizes, n_tokens=tokens, loss=losses))
    assert str(found).startswith("8 of 20 rows have a loss at least 1% above that of a row of the same size")


@pytest.mark.parametrize(
    "column, values, is_told",
    [
        ("config.dataset", ["c4", "pile"], True),
        ("training_data", ["c4", "pile"], True),
        ("tokenizer_name", ["gpt2", "llama"], True),
        ("vocab_size", [50257, 50304], False),  # one vocabulary, padded
        ("vocab_size", [32000, 128256], True),
        ("data", [1e9, 2e9], False),  # a count
        ("data_seed", ["a", "b"], False),
        ("pretrain_dataset", ["c4", "pile"], True),
        ("dataset_tokens", [1e9, 2e9], False),
    ],
)
def test_text_is_known_by_its_usual_names(column, values, is_told):
    runs = table(n_active=1e8, n_tokens=2e9, loss=3.0, **{column: values})
    assert bool([*mixed_columns.text_problems(runs)]) == is_told


def test_seeds_rates_that_follow_from_the_size_and_experts_between_others_are_no_defects():
    assert not fit_warnings.lonely_experts(table(n_active=1e8, n_tokens=2e9, loss=3.0, n_experts=[1, 1, 8, 64, 64]))
    sizes = np.repeat([1e8, 2e8, 4e8], 2)
    runs = dict(n_active=sizes, n_tokens=20 * sizes, loss=true_loss(sizes, 20 * sizes), seed=[0, 1] * 3)
    assert not [*mixed_columns.rate_doubts(table(**runs, peak_learning_rate=sizes**-0.3))]
    assert not [*mixed_columns.recipe_doubts(table(**runs, lr_schedule=["cosine"] * 6))]


# --where and --set


def test_where_takes_our_names_several_conditions_and_finite():
    path = str(PRACTICE / "status.csv")

    def rows(*conditions):
        return read_with(path, {"n_active": "n_active"}, where=conditions).rows

    assert rows("status=finished") == rows("Status!=running", "status!=failed", "status!=diverged")
    assert rows("status=running", "status=failed") == [10, 13]
    assert rows("n_active=2.5e7", "loss!=4.0236") == [2, 3]
    wandb = fit.read(PRACTICE / "wandb_nan.csv", columns={"loss": "eval/loss"}, where="loss=finite,State=finished")
    assert len(wandb) == 12 and wandb.numbers("loss").max() == 5.2491
    with pytest.raises(fit.UserError, match="where=fate=1: no such column; columns found: n_active"):
        rows("fate=1")
    with pytest.raises(fit.UserError, match="expected COLUMN=VALUE"):
        rows("status")
    with pytest.raises(fit.UserError, match="no run is left of 15"):
        rows("status=lost")


def test_set_multiplies_and_divides_columns_whose_names_hold_marks():
    runs = table(**{"eval/flops": [12e18, 24e18], "n_active": [1e8, 2e8], "loss": [3.0, 2.9]})

    def tokens(formula):
        return read_with(runs.columns, set={"n_tokens": formula}).numbers("n_tokens")

    assert tokens("eval/flops/6/n_active").tolist() == [2e10, 2e10]
    assert tokens("n_active * 20").tolist() == [2e9, 4e9] and tokens("5e9").tolist() == [5e9, 5e9]
    for formula, words in (("flops/6", "has no column flops"), ("loss/0", "0 is 0, so that it cannot be divided by")):
        with pytest.raises(fit.UserError, match=words):
            tokens(formula)


def test_a_law_reads_its_table_again_by_its_conditions(law, tmp_path):
    flags = ["--columns=loss:eval/loss,n_active:n_params,n_tokens:tokens_seen", "--where=loss=finite", *DEFECTS]
    code, said, _ = law(PRACTICE / "wandb_nan.csv", *flags)
    assert code == 0
    assert "left out by --where: 1 with eval/loss NaN, 1 with eval/loss Infinity, 1 with eval/loss empty" in said
    written = str(tmp_path / "law.json")
    found = fit.next(written, str(PRACTICE / "wandb_nan.csv"), flops=1e20, target_flops=1e22)
    assert found.trunks
    words = ["add", f"--law={written}", f"--run={PRACTICE / 'exact.csv'}", f"--runs={PRACTICE / 'wandb_nan.csv'}"]
    assert "was fitted with --where" in fit_command.refused(*words)


# --fix


def test_fixed_coefficients_are_those_of_the_form_chosen(law):
    runs = PRACTICE / "semicolon.csv"
    code, said, record = law(runs, "--fix=A=482.01")
    assert code == 0 and record["form"] == "chinchilla_coupled"
    assert "of the form chosen, chinchilla_coupled: L = (A / N^alpha + B / D^beta)^k + E" in said
    assert "--form=chinchilla holds them" in said
    code, said, record = law(runs, "--fix=A=482.01", "--form=chinchilla")
    assert code == 0 and "form chosen" not in said and record["fitted"]["rmse_log"] < 0.003


@pytest.mark.parametrize(
    "fix, words",
    [
        ("A=6.178", "expected A itself, found what can only be its logarithm"),
        ("A=6.178,B=7.643", "say --fix=A=482.027,B=2085.99"),
        ("E=-0.5", "can only be its logarithm: say E=0.6065"),
        ("ln A=6.178", "expected A itself, not its logarithm"),
    ],
)
def test_logarithms_of_coefficients_are_refused(law, fix, words):
    code, said, _ = law(PRACTICE / "semicolon.csv", f"--fix={fix}", "--form=chinchilla")
    assert code == 2 and words in said
