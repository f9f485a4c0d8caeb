"""Everything that is interrupted at length, in two hours at most, one part after the other: make soak.

The first part kills training runs with SIGKILL at random moments, saves included, until each is done. Whatever
happened on the way, a run must end with the same results, logged steps and parameters, bit for bit, as an undisturbed
run, and every start must go on from the newest save that was whole when the kill came. It makes as many kills as its
time allows. The second part is the tests of interrupted sweeps, clusters and stores with JMOE_SOAK=1. A part that fails
or has to be cut off does not keep the other from running; then the exit code is 1.

    python tests/support/soak.py
    python tests/support/soak.py --part=kills --kills=60
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import helpers
import numpy as np
from etils import epath

FLAGS = ["--config.model.n_experts=4", "--config.model.group_tokens=64", "--config.eval_every=6"]
TESTS = """
launch/test_local.py launch/test_slurm.py launch/test_gs.py launch/test_owner.py jmoe/storage/test_outage.py
jmoe/storage/test_storage.py jmoe/storage/test_power_loss.py
""".split()
SHARE = 0.4  # of the time, that of the kills; they use less of it, so that the last run can end
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
                saving = any(workdir.rglob("*.orbax-checkpoint-tmp*"))
                alone = moment != "start" and chance.random() < 0.5  # at the start, a survivor waits five minutes
                for victim in [chance.choice(processes)] if alone else processes:
                    victim.send_signal(signal.SIGKILL)
                codes = wait_for(processes)
                hits.append("save" if saving else moment if moment != "save" else "step")
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
            helpers.wait_until(lambda: not any(workdir.rglob("*.orbax-checkpoint-tmp*")), processes)
            helpers.wait_until(lambda: any(workdir.rglob("*.orbax-checkpoint-tmp*")), processes)
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


def kill(n_kills: int, seconds: float, seed: int) -> None:
    """Makes `n_kills` kills, half of them in runs of two processes, or as many as are begun within `seconds`."""
    print(f"seed {seed}: the same seed chooses the same kinds of moments", flush=True)
    chance = random.Random(seed)
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(tempfile.mkdtemp(prefix="jmoe-soak-"))
        stack.push(lambda kind, *_: print(f"kept: {folder}") if kind else shutil.rmtree(folder))
        os.environ["JMOE_CACHE"] = str(folder / "cache")
        (folder / "text").mkdir()
        config = helpers.write_config(folder, helpers.write_text(folder / "text"), helpers.GROWING, 5)
        for n_processes, n, until in ((1, n_kills - n_kills // 2, 0.5 * seconds), (2, n_kills // 2, seconds)):
            undisturbed = folder / f"undisturbed-{n_processes}"
            kill_until_done(config, undisturbed, 0, n_processes, chance)
            n_done = 0
            n_runs = 0
            elapsed = 0.0
            while n_done < n and (elapsed < until or not n_runs):
                n_runs += 1
                workdir = folder / f"killed-{n_processes}-{n_runs}"
                most = 10 if n_processes == 1 else 5  # a survivor of two takes a minute to notice
                hits = kill_until_done(config, workdir, min(most, n - n_done), n_processes, chance)
                assert_same_run(undisturbed, workdir)
                n_done = n_done + len(hits)
                elapsed = time.monotonic() - began
                counted = ", ".join(f"{hits.count(kind)} in a {kind}" for kind in ("start", "step", "save"))
                print(
                    f"run {n_runs} of {n_processes} process(es): {len(hits)} kills ({counted}), the same to the last "
                    f"bit as the undisturbed one; {n_done} of {n} kills, {elapsed:.0f} s so far",
                    flush=True,
                )
            if n_done < n:
                print(f"time is up after {n_done} of {n} kills of {n_processes} process(es)", flush=True)


def within(seconds: float, command: list[str]) -> str:
    """Runs the command, and says in words how it ended; after `seconds` it is interrupted, a minute later killed."""
    began = time.monotonic()
    process = subprocess.Popen(command, start_new_session=True, env=os.environ | {"JMOE_SOAK": "1"})
    cut_off = ""
    for signum, patience in ((signal.SIGINT, seconds), (signal.SIGKILL, 60)):
        try:
            process.wait(patience)
            break
        except subprocess.TimeoutExpired:
            cut_off = f"CUT OFF after {seconds / 60:.0f} minutes"
            os.killpg(process.pid, signum) if signum == signal.SIGKILL else process.send_signal(signum)
    code = process.wait()
    return cut_off or ("passed" if code == 0 else f"FAILED (exit {code})") + f", {time.monotonic() - began:.0f} s"


def main():
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--minutes", type=float, default=115, help="within which all ends")
    flags.add_argument("--kills", type=int, default=60, help="at most, over all runs, half of them on two processes")
    flags.add_argument("--seed", type=int, default=random.randrange(10**6), help="of the moments; printed")
    flags.add_argument("--part", choices=["kills"], help="the kills alone")
    flags.add_argument("--tests", nargs="+", default=TESTS, help="files of the second part")
    flags = flags.parse_args()
    if flags.part:
        return kill(flags.kills, 45 * flags.minutes, flags.seed)
    began = time.monotonic()
    total = 60 * flags.minutes - 60
    kills = ["--part=kills", f"--kills={flags.kills}", f"--seed={flags.seed}", f"--minutes={SHARE * flags.minutes}"]
    outcomes = {"kills": within(SHARE * total, [sys.executable, __file__, *kills])}
    paths = [str(pathlib.Path(__file__).parents[1] / name) for name in flags.tests]
    left = total - (time.monotonic() - began)
    outcomes[f"tests of {', '.join(flags.tests)}"] = within(left, [sys.executable, "-m", "pytest", *paths])
    print(f"soak, {(time.monotonic() - began) / 60:.0f} minutes:")
    for name, outcome in outcomes.items():
        print(f"  {name}: {outcome}")
    return int(any(not outcome.startswith("passed") for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
