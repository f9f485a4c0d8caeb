"""A run that is added to the table of a law: of a real trainer's workdir, and of a table; what is refused."""

import csv
import dataclasses
import json
import pathlib
import re
import shlex
import shutil

import fit_command
import fit_runs
import helpers
import numpy as np
import pytest

import fit
from fit import __main__ as command_line
from fit.fitting import fit_law
from fit.messages.finding import finding
from fit.studies.added_runs import refit
from fit.table.importers import workdir
from fit.table.table import Table, write
from jmoe.config import schema


def rows_of(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """runs.csv and law.json, with draws, as `fit law` leaves them."""
    folder = tmp_path_factory.mktemp("add")
    fit_runs.write_demo_csv(folder / "runs.csv")
    law = fit.law(str(folder / "runs.csv"), form="joint", bootstrap=20, starts=16)
    fit.save(law, folder / "law.json")
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(workdir of a real run of two budgets, the second of which was predicted; what the trainer printed, twice)."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "text").mkdir()
    glob = helpers.write_text(folder / "text")
    n_active = 2 * 32 * 257 + 4 * 32 * 32 + 3 * 32 * 96
    predicted = f"loss=3.0, low=2.0, high=5.5, share=0.8, law='mine.json', n_active={n_active}, n_tokens=16_300"
    config = helpers.write_config(folder, glob)
    more = f"    config.model.n_experts = 4\n    config.predicted = dict({predicted})\n    return config\n"
    config.write_text(config.read_text().replace("    return config\n", more))
    outputs = []
    for _ in range(2):
        done = helpers.succeeds("jmoe.train", f"--config={config}", f"--workdir={folder}/run")
        outputs.append(done.stdout + done.stderr)
    return folder / "run", outputs


def test_the_end_of_a_run_is_compared_with_its_prediction(trained):
    run, outputs = trained
    results = {path.parent.name: json.loads(path.read_text()) for path in run.glob("branch-*/result.json")}
    loss = results["branch-16384"]["loss"]
    words = f"predicted 3.0000 by mine.json, measured {loss:.4f}: {abs(loss - 3):.4f} nats per token"
    inside = "inside" if 2.0 <= loss <= 5.5 else "OUTSIDE"
    for printed in outputs:
        (line,) = [line for line in printed.splitlines() if words in line]
        assert f", {inside} its 80% interval, 2.0000 to 5.5000" in line
    assert results["branch-16384"]["predicted_loss"] == 3.0
    assert [results["branch-16384"][f"predicted_loss_{end}"] for end in ("low", "high")] == [2.0, 5.5]
    assert "predicted_loss" not in results["branch-8192"]  # of half the tokens


def test_a_run_of_another_model_is_not_compared(trained):
    run, _ = trained
    config = run.parent / "tiny.py"
    text = config.read_text().replace("n_active=", "n_active=1")
    other = run.parent / "other.py"
    other.write_text(text)
    done = helpers.succeeds("jmoe.train", f"--config={other}", f"--workdir={run}")  # the results stay
    assert "config.predicted, a loss of 3.0000 by mine.json, is of another run" in done.stdout + done.stderr


def test_a_trainers_run_is_added(folder, trained, tmp_path):
    """Its row has what launch.collect would write; the old rows stay as they are, and the law is fitted again."""
    run, _ = trained
    table = tmp_path / "runs.csv"
    shutil.copy(folder / "runs.csv", table)
    before = rows_of(table)
    asked = ["add", f"--law={folder}/law.json", f"--run={run}", f"--runs={table}"]
    assert "losses on different text do not compare" in fit_command.refused(*asked)
    assert rows_of(table) == before
    found = fit_command.answer(*asked, "--mix_corpora", f"--out={tmp_path}/new.json")
    after = rows_of(table)
    assert [{name: row[name] for name in before[0]} for row in after[:-2]] == before
    results = sorted((json.loads(p.read_text()) for p in run.glob("branch-*/result.json")), key=lambda r: r["n_tokens"])
    law = fit.load(f"{folder}/law.json")
    new = fit.load(f"{tmp_path}/new.json")
    for row, result, judgement in zip(after[-2:], results, found["runs"], strict=True):
        for name in ("n_active", "n_total", "n_tokens", "n_experts", "loss", "seed", "peak_learning_rate"):
            assert float(row[name]) == result[name]
        assert row["run"] == f"{run}/branch-{result['n_tokens']}" and row["n_heads"] == "2"
        assert "data.seq_len=32" not in row["overrides"] and "model.d_model=32" in row["overrides"]
        model = {name: result[name] for name in ("n_active", "n_tokens", "n_experts")}
        assert judgement["predicted_loss"] == pytest.approx(float(law.predict(**model)))
        low, high = law.predict_interval(**model, new_run=True)
        assert judgement["inside"] == bool(low <= result["loss"] <= high)
        assert judgement["refitted_loss"] == pytest.approx(float(new.predict(**model)))
        assert abs(np.log(judgement["refitted_loss"] / result["loss"])) < abs(
            np.log(judgement["predicted_loss"] / result["loss"])
        )
    assert all(row["n_heads"] == row["n_blocks"] for row in after[:-2])
    for plan in found["plans"]:
        for name, of in (("before", law), ("after", new)):
            assert plan[name]["loss"] == pytest.approx(fit.plan(of, flops=plan["flops"]).best["loss"])
    assert "has this run already" in fit_command.refused(*asked, "--mix_corpora") and rows_of(table) == after


def test_a_branch_that_the_table_lacks_is_added_alone(folder, trained, tmp_path):
    run, _ = trained
    shutil.copytree(run, tmp_path / "run")
    held = (tmp_path / "run" / "branch-16384").rename(tmp_path / "later")
    table = tmp_path / "table.csv"
    asked = ["add", "--law=joint-moe-2025", f"--run={tmp_path}/run", f"--runs={table}"]
    assert "1 added, 1 runs" in fit_command.printed(*asked)  # a published law begins a table
    held.rename(tmp_path / "run" / "branch-16384")
    message = " ".join(fit_command.printed(*asked).split())  # lines are wrapped where a path is long
    assert "1 added, 2 runs" in message and "branch-8192: in " in message and "its 80% interval" in message
    assert [row["n_tokens"] for row in rows_of(table)] == ["8192", "16384"]


def test_a_run_of_another_tool_comes_as_a_table(folder, tmp_path, capsys):
    table = tmp_path / "runs.csv"
    shutil.copy(folder / "runs.csv", table)
    theirs = tmp_path / "theirs.csv"
    theirs.write_text("run,n_active,n_tokens,n_experts,loss\nmine,50000,1e6,8,1.9\n")
    law = tmp_path / "law.json"
    shutil.copy(folder / "law.json", law)
    asked = ["add", f"--law={law}", f"--run={theirs}", f"--runs={table}"]
    assert "--runs is the same file" in fit_command.refused(*asked, f"--out={table}") and len(rows_of(table)) == 36
    assert command_line.run([*asked, f"--out={law}"]) == 0  # a law may be brought up to date in its place
    assert json.loads(law.read_text())["fitted"]["runs"] == 37
    message = " ".join(capsys.readouterr().out.split())
    assert re.search(r"mine: predicted \d\.\d{4}, measured 1\.9000 \(.*\), (inside|OUTSIDE) its 80% interval", message)
    rows = rows_of(table)
    assert len(rows) == 37 and "the law fitted again" in message
    assert "taken for it: corpus_fingerprint 1a2b3c4d5e6f7a8b, vocab_size 257, width_per_block 8" in message
    assert rows[-1]["vocab_size"] == rows[0]["vocab_size"] == "257"
    for flops in ("3×10¹¹", "3×10¹²"):  # plans of both laws are of the table's own models
        assert re.search(rf"best plan of {flops} FLOPs had a loss of \d\.\d+ .* and has [12]\.\d+ by", message)


NAMELESS = "n_active,n_tokens,n_experts,loss\n50000,1e6,8,1.9\n60000,1e6,8,1.85\n"


def test_runs_without_a_name_are_told_by_their_models(folder, tmp_path):
    """Twice the same file: the second time with one run more, beside those that are known by their numbers."""
    table = tmp_path / "runs.csv"
    shutil.copy(folder / "runs.csv", table)
    theirs = tmp_path / "theirs.csv"
    asked = ["add", f"--law={folder}/law.json", f"--run={theirs}", f"--runs={table}"]
    for text, n_runs in ((NAMELESS, 38), (NAMELESS + "70000,1e6,8,1.8\n", 39)):
        theirs.write_text(text)
        printed = " ".join(fit_command.printed(*asked).split())
        assert f"{n_runs} runs" in printed and "8 experts with 50K active on 1M tokens: " in printed
    assert f"8 experts with 60K active on 1M tokens: in {table} already" in printed
    assert "8 experts with 70K active on 1M tokens: predicted" in printed


def test_names_may_be_numbers(folder, tmp_path, capsys):
    """A name that is a number is known again, and runs without one are not taken for each other."""
    law = f"--law={folder}/law.json"
    rows = [
        dict(n_active=5e4, n_tokens=1e6, n_experts=8, loss=1.9),
        dict(n_active=6e4, n_tokens=1e6, n_experts=8, loss=1.8),
    ]
    table = tmp_path / "runs.jsonl"
    demo = [{name: value for name, value in row.items() if value} for row in rows_of(folder / "runs.csv")]
    table.write_text("".join(json.dumps(row) + "\n" for row in demo))
    for run, added in (
        (dict(rows[0], run=7), 1),
        (dict(rows[1], run=7), 0),
        (rows[1], 1),
        (dict(rows[1], loss=1.7), 1),
    ):
        (tmp_path / "one.jsonl").write_text(json.dumps(run) + "\n")
        code = command_line.run(["add", law, f"--run={tmp_path}/one.jsonl", f"--runs={table}"])
        printed = capsys.readouterr()
        assert code == (0 if added else 2), printed.err
        name = "7" if "run" in run else "8 experts with 60K active on 1M tokens"
        assert f"{name}: predicted" in printed.out if added else "has this run already (7)" in printed.err


def test_a_table_may_call_its_columns_otherwise(folder, tmp_path):
    """A name and a text are known by the table's own names of columns."""
    text = (folder / "runs.csv").read_text().replace("corpus_fingerprint", "text", 1).replace("loss", "loss,Name", 1)
    header, *lines = text.splitlines()
    place = header.split(",").index("Name")
    named = [line.split(",") for line in lines]
    for i, cells in enumerate(named):
        cells.insert(place, f"run {i}")
    table = tmp_path / "runs.csv"
    table.write_text("\n".join([header, *(",".join(cells) for cells in named)]) + "\n")
    names = dict(run="Name", corpus_fingerprint="text")
    for more, message in (("run 3,", "has this run already"), ("new,0123456789abcdef", "was trained on the text")):
        columns = "run,corpus_fingerprint,n_active,n_tokens,n_experts,loss"
        (tmp_path / "one.csv").write_text(f"{columns}\n{more},5e4,1e6,8,1.9\n")
        with pytest.raises(fit.UserError, match=message):
            fit.add(f"{folder}/law.json", str(tmp_path / "one.csv"), str(table), columns=names)


def test_a_table_keeps_the_units_of_its_law(folder, tmp_path):
    """Of a table in bits and millions, and of the same one in nats: the same laws and predictions, and a new row that
    is read as it was written."""
    table = tmp_path / "bits.csv"
    rows = rows_of(folder / "runs.csv")
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    columns["loss"] = [float(loss) / np.log(2) for loss in columns["loss"]]
    columns["n_active"] = [float(size) / 1e6 for size in columns["n_active"]]
    write(Table("made", columns, list(range(len(rows)))), str(table))
    units = dict(loss="bits", n_active="millions")
    law = fit.law(fit.read(str(table), units=units), form="joint", starts=16)
    plain = tmp_path / "runs.csv"
    shutil.copy(folder / "runs.csv", plain)
    (tmp_path / "theirs.csv").write_text(NAMELESS)
    in_nats = fit.law(str(plain), form="joint", starts=16)
    expected = fit.add(in_nats, str(tmp_path / "theirs.csv"), str(plain))
    found = fit.add(law, str(tmp_path / "theirs.csv"), str(table))
    for row, other in zip(found.runs, expected.runs, strict=True):
        assert row.predicted_loss == pytest.approx(other.predicted_loss, rel=1e-6)
        assert row.refitted_loss == pytest.approx(other.refitted_loss, rel=1e-6)
    for name in ("loss", "n_active"):
        read = fit.read(str(table), units=units).numbers(name)
        assert read == pytest.approx(fit.read(str(plain)).numbers(name))
    with pytest.raises(fit.UserError, match="has this run already"):
        fit.add(law, str(tmp_path / "theirs.csv"), str(table))
    with pytest.raises(fit.UserError, match="units=loss:miles: expected one of"):
        fit.add(law, str(tmp_path / "theirs.csv"), str(table), units=dict(loss="miles"))
    with pytest.raises(fit.UserError, match="units: .*new.csv is a new table"):
        fit.add("joint-moe-2025", str(tmp_path / "theirs.csv"), str(tmp_path / "new.csv"), units=units)


def test_dense_runs_need_no_number_of_experts(folder, tmp_path, capsys):
    """Neither in the table nor in the run, as `fit law` takes them; a mixture makes the column."""
    lines = [line.split(",") for line in (folder / "runs.csv").read_text().splitlines()]
    place = lines[0].index("n_experts")
    dense = [line for line in lines if line[place] in ("n_experts", "1")]
    table = tmp_path / "runs.csv"
    table.write_text("".join(",".join(line[:place] + line[place + 1 :]) + "\n" for line in dense))
    assert command_line.run(["law", f"--runs={table}", f"--out={tmp_path}/law.json", "--form=chinchilla"]) == 0
    (tmp_path / "one.csv").write_text("n_active,n_tokens,loss\n5e4,1e6,1.9\n")
    (tmp_path / "two.csv").write_text("n_active,n_tokens,n_experts,loss\n5e4,1e6,8,1.8\n")
    asked = [f"--law={tmp_path}/law.json", f"--run={tmp_path}/one.csv", f"--runs={table}"]
    capsys.readouterr()
    assert command_line.run(["add", *asked]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "1 experts with 50K active on 1M tokens: predicted" in printed
    assert f"{tmp_path}/one.csv: the table has no column n_experts: all its runs count as dense" in printed
    fit.add("joint-moe-2025", tmp_path / "two.csv", table)
    assert [row["n_experts"] for row in rows_of(table)] == ["1"] * len(dense) + ["8"]


def test_known_errors_beyond_the_laws_runs_are_told(folder, tmp_path):
    doubt = finding("lack_of_fit", count=5, column="n_active", off=0.02, side="below", errors=4.0)
    law = dataclasses.replace(fit.load(folder / "law.json"), beyond_runs=doubt)
    for n_active, findings in ((5e4, []), (5e5, [doubt])):
        table = tmp_path / f"{n_active}.csv"
        shutil.copy(folder / "runs.csv", table)
        run = fit.read([dict(n_active=n_active, n_tokens=1e6, n_experts=8, loss=1.9)])
        write(run, str(tmp_path / "run.csv"))
        found = fit.add(law, tmp_path / "run.csv", table)
        assert [each for each in found.findings if each.code == "lack_of_fit"] == findings


FITS = [  # options of fit.law, and words of what to type for such a fit again
    (dict(fix="c=0.9", holdout="largest-compute:3"), "--fix=c=0.9 --holdout=largest-compute:3"),
    (dict(bootstrap_by="row", mix_corpora=True), "--bootstrap_by=row"),
    (dict(seed=3, weights="inverse-loss"), "seed=3, form='joint', weights='inverse-loss', "),
    (dict(huber_delta=0.1, weight_decay=1e-4, bootstrap=2, percentiles=(5, 95)), "percentiles=(5.0, 95.0)"),
    (dict(form="chinchilla", prior="population:ours"), "--prior=population:ours"),
    (dict(form=None, weights="inverse-loss"), "weights='inverse-loss', "),
]


@pytest.mark.parametrize("options, words", FITS)
def test_what_is_to_be_typed_fits_the_law_as_it_was_fitted(folder, tmp_path, monkeypatch, capsys, options, words):
    """Its law says of the run what `fit add` said: by a command or, where that lacks a flag, in Python."""
    monkeypatch.chdir(tmp_path)
    text = (folder / "runs.csv").read_text()
    pathlib.Path("my runs.csv").write_text(text.replace("loss", "val_loss", 1))
    pathlib.Path("theirs.csv").write_text(NAMELESS)
    table = fit.read("my runs.csv", columns=dict(loss="val_loss"))
    fit.save(fit.law(table, **{"form": "joint", **options}), "law.json")
    found = fit.add("law.json", "theirs.csv", "my runs.csv")
    assert words in found.next
    said = re.fullmatch("next: (.*), then plan with it", found.next)[1].replace("bootstrap=100", "bootstrap=2")
    if said.startswith("in Python, "):
        exec(said.removeprefix("in Python, "), dict(fit=fit))
    else:
        assert command_line.run(shlex.split(said.removeprefix("python -m fit "))) == 0
    law = fit.load("law.json")
    assert law.n_draws == 2
    for row in found.runs:
        model = {name: row[name] for name in ("n_active", "n_tokens", "n_experts")}
        assert float(law.predict(**model)) == pytest.approx(row["refitted_loss"], rel=1e-9)


def test_a_law_fitted_as_in_the_paper_is_fitted_so_again(folder):
    law = fit.load(folder / "law.json")
    fitted = dict(solver="lbfgs", starts=0, weight_decay=1e-5, weight_decay_default=False)
    bootstrap = dataclasses.replace(law.bootstrap, form="paper")
    law = dataclasses.replace(law, settings=dataclasses.replace(law.settings, **fitted), bootstrap=bootstrap)
    said = refit.next_step(law, fit.read(folder / "runs.csv"), mix_corpora=False, out=None)
    assert said.endswith(" --bootstrap=100 --form=joint --solver=paper, then plan with it")


REFUSED = {
    "--law=law.json --run=none --runs=runs.csv": "--run=none: no such folder or file",
    "--law=law.json --run=empty --runs=runs.csv": "expected a workdir of jmoe.train",
    "--law=law.json --run=unfinished --runs=runs.csv": "no branch of it is finished",
    "--law=law.json --run=damaged --runs=runs.csv": "is damaged",
    "--law=law.json --run=runs.csv --runs=runs.csv": "has this run already",
    "--law=law.json --run=short.csv --runs=runs.csv": "says no loss",
    "--law=law.json --run=odd.csv --runs=runs.csv": "odd.csv, row 3, column loss: found 'oops', expected a number",
    "--law=law.json --runs=runs.csv": "--run is missing",
    "--law=law.json --run=short.csv": "--runs is missing",
    "--law=law.json --run=short.csv --runs=none.csv": "none.csv: cannot be read",
    "--law=law.json --run=new.csv --runs=runs.csv --out=no/law.json": "no/law.json: cannot be written",
    "--law=law.json --run=new.csv --runs=runs.csv --out=jmoe-bytes-2026": "the new law would never be read",
    "--law=joint-moe-2025 --run=new.csv --runs=runs.csv --out=new.json": "a published law, which is not fitted again",
    "--law=law.json --run=gs://bucket/run --runs=runs.csv": "copy the workdir's",
}


@pytest.mark.parametrize("arguments", REFUSED)
def test_what_cannot_be_added(folder, trained, tmp_path, capsys, monkeypatch, arguments):
    """One sentence, exit code 2, and the table stays as it is."""
    run, _ = trained
    for name in ("runs.csv", "law.json"):
        shutil.copy(folder / name, tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "unfinished" / "trunk").mkdir(parents=True)
    shutil.copytree(run, tmp_path / "damaged")
    result = next((tmp_path / "damaged").glob("branch-*/result.json"))
    result.write_text(result.read_text().replace('"seed": 0', '"seed": 1'))
    (tmp_path / "short.csv").write_text("n_active,n_tokens,n_experts\n50000,1e6,8\n")
    (tmp_path / "odd.csv").write_text("n_active,n_tokens,n_experts,loss\n1e8,2e9,1,3.1\n2e8,4e9,1,oops\n")
    (tmp_path / "new.csv").write_text(NAMELESS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fit_law, "fit_law", None)  # nothing is fitted before
    before = (tmp_path / "runs.csv").read_text()
    assert command_line.run(["add", *arguments.split()]) == 2
    captured = capsys.readouterr()
    assert REFUSED[arguments] in captured.err and captured.err.count("\n") == 1 and captured.out == ""
    assert (tmp_path / "runs.csv").read_text() == before


def test_neutral_values_are_the_trainers():
    """What a result leaves out, and what stands for it, is what the trainer's own table of fields says."""
    model = dict(d_model=96, n_blocks=4, n_heads=6, d_ff=200)
    for name, column in schema.COLUMNS.items():
        stands_for = schema.STANDS_FOR.get(column)
        expected = stands_for(model) if stands_for else schema.NEUTRAL[name]
        assert workdir.filled(model | dict(n_experts=4), column) == expected
    for column, rule in schema.BY_RULE.items():
        assert workdir.filled(dict(d_model=96, n_blocks=4), column) == rule(model)
