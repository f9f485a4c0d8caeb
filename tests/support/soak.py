"""Training runs killed with SIGKILL at moments of a kind: while they start, after a step, during a save.

Whatever happened on the way, a run must end with the same results, logged steps and parameters, bit for bit, as an
undisturbed run, and every start must go on from the newest save that was whole when the kill came.
"""

import json
import pathlib
import random
import re
import signal
import time

import helpers
import numpy as np
from etils import epath

FLAGS = ["--config.model.n_experts=4", "--config.model.group_tokens=64", "--config.eval_every=6"]
CLOCKS = {"seconds", "sha256"}  # fields that may differ between two identical runs


def start(config, workdir, n_processes: int, log, *flags):
    """Starts one process with one device, or two with two each; the four experts are spread over all devices."""
    n_devices = n_processes
    flags = [f"--config={config}", f"--workdir={workdir}", *FLAGS, *flags]
    flags.append(f"--config.mesh.expert={n_processes * n_devices}")
    return helpers.start("jmoe.train", *flags, n_processes=n_processes, n_devices=n_devices, stderr=log)


def kill_until_done(
    config, workdir: pathlib.Path, n_kills: int, n_processes: int, chance: random.Random, *flags
) -> list[str]:
    """Starts the run and kills one or all of its processes, `n_kills` times or until it is done, then lets it end.

    Returns what each kill hit, "start", "step" or "save".
    """
    hits = []
    log_path = workdir.with_name(workdir.name + ".log")
    newest = {}
    while True:
        log_path.write_text("")
        with open(log_path, "a") as log:
            processes = start(config, workdir, n_processes, log, *flags)
            moment = chance.choice(("start", "step", "save", "save")) if len(hits) < n_kills else None
            if moment is None:
                wait_for(processes)
            else:
                wait_for_moment(moment, workdir, processes, chance)
                in_a_save = saving(workdir)
                alone = moment != "start" and chance.random() < 0.5  # at the start, a survivor waits five minutes
                for victim in [chance.choice(processes)] if alone else processes:
                    victim.send_signal(signal.SIGKILL)
                codes = wait_for(processes)
                hits.append("save" if in_a_save else moment if moment != "save" else "step")
        said = log_path.read_text()
        check_resumed(said, newest)
        if moment is None:
            assert all(process.returncode == 0 for process in processes), said
            return hits
        if all(code == 0 for code in codes):
            hits.pop()  # it was done before the signal came
            return hits
        assert all(code != 0 for code in codes) or "validation loss" in said, (codes, said)
        newest = saves(workdir)


def wait_for(processes) -> list[int]:
    """Waits for the exit codes; a process whose peer was killed must not hang for ever."""
    try:
        return [process.wait(timeout=900) for process in processes]
    finally:
        for process in processes:
            process.send_signal(signal.SIGABRT)  # a process that hangs tells where; the others have ended


def wait_for_moment(moment: str, workdir, processes, chance) -> None:
    if moment == "start":
        time.sleep(chance.random() * 3)
    elif moment == "step":  # a place in the run rather than a time: after so many further logged steps
        target = progress(workdir) + chance.randint(1, 9)
        helpers.wait_until(lambda: progress(workdir) >= target, processes)
        time.sleep(chance.random() * 0.05)
    else:
        for _ in range(chance.randint(1, 2)):
            helpers.wait_until(lambda: not saving(workdir), processes, every=0.005)
            helpers.wait_until(lambda: saving(workdir), processes, every=0.005)
        time.sleep(chance.random() * chance.choice((0, 0.02, 0.1)))


def check_resumed(said: str, newest: dict[str, int]) -> None:
    """Asserts that a start first resumed each segment from the newest save that the last kill left there."""
    assert "damaged" not in said, said
    seen = set()
    for segment, step in re.findall(r"resuming from \S*/(trunk|branch-\d+)/checkpoints/(\d+)", said):
        if segment not in seen and segment != "trunk":  # a trunk is also entered at the fork of a later branch
            assert int(step) == newest.get(segment, int(step)), (segment, step, newest)
        elif segment == "trunk" and not seen:
            assert int(step) == newest.get(segment, int(step)), (segment, step, newest)
        seen.add(segment)


def saving(workdir) -> bool:
    """Whether a save is being written."""
    return any(workdir.rglob("*.orbax-checkpoint-tmp*"))


def saves(workdir) -> dict[str, int]:
    """The newest whole save of each segment."""
    result = {}
    for folder in workdir.glob("*/checkpoints/[0-9]*"):
        if folder.name.isdigit():
            segment = folder.parent.parent.name
            result[segment] = max(result.get(segment, 0), int(folder.name))
    return result


def progress(workdir) -> int:
    """Logged steps of all segments."""
    return sum(path.read_bytes().count(b"\n") for path in workdir.glob("*/metrics.jsonl"))


def outcome(workdir: epath.Path) -> dict:
    """Everything that a run records except times: results, every logged step, checksums of all last arrays."""
    said = {}
    for path in sorted(workdir.glob("*/result.json")):
        said[path.parent.name, "result"] = without_clocks(json.loads(path.read_text()))
    for path in sorted(workdir.glob("*/metrics.jsonl")):
        lines = path.read_text().splitlines()
        said[path.parent.name, "metrics"] = [without_clocks(json.loads(line)) for line in lines]
    for segment, step in saves(workdir).items():
        record = json.loads((workdir / segment / "checkpoints" / str(step) / "record" / "metadata").read_text())
        said[segment, "arrays"] = record["checksums"]
    return said


def without_clocks(values: dict) -> dict:
    return {name: value for name, value in values.items() if name not in CLOCKS}


def final_params(workdir, segment: str = "branch-16384") -> dict:
    """The parameters of the newest checkpoint by their path, as Orbax alone reads them, without a mesh."""
    import jax
    import orbax.checkpoint as ocp

    folder = epath.Path(workdir) / segment / "checkpoints"
    folder = max((path for path in folder.iterdir() if path.name.isdigit()), key=lambda path: int(path.name)) / "params"
    reader = ocp.PyTreeCheckpointHandler()
    kinds = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), reader.metadata(folder).tree)
    params = reader.restore(folder, args=ocp.args.PyTreeRestore(restore_args=kinds))
    return {jax.tree_util.keystr(path): x for path, x in jax.tree_util.tree_leaves_with_path(params)}


def assert_same_run(one, other, segment: str = "branch-16384") -> None:
    """Asserts that two workdirs hold the same run to the last bit."""
    said = outcome(epath.Path(one)), outcome(epath.Path(other))
    assert said[0].keys() == said[1].keys()
    for name in said[0]:
        assert said[0][name] == said[1][name], name
    params = final_params(one, segment), final_params(other, segment)
    assert params[0].keys() == params[1].keys()
    for name in params[0]:
        np.testing.assert_array_equal(params[0][name], params[1][name], err_msg=name)
