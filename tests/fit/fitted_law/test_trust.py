"""A stranger's law.json or table of runs: it puts no code, no escape code and no endless work into what fit does."""

import ast
import json
import pathlib
import re

import fit_runs
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from configs import joint_moe
from fit import __main__ as command_line
from fit.errors import UserError
from fit.fitted_law import overrides
from fit.fitted_law.law_files import load
from fit.planning.emit import emitted
from fit.studies.next_runs import next_sweep
from fit.table import table

CODE = "seed = 1\n    import os; os.system('touch {mark}')\n    config.seed"
ESCAPE = "\x1b[2J\x1b]0;owned\x07"


def run(capsys, *arguments):
    """(exit code, what is printed, what is said on stderr) of a command."""
    code = command_line.run([str(a) for a in arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_the_fields_that_a_law_may_set_are_the_trainers():
    assert overrides.FIELDS == set(joint_moe.FIELDS)


NO_FIELDS = [CODE, "seed\n", "config.seed", "no_field", "", "model", "model.d_model = 1; config.seed"]
NO_LITERALS = ["__import__('os').system('id')", "1e999", "0x" + "f" * 9_000, "1; import os", 3, None, ["1"]]


NO_SHARES = ["None", "'half'", "1.5", "True", "0"]
SET = [(field, "1") for field in NO_FIELDS]
SET += [("seed", value) for value in NO_LITERALS]
SET += [("optimizer.decay_fraction", value) for value in NO_SHARES]


@pytest.mark.parametrize("field, value", SET, ids=range(len(SET)))
def test_no_config_holds_a_field_or_a_value_that_is_none(tmp_path, capsys, field, value):
    """Nor does a sweep file, nor the page: what no config has is refused where the law is read."""
    law = fit_runs.write_demo_law(tmp_path / "law.json", overrides={field.format(mark=tmp_path / "mark"): value})
    emit = tmp_path / "config.py"
    for flags in (["plan", "--flops=2e12", f"--emit_config={emit}"], ["page", f"--out={emit}"]):
        code, _, err = run(capsys, *flags, f"--law={law}")
        assert code == 2 and "models.overrides" in err and "\n" not in err.strip() and not emit.exists()


SOURCE = '''"""A config."""

from configs import quickstart as base


def get_config():
    config = base.get_config()
    config.seed = 3  # as the runs had it
    config.n_tokens = (1_000,)
    config.optimizer.warmup_tokens = min(config.optimizer.warmup_tokens, 10)
    return config
'''


def test_a_config_as_it_is_meant_passes():
    assert emitted.checked(SOURCE, {"seed": "3"}) == SOURCE


@pytest.mark.parametrize(
    "old, new",
    [
        ("config.seed = 3", "config.seed = 4"),
        ("config.seed = 3", "config.seed = __import__('os').system('id')"),
        ("config.seed = 3", "config.seed = 3; import os"),
        ("config.seed = 3", "config.seed = inf"),
        ("config.seed = 3", "config.seed, x = 3, 4"),
        ("config.seed = 3", "config.other = 3"),
        ("config.seed = 3", "config.seed ="),
        ("return config", "os.system('id')"),
        ("min(config", "max(config"),
        ("def get_config", "@print\ndef get_config"),
        ("from configs", "print(1)\nfrom configs"),
    ],
)
def test_a_config_with_anything_else_is_not_written(old, new):
    with pytest.raises(UserError, match="nothing is written"):
        emitted.checked(SOURCE.replace(old, new), {"seed": "3"})


@pytest.mark.parametrize("base", ["/tmp/theirs.py", "configs/theirs.py", "configs/../theirs.py", "os/path.py"])
def test_a_config_file_that_is_not_ours_runs_only_if_it_is_named(tmp_path, capsys, monkeypatch, base):
    """As with the backend of a sweep: what a law names is a program."""
    monkeypatch.chdir(tmp_path)
    law = fit_runs.write_demo_law(tmp_path / "law.json", base_config=base, overrides={"seed": "3"})
    ask = "plan", f"--law={law}", "--flops=2e12", f"--emit_config={tmp_path / 'config.py'}"
    code, _, err = run(capsys, *ask)
    assert code == 2 and f"If you trust it, add --base_config={base}" in err and not (tmp_path / "config.py").exists()
    read = load(law)
    with pytest.raises(UserError, match=f"base_config={re.escape(base)}"):
        next_sweep.sweep_source(read, read.shaped(), {})


def test_a_config_file_that_is_not_ours_does_not_run_beside_the_one_that_is_named(tmp_path, capsys, monkeypatch):
    """Models far beyond the law's runs are trained by configs/pretrain.py on the text of those runs."""
    monkeypatch.chdir(tmp_path)
    law = fit_runs.write_demo_law(tmp_path / "law.json", base_config="theirs/base.py")
    emit = tmp_path / "config.py"
    ask = f"--law={law}", "--flops=1e20", "--base_config=configs/pretrain.py", f"--emit_config={emit}"
    code, _, err = run(capsys, "plan", *ask)
    assert code == 0, err
    assert "from configs import pretrain as base" in emit.read_text() and "theirs" not in emit.read_text()


def test_a_config_file_that_is_named_has_the_overrides_of_its_runs(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("from configs.quickstart import get_config\n")
    law = fit_runs.write_demo_law(tmp_path / "law.json", base_config="mine.py", overrides={"seed": "3"})
    emit = tmp_path / "config.py"
    code, _, err = run(capsys, "plan", f"--law={law}", "--flops=2e12", "--base_config=mine.py", f"--emit_config={emit}")
    assert code == 0, err
    assert "config.seed = 3  # as the runs had it" in emit.read_text()
    ast.parse(emit.read_text())


@pytest.mark.parametrize(
    "change",
    [
        dict(warning=ESCAPE),
        dict(models=dict(base_config=f"configs/{ESCAPE}.py")),
        dict(models=dict(differing={"config": ["a.py", f"b{ESCAPE}"]})),
        dict(models=dict(differing={ESCAPE: ["a.py"]})),
        dict(runs=dict(file="runs.csv\nwarning: all is well", ranges={})),
    ],
)
def test_a_law_with_escape_codes_is_refused(tmp_path, capsys, change):
    path = pathlib.Path(fit_runs.write_demo_law(tmp_path / "law.json"))
    record = json.loads(path.read_text())
    for name, value in change.items():
        record[name] = record.get(name, {}) | value if isinstance(value, dict) else value
    path.write_text(json.dumps(record))
    code, out, err = run(capsys, "plan", f"--law={tmp_path / 'law.json'}", "--flops=2e12")
    assert code == 2 and "control character" in err
    assert "\x1b" not in out + err and "\nwarning: all is well" not in out + err


def test_escape_codes_in_a_table_are_written_out(tmp_path):
    """Its cells reach sentences, names of runs and the law; its header is refused."""
    path = tmp_path / "runs.csv"
    fit_runs.write_demo_csv(path, config=[f"configs/{ESCAPE}.py"] * len(fit_runs.demo_runs()[0]))
    read = table.read(path)
    found = fit_runs.models_of(read)
    assert "\x1b" in read.columns["config"][0] and found.base_config == r"configs/\x1b[2J\x1b]0;owned\x07.py"
    header, rest = path.read_text().split("\n", 1)
    path.write_text(header.replace("loss", f"loss,{ESCAPE}".split(",")[1]) + "\n" + rest)
    with pytest.raises(UserError, match="control character") as refused:
        table.read(path)
    assert "\x1b" not in str(refused.value)


def test_overrides_are_read_in_one_pass():
    """A pattern that begins anew at each letter takes more than an hour for this word."""
    text = "seed=3 data.path='a b/*.txt' batch_tokens=((0, 8),) " + "x" * 640_000
    fields = overrides.of_run(text)
    assert list(fields) == ["seed", "data.path", "batch_tokens"] and fields["data.path"] == "'a b/*.txt'"


def test_fields_that_no_config_has_stay_out_of_a_fitted_law():
    columns = {
        "overrides": ["loss.router_z=0.1 colour='red'"] * 2,
        "config": ["configs/quickstart.py"] * 2,
        "loss": [1.0, 2.0],
    }
    assert fit_runs.models_of(table.read(columns)).overrides == {"loss.router_z": "0.1"}


@pytest.mark.parametrize("experts", [list(range(1, 200_001)), [10**9], [0], []])
def test_a_law_names_few_numbers_of_experts(tmp_path, capsys, experts):
    law = fit_runs.write_demo_law(tmp_path / "law.json", n_experts=experts)
    code, _, err = run(capsys, "plan", f"--law={law}", "--flops=2e12")
    assert code == 2 and "models.n_experts" in err and "1 to 64 whole numbers" in err


def test_a_small_parquet_of_many_rows_is_refused_by_its_rows(tmp_path):
    """Ten million equal rows take some kilobytes."""
    path, rows = tmp_path / "runs.parquet", 10_000_000
    pyarrow.parquet.write_table(pyarrow.table({"loss": pyarrow.array(np.ones(rows))}), path)
    assert path.stat().st_size < 1_000_000
    with pytest.raises(UserError, match=r"holds 10,000,000 rows .* at most 5,000,000"):
        table.read(path)
