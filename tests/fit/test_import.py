"""Runs of other tools, read from files that those tools wrote (tests/data/README.md says how)."""

import pathlib

import pytest

from fit import __main__ as command_line
from fit.data.table import read

FOREIGN = pathlib.Path(__file__).parents[1] / "data" / "foreign"
WANDB = FOREIGN / "wandb_export.csv"
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
def refused(tmp_path, capsys):
    """refused(source, *flags): the sentence."""

    def run(source, *flags):
        assert command_line.run(["import", str(source), f"--out={tmp_path / 'runs.csv'}", *flags]) == 2
        return capsys.readouterr().err

    return run


def test_of_a_wandb_export_the_finished_runs_are_kept_and_the_others_counted(imported):
    columns, said = imported(WANDB, THEIRS, "--where=state=finished")
    assert columns == {
        "run": ["amber-sun-1", "blue-sea-2", "dry-oak-4"],
        "n_experts": ["1", "1", "8"],
        "n_active": ["120000000"] * 3,
        "n_tokens": ["2400000000", "4800000000", "2400000000"],
        "loss": ["3.160", "3.019", "3.001"],
    }
    assert "3 of 5 runs kept" in said and "1 with state crashed, 1 with state running" in said


def test_a_parquet_export_reads_as_its_csv(imported, tmp_path):
    import pyarrow
    import pyarrow.parquet

    theirs = read(str(WANDB)).columns
    pyarrow.parquet.write_table(pyarrow.table(theirs), tmp_path / "export.parquet")
    flags = THEIRS, "--where=State=finished"
    assert imported(tmp_path / "export.parquet", *flags)[0] == imported(WANDB, *flags)[0]


def test_a_run_without_a_loss_and_a_column_that_is_not_there_are_named(refused):
    assert "wandb_export.csv, row 4, column loss: found nothing" in refused(WANDB, THEIRS)
    assert "does not say n_active: give --columns=n_active:COLUMN" in refused(WANDB, "--where=state=finished")
    assert "--where=fate=done: no such column; columns found: run, state" in refused(WANDB, "--where=fate=done")
    assert "no run is left of 5" in refused(WANDB, "--where=state=lost")


def test_huggingfaces_trainer_state_with_the_weights_beside_it(imported):
    columns, _ = imported(FOREIGN / "huggingface")
    assert columns["n_active"] == columns["n_total"] == ["1176"]  # as transformers counted the model
    assert columns["n_tokens"] == ["192"] and columns["loss"] == ["3.4737303256988525"]
    assert columns["run"] == ["llama-tiny"] and columns["n_experts"] == ["1"]
    assert imported(FOREIGN / "huggingface", "--where=state=finished")[0] == columns


def test_levanters_metrics_leave_open_what_a_mixtures_token_uses(imported, refused):
    assert "does not say n_active" in refused(FOREIGN / "levanter")
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
