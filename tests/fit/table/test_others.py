"""Other people's tables: columns by other names, values of any type; damaged records."""

import datetime
import json

import fit_runs
import pytest

from fit import __main__ as command_line
from fit.errors import UserError
from fit.fitted_law.law import load
from fit.table.table import read

# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_predict_keeps_what_else_stands_in_a_table(tmp_path, capsys, ending):
    import pyarrow
    import pyarrow.parquet

    path, out = tmp_path / "models.parquet", tmp_path / f"out.{ending}"
    when = pyarrow.array([1_700_000_000_123_456_789, None], pyarrow.timestamp("ns"))
    table = dict(n_active=[1e9, 2e9], n_tokens=[2e10, 4e10], n_experts=[8, 1], when=when, blob=[b"\xff\x00", b"ab"])
    table |= dict(
        took=pyarrow.array([1, None], pyarrow.duration("ns")),
        at=pyarrow.array([0, 1], pyarrow.timestamp("s", "No/Where")),
    )
    table |= dict(day=[datetime.date(2026, 1, 2)] * 2, tags=[["a"], None], nothing=[float("nan"), 1.0])
    pyarrow.parquet.write_table(pyarrow.table(table), path)
    assert command_line.run(["predict", "--law=joint-moe-2025", f"--runs={path}", f"--out={out}"]) == 0
    again = read(str(out))
    assert again.numbers("predicted_loss")[0] == pytest.approx(fit_runs.joint_loss(1e9, 2e10, 8, fit_runs.TABLE_3))
    assert list(again.columns)[: len(table)] == list(table) and "2023-11-14" in str(again.columns["when"][0])
    if ending == "parquet":
        assert pyarrow.parquet.read_table(out)["when"].type == pyarrow.timestamp("ns")


@pytest.mark.parametrize("change, words", [
    (dict(form=["joint"]), "has no form"),
    (dict(runs=3), "runs is 3, expected an object"),
    (dict(settings="x"), 'settings is "x"'),
    (dict(warnings="x"), "warnings"),
    (dict(version=4), "version is 4, expected at most 3: a newer fit wrote it"),
    (dict(runs=dict(ranges=dict(n_active=7))), "runs.ranges.n_active is 7"),
    (dict(bootstrap=dict(draws=[[1, 2]], percentiles=[10, 90], form="errors")), "rows of 11 numbers"),
    (dict(bootstrap=dict(draws=[[1] * 11], percentiles=[90], form="errors")), "bootstrap.percentiles is [90]"),
    (dict(bootstrap=dict(draws=[[1] * 11], percentiles=[10, 90], form=["errors"])), "bootstrap.form"),
    (dict(noise=dict(total="much")), 'noise.total is "much"'),
])  # fmt: skip
def test_a_damaged_record_is_refused(tmp_path, capsys, change, words):
    path = tmp_path / "law.json"
    path.write_text(json.dumps(dict(form="joint", coefficients=fit_runs.TABLE_3) | change))
    with pytest.raises(UserError) as e:
        load(str(path))
    assert words in str(e.value) and e.value.sentence.startswith(f"--law={path}: ")
