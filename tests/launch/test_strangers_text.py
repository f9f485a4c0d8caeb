"""Names in a stranger's files: none reaches the terminal as more than text, nor a spreadsheet as a formula."""

import csv
import json

import helpers
import hypothesis
import pytest
import sweeps
from hypothesis import strategies as st

import fit
from fit.table import formulas
from fit.table.table import read
from jmoe.printable import CONTROL
from jmoe.storage import ownership
from launch import collect, status

FORGED = "\x1b[2J\x9b31m\u202ed32-e1-01234567 1/1 done"
SHOWN = r"\x1b[2J\x9b31m\u202ed32-e1-01234567 1/1 done"


@pytest.fixture
def sweep(tmp_path):
    """A sweep of a finished job and of one that has failed."""
    path = sweeps.write_sweep(tmp_path, "configs/quickstart.py", [{"n_tokens": (65_536,), "seed": s} for s in (0, 1)])
    sweep = sweeps.begin(path, tmp_path)
    sweeps.train(sweep.jobs[0])
    failure = {"cause": f"it died\n{FORGED}", "tries": 1, "tokens": 0, "for_good": True}
    (sweep.jobs[1].folder / "failure.json").write_text(json.dumps(failure))
    return sweep


def test_a_backend_and_a_cause_of_failure_that_forge_lines(sweep):
    """The cause is the last line of a trainer's log."""
    sweeps.edit(sweep, lambda fields: fields.update(backend=f"/{FORGED}\nall is done.py"))
    here = f"--workdir={sweep.workdir}"
    name = sweep.jobs[1].name
    for command, *flags in ["status"], ["collect"], ["accept", f"--job={name}"], ["logs", f"--job={name}"]:
        done = helpers.run(f"launch.{command}", here, *flags)
        printed = done.stdout + done.stderr
        assert command == "collect" or f"{SHOWN}\\nall is done.py" in printed, printed
        assert command not in ("status", "collect") or f"it died\\n{SHOWN}" in printed, printed
        assert not CONTROL.search(printed.replace("\n", "")) and "\nall is done" not in printed
    sweeps.edit(sweep, lambda fields: fields.update(backend="local"))
    accepted = helpers.run("launch.accept", here, f"--job={name}").stdout
    assert f"is given up: it died\\n{SHOWN}" in accepted and not CONTROL.search(accepted.replace("\n", ""))


def test_a_code_and_an_owner_that_forge_lines(sweep):
    """Of a job in sweep.json, of a result that is of another version, and of the lock that says who works on it."""
    sweeps.train(sweep.jobs[1], jmoe_version=f"{FORGED}\n2")
    (sweep.jobs[1].folder / "failure.json").unlink()
    here = f"--workdir={sweep.workdir}"
    printed = helpers.fails("launch.collect", here)
    assert "runs.csv would mix two of jmoe_version: 1 in 1 runs" in printed and f"{SHOWN}\\n2 in 1 runs" in printed
    sweeps.edit(sweep, lambda fields: fields["jobs"][sweep.jobs[0].name].update(code=[f"{FORGED}\n"]))
    printed += helpers.fails("launch.sweep", f"--sweep={sweep.file}", here)
    assert f"was started with code {SHOWN}\\n, and this is" in printed
    owner = ownership.Owner("host", "boot", "ns", 7, "now", f"{FORGED}\n")
    assert str(owner).startswith(f"{SHOWN}\\n (process 7 ")
    assert ownership.Owner.read(owner.text()) == owner
    odd = json.dumps(json.loads(owner.text()) | {"pid": "../../etc/passwd\0"})
    assert ownership.Owner.read(odd) is ownership.NOBODY
    assert not CONTROL.search(printed.replace("\n", ""))


def test_a_trainers_output_that_forges_lines(sweep):
    """Lines, tabs and letters of every script stay."""
    job = sweep.jobs[1]
    job.log.write_bytes(f"{FORGED}\r\n\tFehler: größer, 損失\n".encode() + b"\xff\xfe\n")
    done = helpers.succeeds("launch.logs", f"--workdir={sweep.workdir}", f"--job={job.name}", "--follow")
    assert done.stdout == f"{SHOWN}\\r\n\tFehler: größer, 損失\n\\xff\\xfe\n"


def test_a_state_that_forges_lines(sweep, monkeypatch):
    """The words of a backend are a stranger's too."""
    found = status.look(sweep, {sweep.jobs[1].name: f"failed ({FORGED}\n)"})
    assert not CONTROL.search(status.in_words(found).replace("\n", ""))
    report, _ = collect.write(sweep)
    assert not CONTROL.search(report.replace("\n", ""))


CELLS = ["=1+1", "+cmd|' /C calc'!A0", "-2+cmd()", "@SUM(1)", "'=1", "''+a", "=", "-", "it's", "'quoted'", "", "a=b"]
NUMBERS = ["-1.5", "+3", "-.5e-3", "-inf", "+nan", "-1,234.5", "-5%", "- 7"]


def test_formulas_of_a_strangers_result_are_text_in_runs_csv(sweep):
    sweeps.train(
        sweep.jobs[0], **{f"note_{i}": cell for i, cell in enumerate(CELLS + NUMBERS)}, minus=-1.5, **{"=x": 1}
    )
    collect.write(sweep)
    path = sweep.workdir / "runs.csv"
    with open(path, newline="") as file:
        (row,) = csv.DictReader(file)
    for value in [*row, *row.values()]:
        assert value[:1] not in ("=", "+", "-", "@") or len(value) == 1 or formulas.NUMBER.fullmatch(value)
    assert row["minus"] == "-1.5" and "'=x" in row
    table = read(str(path))
    for i, cell in enumerate(CELLS + NUMBERS):
        assert table.columns[f"note_{i}"] == [cell]
    assert table.columns["overrides"] == [row["overrides"]]


@hypothesis.settings(max_examples=100)
@hypothesis.given(st.text(alphabet="'=+-@1.e%a \n", max_size=6).map(str.strip))
def test_any_cell_is_read_as_it_was_given(cell):
    assert formulas.unquoted(formulas.quoted(cell)) == cell
    assert formulas.quoted(-1.5) == -1.5 and formulas.quoted(None) is None


def test_a_long_cell_is_read_in_a_moment():
    """The work grows with its length, not with the square of it, which would take hours."""
    cell = "-" + "1" * 1_000_000 + "x"
    assert formulas.unquoted(formulas.quoted(cell)) == cell


def test_fit_add_of_a_strangers_run(tmp_path, capsys):
    """The name of its folder, and a text of another fingerprint."""
    run = dict(n_active=2e6, n_total=2e6, n_tokens=4e7, n_experts=1, loss=2.5, run=f"{FORGED}\n")
    table = tmp_path / "theirs.csv"
    names = list(run)
    with open(table, "w", newline="") as file:
        csv.writer(file).writerows([names, [run[name] for name in names]])
    here = tmp_path / "runs.csv"
    answer = fit.add(law="joint-moe-2025", run=str(table), runs=str(here))
    assert SHOWN in str(answer) and not CONTROL.search(str(answer).replace("\n", ""))
    done = helpers.run("fit", "add", "--law=joint-moe-2025", f"--run={table}", f"--runs={here}")
    printed = done.stdout + done.stderr
    assert done.returncode == 2 and "has this run already" in printed and SHOWN in printed
    assert not CONTROL.search(printed.replace("\n", "")), printed
