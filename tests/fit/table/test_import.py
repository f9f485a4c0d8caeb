"""Runs of other tools, read from files that those tools wrote (tests/data/README.md says how)."""

import contextlib
import math
import shutil
import sqlite3

import fit_command
import helpers
import pytest
import wandb_server

import fit
from fit import __main__ as command_line
from fit.errors import UserError
from fit.table.column_guesses import guess
from fit.table.table import read

FOREIGN = helpers.ROOT / "tests" / "data" / "foreign"
WANDB = FOREIGN / "wandb_export.csv"
CHART = FOREIGN / "wandb_chart.csv"
THEIRS = "--columns=n_active:n_params,n_tokens:tokens,loss:eval/loss"


@pytest.fixture
def imported(tmp_path, capsys):
    """imported(source, *flags): (the columns written, what was printed)."""

    def run(source, *flags):
        out = tmp_path / "runs.csv"
        code = command_line.run(["import", str(source), f"--out={out}", *flags])
        said = capsys.readouterr()
        assert code == 0, said.err
        return read(str(out)).columns, said.out

    return run


@pytest.fixture
def refused(tmp_path):
    """refused(source, *flags): the sentence."""

    def run(source, *flags):
        return fit_command.refused("import", str(source), f"--out={tmp_path / 'runs.csv'}", *flags)

    return run


def test_of_a_wandb_export_the_finished_runs_are_kept_and_the_others_counted(imported, tmp_path):
    expected = {
        "run": ["amber-sun-1", "blue-sea-2", "dry-oak-4"],
        "n_experts": ["1", "1", "8"],
        "n_active": ["120000000"] * 3,
        "n_tokens": ["2400000000", "4800000000", "2400000000"],
        "loss": ["3.160", "3.019", "3.001"],
    }
    columns, said = imported(WANDB, THEIRS, "--where=state=finished")
    assert columns == expected
    assert "3 of 5 runs kept" in said and "1 with state crashed, 1 with state running" in said
    # accuracies of tasks come along, other columns do not
    source = tmp_path / "wandb.csv"
    header, *rows = WANDB.read_text().splitlines()
    source.write_text("\n".join([f"{header},acc_piqa,other", *(f"{row},0.6,1" for row in rows)]))
    assert imported(source, THEIRS, "--where=State=finished")[0] == expected | {"acc_piqa": ["0.6"] * 3}


def test_a_run_without_a_loss_and_a_column_that_is_not_there_are_named(refused):
    assert "wandb_export.csv, row 4, column eval/loss: found nothing" in refused(WANDB, THEIRS)
    assert "does not say n_active: give --columns=n_active:n_params" in refused(WANDB, "--where=state=finished")
    assert "--where=fate=done: no such column; columns found: run, state" in refused(WANDB, "--where=fate=done")
    assert "has no column size; columns found: run, state" in refused(WANDB, "--columns=n_active:size")
    assert "run amber-sun-1 has no number as its step" in refused(WANDB, THEIRS, "--tokens_per_step=512")
    assert "no run is left of 5" in refused(WANDB, "--where=state=lost")


def test_huggingfaces_trainer_state_with_the_weights_beside_it(imported):
    columns, _ = imported(FOREIGN / "huggingface")
    assert columns["n_active"] == columns["n_total"] == ["1176"]  # as transformers counted the model
    assert columns["n_tokens"] == ["192"] and columns["loss"] == ["3.4737303256988525"]
    assert columns["run"] == ["llama-tiny"] and columns["n_experts"] == ["1"]
    assert imported(FOREIGN / "huggingface", "--where=state=finished")[0] == columns


def test_levanters_metrics_leave_open_what_a_mixtures_token_uses(imported, refused):
    assert "does not say n_active: give --columns=n_active:COLUMN" in refused(FOREIGN / "levanter")
    columns, _ = imported(FOREIGN / "levanter", "--set=n_active=2000", "--where=state=finished")
    assert columns["n_experts"] == ["8"] and columns["n_total"] == ["5000"] and columns["n_active"] == ["2000"]
    assert columns["n_tokens"] == ["192"] and columns["loss"] == ["3.21"]


def test_maxtexts_metrics_with_sizes_from_a_table(imported, tmp_path):
    sizes = tmp_path / "sizes.csv"
    sizes.write_text("run,n_active,n_experts\ntiny,5000,4\n")
    columns, _ = imported(FOREIGN / "maxtext", f"--sizes={sizes}")
    assert columns["n_tokens"] == ["1536.0"] and columns["loss"] == ["3.25"]
    assert columns["n_active"] == ["5000"] and columns["n_experts"] == ["4"]


def test_tensorboards_folders_are_runs_and_steps_become_tokens(imported, refused, tmp_path):
    from tensorboard.compat.proto import event_pb2, summary_pb2
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    for run, losses in {"small": (4.0, 3.5, 3.25), "large": (3.75, 3.0)}.items():
        writer = EventFileWriter(str(tmp_path / "logs" / run))
        for step, loss in enumerate(losses, 1):
            value = summary_pb2.Summary.Value(tag="eval/loss", simple_value=loss)
            writer.add_event(event_pb2.Event(step=10 * step, summary=summary_pb2.Summary(value=[value])))
        writer.close()
    same = "--set=n_experts=1,n_active=1000"
    columns, _ = imported(tmp_path / "logs", "--columns=loss:eval/loss", same, "--tokens_per_step=512")
    assert columns["run"] == ["large", "small"] and columns["loss"] == ["3.0", "3.25"]
    assert columns["n_tokens"] == ["10240.0", "15360.0"]
    assert "columns found: run, step, eval/loss" in refused(tmp_path / "logs", same)


def test_a_source_that_is_none_is_refused(refused, tmp_path):
    assert "no such file or folder" in refused(tmp_path / "none")
    (tmp_path / "notes.md").write_text("x")
    assert "found no file of a known tool" in refused(tmp_path / "notes.md")
    (tmp_path / "metrics.txt").write_text('{"step": 1}\n')
    assert "metrics.txt: is not as maxtext writes it" in refused(tmp_path / "metrics.txt")
    assert command_line.run(["import", "--out=x.csv"]) == 2


# Trackio


def run_sql(path, script):
    """Runs statements on an SQLite file, which they may create."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)


@pytest.fixture
def trackio_folder(tmp_path):
    """The folder of a project, whose database is made of the tables that trackio wrote."""
    folder = tmp_path / "trackio"
    folder.mkdir()
    run_sql(folder / "sweep.db", (FOREIGN / "trackio" / "sweep.sql").read_text())
    return folder


TRACKIO = "--columns=n_active:n_params,n_tokens:tokens,loss:eval/loss"


def test_trackios_database_and_its_parquet_files_read_the_same(imported, trackio_folder):
    flags = (TRACKIO, "--where=eval/loss!=NaN")
    columns, said = imported(trackio_folder / "sweep.db", *flags)
    assert columns["run"] == ["amber-1", "blue-2"] and columns["loss"] == ["3.16", "2.98"]
    assert columns["n_tokens"] == [str(3000 * 524288), str(4000 * 524288)] and columns["n_experts"] == ["1", "1"]
    assert "read as trackio's; 2 of 3 runs kept" in said
    assert imported(FOREIGN / "trackio" / "sweep.parquet", *flags)[0] == columns
    for path in (FOREIGN / "trackio").glob("*.parquet"):  # a folder with both is read once
        shutil.copy(path, trackio_folder)
    assert imported(trackio_folder, *flags, "--where=eval/loss!=NaN,project=sweep")[0] == columns


def test_runs_of_one_name_and_columns_of_older_trackios(imported, trackio_folder):
    run_sql(
        trackio_folder / "sweep.db", "UPDATE metrics SET run_name = 'amber-1'; UPDATE configs SET run_name = 'amber-1';"
    )
    flags = (TRACKIO, "--where=eval/loss!=NaN")
    columns, _ = imported(trackio_folder, *flags)
    assert len(set(columns["run"])) == 2 and all(run.startswith("amber-1 (") for run in columns["run"])
    run_sql(
        trackio_folder / "sweep.db",
        "CREATE TABLE m AS SELECT id, run_name || substr(run_id, 1, 2) AS run_name, step, metrics FROM metrics;"
        "CREATE TABLE c AS SELECT id, run_name || substr(run_id, 1, 2) AS run_name, config FROM configs;"
        "DROP TABLE metrics; DROP TABLE configs; ALTER TABLE m RENAME TO metrics; ALTER TABLE c RENAME TO configs;",
    )
    assert imported(trackio_folder, *flags)[0]["loss"] == columns["loss"]


def test_other_databases_are_no_source(refused, tmp_path):
    (tmp_path / "empty.db").write_bytes(b"")
    run_sql(tmp_path / "other.db", "CREATE TABLE songs (name TEXT)")
    (tmp_path / "cut.db").write_bytes(b"SQLite format 3\0" + b"x" * 100)
    for name in ("empty.db", "other.db", "cut.db"):
        assert "found no file of a known tool" in refused(tmp_path / name)
    assert "cut.db: is not as trackio writes it" in refused(tmp_path / "cut.db", "--tool=trackio")


# nanochat


def test_nanochats_results_in_nats_and_of_older_versions(imported, refused, tmp_path):
    """test_practice.py has what they count, and the unit that they ask for."""
    source = FOREIGN / "nanochat_results.csv"
    columns, said = imported(source, "--units=loss:3.2")
    assert "read as nanochat's" in said and columns["run"] == ["1e18_d10", "1e18_d12", "2.15e18_d10"]
    assert columns["n_tokens"][0] == str(2380 * 524288) and columns["batch_tokens"] == ["524288"] * 3
    assert columns["vocab_size"] == ["32768"] * 3 and columns["n_experts"] == ["1"] * 3
    assert [float(loss) for loss in columns["loss"]] == pytest.approx([3.2 * 0.9012, 3.2 * 0.8934, 3.2 * 0.8761])
    older = tmp_path / "results.csv"
    older.write_text(
        "depth,model_dim,num_params,num_scaling_params,num_iterations,tokens_trained,param_data_ratio,val_bpb,core_score\n"
        "12,768,186253248,110100288,2000,1048576000,9.5,0.88,0.11\n"
    )
    assert "does not say n_active: give --columns=n_active:num_params" in refused(older)
    assert imported(older, "--columns=n_active:num_scaling_params")[0]["n_active"] == ["110100288"]


# Charts of Weights & Biases


def test_a_charts_columns_are_runs_and_its_last_points_their_losses(imported, refused, tmp_path):
    sizes = tmp_path / "sizes.csv"
    sizes.write_text("run,n_active,n_experts\namber-sun-1,1e8,1\nblue-sea-2,2e8,8\ncalm-fog-3,1e8,8\n")
    flags = ("--columns=loss:eval/loss", "--tokens_per_step=512", f"--sizes={sizes}")
    columns, said = imported(CHART, *flags, "--where=eval/loss!=")
    assert columns["run"] == ["amber-sun-1", "blue-sea-2"] and columns["loss"] == ["3.16", "2.98"]
    assert columns["n_tokens"] == [str(3000 * 512.0), str(4000 * 512.0)] and columns["n_active"] == ["1e8", "2e8"]
    assert "left out by --where: 1 with eval/loss empty" in said
    assert "row 3, column eval/loss: found nothing" in refused(CHART, *flags)
    sizes.write_text(sizes.read_text() + "blue-sea-2,4e8,8\n")
    assert "sizes.csv, column run: 'blue-sea-2' appears 2 times" in refused(CHART, *flags)


def test_charts_with_one_run_other_axes_and_several_metrics(imported, tmp_path):
    folder = tmp_path / "charts"
    folder.mkdir()
    (folder / "loss.csv").write_text(
        '"tokens","a - b - eval/loss","a - b - eval/loss__MIN","a - b - eval/loss__MAX"\n1e9,3,3,3\n'
    )
    (folder / "size.csv").write_text('"Step","a - b - n_params"\n1,1e8\n')
    columns, said = imported(folder, "--columns=loss:eval/loss,n_tokens:tokens,n_active:n_params", "--set=n_experts=1")
    assert columns["run"] == ["a - b"] and columns["n_tokens"] == ["1e9"] and columns["n_active"] == ["1e8"]
    assert "1 of 1 runs kept" in said


def test_two_runs_of_one_name_in_a_chart_are_named(refused, tmp_path):
    path = tmp_path / "twice.csv"
    path.write_text("Step,a - loss,a - loss__MIN,a - loss__MAX,a - loss,a - loss__MIN,a - loss__MAX\n1,2,2,2,3,3,3\n")
    assert "twice.csv: 2 runs of this chart are called a (loss): give them different names" in refused(path)


# Weights & Biases by its API


@pytest.fixture
def wandb_url(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))  # without the user's own ~/.netrc
    monkeypatch.setenv("WANDB_API_KEY", wandb_server.KEY)
    with wandb_server.serving() as url:
        monkeypatch.setenv("WANDB_BASE_URL", url)
        yield url


OF_API = "--columns=n_active:model.n_params,n_experts:model.n_experts,n_tokens:tokens,loss:eval/loss"


def test_a_project_is_read_page_by_page(imported, refused, wandb_url):
    columns, said = imported("wandb:ada/sweep", OF_API, "--where=state=finished")
    assert columns == {
        "run": ["amber-sun-1", "blue-sea-2 (e5f6a7b8)"],
        "n_active": ["120000000"] * 2,
        "n_experts": ["1", "8"],
        "n_tokens": ["2399666176"] * 2,
        "loss": ["3.16", "3.001"],
    }
    assert "wandb:ada/sweep: read as wandb's; 2 of 3 runs kept" in said
    assert "--where=state=finished leaves out row 3 (blue-sea-2 (c9d0e1f2))" in refused("wandb:ada/sweep", OF_API)


def test_the_key_may_stand_in_netrc(imported, monkeypatch, wandb_url, tmp_path):
    monkeypatch.delenv("WANDB_API_KEY")
    (tmp_path / ".netrc").write_text(f"machine 127.0.0.1 login user password {wandb_server.KEY}\n")
    (tmp_path / ".netrc").chmod(0o600)
    assert imported("wandb:ada/sweep", OF_API, "--where=state=finished")[0]["loss"] == ["3.16", "3.001"]


def test_what_keeps_a_project_from_being_read_is_one_sentence(refused, monkeypatch, wandb_url):
    sweep = "wandb:ada/sweep"
    for source, variables, words in (
        ("wandb:ada", {}, "wandb:ada: expected wandb:ENTITY/PROJECT"),
        ("wandb:ada/other", {}, f"wandb:ada/other: {wandb_url} has no such project, or the key may not read it"),
        ("wandb:broken/sweep", {}, f"{wandb_url} answered: permission denied"),
        (sweep, dict(WANDB_API_KEY="wrong"), "does not accept the key (HTTP 401)"),
        (sweep, dict(WANDB_API_KEY=""), "WANDB_API_KEY is not set, and ~/.netrc has no key for 127.0.0.1"),
        (sweep, dict(WANDB_BASE_URL="http://127.0.0.1:9"), "http://127.0.0.1:9/graphql cannot be read: "),
        (sweep, dict(WANDB_BASE_URL="nowhere"), "WANDB_BASE_URL=nowhere: expected the address of a server"),
    ):
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            said = refused(source)
        assert words in said and said.count("\n") == 1


# All that is missing at once


def test_one_message_names_all_that_an_import_needs_and_its_command_works(refused, trackio_folder, tmp_path):
    theirs = tmp_path / "theirs.csv"
    theirs.write_text("params_m,tokens_b,val_ppl,Name\n120,2.4,23.6,a\n240,4.8,19.7,b\n480,9.6,16.7,c\n")
    said = refused(theirs)
    for words in (
        "theirs.csv: 6 things are wrong or doubtful",
        "does not say n_experts: give",
        "give --columns=n_active:params_m if column params_m holds it",
        "say --units=n_active:millions,n_tokens:billions",
        "it is not in nats per token; say --units=loss:perplexity",
        "columns found: params_m, tokens_b, val_ppl, run",
    ):
        assert words in said
    assert command_line.run(helpers.typed_again(said)) == 0
    columns = read(str(tmp_path / "runs.csv")).columns
    assert columns["n_active"] == ["120000000.0", "240000000.0", "480000000.0"] and columns["n_experts"] == ["1"] * 3
    assert [float(loss) for loss in columns["loss"]] == pytest.approx([math.log(23.6), math.log(19.7), math.log(16.7)])
    for source, rows in ((WANDB, 3), (trackio_folder, 2)):
        assert command_line.run(helpers.typed_again(refused(source))) == 0
        assert len(read(str(tmp_path / "runs.csv"))) == rows


def test_what_the_user_must_fill_in_stands_in_capitals(refused):
    said = refused(CHART)
    assert "does not say n_active, n_tokens, n_experts: give" in said
    assert "this works, with your own TOKENS and SIZES.csv: python -m fit import" in said
    assert "--tokens_per_step=TOKENS --sizes=SIZES.csv --columns=loss:eval/loss --where=loss=finite" in said


def test_python_names_the_arguments_that_settle_a_table():
    table = dict(N=[1e8, 2e8], D=[2e9, 4e9], val_loss=[3.2, 3.0])
    with pytest.raises(UserError) as e:
        fit.law(table)
    assert "this works: columns={'n_active': 'N', 'n_tokens': 'D', 'loss': 'val_loss'}" in str(e.value)


@pytest.mark.parametrize(
    "name, columns, column",
    [
        ("loss", ["trainLoss", "finalValLoss"], "finalValLoss"),
        ("loss", ["loss_scale_note", "accuracy"], None),
        ("n_active", ["total_params", "model.active_params"], "model.active_params"),
        ("n_active", ["N", "D"], "N"),
        ("n_tokens", ["tokens_per_second", "throughput/total_tokens"], "throughput/total_tokens"),
        ("n_experts", ["num_expert"], "num_expert"),
        ("n_experts", ["run", "step"], None),
    ],
)
def test_the_nearest_column_is_guessed(name, columns, column):
    table = {name: ["words"] if name.endswith("note") else ["8"] for name in columns}
    assert guess(name, table) == column


def test_columns_that_repeat_the_total_of_mixtures_are_no_guess(tmp_path):
    (tmp_path / "moe.csv").write_text("n_total,params,n_experts,n_tokens,loss\n9e8,9e8,8,2e10,3\n")
    said = fit_command.refused("law", f"--runs={tmp_path / 'moe.csv'}", f"--out={tmp_path / 'law.json'}")
    assert "column n_active is missing; --columns=n_active:COLUMN" in said


def test_flags_that_were_typed_are_kept_in_the_command(tmp_path):
    path = tmp_path / "two words.csv"
    path.write_text("N,D,val_ppl\n1e8,2,23\n2e8,4,20\n4e8,8,17\n")
    words = ["law", "--runs", str(path), "--columns", "n_active:N", f"--out={tmp_path / 'law.json'}"]
    typed = helpers.typed_again(fit_command.refused(*words, "--form=chinchilla"))
    assert typed[1:3] == ["--runs", str(path)] and "--form=chinchilla" in typed
    assert "--columns=n_active:N,n_tokens:D,loss:val_ppl" in typed
    assert "--units=n_tokens:billions,loss:perplexity" in typed
