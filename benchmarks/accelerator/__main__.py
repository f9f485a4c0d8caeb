"""Run all measurements on an accelerator, by one command that may be stopped and given again:

    make gpu [OUT=DIR] [MINUTES=9] [CPU=1]   python -m benchmarks.accelerator --kind=cuda|tpu|cpu --out=DIR

Each part runs in a process of its own with a time limit, so that a failure costs one part. The command skips the parts
that DIR or results/accelerators/NAME.json has at this version of the code, and tries failed ones again. After each part
it writes DIR's results.json, table.md and log.txt, all small; traces, caches and runs go to another folder. On a GPU or
TPU results/accelerators/NAME.json and the table in benchmarks/README.md are written too.
`python -m benchmarks.accelerator.table DIR` does only that, on any machine.

The most valuable parts come first: what was never measured to its end, transformers on the same card, then the main
steps, products, profiles, and other batches and remat.
`--kind=cpu` runs every kind of part at toy size, as a test; its times mean nothing.

Exit codes: 0 every part is done, 1 a part failed, 3 parts are left (--minutes are over: give the command again).
"""

import argparse
import contextlib
import dataclasses
import functools
import hashlib
import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import jmoe
from benchmarks.accelerator import table
from jmoe import version

ROOT = pathlib.Path(__file__).parents[2]
PLATFORMS = {"cuda": "cuda,cpu", "tpu": "tpu,cpu", "cpu": "cpu"}
PLATFORM = {"cuda": "gpu", "tpu": "tpu", "cpu": "cpu"}  # as jax's devices name it
XLA_FLAGS = {"cpu": "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"}  # quick to compile
LEAST_SECONDS = 15  # with less time left no part starts
LAST_SAVE = 20  # seconds that a part which continues has to write what it did
STUDY_TEXT = "runs/bytes_2026/text.parquet"  # python -m results.text


@dataclasses.dataclass(frozen=True)
class Part:
    """A measurement.

    Attributes:
        name: its name in results.json.
        command: a module and its flags.
        limit: seconds until it is stopped.
        after: (another part, whether its model must fit into memory); the part runs only if that is so.
        needs: packages without which it is left out.
        needs_file: a file without which it is left out.
        continues: whether it stops by itself within --seconds, and resumes from its result at the next call.
    """

    name: str
    command: tuple[str, ...]
    limit: int
    after: tuple[str, bool] | None = None
    needs: tuple[str, ...] = ()
    needs_file: str | None = None
    continues: bool = False

    @property
    def code(self) -> str:
        """The version of the code that it measures: of the trainer and of the benchmark."""
        files = ROOT.glob(f"{self.command[0].replace('.', '/')}*.py")  # peers_gpu.py and peers_gpu_torch.py are one
        source = b"".join(path.read_bytes() for path in sorted(files))
        return f"{_code_of_trainer()}-{hashlib.sha256(source).hexdigest()[:8]}"


@functools.cache
def _code_of_trainer() -> str:
    return version.code_version()


def parts(toy: bool) -> list[Part]:
    """Returns all parts, in the order in which they run."""
    size = ("--size=toy", "--rounds=1") if toy else ("--size=gpu", "--rounds=7")

    def part_of(
        name: str, limit: int, *more: str, title: str | None = None, after: tuple[str, bool] | None = None
    ) -> Part:
        command = ("benchmarks.accelerator.parts", f"--part={name}", *(["--toy"] if toy else []), *more)
        return Part(title or name, command, limit, after)

    def step(model: str, what: str = "", *more: str, after: tuple[str, bool] | None = None) -> Part:
        command = ("benchmarks.train_step", *size, "--noloop", f"--models={model}", *more)
        return Part(f"step {model}{what}", command, 150, after)

    main = [step(model) for model in ("8,2", "64,8", "1", "8", "32")]
    dropless = [step("8,2", " dropless", "--dropless")]
    if not toy:
        dropless.append(step("64,8", " dropless", "--dropless"))
    profiles = []
    for model in ("1", "8", "8,2"):
        after = (f"step {model}", True)
        profiles.append(part_of("profile", 150, f"--model={model}", title=f"profile {model}", after=after))
    after = ("step 8,2 dropless", True)
    flags_ = ("--model=8,2", "--dropless")
    profiles.append(part_of("profile", 150, *flags_, title="profile 8,2 dropless", after=after))
    rounds = f"--rounds={1 if toy else 7}"
    sizes = (256, 16, 24, "16,4,6") if toy else (8_192, 1_280, 3_840, "64,8,480")
    names = ("n_tokens", "d_model", "d_ff", "fine")
    flags_ = [f"--{name}={value}" for name, value in zip(names, sizes, strict=True)]
    fine = (f"--dropless=8,2,{sizes[2] // 2}", f"--dropless={sizes[3]}")
    layer = Part("layer", ("benchmarks.moe_layer", *flags_, rounds, "--n_experts=8", "--n_experts=32", *fine), 180)
    checks = {
        name: part_of(name, limit, title=f"check {name}")
        for name, limit in (("layer", 240), ("float32", 300), ("flash", 120), ("run", 240))
    }
    peers = [_peer(model, toy) for model in ("1", "8,2", "64,8")]
    other_peers = [_peer(model, toy, "--capacity_factor=1") for model in ("8,2", "64,8")]
    if not toy:
        other_peers += [_peer(model, toy, "--n_tokens=131072") for model in ("1", "8,2")]
    products = [dataclasses.replace(part_of(name, 150), needs=("tokamax",)) for name in ("grouped", "tiles")]
    never_ended = [dropless[0], checks["float32"], checks["run"]]
    first = [part_of("peak", 90), *never_ended, *peers, *_study(toy)]
    then = [*main, *dropless[1:], *products, checks["flash"], checks["layer"], layer, *profiles, *other_peers]
    return first + then + _variants(step, toy) + [Part("loop", ("benchmarks.train_step", *size, "--models=1"), 180)]


def _peer(model: str, toy: bool, *more: str) -> Part:
    """Returns the part that times transformers beside our step of a model."""
    command = ("benchmarks.peers_gpu", f"--model={model}", f"--rounds={1 if toy else 5}", *(["--toy"] if toy else []))
    title = " ".join(["peers", model, *(flag.removeprefix("--").replace("=", " ") for flag in more)])
    return Part(title, (*command, *more), 300 if toy else 150, needs=("torch", "transformers"))


def _study(toy: bool) -> list[Part]:
    """Returns the part that trains the runs of results/third; before a toy one, its steps are made."""
    if not toy:
        return [Part("study", ("benchmarks.accelerator.study",), 520, needs_file=STUDY_TEXT, continues=True)]
    folder = "runs/executables-toy"
    executables = Part("executables", ("benchmarks.accelerator.study_executables", "--toy", f"--out={folder}"), 240)
    command = ("benchmarks.accelerator.study", "--toy", f"--executables={folder}")
    return [executables, Part("study", command, 240, continues=True)]


def _variants(step: Callable[..., Part], toy: bool) -> list[Part]:
    """Returns the main steps scanned, with other config.remat, and with larger batches while they fit, else smaller."""
    small, main, large = ([512], 1_024, [2_048]) if toy else ([32_768, 16_384], 65_536, [131_072, 262_144, 524_288])
    variants = []
    for model in ("1", "8") if not toy else ("1",):
        variants.append(step(model, " scanned", "--nounroll", after=(f"step {model}", True)))
        variants += [
            step(model, f" remat {remat}", f"--remat={remat}") for remat in ("none", "full")[: 1 if toy else 2]
        ]
    for model in ("1", "8", "32", "64,8") if not toy else ("1",):
        before = main
        for n in large:
            name = f"step {model}" if before == main else f"step {model} batch {before}"
            variants.append(step(model, f" batch {n}", f"--n_tokens={n}", after=(name, True)))
            before = n
        before = main
        for n in small:
            name = f"step {model}" if before == main else f"step {model} batch {before}"
            variants.append(step(model, f" batch {n}", f"--n_tokens={n}", after=(name, False)))
            before = n
    return variants


def _is_one_of(name: str, chosen: list[str]) -> bool:
    """Whether a part has one of the chosen names, or begins with its words: "step 8" does not choose "step 8,2"."""
    return any(f"{name} ".startswith(f"{words} ") for words in chosen)


def main() -> int:
    """Runs the parts; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--kind", choices=list(PLATFORMS), required=True, help="Kind of device to measure; cpu runs toy sizes."
    )
    parser.add_argument("--out", required=True, help="Folder of the results.")
    parser.add_argument("--traces", help="Folder of traces, caches and runs. Default: --out with -traces added.")
    parser.add_argument("--minutes", type=float, default=9, help="Minutes after which nothing runs.")
    parser.add_argument(
        "--measured",
        default=str(table.FOLDER),
        help="Folder of NAME.json with what was measured before, to be skipped.",
    )
    parser.add_argument(
        "--only", action="append", default=[], help="Words with which the names of the parts to run begin."
    )
    args = parser.parse_args()
    kind = args.kind
    out = pathlib.Path(args.out)
    traces = pathlib.Path(args.traces or f"{args.out.rstrip('/')}-traces").absolute()
    for folder in (out, traces):
        folder.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + 60 * args.minutes
    path = out / "results.json"
    state = json.loads(path.read_text()) if path.exists() else {"jmoe_version": jmoe.__version__, "parts": {}}

    # a running part leads a process group, which would outlive this process
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    machine = run(Part("machine", ("benchmarks.accelerator.parts", "--part=machine"), 120), traces, out, kind, 120)
    seen = machine.get("result", {}).get("platform")  # jax falls back to the CPU where it has no plugin
    if seen != PLATFORM[kind]:
        reason = machine.get("error") or f"jax sees only a {seen}"
        print(f"error: no {kind} device can be used: {reason}", file=sys.stderr)
        return 1
    if state.get("machine", machine["result"])["kind"] != machine["result"]["kind"]:
        kinds = f"{state['machine']['kind']}, and this is {machine['result']['kind']}"
        print(f"error: --out={out} holds results of {kinds}: give another", file=sys.stderr)
        return 1
    state["machine"] = machine["result"]
    _add_measured(state, pathlib.Path(args.measured))
    published = "" if state["machine"]["published"] else "; its peaks are not listed in jmoe/cost/chips.py"
    print(f"{state['machine']['kind']}, jax {state['machine']['jax_version']}{published}", flush=True)

    todo = [part for part in parts(kind == "cpu") if not args.only or _is_one_of(part.name, args.only)]
    for part in todo:
        if _lacks(part):
            print(f"left out: {part.name}, as {_lacks(part)}", flush=True)
    todo = [part for part in todo if not _lacks(part)]
    not_begun = []
    for part in todo:
        if _done(state, part) or not _wanted(state, part):
            continue
        seconds_left = deadline - time.monotonic()
        known = state["parts"].get(part.name, {}).get("result")
        entry = run(part, traces, out, kind, seconds_left, known) if seconds_left > LEAST_SECONDS else None
        if entry is None:
            not_begun.append(part.name)
            continue
        if "error" in entry:  # what was measured before stays
            entry = state["parts"].get(part.name, {}) | entry
        else:
            entry |= {"code": part.code, "date": state["machine"]["date"]}
        state["parts"][part.name] = entry
        _write(path, json.dumps(state, indent=1) + "\n")
        _write(out / "table.md", table.section(state))
        is_whole = _is_complete(entry)
        if "error" not in entry and not is_whole:
            not_begun.append(part.name)
        outcome = entry.get("error", "done" if is_whole else "goes on with the next call")
        print(f"{part.name}: {outcome} ({entry['seconds']:.0f} s)", flush=True)
    return _finish(state, out, kind, todo, not_begun)


def run(
    part: Part, traces: pathlib.Path, out: pathlib.Path, kind: str, seconds: float, known: object = None
) -> dict | None:
    """Runs one part in a process.

    Args:
        part: the part.
        traces: folder of traces, caches and runs.
        out: folder of the results.
        kind: the kind of device.
        seconds: seconds that are left for all parts.
        known: the result so far of a part that continues.

    Returns:
        `result` or `error` or both, and `seconds`; None if the part was stopped before its limit because the seconds
        for all parts were over.
    """
    answer = traces / "answer.json"
    log = traces / "log.txt"
    answer.unlink(missing_ok=True)
    flags_ = [f"--json={answer}"]
    if part.command[0] == "benchmarks.accelerator.parts":
        flags_.append(f"--folder={traces}")
    begin = time.monotonic()
    limit = min(part.limit, seconds)
    if part.continues:
        flags_ += [f"--folder={traces / part.name}", f"--seconds={max(limit - LAST_SAVE, 0)}"]
        if known:
            answer.write_text(json.dumps(known))
    entry = {}
    with open(log, "w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", *part.command, *flags_],
            env=_environment(part, traces, kind),
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            entry["error"] = f"stopped after {limit:.0f} s"
        finally:
            with contextlib.suppress(ProcessLookupError):  # its children may be alive even if it is not
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    text = log.read_text(errors="replace")
    with open(out / "log.txt", "a") as file:
        file.write(f"\n== {part.name}: {' '.join(part.command)}\n{text[-20_000:]}")
    if "error" in entry and limit < part.limit and not part.continues:
        return None
    if process.returncode and "error" not in entry:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        entry["error"] = (lines[-1] if lines else f"ended with {process.returncode}")[:300]
    with contextlib.suppress(OSError, ValueError):
        entry["result"] = json.loads(answer.read_text())
    if not entry:
        entry["error"] = "wrote no result"
    return entry | {"seconds": round(time.monotonic() - begin, 1)}


def _environment(part: Part, traces: pathlib.Path, kind: str) -> dict:
    """Returns the environment of a part; a profile has no command buffers, which hide the kernels' instructions."""
    xla_flags = [os.environ.get("XLA_FLAGS", ""), XLA_FLAGS.get(kind, "")]
    if kind == "cuda" and part.name.startswith("profile"):
        xla_flags.append("--xla_gpu_enable_command_buffer=")
    return os.environ | {
        "JAX_PLATFORMS": PLATFORMS[kind],
        "XLA_FLAGS": " ".join(filter(None, xla_flags)),
        "JAX_COMPILATION_CACHE_DIR": str(traces / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JMOE_CACHE": str(traces / "cache"),
        "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.92",  # share of a GPU's memory; jax would take three quarters
        "PYTHONUNBUFFERED": "1",
    }


def _lacks(part: Part) -> str:
    """Returns what a part needs and does not have here, in words; "" if that is nothing."""
    packages = [name for name in part.needs if importlib.util.find_spec(name) is None]
    if packages:
        return f"{sys.executable} has no {' and no '.join(packages)}"
    if part.needs_file and not (ROOT / part.needs_file).exists():
        return f"there is no {part.needs_file}"
    return ""


def _add_measured(state: dict, folder: pathlib.Path) -> None:
    """Adds to the state what was measured before on such a machine, where it does not have it itself."""
    path = folder / f"{state['machine']['name']}.json"
    if not path.exists():
        return
    measured = json.loads(path.read_text())
    for name, entry in measured["parts"].items():
        if "error" not in entry:
            dated = {"date": measured["machine"]["date"]} | entry
            state["parts"].setdefault(name, dated)


def _done(state: dict, part: Part) -> bool:
    """Whether a part has a whole result of this version of the code."""
    entry = state["parts"].get(part.name, {"error": "not begun"})
    return "error" not in entry and entry.get("code") == part.code and _is_complete(entry)


def _is_complete(entry: dict) -> bool:
    """Whether nothing is left to do of a part that continues; of others always."""
    result = entry.get("result")
    return not isinstance(result, dict) or result.get("complete", True)


def _wanted(state: dict, part: Part) -> bool:
    """Whether the model of the part named in part.after fits into memory, or does not, as `part` requires."""
    if part.after is None:
        return True
    name, fits = part.after
    result = state["parts"].get(name, {}).get("result")
    return result is not None and (result["rows"][0]["ms"] is not None) == fits


def _finish(state: dict, out: pathlib.Path, kind: str, todo: list[Part], not_begun: list[str]) -> int:
    """Writes the tables, prints what failed and what is left; returns the exit code."""
    _write(out / "table.md", table.section(state))
    if kind != "cpu" and "result" in state["parts"].get("peak", {}):
        table.publish(state)
    print(f"results in {out / 'results.json'}, {out / 'table.md'}")
    failed = [p.name for p in todo if "error" in state["parts"].get(p.name, {})]
    if not_begun:
        print(f"parts left: {', '.join(not_begun)}; the same command continues with them")
    for name in failed:
        print(f"error: part {name}: {state['parts'][name]['error']} ({out / 'log.txt'})", file=sys.stderr)
    return 1 if failed else 3 if not_begun else 0


def _write(path: pathlib.Path, text: str) -> None:
    """Writes all of the text or nothing."""
    scratch = path.with_suffix(".new")
    scratch.write_text(text)
    scratch.replace(path)


if __name__ == "__main__":
    sys.exit(main())
