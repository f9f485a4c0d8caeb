"""A trace of jax's profiler reduced to a table: time by kind of kernel, the longest, and gaps between kernels.

Seconds and milliseconds are of one device and one step. A kernel's kind follows from the compiled program if the trace
names its instruction, else from the kernel's name.
"""

import collections
import functools
import os
import pathlib
import re
from collections.abc import Callable

import jax

from jmoe.cost.program import Program

SCOPE = re.compile(r"\battention\b")  # jmoe/model/transformer.py names it so
ATTENTION = re.compile(r"fmha|sdpa|flash", re.IGNORECASE)  # kernels of cuDNN and Pallas
MATMUL = re.compile(r"gemm|xmma|nvjet|cutlass|cublas|matmul|\bdot\b|dot_general", re.IGNORECASE)
LONGEST = 10
Event = tuple[int, int, str, str]  # start and end in nanoseconds, kernel, instruction


def reduced(folder: str | os.PathLike, program_text: str, n_steps: int) -> dict:
    """Returns the table of the newest trace under `folder`: `kinds`, `longest`, `gaps`, and the sums.

    Args:
        folder: the folder of the traces.
        program_text: the compiled program as text.
        n_steps: the number of steps in the trace.

    Raises:
        ValueError: if the trace holds no kernel.
    """
    path = max(pathlib.Path(folder).glob("plugins/profile/*/*.xplane.pb"), key=lambda p: p.stat().st_mtime)
    lines = kernels(jax.profiler.ProfileData.from_file(str(path)))
    if not any(lines):
        raise ValueError(f"{path} holds no kernel of a device")
    return table(lines, kinds_of(program_text), n_steps)


def kernels(profile: jax.profiler.ProfileData) -> list[list[Event]]:
    """Returns (start, end, name, instruction) of each kernel of one device in nanoseconds, a list for each queue."""
    planes = sorted((p for p in profile.planes if re.match(r"/device:(GPU|TPU):", p.name)), key=lambda p: p.name)
    if planes:
        wanted = re.compile(r"Stream|XLA Ops$")  # of a GPU, of a TPU; the other lines sum up these
        lines = [line for line in planes[0].lines if wanted.match(line.name)]
    else:
        lines = [line for plane in profile.planes if plane.name == "/host:CPU" for line in plane.lines]
    queues = []
    for line in lines:
        events = []
        for event in line.events:
            instruction = next((str(value) for name, value in event.stats if name == "hlo_op"), "")
            if planes or instruction:
                events.append((event.start_ns, event.start_ns + event.duration_ns, event.name, instruction))
        queues.append(sorted(events, key=lambda e: (e[0], -e[1])))
    return queues


def kinds_of(program_text: str) -> Callable[[str, str], str]:
    """Returns a function from the names of a kernel and its instruction to "matmul", "attention" or "else"."""
    computations = Program(program_text).computations
    instructions = {name: instruction for inside in computations.values() for name, instruction in inside.items()}

    @functools.cache
    def kind_of_instruction(name: str) -> str:
        instruction = instructions[name]
        is_custom = instruction.opcode == "custom-call"
        if instruction.opcode == "fusion":  # of the same kind as the products in it
            inside = [other for callee in instruction.called() for other in computations[callee].values()]
            kinds = {kind_of_instruction(i.name) for i in inside if i.opcode in ("dot", "convolution", "fusion")}
            for kind in ("attention", "matmul"):
                if kind in kinds:
                    return kind
        if SCOPE.search(instruction.source) or (is_custom and ATTENTION.search(instruction.attributes)):
            return "attention"
        if instruction.opcode in ("dot", "convolution") or (is_custom and MATMUL.search(instruction.attributes)):
            return "matmul"
        return "else"

    def kind_of(name: str, instruction: str) -> str:
        instruction = instruction or name.removeprefix("%").split(" ")[0]
        if instruction in instructions:
            return kind_of_instruction(instruction)
        if ATTENTION.search(name):
            return "attention"
        return "matmul" if MATMUL.search(name) else "else"

    return kind_of


def self_times(events: list[Event]) -> list[int]:
    """Returns the nanoseconds of each event of a queue without those of events within it, such as a loop's body."""
    times = [end - start for start, end, *_ in events]
    open_ = []  # indices of the events around the current one
    for i, (start, end, *_) in enumerate(events):
        while open_ and events[open_[-1]][1] <= start:
            open_.pop()
        if open_:
            times[open_[-1]] -= min(end, events[open_[-1]][1]) - start
        open_.append(i)
    return times


def table(queues: list[list[Event]], kind_of: Callable[[str, str], str], n_steps: int) -> dict:
    """Returns what `reduced` returns, from the kernels in each queue."""
    by_kind = collections.Counter()  # nanoseconds
    by_name = collections.defaultdict(lambda: [0, 0])  # (kind, name): nanoseconds, number of kernels
    instruction_of = {}
    for events in queues:
        for (_, _, name, instruction), time in zip(events, self_times(events), strict=True):
            kind = kind_of(name, instruction)
            by_kind[kind] += time
            by_name[kind, name][0] += time
            by_name[kind, name][1] += 1
            instruction_of.setdefault((kind, name), instruction)
    everything = sorted((event for events in queues for event in events), key=lambda e: e[0])
    gaps, end = gaps_between(everything)

    def ms(nanoseconds: float) -> float:
        return nanoseconds / 1e6 / n_steps

    span = end - everything[0][0]
    total = sum(by_kind.values())
    longest = sorted(by_name.items(), key=lambda item: -item[1][0])[:LONGEST]
    return {
        "span ms": ms(span),
        "idle ms": ms(sum(gap for gap, *_ in gaps)),
        "idle share": sum(gap for gap, *_ in gaps) / span,
        "kernels": len(everything) / n_steps,
        "kinds": [
            {"kind": k, "ms": ms(by_kind[k]), "share": by_kind[k] / total} for k in ("matmul", "attention", "else")
        ],
        "longest": [
            {"kernel": name[:120], "kind": k, "of": instruction_of[k, name], "times": n / n_steps, "ms": ms(time)}
            for (k, name), (time, n) in longest
        ],
        "gaps": [{"us": gap / 1e3, "after": a[:80], "before": b[:80]} for gap, a, b in sorted(gaps)[::-1][:LONGEST]],
    }


def gaps_between(events: list[Event]) -> tuple[list[tuple[int, str, str]], int]:
    """Returns the gaps between events, as (nanoseconds, kernel before, kernel after), and the end of the last event."""
    gaps = []
    last = events[0]  # the event that ends last so far
    for event in events:
        if event[0] > last[1]:
            gaps.append((event[0] - last[1], last[2], event[2]))
        if event[1] > last[1]:
            last = event
    return gaps, last[1]
