"""Compares training on one GPU by PyTorch's transformers and by jmoe, on the same card in the same run:

    python -m benchmarks.peers_gpu --model=1|8,2|64,8 [--capacity_factor=1] [--n_tokens=65536] [--toy] [--json=PATH]

The models are those of benchmarks.train_step: dense (transformers' Llama), 2 of 8 experts (Mixtral), 8 of 64
(Qwen3-MoE), with equal sizes, tokens, batch and precision: products in bfloat16, weights and AdamW in float32. Each
side is a process of its own that keeps its model on the card. The sides take turns of TURN steps. Transformers' side
(benchmarks/peers_gpu_torch.py) compiles the model, has fused AdamW, PyTorch's fused attention or FlashAttention, and
grouped products of experts in bfloat16. It computes the largest part of the batch at once that fits. It drops no token.
Our side drops tokens only if --capacity_factor is given.

Both train on the same text, so that both losses must fall. MFU is by one formula for both (benchmarks.train_step).
Where transformers is faster, both sides are profiled. The Python that runs this, or --torch_python, must have torch and
transformers. Without --n_tokens a batch has 65,536 tokens, or 32,768 on a card of less than 100 GB.
"""

import importlib.util
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, Self

import jax
import numpy as np
from absl import app, flags
from ml_collections import ConfigDict

from benchmarks import measure, train_step
from benchmarks.accelerator import kernels
from jmoe.config import counts
from jmoe.cost import chips
from jmoe.model import sharding
from jmoe.run.step import make_train_step

MODEL = flags.DEFINE_string("model", "1", 'Experts: "E", or "E,k" for k of E experts of a k-th of the width.')
CAPACITY_FACTOR = flags.DEFINE_float(
    "capacity_factor", None, "Capacity factor of our side. Default: no token is dropped."
)
TOY = flags.DEFINE_bool("toy", False, "A small model, to try this on a CPU.")
TORCH_PYTHON = flags.DEFINE_string("torch_python", sys.executable, "Python that has torch and transformers.")
SIDE = flags.DEFINE_string("side", None, "Folder of task.json: run as our side. For this program's own use.")
TURN = 5  # steps
N_BATCHES = 16  # that both sides cycle through
LEARNING_RATE = 3e-4
WARM_UP = 3  # turns before the first that is timed
LARGE_CARD = 100e9  # bytes; a card with more memory holds both sides' steps of 65,536 tokens
OURS = "jmoe"
THEIRS = "transformers"


def main(_: object) -> None:
    """Runs both sides in turn and prints a row for each; with --side, runs as our side."""
    if SIDE.value:
        our_side(pathlib.Path(SIDE.value))
        return
    if TORCH_PYTHON.value == sys.executable:
        for package in ("torch", "transformers"):
            if importlib.util.find_spec(package) is None:
                sys.exit(f"error: {sys.executable} has no {package}: name a Python that has it by --torch_python")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        config = our_config()
        write_task(folder, config)
        rows, profiles = compare(folder, config)
    machine = measure.machine()
    print(json.dumps(machine))
    for row in rows:
        print("  ".join(f"{name} {measure.cell(value)}" for name, value in row.items()))
    if measure.JSON.value:
        result = {"machine": machine, "rows": rows, "profiles": profiles, "notes": __doc__.split("\n\n")[2]}
        pathlib.Path(measure.JSON.value).write_text(json.dumps(result, indent=1))


def our_config() -> ConfigDict:
    """Our config of the model."""
    base, _ = train_step.toy_config() if TOY.value else train_step.gpu_config()
    _, config = train_step.with_experts(base, MODEL.value)
    model = config.model
    model.norm = "rms"
    model.final_norm = True
    if model.n_experts > 1:
        model.capacity_factor = CAPACITY_FACTOR.value
    if not TOY.value:
        n_tokens = train_step.N_TOKENS.value
        if not n_tokens:
            n_tokens = 65_536 if _card_bytes() > LARGE_CARD else 32_768
        config.batch_tokens = ((0, n_tokens),)
    return config


def write_task(folder: pathlib.Path, config: ConfigDict) -> None:
    """Writes the sizes of the model, task.json, and the text of both sides, batches.npy [N_BATCHES, B, T + 1]."""
    model = config.model
    fields = ("d_model", "n_blocks", "n_heads", "d_ff", "vocab_size", "n_experts", "top_k", "d_expert", "dtype")
    task = {name: model[name] for name in fields}
    task |= {"learning_rate": LEARNING_RATE, "turn": TURN}
    (folder / "task.json").write_text(json.dumps(task))
    seq_len = config.data.seq_len
    n_rows = config.batch_tokens[0][1] // seq_len
    text = b"".join(path.read_bytes() for path in sorted(pathlib.Path(os.__file__).parent.rglob("*.py")))
    tokens = np.resize(np.frombuffer(text, np.uint8), N_BATCHES * n_rows * (seq_len + 1))
    np.save(folder / "batches.npy", tokens.astype(np.int32).reshape(N_BATCHES, n_rows, seq_len + 1))


def _card_bytes() -> float:
    """Memory of the GPU; 0 without one. nvidia-smi tells it, so that this process takes none of the memory."""
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return 0.0
    return 2**20 * float(answer.stdout.split("\n")[0])


class Side:
    """A process that trains one side's model on command.

    Attributes:
      name: OURS or THEIRS.
      ready: the answer that it gave once its model was compiled: device, tokens at once, software.
    """

    def __init__(self, name: str, command: list[str], share: float) -> None:
        self.name = name
        # as for the parts of make gpu, except that each side takes a share of the card's memory
        environment = os.environ | {"XLA_PYTHON_CLIENT_MEM_FRACTION": str(share), "PEER_MEMORY_SHARE": str(share)}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.ready: dict = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def wait_until_ready(self) -> None:
        """Waits until its model is compiled."""
        self.ready = self._answer()

    def ask(self, command: str) -> Any:
        """Sends "turn", "profile" or "memory"; returns the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        """The next answer of the process; its other lines are printed."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("@"):
                return json.loads(line[1:])
            print(f"{self.name}: {line}", end="", flush=True)
        sys.exit(f"error: {self.name}'s side ended with {self._process.wait()}")


def compare(folder: pathlib.Path, config: ConfigDict) -> tuple[list[dict], dict[str, Any]]:
    """Times both sides in turn.

    Args:
      folder: of task.json.
      config: of our model.

    Returns:
      (a row for each side; {side: its profile}, empty unless transformers is faster on a GPU).
    """
    ours = [sys.executable, "-m", "benchmarks.peers_gpu", f"--side={folder}", *sys.argv[1:]]
    theirs = [TORCH_PYTHON.value, str(pathlib.Path(__file__).with_name("peers_gpu_torch.py")), str(folder)]
    rounds = 1 if TOY.value else measure.ROUNDS.value
    with Side(OURS, ours, 0.5) as jmoe_side, Side(THEIRS, theirs, 0.45) as torch_side:
        sides = (jmoe_side, torch_side)
        for side in sides:
            side.wait_until_ready()
        turns = {side.name: [side.ask("turn") for _ in range(WARM_UP)] for side in sides}
        for _ in range(rounds):
            for side in sides:
                turns[side.name].append(side.ask("turn"))
        seconds = seconds_of(turns)
        profiles = {}
        is_slower = measure.ratio(seconds, OURS, THEIRS) > 1
        if is_slower and jmoe_side.ready["platform"] == "gpu":
            profiles = {side.name: side.ask("profile") for side in sides}
        memory = {side.name: side.ask("memory") for side in sides}
    chip = chips.CHIPS.get(chips.name_of(jmoe_side.ready["device"]))
    rows = [row_of(side, turns, memory[side.name], config, chip) for side in sides]
    return rows, profiles


def seconds_of(turns: dict[str, list[dict]]) -> dict[str, list[float]]:
    """{side: seconds of each of its turns after the warm-up}."""
    return {name: [turn["seconds"] for turn in of_side[WARM_UP:]] for name, of_side in turns.items()}


def row_of(
    side: Side, turns: dict[str, list[dict]], memory: float | None, config: ConfigDict, chip: chips.Chip | None
) -> dict[str, Any]:
    """A side's row of the table.

    Args:
      side: the side.
      turns: {side: its answers to "turn"}.
      memory: the most bytes that the side had in use; None if not known.
      config: of our model.
      chip: the card; None if its peak is not known.
    """
    n_tokens = config.batch_tokens[0][1]
    flops = sum(counts.matmul_flops_per_token(config.model, config.data.seq_len).values()) * n_tokens
    seconds = seconds_of(turns)
    median = statistics.median(seconds[side.name]) / TURN
    losses = [turn["loss"] for turn in turns[side.name]]
    return {
        "side": side.name,
        "model": MODEL.value,
        "capacity_factor": config.model.capacity_factor if side.name == OURS else None,
        "batch": n_tokens,
        "ms": median * 1e3,
        "tokens/s": n_tokens / median,
        "MFU": flops / median / chip.flops if chip else None,
        "x transformers": 1 / measure.ratio(seconds, side.name, THEIRS),
        "memory GB": memory / 1e9 if memory else None,
        "first loss": losses[0],
        "last loss": losses[-1],
        "at once": side.ready["tokens_at_once"],
        "software": side.ready["software"],
    }


def our_side(folder: pathlib.Path) -> None:
    """Compiles our step, then answers "turn", "profile" and "memory" on standard input, until it ends."""
    config = our_config()
    device = jax.devices()[0]
    mesh = sharding.make_mesh(config, [device])
    with jax.set_mesh(mesh):
        state = train_step.start(config)
        placement = jax.NamedSharding(mesh, sharding.TOKENS)
        batches = itertools.cycle([jax.device_put(batch, placement) for batch in np.load(folder / "batches.npy")])
        rate = np.float32(LEARNING_RATE)
        compiled = make_train_step(config, mesh).lower(*state, next(batches), rate).compile()

        def turn() -> dict:
            """Trains TURN steps: {seconds, loss of the last}."""
            begin = time.perf_counter()
            for _ in range(TURN):
                *state[:], metrics = compiled(*state, next(batches), rate)
            loss = float(metrics["loss"])
            return {"seconds": time.perf_counter() - begin, "loss": loss}

        software = f"jax {jax.__version__}, attention {config.model.attention}, remat {config.remat}"
        _say(
            {
                "platform": device.platform,
                "device": device.device_kind,
                "tokens_at_once": config.batch_tokens[0][1],
                "software": software,
            }
        )
        for line in sys.stdin:
            if line.strip() == "turn":
                _say(turn())
            elif line.strip() == "memory":
                _say((device.memory_stats() or {}).get("peak_bytes_in_use"))
            elif line.strip() == "profile":
                with jax.profiler.trace(str(folder / "trace")):
                    turn()
                _say(kernels.reduced(folder / "trace", compiled.as_text(), TURN))


def _say(value: object) -> None:
    """Answers on standard output, where other packages may print lines of their own."""
    print(f"@{json.dumps(value)}", flush=True)


if __name__ == "__main__":
    app.run(main)
