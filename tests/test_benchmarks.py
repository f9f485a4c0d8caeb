"""The benchmarks run, and the layer that ours is measured against computes the same. Nothing here is timed."""

import importlib.util
import json

import helpers
import numpy as np
import pytest

from benchmarks import extrapolation, floors, mixture_laws, prior, step_bytes, tables, tasks, tpu_attention, with_rate
from benchmarks.tables import __main__ as tables_command
from jmoe.cost.program import Program


def test_one_hot_dispatch_is_the_same_layer(tmp_path):
    sizes = (
        "--n_tokens=256",
        "--d_model=16",
        "--d_ff=24",
        "--n_experts=4",
        "--fine=8,2,12",
        "--rounds=1",
        f"--json={tmp_path}/layer.json",
    )
    done = helpers.succeeds("benchmarks.moe_layer", *sizes)
    written = json.loads((tmp_path / "layer.json").read_text())
    torch = ["torch Mixtral"] if importlib.util.find_spec("torch") and importlib.util.find_spec("transformers") else []
    coarse = [f"{name} E=4" for name in ["switch", "one-hot", *torch]]
    fine = [f"{name} E=8 k=2 ff=12" for name in ["mixture", "one-hot", *torch]]
    assert [row["layer"] for row in written["rows"]] == ["dense", *coarse, *fine]
    assert float(written["notes"].rsplit(" ", 1)[1]) < 1e-4
    for row in written["rows"]:
        assert f"{row['ms']:.3g}" in done.stdout


@pytest.mark.parametrize("name", ["fit_speed", "fit_coverage", "fit_next", "mutants"])
def test_each_runs_as_a_module(name):
    done = helpers.run(f"benchmarks.{name}", "--help")
    assert name in done.stdout and "--" in done.stdout and "Traceback" not in done.stderr


def test_the_prior_of_a_judged_source_is_made_without_it():
    """No judged run is among those of the prior, and a table under another name is refused."""
    judged = prior.judged_tables()
    assert {source: prior.prior_without(source, by_name) for source, by_name in judged.items()} == {
        source: f"population:{source}" for source in extrapolation.SOURCES
    }
    with pytest.raises(prior.OverlapError, match="mine of someone: its runs are in marin_v16 of marin"):
        prior.prior_without("someone", {"mine": judged["marin"]["marin_v16"]})
    with pytest.raises(prior.OverlapError, match="its runs are in llama3 of llama3"):
        prior.prior_without("marin", judged["marin"] | judged["llama3"])


def test_mixture_laws_hold_out_what_they_predict():
    seen = {}
    for cut in mixture_laws.cuts():
        fitted = [tuple(run.items()) for run in cut.fitted]
        assert not set(fitted) & {tuple(run.items()) for run in cut.held_out}
        seen.setdefault(cut.name, []).append((cut.fitted, cut.held_out))
    assert all(max(r["n_active"] for r in a) < min(r["n_active"] for r in b) for a, b in seen["largest"])
    assert all(max(r["n_experts"] for r in a) < min(r["n_experts"] for r in b) for a, b in seen["many experts"])
    assert len(seen) == 3 and all(len(cuts) == 3 for cuts in seen.values())


def test_a_law_is_scored_on_the_runs_that_were_held_out():
    """Of losses on a line in ln E, the line predicts all; an error of 1% in them is found."""

    def run(n_experts, factor=1.0):
        loss = (3.0 - 0.1 * np.log(n_experts)) * factor
        return dict(n_active=1e8, n_total=1e8 * n_experts, n_tokens=1e10, n_experts=n_experts, loss=loss)

    cut = mixture_laws.Cut("x", "y", [run(e) for e in (2.0, 8.0, 32.0)], [run(64.0), run(256.0, 1.01)])
    score = mixture_laws.score("line", cut)
    assert score.error == pytest.approx(np.log(1.01) / 2**0.5) and score.bias == pytest.approx(-np.log(1.01) / 2)
    alone = mixture_laws.Cut("x", "y", [run(2.0)], [run(64.0)])
    assert mixture_laws.score("line", alone) is None


def test_the_papers_form_of_accuracies_is_fitted():
    """Accuracies on floor + k exp(-rate loss) are continued, and cut at 1."""
    losses = np.linspace(2.6, 4.5, 20)
    runs = [dict(loss=loss, acc_x=0.25 + 3 * np.exp(-1.2 * loss)) for loss in losses]
    predicted = tasks.exponential(runs, "acc_x", [2.4, 0.1])
    assert predicted == pytest.approx([0.25 + 3 * np.exp(-1.2 * 2.4), 1.0], abs=1e-4)


def test_experts_cannot_shift_a_loss_against_itself():
    """The control of Clark's runs: only the scores of other texts are shifted."""
    shifts = {task.task: task.shift for task in tasks.clark_maps("S-Base", "loss_c4").tasks}
    assert not shifts["acc_c4"].is_shifted and abs(shifts["acc_c4"].nats) < 1e-3
    assert shifts["acc_lambada"].interval[0] > 0.005 and shifts["acc_pile"].interval[1] < -0.005


def test_tables_without_a_licence_are_named_and_checked(tmp_path, capsys):
    assert tables_command.main(["fetch"]) == 0
    text = capsys.readouterr().out
    source = tables.SOURCES["steplaw"]
    assert source.repository in text and source.commit in text and all(sha in text for sha in source.files.values())
    (file,) = source.files
    (tmp_path / "data").mkdir()
    assert tables_command.main(["fetch", "--name=steplaw", f"--clone={tmp_path}"]) == 2
    assert "no such file; python -m benchmarks.tables fetch says how" in capsys.readouterr().err
    (tmp_path / file).write_text("lr,bs\n")
    with pytest.raises(tables.WrongTableError, match=f"SHA-256 [0-9a-f]*, expected {source.files[file]}"):
        tables.table_path("steplaw", tmp_path, file)


def test_rates_are_scored_against_the_best_run_of_each_cell():
    """Near-optimal runs are averaged for the truth; the best run alone is the other answer."""
    runs = dict(
        n_active=np.full(4, 1e8),
        n_tokens=np.full(4, 1e9),
        peak_learning_rate=np.array([1e-3, 4e-3, 1e-2, 1.0]),
        batch_tokens=np.full(4, 2.0**17),
        loss=np.array([2.0, 2.004, 2.1, 7.0]),
    )
    (cell,) = with_rate.cells_of(runs)
    assert np.exp(with_rate.best_of(runs, cell, 1.0)) == pytest.approx([2.0, 1e-3, 2**17])
    assert np.exp(with_rate.best_of(runs, cell, with_rate.NEAR)) == pytest.approx([2.0, 2e-3, 2**17])
    assert np.isnan(with_rate.best_of(runs, cell * 2, 1.0)).all()
    best_run = np.array([[0.01, 0.5, 0.5], [np.nan] * 3])
    errors = with_rate.Errors(best_run, best_run / 10, np.array([[True] * 3, [False] * 3]), np.full((2, 3), 0.4))
    loss, rate = with_rate.lines([errors])[1:3]
    assert loss.split() == ["ln", "loss", "1.00%", "(1.00%)", "0.10%", "(0.10%)", "50%", "20.00%"]
    assert rate.split()[2:] == ["0.500", "(0.500)", "0.050", "(0.050)", "50%", "0.200"]


def test_the_anchors_of_the_67b_model_are_three_of_its_shape():
    anchors, target = floors.anchors_and_target()
    assert anchors.numbers("loss").tolist() == [3.2373, 2.9538, 2.7515]
    per_parameter = anchors.numbers("n_tokens") / anchors.numbers("n_active")
    assert per_parameter == pytest.approx(target["n_tokens"] / target["n_active"], rel=0.02)
    assert floors.in_words((2.0, 2.1, 2.2), 2.05).startswith("2.100 (2.000 to 2.200) holds 2.050; error +2.41%")


ATTENTION = """
ENTRY %main (q: bf16[32,128,4096], k: bf16[32,128,4096], v: bf16[32,128,4096], d: bf16[32,128,4096]) -> bf16[1] {{
  %q = bf16[32,128,4096]{{2,1,0}} parameter(0)
  %k = bf16[32,128,4096]{{2,1,0}} parameter(1)
  %v = bf16[32,128,4096]{{2,1,0}} parameter(2)
  %d = bf16[32,128,4096]{{2,1,0}} parameter(3)
  %m = f32[32,1,4096]{{2,1,0}} parameter(4)
  ROOT %z = ({results}) custom-call({operands}), custom_call_target="tpu_custom_call"
}}
"""


@pytest.mark.parametrize(
    "operands, n_results, n_products",
    [("%q, %k, %v", 2, 2), ("%q, %k, %v, %d, %m", 1, 3), ("%q, %k, %v, %d, %m", 2, 4), ("%q, %k, %v, %d, %m", 3, 5)],
    ids=["forward", "gradient of queries", "of keys and values", "of all three"],
)
def test_products_of_attention_kernels_follow_from_what_they_read_and_write(operands, n_results, n_products):
    results = ", ".join(["bf16[32,128,4096]{2,1,0}"] * n_results)
    program = Program(ATTENTION.format(operands=operands, results=results))
    products = [tpu_attention.kernel_products(run.instruction) for run in program.runs]
    assert [n for n in products if n] == [n_products]


NAMES = ("train_step", "Block.__call__", "swiglu", "MLP.__call__", "norm", "_add_to_residual", "_means_and_gradients")
FRAMES = ((1, 1), (2, 2), (4, 3), (3, 4), (5, 3), (6, 3), (7, 2), (5, 2))  # a name, and the number of who calls it


def traced() -> str:
    """The tables that say in which functions a program's instructions were traced, as XLA writes them."""
    names = [f'{i} "{name}"' for i, name in enumerate(NAMES, 1)]
    places = [f"{i} {{file_name_id=1 function_name_id={i} line={i}}}" for i in range(1, len(NAMES) + 1)]
    frames = [f"{i} {{file_location_id={name} parent_frame_id={by}}}" for i, (name, by) in enumerate(FRAMES, 1)]
    return "\n".join(["FunctionNames", *names, "", "FileLocations", *places, "", "StackFrames", *frames])


STEP = """
%gemm (a: bf16[64,16], b: bf16[16,24]) -> bf16[64,24] {
  %a = bf16[64,16]{1,0} parameter(0)
  %b = bf16[16,24]{1,0} parameter(1)
  %n = bf16[64,16]{1,0} negate(%a), metadata={stack_frame_id=5}
  ROOT %y = bf16[64,24]{1,0} dot(%n, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}, \
metadata={stack_frame_id=4}
}

%normed (c: bf16[64,16]) -> bf16[64,16] {
  %c = bf16[64,16]{1,0} parameter(0)
  %f = f32[64,16]{1,0} convert(%c), metadata={stack_frame_id=5}
  ROOT %g = bf16[64,16]{1,0} convert(%f), metadata={stack_frame_id=1}
}

ENTRY %main (x: bf16[64,16], w: bf16[16,24]) -> bf16[64,24] {
  %x = bf16[64,16]{1,0} parameter(0)
  %w = bf16[16,24]{1,0} parameter(1)
  %copy = bf16[64,16]{0,1} copy(%x)
  %view = bf16[64,16]{1,0} bitcast(%copy)
  %added = bf16[64,16]{1,0} add(%view, %view), metadata={stack_frame_id=6}
  %scaled = bf16[64,16]{1,0} fusion(%added), kind=kLoop, calls=%normed, metadata={stack_frame_id=1}
  %product = bf16[64,24]{1,0} fusion(%scaled, %w), kind=kOutput, calls=%gemm, metadata={stack_frame_id=5}
  %silu = bf16[64,24]{1,0} negate(%product), metadata={stack_frame_id=4}
  %final = bf16[64,24]{1,0} negate(%silu), metadata={stack_frame_id=8}
  %logits = bf16[64,24]{1,0} negate(%final), metadata={stack_frame_id=7}
  %moment = bf16[64,24]{1,0} negate(%logits), metadata={stack_frame_id=1}
  ROOT %unknown = bf16[64,24]{1,0} negate(%moment)
}
"""


def test_bytes_belong_to_the_function_that_they_come_from():
    """A fusion belongs to its product or else to most of what it makes; what XLA adds, to its reader."""
    narrow = 2 * 64 * 16
    wide = 2 * 64 * 24
    assert step_bytes.bytes_by_cause(f"HloModule jit_step\n\n{traced()}\n{STEP}") == {
        step_bytes.NORMS: 2 * narrow + 3 * narrow + 2 * narrow,  # copy, residual, norm
        step_bytes.EXPERT_PRODUCTS: narrow + 2 * 16 * 24 + wide,
        step_bytes.SWIGLU: 2 * wide,
        step_bytes.HEAD: 2 * 2 * wide,  # the final norm, and logits
        step_bytes.OPTIMIZER: 2 * 2 * wide,
    }


def test_no_step_can_move_less_than_its_parameters_and_moments():
    for name in step_bytes.STEPS:
        config = step_bytes.config_of(name, 2)
        least = step_bytes.least(config.model, 1, config.data.seq_len)
        deeper = step_bytes.least(step_bytes.config_of(name, 4).model, 1, config.data.seq_len)
        per_block = sum(least[cause] for cause in step_bytes.OF_BLOCK)
        assert per_block == sum(deeper[cause] for cause in step_bytes.OF_BLOCK)
        n_of_block = (deeper[step_bytes.OPTIMIZER] - least[step_bytes.OPTIMIZER]) / 28 / 2
        assert per_block == pytest.approx(6 * n_of_block, rel=0.03)  # of one token: three products of each weight
