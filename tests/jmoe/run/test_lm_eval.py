"""Accuracies of lm-evaluation-harness go into a run's result, and by launch.collect into runs.csv."""

import json
import shutil

import helpers
import pytest
import soak
import sweeps
from text_fixtures import EXPORTABLE

from jmoe.errors import UserError
from jmoe.run import accuracies, checkpoint
from jmoe.storage import files as storage
from launch import collect

# as lm_eval 0.4 writes it, shortened
RECORDED = {
    "results": {
        "arc_easy": {
            "alias": "arc_easy",
            "acc,none": 0.4381313131313131,
            "acc_stderr,none": 0.010180937100600062,
            "acc_norm,none": 0.39225589225589225,
            "acc_norm_stderr,none": 0.010018744689650043,
        },
        "gsm8k": {
            "alias": "gsm8k",
            "exact_match,strict-match": 0.0053,
            "exact_match_stderr,strict-match": 0.002,
            "exact_match,flexible-extract": 0.0197,
            "exact_match_stderr,flexible-extract": 0.0038,
        },
        "mmlu": {"acc,none": 0.23, "acc_stderr,none": 0.0035, "alias": "mmlu"},
        "mmlu_anatomy": {"alias": " - anatomy", "acc,none": 0.19, "acc_stderr,none": 0.03},
        "wikitext": {"alias": "wikitext", "word_perplexity,none": 37.4, "word_perplexity_stderr,none": "N/A"},
    },
    "groups": {"mmlu": {"acc,none": 0.23, "acc_stderr,none": 0.0035, "alias": "mmlu"}},
    "group_subtasks": {"arc_easy": [], "gsm8k": [], "wikitext": [], "mmlu": ["mmlu_anatomy"]},
    "configs": {},
    "versions": {"arc_easy": 1.0},
    "n-shot": {"arc_easy": 0},
    "config": {"model": "hf", "model_args": "pretrained=runs/one/hf,dtype=float32", "batch_size": 1},
    "git_hash": None,
}
COLUMNS = {
    "acc_arc_easy": 0.4381313131313131,
    "accnorm_arc_easy": 0.39225589225589225,
    "acc_gsm8k": 0.0053,
    "acc_mmlu": 0.23,
}


@pytest.fixture(scope="module")
def trained(exportable, tmp_path_factory):
    """A copy of a finished run, whose results change here."""
    return shutil.copytree(exportable, tmp_path_factory.mktemp("evaluated") / "run")


def written(folder, **changes):
    """The path of the recorded results with some of their entries replaced."""
    path = folder / "results.json"
    path.write_text(json.dumps(RECORDED | changes))
    return path


def test_columns_are_the_accuracies_of_tasks_and_groups():
    assert accuracies.columns(RECORDED) == COLUMNS


def test_the_command_writes_them_into_the_result_of_the_branch(trained, exportable, tmp_path):
    path = trained / "branch-16384" / "result.json"
    before = storage.read_sealed(path)
    done = helpers.succeeds("jmoe.evaluate", f"--workdir={trained}", f"--lm_eval={written(tmp_path)}")
    assert "acc_arc_easy 0.4381" in done.stdout
    assert storage.read_sealed(path) == before | COLUMNS  # and sealed: a changed file would be Damaged
    assert not storage.read_sealed(trained / "branch-8192" / "result.json").keys() & COLUMNS.keys()
    entered = accuracies.enter(trained, written(tmp_path), "branch-8192", None)
    assert entered["accuracies"] == COLUMNS and entered["segment"] == "branch-8192"
    # the trainer takes its finished branches as they are
    helpers.succeeds("jmoe.train", f"--config={exportable.parent}/tiny.py", f"--workdir={trained}", *EXPORTABLE)
    assert storage.read_sealed(path) == before | COLUMNS


def test_results_of_another_model_are_refused(trained, tmp_path):
    """By the number of parameters, of which the checkpoint's arrays have as many as the message says."""
    folder = checkpoint.find(storage.absolute(trained), None, None)
    arrays = soak.final_params(trained, "branch-16384").values()
    n_parameters = sum(array.size for array in arrays)
    path = written(tmp_path, config={"model_num_parameters": 124_439_808})
    with pytest.raises(UserError, match=f"its model has 124,439,808 weights, the checkpoint {n_parameters:,}: "):
        accuracies.enter(folder.parent.parent.parent, path, None, None)
    same = written(tmp_path, config={"model_num_parameters": n_parameters})
    assert accuracies.enter(trained, same, None, None)["accuracies"] == COLUMNS


def test_collect_puts_them_into_runs_csv(tmp_path):
    jobs = [{"n_tokens": (65_536,), "seed": seed} for seed in (0, 1)]
    sweep = sweeps.begin(sweeps.write_sweep(tmp_path, "configs/quickstart.py", jobs), tmp_path)
    evaluated, other = sweep.jobs
    sweeps.train(evaluated, **COLUMNS)
    sweeps.train(other)
    collect.write(sweep)
    assert [row["acc_arc_easy"] for row in sweeps.rows(tmp_path)] == ["0.4381313131313131", ""]


@pytest.mark.parametrize(
    "text, words",
    [
        (None, "no such file"),
        ("not json", "expected the JSON that lm_eval --output_path writes"),
        ('{"acc": 0.5}', "with results by task"),
        (json.dumps({"results": {"wikitext": {"word_perplexity,none": 37.4}}}), "tasks found: wikitext"),
    ],
)
def test_a_file_without_accuracies_ends_in_one_sentence(trained, tmp_path, text, words):
    path = tmp_path / "results.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError) as error:
        accuracies.enter(trained, path, None, None)
    assert words in str(error.value) and f"--lm_eval={path}" in str(error.value)


def test_what_is_no_end_of_a_branch_takes_no_accuracies(trained, tmp_path):
    with pytest.raises(UserError, match="trunk, step [0-9]+: expected the last checkpoint of a finished branch"):
        accuracies.enter(trained, written(tmp_path), "trunk", None)
    said = helpers.fails("jmoe.evaluate", f"--workdir={trained}", f"--lm_eval={written(tmp_path)}", "--json=loss.json")
    assert "leave out --json and --config" in said
