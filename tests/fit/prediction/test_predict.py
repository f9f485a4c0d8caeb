"""What a law predicts for the models of a table or of flags."""

import fit_command
import fit_runs
import pytest

import fit
from fit import __main__ as command_line
from fit.fitted_law.law_files import NAMES

PLANNABLE = [name for name in NAMES if "n_tokens" in fit.load(name).form.columns]
SPARSITY = ["predict", "--law=sparsity-2025", "--n_total=1e9", "--n_tokens=2e10"]


@pytest.mark.parametrize("vocab_size", [32_000, 128_000])
@pytest.mark.parametrize("name", PLANNABLE)
def test_a_planned_model_is_predicted_as_planned(name, vocab_size):
    plan = fit.plan(name, flops=1e21, shape=dict(vocab_size=vocab_size, width_per_block=64))
    built = plan.buildable
    columns = fit.load(name).form.columns
    row = {column: built[column] for column in ("n_active", "n_total", "n_tokens", "d_model", "vocab_size")}
    row |= dict(n_experts=built.law_experts, top_k=1, granularity=1, shared_share=0)
    assert set(columns) <= {*row, "sparsity"}
    assert fit.predict(name, [row]).columns["predicted_loss"] == pytest.approx([built.loss], rel=1e-9)


def test_counts_that_leave_the_embedding_out_stay_as_they_are():
    """Of a law that leaves it out too, where the column's name says so."""
    model = dict(n_tokens=[1e10], d_model=[1024], vocab_size=[50_257])
    embedding = 2 * 50_257 * 1024
    law = fit.load("kaplan-2020")
    expected = law.predict(5e8, 1e10)
    named = fit.read(model | dict(params_no_embedding=[5e8]), columns=dict(n_active="params_no_embedding"))
    for table in (named, model | dict(n_active=[5e8 + embedding])):
        assert fit.predict(law, table).columns["predicted_loss"] == pytest.approx([float(expected)], rel=1e-12)


@pytest.mark.parametrize("vocab_size", [32_000, 50_257, 128_000])
def test_counts_without_embedding_get_that_which_the_law_counts(vocab_size):
    """With the law's own vocabulary, whatever the models' is, by Law.predict too."""
    law = fit.load("joint-moe-2025")
    model = dict(n_tokens=[1e10], d_model=[1024], vocab_size=[vocab_size], n_experts=[8])
    named = fit.read(model | dict(params_no_embedding=[5e8]), columns=dict(n_active="params_no_embedding"))
    whole = model | dict(n_active=[5e8 + 2 * vocab_size * 1024])
    counted = 5e8 + 2 * 50_257 * 1024, 1e10, 8
    for table in (named, whole):
        for predicted in (fit.predict(law, table).columns["predicted_loss"], law.predict(table)):
            assert predicted == pytest.approx([float(law.predict(*counted))], rel=1e-12)
        assert law.predict_interval(table)[:, 0] == pytest.approx(law.predict_interval(*counted), rel=1e-12)


def test_true_and_1_both_tie_the_embedding():
    row = dict(n_active=1e9, n_tokens=2e10, n_experts=1, d_model=1024, n_blocks=16, vocab_size=256_000)
    for yes in ("True", "1", 1, True, "yes"):
        row["tied_embeddings"] = yes
        (loss,) = fit.predict("joint-moe-2025", [row]).columns["predicted_loss"]
        counted = 1e9 - (256_000 - 50_257) * 1024
        assert loss == pytest.approx(float(fit.load("joint-moe-2025").predict(counted, 2e10, 1)), rel=1e-12)
        runs = {name: [value] * 4 for name, value in row.items()}
        assert fit_runs.models_of(fit.read(runs)).architecture.tied


def test_a_token_chooses_some_of_the_experts():
    """More of them than there are give no sparsity; a dense model has one, whatever its top_k."""
    assert "--n_experts is missing" in fit_command.refused(*SPARSITY, "--top_k=2")
    said = fit_command.refused(*SPARSITY, "--top_k=4", "--n_experts=2")
    assert "--top_k=4: expected a whole number from 1 to 2" in said
    law = fit.load("sparsity-2025")
    models = dict(n_total=[1e9] * 3, n_tokens=[2e10] * 3, n_experts=[1, 8, 8], top_k=[2, 2, 8])
    expected = [float(law.predict(n_total=1e9, n_tokens=2e10, sparsity=share)) for share in (0, 0.75, 0)]
    assert fit.predict(law, models).columns["predicted_loss"] == pytest.approx(expected, rel=1e-12)
    assert fit.predict(law, models | dict(top_k=["", 2, 8])).columns["predicted_loss"] == pytest.approx(expected)
    for wrong in (9, 0, ""):
        with pytest.raises(fit.UserError, match=r"row 1, column top_k: found .*, expected a number from 1 to n_exp"):
            fit.predict(law, models | dict(top_k=[2, wrong, 8]))


def test_options_that_cannot_act_are_refused(tmp_path):
    path = tmp_path / "models.csv"
    path.write_text("n_active,n_tokens,n_experts\n1e9,2e10,8\n")
    law = "--law=joint-moe-2025"
    table = ["predict", law, f"--runs={path}", f"--out={tmp_path / 'out.csv'}"]
    for flag in ("--n_active=1e9", "--n_experts=8", "--top_k=2", "--n_embedding=0", "--batch_tokens=1e6"):
        assert f"fit predict: {flag.partition('=')[0]}: " in fit_command.refused(*table, flag)
    assert not (tmp_path / "out.csv").exists()
    model = ["predict", law, "--n_active=1e9", "--n_tokens=2e10", "--n_experts=8"]
    for flag in ("--where=n_experts=8", "--set=n_experts=8", "--columns=n_experts:E", "--units=n_active:billions"):
        assert f"fit predict: {flag.partition('=')[0]}: " in fit_command.refused(*model, flag)
    assert command_line.run(model) == 0 and command_line.run(table) == 0
    with pytest.raises(fit.UserError, match="n_experts: describes a single model"):
        fit.predict("joint-moe-2025", str(path), n_experts=8)


@pytest.mark.parametrize(
    "law, flags, words",
    [
        (
            "joint-moe-2025",
            "--top_k=2 --granularity=2",
            "top_k, granularity: it predicts a model with top_k 1, granularity 1",
        ),
        ("joint-moe-2025", "--top_k=1 --n_shared_experts=0 --granularity=1", None),  # as its models are
        ("fine-grained-2024", "--top_k=2 --granularity=2", "the fine_grained law has no column for top_k: it"),
        ("sparsity-2025", "--top_k=2 --n_shared_experts=1", "the sparsity law has no column for n_shared_experts: it"),
    ],
)
def test_what_a_law_does_not_read_of_experts_is_told(law, flags, words, capsys):
    model = ("--n_active=1e9", "--n_total=8e9", "--n_tokens=2e10")
    experts = "--n_experts=64" if law == "fine-grained-2024" else "--n_experts=8"
    fit_command.printed("predict", f"--law={law}", *model, experts, *flags.split())
    said = " ".join(capsys.readouterr().err.split())
    assert words in said if words else "no column" not in said
