"""Flags of earlier versions: the error prints a command, which answers what was meant."""

import json
import shlex

import fit_command
import pytest

import fit
from fit.render.report_options import plan_options

LAW = "joint-moe-2025"
OLD = [  # (what was typed, the same in Python)
    (
        "--flops=1e21 --vocab_size=50000 --width_per_block=128 --kv_share=0.25 --bytes_per_parameter=1",
        dict(flops=1e21, shape=dict(vocab_size=50_000, width_per_block=128, kv_share=0.25), bytes=dict(weights=1)),
    ),
    (
        "--flops=1e21 --chips=H100:64 --mesh_expert=4 --mesh_model=2 --remat=dots --grams_per_kwh=400",
        dict(flops=1e21, chips="H100:64", mesh=dict(expert=4, model=2, remat="dots")),
    ),
    (
        "--flops=1e21 --chips=H100:64 --serve_tokens_per_second=2000 --serve_batch=8 --devices=8",
        dict(flops=1e21, chips="H100:64", serve=dict(tokens_per_second=2000, batch=8), devices=8),
    ),
    ("--chips=H100:8 --hours=10 --by=time --shape=hardware", dict(chips="H100:8", hours=10)),
    ("--chips=H100:8 --hours=10 --by=flops", dict(chips="H100:8", hours=10, mfu="0.4")),
]


def suggested(*arguments):
    """The arguments of the command that the error prints."""
    said = fit_command.refused(*arguments)
    line = said.rstrip().splitlines()[-1]
    python, _, module, *words = shlex.split(line)
    assert (python, module) == ("python", "fit"), said
    return words


@pytest.mark.parametrize(
    ("command", "typed"),
    [
        *[("plan", f"--law={LAW} {typed}") for typed, _ in OLD],
        ("compare", "--flops=1e21 --chips=H100:8 --by=flops --used=1,2"),
        ("next", "--law=law.json --runs=runs.csv --vocab_size=50000"),
        ("report", f"--law={LAW} --flops=1e21 --by=time --shape=hardware"),
        ("law", "--runs=runs.csv --solver=lbfgs"),
        ("law", "--runs=runs.csv --solver=lm"),
    ],
)
def test_an_old_flag_is_told_with_and_without_an_equals_sign(command, typed):
    with_equals = suggested(command, *typed.split())
    with_spaces = suggested(command, *typed.replace("=", " ").split())
    assert " ".join(with_spaces).replace("=", " ") == " ".join(with_equals).replace("=", " ")


@pytest.mark.parametrize(("typed", "options"), OLD)
def test_the_command_that_an_old_flag_prints_answers(typed, options):
    words = suggested("plan", f"--law={LAW}", *typed.split())
    assert fit_command.answer(*words) == json.loads(json.dumps(fit.plan(LAW, **options).to_dict()))


def test_a_report_takes_the_options_of_a_plan_or_its_json(tmp_path):
    limits = ["--flops=1e21", "--memory_gb=80", "--shape=vocab_size:50000"]
    old = suggested("report", f"--law={LAW}", *limits[:2], "--vocab_size=50000", "--laws=chinchilla-2022")
    (tmp_path / "plan.json").write_text(fit_command.printed("plan", f"--law={LAW}", *limits, "--json"))
    (typed,) = (word.removeprefix("--plan=") for word in old if word.startswith("--plan="))
    assert plan_options(typed) == plan_options(f"{tmp_path}/plan.json") == plan_options(" ".join(limits))


def test_a_report_reads_plans_of_earlier_versions_and_refuses_those_it_cannot(tmp_path):
    path = tmp_path / "plan.json"
    plan = fit.plan(LAW, flops=1e21, shape=dict(granularity=2)).to_dict()
    earlier = dict(split="granularity", used="active_width", trained="counts_routed_experts")
    plan |= {old: plan.pop(now) for old, now in earlier.items()}
    path.write_text(json.dumps(plan | dict(version=1)))
    assert plan_options(str(path)).shape.granularity == 2

    refused = {
        "expected at most": json.dumps(plan | dict(version=99)),
        "make it again by fit plan --json": json.dumps({name: plan[name] for name in plan if name != "options"}),
        "expected what fit plan --json prints": "[1, 2]",
    }
    for said, text in refused.items():
        path.write_text(text)
        assert said in fit_command.refused("report", f"--law={LAW}", f"--plan={path}", f"--out={tmp_path}/r.html")
    assert not (tmp_path / "r.html").exists()


def test_a_value_after_a_space_goes_with_its_flag():
    words = suggested("report", f"--law={LAW}", "--flops", "1e21", "--vocab_size", "50000")
    assert words == ["report", f"--law={LAW}", "--plan=--flops=1e21 --shape=vocab_size:50000"]


@pytest.mark.parametrize(("command", "flag"), [("report", "--rums=x"), ("plan", "--shpe=paper"), ("law", "--start=3")])
def test_a_misspelt_flag_is_none_of_an_earlier_version(command, flag):
    said = fit_command.refused(command, f"--law={LAW}", flag)
    assert "nknown command line flag" in said and "earlier version" not in said


def test_help_lists_the_fields_with_their_units():
    printed = fit_command.printed("plan", "--help")
    for field in ("kv_share", "vocab_size", "expert", "remat", "weights", "tokens_per_second"):
        assert f"\n      {field}: " in printed
