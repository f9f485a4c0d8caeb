"""Plans of a law that knows its models: defaults, marks, configs, and what cannot be planned."""

import json
import subprocess
import sys

import fit_command
import fit_runs
import helpers
import jax
import numpy as np
import pytest
from etils import epath

import fit
from fit import __main__ as command_line
from fit.fitted_law import extrapolation
from fit.fitted_law.law_files import load
from jmoe import cli, train
from jmoe.config import counts, schema
from jmoe.config.check import check_config
from jmoe.config.schedule import Schedule
from jmoe.errors import UserError
from jmoe.model import sharding
from launch import jobs


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plan")
    fit_runs.write_demo_law(folder / "law.json")
    return folder


def plan(*flags, law):
    found = fit_command.answer("plan", f"--law={law}", *flags)
    del found["options"]  # of the flags
    return found


def test_each_row_says_what_of_it_was_never_fitted(folder):
    law = load(f"{folder}/law.json")
    found = fit.plan(law, flops=2e12, experts=[1, 8, 1024])
    for row in [*found.optima, found.buildable, found.dense]:
        factors = {each["column"]: each["factor"] for each in row["extrapolation"]}
        assert factors["n_tokens"] == pytest.approx(row["n_tokens"] / 1_310_720)
        assert factors["training_flops"] == pytest.approx(2e12 / (6 * 69696 * 1_310_720), rel=1e-4)
        assert factors.get("n_experts") == (128 if row["n_experts"] == 1024 else None)
    inside = fit.plan(law, flops=2e11, max_tokens=1e6, experts=[2, 4])
    assert [row.extrapolation for row in inside.optima] == [[], []] and inside.extrapolation == []
    short = load(fit_runs.write_demo_law(folder / "short.json", unique_tokens=2_000_000))
    found = fit.plan(short, flops=2e12)
    mark = found.best.extrapolation[-1]
    assert mark["column"] == "unique_tokens" and mark["factor"] == found.best.n_tokens / 2e6


def test_a_best_at_the_edge_is_not_the_last_word(folder):
    law = load(f"{folder}/law.json")
    edge = fit.plan(law, flops=2e11)
    assert edge.best.n_experts == 8 and edge.best_at_edge
    assert not fit.plan(law, flops=2e11, experts=[8]).best_at_edge  # nothing is compared
    tight = fit.plan("joint-moe-2025", flops=1e24, memory_gb=640)
    assert tight.best.n_experts == 8 and not tight.best_at_edge


def test_a_file_named_like_the_paper_is_not_compared_with_it(folder):
    (folder / "joint-moe-2025-mine.json").write_text((folder / "law.json").read_text())
    for arguments, compared in (
        ([f"--law={folder}/joint-moe-2025-mine.json", "--flops=1e21,1e22,1e23,1e24", "--memory_gb=24,80,640"], False),
        (["--law=joint-moe-2025", "--shape=vocab_size:32000"], False),
        (["--law=joint-moe-2025"], True),
    ):
        assert ("cells agree with the paper" in fit_command.printed("table", "--which=2", *arguments)) == compared


def test_table_5_marks_the_ends_of_its_intervals(folder):
    record = json.loads((folder / "law.json").read_text())
    draws = [[value * (1 + 0.001 * i) for value in fit_runs.TINY.values()] for i in range(5)]
    record["bootstrap"] = dict(form="replacement", percentiles=[0, 100], draws=draws)
    (folder / "intervals.json").write_text(json.dumps(record))
    for row in fit_command.answer("table", f"--law={folder}/intervals.json", "--which=5", "--flops=1e11")["rows"]:
        factor = 14880 / row["n_active_low"]
        assert factor > 1 and f"n_active {factor:.3g} times below 14.9K" in row["outside_fitted_range"]


# The emitted config.


def emitted(tmp_path, law, *flags):
    """(the config, the plan's buildable model, the config's source)."""
    path = tmp_path / "planned.py"
    built = plan(*flags, f"--emit_config={path}", law=law)["buildable"]
    return cli.load_module(str(path), "planned").get_config().lock(), built, path.read_text()


@pytest.mark.parametrize(
    "law, flags",
    [
        ("demo", ["--flops=2e9"]),  # fewer tokens than the runs warmed up over
        ("demo", ["--flops=2e12"]),
        ("joint-moe-2025", ["--flops=1e20"]),
        ("joint-moe-2025", ["--flops=1e19", "--shape=width_per_block:128"]),
    ],
)
def test_a_plan_becomes_a_config_that_the_trainer_takes(folder, tmp_path, law, flags):
    """At the demo's size, at the paper's, and between: tokenizer, rows and law of rates are those of the law's runs."""
    from configs import joint_moe, quickstart

    base = (quickstart if law == "demo" else joint_moe).get_config()
    config, built, _ = emitted(tmp_path, f"{folder}/law.json" if law == "demo" else law, *flags)
    check_config(schema.complete(config))
    schedule = Schedule(config)
    sharding.make_mesh(config, jax.devices()[:1])
    assert counts.n_active(config.model) == built["n_active"] and counts.n_total(config.model) == built["n_total"]
    assert counts.n_exact(config.model) == built["exact_parameters"]
    assert schedule.peak == pytest.approx(built["learning_rate"], rel=1e-6)
    assert config.n_tokens == (built["n_tokens"],)
    assert 0 <= schedule.tokens_at(schedule.segments[-1].stop) - built["n_tokens"] < 262_144
    base.data.fingerprint = fit_runs.CORPUS if law == "demo" else ""
    for part in ("data", "loss", "batch_tokens"):
        assert getattr(config, part) == getattr(base.lock(), part)
    assert config.optimizer.lr_law == base.optimizer.lr_law
    assert config.optimizer.warmup_tokens == min(base.optimizer.warmup_tokens, built["n_tokens"] // 3)


def test_the_emitted_config_trains(folder, tmp_path, text_glob):
    config, built, _ = emitted(tmp_path, f"{folder}/law.json", "--flops=1.5e8", "--experts=1")
    with config.unlocked():
        config.data.path, config.data.validation_tokens = text_glob, 1024
    with pytest.raises(UserError, match=f"fingerprint={fit_runs.CORPUS}.* is other text.*--config.data.fingerprint= "):
        train.train(config, epath.Path(tmp_path / "run"))
    assert not list((tmp_path / "run").iterdir())
    with config.unlocked():
        config.data.fingerprint = ""
    (result,) = train.train(config, epath.Path(tmp_path / "run"))
    for name in ("n_active", "n_experts", "vocab_size", "width_per_block", "seq_len"):
        wanted = dict(built, width_per_block=8, seq_len=built["sequence"])[name]
        assert result[name] == wanted
    assert result["peak_learning_rate"] == pytest.approx(built["learning_rate"])


def test_a_sweep_around_the_plan_of_the_demos_law(folder, tmp_path):
    """No flag of shape: config, width and experts are the law's; a sweep of short runs warms up over a third of
    each."""
    from configs import quickstart

    usual = quickstart.get_config().optimizer.warmup_tokens
    sweep = "from configs.sweeps import planned\n\ndef get_sweep():\n    return planned.get_sweep({!r}, ({!r},))\n"
    for flops in ("2e9", "2e12"):
        (tmp_path / "sweep.py").write_text(sweep.format(f"{folder}/law.json", f"--flops={flops}"))
        made, configs = jobs.load(str(tmp_path / "sweep.py"), epath.Path(tmp_path / "work"))
        assert {job.n_experts for job in made} == {1, 2, 4, 8} and made[0].config_file == "configs/quickstart.py"
        for job in made:
            (n_tokens,) = job.budgets.values()
            assert 6 * job.n_active * n_tokens == pytest.approx(float(flops), rel=1e-4)
            assert configs[job.name].optimizer.warmup_tokens == min(usual, n_tokens // 3)
            assert configs[job.name].data.fingerprint == fit_runs.CORPUS


def test_what_all_runs_overrode_is_in_the_config(tmp_path):
    overrides = {"data.path": "'my text/*.txt'", "optimizer.lr_law.constant": "3.0"}
    law = fit_runs.write_demo_law(tmp_path / "law.json", overrides=overrides)
    config, _, source = emitted(tmp_path, law, "--flops=2e12")
    assert config.data.path == "my text/*.txt" and config.optimizer.lr_law.constant == 3.0
    assert source.count("# as the runs had it") == 3 and config.data.fingerprint == fit_runs.CORPUS


def test_a_config_is_found_where_no_import_statement_reaches_it(folder, tmp_path, monkeypatch):
    """Outside of the working directory, or installed where the folder has none."""
    mine = tmp_path / "my config.py"
    mine.write_text("from configs.quickstart import get_config\n")
    monkeypatch.chdir(tmp_path)
    for base in (mine, "configs/quickstart.py"):
        config, _, _ = emitted(tmp_path, f"{folder}/law.json", "--flops=1e19", f"--base_config={base}")
        assert config.data.tokenizer == "bytes" and config.data.fingerprint == fit_runs.CORPUS


def test_learning_rates_come_from_the_runs(folder):
    """From the rates that the runs had; from Eq. 10 for a law of the paper's models that says none; else none."""
    found = plan("--flops=2e12", law=f"{folder}/law.json")["buildable"]
    assert found["learning_rate_from"] == "by the law of the fitted runs' rates" and found["learning_rate"] < 0.02
    fit_runs.write_demo_law(folder / "rates.json", learning_rate=None)
    found = plan("--flops=2e12", law=f"{folder}/rates.json")["buildable"]
    assert found["learning_rate"] is None and found["batch_tokens"] is None
    said = fit_command.printed("plan", f"--law={folder}/rates.json", "--flops=2e12")
    assert "Rate: not known (the fitted runs followed no law" in said
    found = plan("--flops=1e20", "--shape=paper", law="chinchilla-2022")["buildable"]
    assert found["learning_rate_from"] == "Eq. 10"
    found = plan("--flops=1e14", law="chinchilla-2022")["buildable"]
    assert found["learning_rate"] is None and "far larger" in found["learning_rate_from"]


# What cannot be planned, in one sentence; and what it costs.


def test_buildable_memory_counts_norms_and_routers():
    """A limit between the weights as the law counts them and all of them keeps the model out."""
    built = plan("--flops=1e20", "--experts=8", law="joint-moe-2025")["buildable"]
    assert built["memory_bytes"] == 2 * built["exact_parameters"] > 2 * built["n_total"]
    limit = (built["exact_parameters"] + built["n_total"]) / 1e9
    smaller = plan("--flops=1e20", "--experts=8", f"--memory_gb={limit}", law="joint-moe-2025")["buildable"]
    assert smaller["n_blocks"] == built["n_blocks"] - 1 and smaller["memory_bytes"] <= limit * 1e9


def test_a_missing_package_is_one_sentence(tmp_path):
    fit_runs.write_demo_csv(tmp_path / "runs.csv")
    (tmp_path / "runs.parquet").write_bytes(b"")
    missing = {
        "pyarrow": ["predict", "--law=joint-moe-2025", f"--runs={tmp_path}/runs.parquet", f"--out={tmp_path}/x.csv"],
        "scipy": ["law", f"--runs={tmp_path}/runs.csv", f"--out={tmp_path}/law.json"],
        "matplotlib": ["plot", "--law=joint-moe-2025", "--figure=1a", f"--out={tmp_path}/x.png"],
    }
    code = (
        "import sys; from fit import __main__ as m\n"
        f"sys.modules.update(dict.fromkeys({list(missing)}))\n"
        f"assert [m.run(arguments) for arguments in {list(missing.values())}] == [2, 2, 2]"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for line, package in zip(done.stderr.splitlines(), missing, strict=True):
        name = {"pyarrow": "'jmoe[parquet]'"}.get(package, package)
        assert f"the package {package} is missing: install it by python -m pip install {name}" in line


def test_a_plan_imports_nothing_heavy_and_a_missing_accelerator_is_one_sentence(folder, tmp_path):
    code = (
        "import os, sys; os.environ['JAX_PLATFORMS'] = 'cuda'; from fit import __main__ as m; "
        f"m.run(['plan', '--law={folder}/law.json', '--flops=2e12']); "
        "m.run(['predict', '--law=joint-moe-2025', '--n_active=1e9', '--n_tokens=2e10']); "
        "m.run(['table', '--law=joint-moe-2025', '--which=2']); "
        "print([n for n in 'jax scipy matplotlib pyarrow jmoe launch configs'.split() if n in sys.modules])\n"
        f"sys.exit(m.run(['law', '--runs={tmp_path}/runs.csv', '--out={tmp_path}/x.json']))"
    )
    fit_runs.write_demo_csv(tmp_path / "runs.csv")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]" and done.returncode == 2
    assert done.stderr.startswith("fit law: JAX_PLATFORMS=cuda") and done.stderr.count("\n") == 1


def test_ctrl_c_while_python_imports(tmp_path):
    """One line and 130, even where the exception would be lost in a callback of the import system."""
    (tmp_path / "absl").mkdir()
    (tmp_path / "absl" / "__init__.py").write_text(
        "import os, signal, time, weakref\nclass A: pass\na = A()\n"
        "r = weakref.ref(a, lambda _: os.kill(os.getpid(), signal.SIGINT))\ndel a\ntime.sleep(9)\n"
    )
    main = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); import fit.__main__ as m; m.main()"
    done = subprocess.run(
        [sys.executable, "-c", main, "plan", "--law=joint-moe-2025", "--flops=1e20"],
        env=helpers.environment() | {"PYTHONPATH": f"{tmp_path}:."},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "fit: interrupted\n")


def test_predictions_outside_are_marked(folder, tmp_path, capsys):
    models = tmp_path / "models.csv"
    models.write_text("n_active,n_tokens,n_experts\n40000,1e6,8\n40000,1e6,32\n")
    law = f"--law={folder}/law.json"
    assert command_line.run(["predict", law, f"--runs={models}", f"--out={tmp_path}/out.jsonl"]) == 0
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["outside_fitted_range"] for row in rows] == ["", "n_experts 4 times above 8"]
    assert command_line.run(["predict", law, "--n_active=4e4", "--n_tokens=1e6", "--n_experts=32"]) == 0
    assert capsys.readouterr().err == "warning: outside the fitted range: n_experts 4 times above 8\n"


def test_inside_is_what_extrapolation_leaves_unmarked(folder):
    law = load(f"{folder}/law.json")
    models = dict(n_active=[1e3, 2e4, 2e4, 2e4], n_tokens=[5e5, 5e5, 1e7, 5e5], n_experts=[1, 8, 8, 16])
    rows = [dict(zip(models, row, strict=True)) for row in zip(*models.values(), strict=True)]
    one_by_one = [not extrapolation.outside(law, **row) for row in rows]
    arrays = {name: np.array(values) for name, values in models.items()}
    assert extrapolation.are_inside(law, **arrays).tolist() == one_by_one == [False, True, False, False]
