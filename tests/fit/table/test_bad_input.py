"""Hundreds of damaged tables: each gives a right answer, or one sentence with file, row and column."""

import csv
import datetime
import json

import fit_runs
import numpy as np
import pytest

from fit import __main__ as command_line
from fit.errors import UserError
from fit.table.runs import read_runs
from fit.table.table import Table, read, write

LAW = fit_runs.TABLE_3
VALUES = ["", " ", "  7E+9 ", "9" * 400, "1e9\x00", "\u202e12", "１２", "٣", "💥"]
VALUES += "nan NaN inf -inf -1 0 -0.0 0.5 1e400 1e300 1e-300 1e17 abc None null true 1,5 1.5.2 0x10 1_000".split()
VALUES += "7e9 +7e9 8 8.0 2.5 '3 -- 1e =1+1 3.2 1e6".split()


def table(rng):
    """24 good runs as rows of text, header first."""
    n, d, e = rng.uniform(5e7, 2e9, 24), rng.uniform(5e8, 5e10, 24), rng.choice([1, 2, 4, 8], 24)
    loss = fit_runs.joint_loss(n, d, e, LAW)
    rows = [[f"{n[i]:.0f}", f"{n[i]:.0f}", f"{d[i]:.0f}", str(e[i]), repr(float(loss[i]))] for i in range(24)]
    return [["n_active", "n_total", "n_tokens", "n_experts", "loss"], *rows]


def damage(rng, rows):
    """One or two random hurts; returns the file's bytes."""
    columns = len(rows[0])
    for _ in range(rng.integers(1, 3)):
        i, j, kind = rng.integers(1, len(rows)), rng.integers(0, columns), rng.integers(0, 14)
        if kind <= 6:
            rows[i] = [*rows[i]]
            if j < len(rows[i]):
                rows[i][j] = VALUES[rng.integers(len(VALUES))]
        elif kind == 7:
            rows[0] = [*rows[0]]
            rows[0][j] = ["", "loss", "Loss", "n_tokens", "näme", "n_active "][rng.integers(6)]
        elif kind == 8:
            rows[i] = rows[i][:j]
        elif kind == 9:
            rows[i] = [*rows[i], "7"]
        elif kind == 10:
            rows[1:] = [rows[1]] * (len(rows) - 1)
        elif kind == 11:
            del rows[2:]
            break
        elif kind == 12:
            rows = [[v for k, v in enumerate(row) if k != j] for row in rows]
            columns = len(rows[0])
            if not columns:
                break
        else:
            rows[i] = ["0.5" if k == 3 else v for k, v in enumerate(rows[i])]
    text = "\n".join(",".join(f'"{v}"' if "," in v else v for v in row) for row in rows) + "\n"
    data = bytearray(text.encode())
    kind = rng.integers(0, 20)
    if kind == 0:
        data[rng.integers(len(data))] = rng.integers(256)
    elif kind == 1:
        data = data[: rng.integers(len(data))]
    elif kind == 2:
        data = b"\xef\xbb\xbf" + data
    elif kind == 3:
        data = bytes(data).replace(b"\n", b"\r\n")
    return bytes(data)


def outcome(capsys, arguments):
    """(exit code, stderr less the progress bar) of one command, run in this process."""
    code = command_line.run(arguments)
    return code, capsys.readouterr().err.split("\r")[-1]


def good_numbers(path, *names):
    """Columns of a table that is whole, read again in the plainest way."""
    with open(path, newline="", encoding="utf-8-sig") as f:
        rows = [row for row in csv.reader(f) if row]
    header = [name.strip() for name in rows[0]]
    return {name: np.array([float(row[header.index(name)]) for row in rows[1:]]) for name in names}


def check_sentence(path, code, said):
    first, *others = said.splitlines()  # a line for each problem, where there are several
    assert code == 2 and said.endswith("\n") and all(line.startswith("  ") for line in others), said
    assert first.startswith("fit ") and str(path) in first and "Traceback" not in said, said


def test_predict_and_law_on_damaged_tables(tmp_path, capsys):
    rng = np.random.default_rng(0)
    path, out, record_path = tmp_path / "runs.csv", tmp_path / "out.csv", tmp_path / "law.json"
    answers = []
    for _ in range(250):
        path.write_bytes(damage(rng, table(rng)))
        code, said = outcome(capsys, ["predict", "--law=joint-moe-2025", f"--runs={path}", f"--out={out}"])
        answers.append(code == 0)
        if code:
            check_sentence(path, code, said)
            assert not out.exists()
        else:
            numbers = good_numbers(path, "n_active", "n_tokens", "n_experts")
            predicted = read(str(out)).numbers("predicted_loss")
            np.testing.assert_allclose(predicted, fit_runs.joint_loss(*numbers.values(), LAW), rtol=1e-9)
            out.unlink()
        code, said = outcome(capsys, ["law", "--form=chinchilla", f"--runs={path}", f"--out={record_path}"])
        if code:
            check_sentence(path, code, said)
            assert not record_path.exists()
            continue
        record = json.loads(record_path.read_text())
        numbers = good_numbers(path, "n_active", "n_tokens", "loss")
        assert record["fitted"]["runs"] == len(numbers["loss"])  # no silent drop
        c = record["coefficients"]
        predicted = c["E"] + c["A"] / numbers["n_active"] ** c["alpha"] + c["B"] / numbers["n_tokens"] ** c["beta"]
        assert np.all(np.isfinite(list(c.values())))
        rmse = np.sqrt(np.mean(np.log(predicted / numbers["loss"]) ** 2))
        assert rmse == pytest.approx(record["fitted"]["rmse_log"], rel=1e-6)
        record_path.unlink()
    assert 10 < sum(answers) < 200  # both outcomes were met


def test_jsonl_and_parquet_say_the_same(tmp_path):
    rows = table(np.random.default_rng(0))
    columns = {name: [float(row[i]) for row in rows[1:]] for i, name in enumerate(rows[0])}
    by_ending = {}
    for ending in ("csv", "jsonl", "parquet"):
        path = str(tmp_path / f"runs.{ending}")
        write(Table("", columns, list(range(24))), path)
        by_ending[ending] = read_runs(path, ("n_active", "n_tokens", "n_experts"))
    assert len({runs.fingerprint() for runs in by_ending.values()}) == 1
    for path, text, words in (
        ("a.jsonl", '{"loss": 1}\n{"loss": "x"}\n', "row 2, column loss"),
        ("b.jsonl", "[1]\n", "row 1"),
        ("c.jsonl", '{"loss": 1, "loss": 2}\n', "twice"),
        ("d.jsonl", '{"loss": true}\n', "found True"),
        ("e.parquet", "nonsense", "not Parquet"),
        ("f.tsv", "loss\n1\n", "ending"),
        ("g.csv", "", "row 1"),
        ("h.csv", "loss\n", "no runs"),
        ("i.jsonl", '{"loss": 1}\n{}\n', "row 2, column loss: found nothing"),
    ):
        (tmp_path / path).write_text(text)
        with pytest.raises(UserError, match=words):
            read(str(tmp_path / path)).numbers("loss")


def test_half_a_million_rows_are_read_whole(tmp_path):
    rows = table(np.random.default_rng(0))
    path = tmp_path / "runs.csv"
    path.write_text(",".join(rows[0]) + "\n" + ("\n".join(map(",".join, rows[1:])) + "\n") * 21_000)
    with open(path, "a") as f:
        f.write("1e8,1e8,1e9,2,oops\n")
    with pytest.raises(UserError, match="row 504002, column loss: found 'oops'"):
        read_runs(str(path), ("n_active", "n_tokens"))


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_predict_keeps_what_else_stands_in_a_table(tmp_path, ending):
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
