"""Forecasts: made, hashed, scored, and their record, which a plan prints."""

import dataclasses
import json
import pathlib

import helpers
import numpy as np
import pytest

from fit import __main__ as command_line
from fit.errors import UserError
from fit.fitted_law import ledger
from fit.fitted_law.law import load

LAW = helpers.ROOT / "results" / "second" / "law.json"
MODEL = "--model=n_active=1M,n_tokens=2e7,n_experts=8"


def run(capsys, *arguments):
    code = command_line.run(["forecast", *map(str, arguments)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.fixture
def made(tmp_path, capsys):
    """(the path of a forecast, the law.json that it is by)."""
    law = tmp_path / "law.json"
    law.write_bytes(LAW.read_bytes())
    path = tmp_path / "forecasts" / "big.json"
    code, out, err = run(capsys, f"--law={law}", MODEL, f"--out={path}", "--note=the big one")
    assert (code, err) == (0, "") and "not measured yet" in out and "the big one" in out
    return path, law


def test_a_forecast_is_what_the_law_predicts(made):
    path, law = made
    entry = ledger.read(str(path))
    model = dict(n_active=1e6, n_tokens=2e7, n_experts=8)
    assert entry.model == model and entry.measured is None
    assert entry.loss == float(load(str(law)).predict(**model))
    np.testing.assert_allclose(entry.interval, load(str(law)).predict_interval(**model, new_run=True))


def test_scoring_keeps_the_prediction_and_its_hash(made, capsys):
    path, law = made
    before = json.loads(path.read_text())
    code, out, _ = run(capsys, f"--score={path}", "--loss=1.52", "--source=the cluster", f"--law={law}")
    assert code == 0 and "inside" in out and "1 of 1 forecasts so far lie in their 80% intervals" in out
    after = json.loads(path.read_text())
    assert after.pop("measured")["loss"] == 1.52 and before.pop("measured") is None and after == before
    assert json.loads(law.read_text())["forecasts"]["count"] == 1
    assert ledger.law_sha256(load(str(law))) == before["law_sha256"]  # the record does not change the law

    assert command_line.run(["plan", f"--law={law}", "--flops=1e15"]) == 0
    assert "1 of 1 forecasts so far lie in their 80% intervals" in " ".join(capsys.readouterr().out.split())


def test_a_changed_prediction_is_told(made, capsys):
    path, _ = made
    fields = json.loads(path.read_text())
    path.write_text(json.dumps(fields | dict(loss=1.4)))
    code, _, err = run(capsys, f"--score={path}", "--loss=1.4")
    assert code == 2 and "was changed after it was made" in err and str(path) in err


def test_the_record_by_hand():
    """Three forecasts, of which one lies in its interval and one is not measured."""
    entry = ledger.Entry("2026-01-01", "a law", "0" * 64, dict(n_active=1.0), 2.0, (1.9, 2.1), (10.0, 90.0))
    inside = dataclasses.replace(entry, measured=ledger.Measured(2.05, "2026-02-01"))
    outside = dataclasses.replace(entry, measured=ledger.Measured(1.8, "2026-02-01"))
    record = ledger.record([entry, inside, outside])
    errors = np.log([2 / 2.05, 2 / 1.8])
    assert (record.count, record.inside, record.expected) == (2, 1, 0.8)
    assert record.mean_error == pytest.approx(errors.mean())
    assert record.rms_error == pytest.approx(np.sqrt((errors**2).mean()))
    assert "too high" in str(record) and ledger.record([entry]) is None
    back_test = dataclasses.replace(inside, back_test=True)
    assert ledger.record([inside, outside, back_test]) == record
    assert ledger.record([inside, back_test], back_tests=True).count == 1


def test_a_back_test_is_told_and_counted_apart(made, capsys):
    path, law = made
    other = path.parent / "old.json"
    code, *_ = run(capsys, f"--law={law}", MODEL, f"--out={other}", "--back_test")
    assert code == 0 and json.loads(other.read_text())["back_test"] and "back_test" not in json.loads(path.read_text())
    code, out, _ = run(capsys, f"--score={other}", "--loss=1.52")
    said = " ".join(out.split())
    assert code == 0 and "inside (back-test)" in said
    assert "made after the run was measured: 1 of 1" in said
    ledger.score(str(path), 1.2)
    _, out, _ = run(capsys, f"--record={path.parent}")
    said = " ".join(out.split())
    assert "0 of 1 forecasts so far" in said and "made after the run was measured: 1 of 1 forecasts" in said


@pytest.mark.parametrize(
    "arguments, words",
    [
        ([], "expected one of --out, --score and --record, found none"),
        (["--out=x.json", "--record=y"], "found --out and --record"),
        (["--out=x.json"], "--out needs --law and --model"),
        (["--score=PATH"], "--score needs --loss"),
        (["--score=PATH", "--loss=1.5", "--law=joint-moe-2025"], "found a published law"),
        (["--record=NOWHERE"], "expected a folder with forecasts"),
        ([f"--law={LAW}", "--model=size=3", "--out=x.json"], "found 'size=3'"),
        ([f"--law={LAW}", MODEL, "--out=PATH"], "a forecast is not written over"),
        (["--law=chinchilla-2022", "--model=n_active=1e9,n_tokens=2e10", "--out=x.json"], "no draws"),
    ],
)
def test_mistakes_end_in_one_line(made, capsys, tmp_path, monkeypatch, arguments, words):
    path, _ = made
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capsys, *(text.replace("PATH", str(path)) for text in arguments))
    assert code == 2 and words in err and err.count("\n") == 1
    assert not pathlib.Path("x.json").exists()


def test_a_measured_loss_is_not_replaced(made):
    path, _ = made
    ledger.score(str(path), 1.5)
    assert ledger.score(str(path), 1.5).measured.loss == 1.5
    with pytest.raises(UserError, match="has the measured loss 1.5 already"):
        ledger.score(str(path), 1.6)


def test_our_own_forecasts_are_by_our_laws():
    """results/forecasts: each prediction has its hash, and is that of the law that it names."""
    for entry in ledger.in_folder(str(helpers.ROOT / "results" / "forecasts")):
        name = entry.law if entry.law == "jmoe-bytes-2026" else str(helpers.ROOT / entry.law)
        law = load(name)
        assert ledger.law_sha256(law) == entry.law_sha256
        assert entry.measured is not None or "not measured" in entry.note
        assert entry.back_test == ("back-test" in entry.note)
        assert float(law.predict(**entry.model)) == pytest.approx(entry.loss, rel=1e-12)
