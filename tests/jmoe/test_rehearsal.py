"""The rehearsal and the export of docs/guides/a-week-on-a-cluster.md, with the guide's own flags and a small model.

The guide stops its runs after seconds; here the signals come at steps, so that each hits the run.
"""

import contextlib
import os
import pathlib
import re
import shlex
import signal
import subprocess

import helpers
import numpy as np
import pytest
import soak

from configs import quickstart
from jmoe.text import corpus

PAGE = helpers.ROOT / "docs" / "guides" / "a-week-on-a-cluster.md"
TRAINING = re.compile(
    r"XLA_FLAGS=--xla_force_host_platform_device_count=(?P<n_devices>\d+) "
    r"(timeout --signal=(?P<signal>\w+) \d+ )?python -m jmoe\.train (?P<flags>[^|]+)(\|\| test \$\? -eq (124|137))?"
)
# the last value of a flag counts
SMALL = [
    *("--config.n_tokens=(61440,)", "--config.batch_tokens=((0,256),)", "--config.optimizer.warmup_tokens=1024"),
    *("--config.model.n_blocks=1", "--config.model.n_heads=2", "--config.data.seq_len=32"),
    *("--config.data.validation_tokens=2048", "--config.log_every=1"),
    *("--config.checkpoint_minutes=0", "--config.checkpoint_every=10", "--config.snapshot_every=50"),
    "--config.optimizer.skip_above=2.5",
]
BRANCH = "branch-61440"


def typed(folder: str) -> list[str]:
    """The guide's commands on this folder, in their order."""
    return [command for block in helpers.blocks(PAGE) for command in block if f"--workdir={folder} " in f"{command} "]


def trainings(folder: str) -> list[tuple[int, str | None, list[str]]]:
    """(devices, the signal that ends it, if any, flags) of the guide's trainings of this folder."""
    matches = [re.fullmatch(TRAINING, command) for command in typed(folder) if "jmoe.train" in command]
    assert all(matches)
    return [(int(match["n_devices"]), match["signal"], [*shlex.split(match["flags"]), *SMALL]) for match in matches]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the guide's commands are typed, with its two runs in runs/."""
    folder = tmp_path_factory.mktemp("guide")
    (folder / "configs").symlink_to(helpers.ROOT / "configs")
    (folder / "runs" / "rehearsal-text").mkdir(parents=True)
    helpers.write_text(folder / "runs" / "rehearsal-text")
    # three times as long as in the guide: the run is shorter
    (folder / "runs" / "rehearsal-text" / "broken.txt").write_text("~" * 60_000)
    with contextlib.chdir(folder):
        yield folder


@pytest.fixture(scope="module")
def undisturbed(folder):
    ((n_devices, _, flags),) = trainings("runs/undisturbed")
    helpers.succeeds("jmoe.train", *flags, n_devices=n_devices)
    return folder / "runs" / "undisturbed"


@pytest.fixture(scope="module")
def rehearsal(folder):
    """(workdir, step of the first stop, what the starts printed): stopped on eight devices, killed on four."""
    workdir = folder / "runs" / "rehearsal"
    steps = trainings("runs/rehearsal")
    assert [step[:2] for step in steps] == [(8, "TERM"), (4, "KILL"), (8, None)]
    printed = []
    for n_devices, signal_name, flags in steps:
        target = soak.progress(workdir) + 40
        (process,) = helpers.start("jmoe.train", *flags, n_devices=n_devices)
        if signal_name:
            helpers.wait_until(lambda target=target: soak.progress(workdir) >= target, [process])
            process.send_signal(signal.Signals[f"SIG{signal_name}"])
        printed.append(process.communicate(timeout=300)[1])
        assert process.returncode == {"TERM": 143, "KILL": -signal.SIGKILL, None: 0}[signal_name], printed
    assert all("resuming from" in text for text in printed[1:]), printed
    stop = int(re.search(r"saved step (\d+) of trunk", printed[0])[1])
    return workdir, stop, printed


def lines(workdir: pathlib.Path) -> list[dict]:
    """The logged steps of trunk and branch."""
    outcome = soak.outcome(workdir)
    return [line for segment in ("trunk", BRANCH) for line in outcome[segment, "metrics"]]


def test_stopped_killed_resized_and_with_spikes_it_ends_as_the_undisturbed_run(rehearsal, undisturbed):
    """To the last bit up to the resize, to float accuracy after it."""
    workdir, stop, _ = rehearsal
    disturbed_lines = lines(workdir)
    undisturbed_lines = lines(undisturbed)
    steps = [line["step"] for line in undisturbed_lines]
    assert [line["step"] for line in disturbed_lines] == steps == list(range(240))
    assert 40 <= stop < 200
    assert disturbed_lines[:stop] == undisturbed_lines[:stop]
    losses = [[line["loss"] for line in run] for run in (disturbed_lines, undisturbed_lines)]
    np.testing.assert_allclose(*losses, atol=2e-3)
    results = [soak.outcome(run)[BRANCH, "result"] for run in (workdir, undisturbed)]
    assert results[0]["loss"] == pytest.approx(results[1]["loss"], abs=1e-4)


def test_steps_on_broken_text_are_skipped_counted_and_logged_with_their_rows(rehearsal, undisturbed):
    """The same ones in both runs, also after the resize."""
    workdir, stop, printed = rehearsal
    skipped = [line for line in lines(workdir) if "skipped_rows" in line]
    skipped_steps = [line["step"] for line in skipped]
    assert skipped_steps == [line["step"] for line in lines(undisturbed) if "skipped_rows" in line]
    assert skipped_steps[-1] > stop
    assert lines(workdir)[-1]["skipped_steps"] == len(skipped)
    config = quickstart.get_config()
    config.data.path = "runs/rehearsal-text/*.txt"
    tokens = corpus.load(config.data).train
    broken_steps = []  # the others have rows such as a rule of asterisks
    for line in skipped:
        rows = [bytes(tokens[row * 32 : row * 32 + 32].astype(np.uint8)) for row in line["skipped_rows"][""]]
        assert len(rows) == 8
        assert any(f"WARNING: skipped step {line['step']} of " in text for text in printed)
        if any(b"~" * 16 in row for row in rows):
            broken_steps.append(line["step"])
    assert len(broken_steps) > len(skipped) / 2


def test_the_guides_other_commands_on_the_runs(rehearsal, undisturbed):
    compared = [command for block in helpers.blocks(PAGE) for command in block if command.startswith("grep ")]
    assert len(compared) == 2
    for command in compared:
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
        assert done.returncode == 0 and done.stdout.count("\n") == 2, (done.stdout, done.stderr)
    others = [command for command in typed("runs/rehearsal") if "jmoe.train" not in command]
    assert len(others) >= 3
    for command in others:
        _, _, module, *flags = shlex.split(command)
        done = helpers.run(module, *flags)
        assert done.returncode == 0, (command, done.stderr)
    assert os.path.exists("runs/rehearsal/hf/model.safetensors")
