"""configs/quickstart.py trained three times: undisturbed, killed and resumed, and on the CPU."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

STEPS = 240
CHECKPOINT_EVERY = 20  # steps
BATCH = 1_024  # tokens
PATIENCE = 200  # seconds for a first checkpoint


def losses(folder: pathlib.Path, toy: bool = False) -> tuple[float, float, float]:
    """Returns the final validation losses in nats per token: undisturbed, killed and resumed, on the CPU.

    Args:
        folder: the folder of the runs' workdirs.
        toy: whether to train fewer steps of a smaller model.

    Raises:
        RuntimeError: if a run fails, or ends before it could be killed.
    """
    shutil.rmtree(folder, ignore_errors=True)
    text = folder / "text"
    text.mkdir(parents=True)
    for source in sorted(pathlib.Path(os.__file__).parent.glob("*.py")):
        (text / f"{source.stem}.txt").write_bytes(source.read_bytes())
    cpu = {"JAX_PLATFORMS": "cpu"}
    whole = _finished(folder / "whole", text, toy)
    _killed(folder / "killed", text, toy)
    return whole, _finished(folder / "killed", text, toy), _finished(folder / "cpu", text, toy, cpu)


def _command(workdir: pathlib.Path, text: pathlib.Path, toy: bool) -> list[str]:
    n_steps = STEPS // 4 if toy else STEPS
    flags = [
        f"--config.data.path={text}/*.txt",
        f"--config.n_tokens=({n_steps * BATCH},)",
        f"--config.checkpoint_every={CHECKPOINT_EVERY}",
        f"--config.optimizer.warmup_tokens={8 * BATCH}",
        "--config.data.validation_tokens=8192",
        "--config.model.n_experts=8",
    ]
    if toy:
        flags += ["--config.model.d_model=16", "--config.model.group_tokens=512"]
    return [sys.executable, "-m", "jmoe.train", "--config=configs/quickstart.py", f"--workdir={workdir}", *flags]


def _finished(workdir: pathlib.Path, text: pathlib.Path, toy: bool, environment: dict[str, str] | None = None) -> float:
    """Runs to the end; returns the final loss."""
    done = subprocess.run(_command(workdir, text, toy), env=os.environ | (environment or {}))
    if done.returncode:
        raise RuntimeError(f"jmoe.train in {workdir} ended with {done.returncode}")
    (result,) = workdir.glob("branch-*/result.json")
    return json.loads(result.read_text())["loss"]


def _killed(workdir: pathlib.Path, text: pathlib.Path, toy: bool) -> None:
    """Starts a run and kills it as soon as it has a checkpoint."""
    run = subprocess.Popen(_command(workdir, text, toy))
    try:
        deadline = time.monotonic() + PATIENCE
        while not any(p.name.isdigit() for p in workdir.glob("trunk/checkpoints/*")):
            if run.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no checkpoint to kill the run in {workdir} at: it ended with {run.poll()}")
            time.sleep(0.002)
    finally:
        run.kill()
        run.wait()
    if list(workdir.glob("branch-*/result.json")):
        raise RuntimeError(f"the run in {workdir} was over before it could be killed")
