"""A trace of jax's profiler reduced to a table: time by kind of kernel, the longest, and gaps between kernels.

Seconds and milliseconds are of one device and one step. A kernel's kind follows from the compiled program where the
trace names its instruction, else from the kernel's own name.
"""

import collections
import functools
import pathlib
import re

import jax

from jmoe.cost.program import Program

SCOPE = re.compile(r"\battention\b")  # jmoe/model/transformer.py names it so
ATTENTION = re.compile(r"fmha|sdpa|flash", re.IGNORECASE)  # kernels of cuDNN and Pallas
MATMUL = re.compile(r"gemm|xmma|nvjet|cutlass|cublas|matmul|\bdot\b|dot_general", re.IGNORECASE)
LONGEST = 10


def reduced(folder, program_text: str, n_steps: int) -> dict:
    """The table of the newest trace under `folder` as a dictionary: `kinds`, `longest`, `gaps`, and the sums.

    Raises:
      ValueError: the trace holds no kernel.
    """
    path = max(pathlib.Path(folder).glob("plugins/profile/*/*.xplane.pb"), key=lambda p: p.stat().st_mtime)
    lines = kernels(jax.profiler.ProfileData.from_file(str(path)))
    if not any(lines):
        raise ValueError(f"{path} holds no kernel of a device")
    return table(lines, kinds_of(program_text), n_steps)


def kernels(profile) -> list[list[tuple]]:
    """(start, end, name, instruction) in nanoseconds of each kernel of one device, a list for each of its queues."""
    planes = sorted((p for p in profile.planes if re.match(r"/device:(GPU|TPU):", p.name)), key=lambda p: p.name)
    if planes:
        wanted = re.compile(r"Stream|XLA Ops$")  # of a GPU, of a TPU; the other lines sum up these
        lines = [line for line in planes[0].lines if wanted.match(line.name)]
    else:
        lines = [line for plane in profile.planes if plane.name == "/host:CPU" for line in plane.lines]
    found = []
    for line in lines:
        events = []
        for event in line.events:
            instruction = next((str(value) for name, value in event.stats if name == "hlo_op"), "")
            if planes or instruction:
                events.append((event.start_ns, event.start_ns + event.duration_ns, event.name, instruction))
        found.append(sorted(events, key=lambda e: (e[0], -e[1])))
    return found


def kinds_of(program_text: str):
    """kind(kernel's name, instruction's name) -> "matmul", "attention" or "else", by a compiled program's text."""
    computations = Program(program_text).computations
    instructions = {name: one for inside in computations.values() for name, one in inside.items()}

    @functools.cache
    def of_instruction(name):
        one = instructions[name]
        custom = one.opcode == "custom-call"
        if one.opcode == "fusion":  # of the same kind as the products in it
            inside = [other for callee in one.called() for other in computations[callee].values()]
            kinds = {of_instruction(i.name) for i in inside if i.opcode in ("dot", "convolution", "fusion")}
            if found := [kind for kind in ("attention", "matmul") if kind in kinds]:
                return found[0]
        if SCOPE.search(one.source) or (custom and ATTENTION.search(one.attributes)):
            return "attention"
        product = one.opcode in ("dot", "convolution") or (custom and MATMUL.search(one.attributes))
        return "matmul" if product else "else"

    def kind(name, instruction):
        instruction = instruction or name.removeprefix("%").split(" ")[0]
        if instruction in instructions:
            return of_instruction(instruction)
        return "attention" if ATTENTION.search(name) else "matmul" if MATMUL.search(name) else "else"

    return kind


def own_times(events: list[tuple]) -> list[int]:
    """Nanoseconds of each event of a queue without those that lie within it, such as the body of a loop."""
    own, open_ = [end - start for start, end, *_ in events], []
    for i, (start, end, *_) in enumerate(events):
        while open_ and events[open_[-1]][1] <= start:
            open_.pop()
        if open_:
            own[open_[-1]] -= min(end, events[open_[-1]][1]) - start
        open_.append(i)
    return own


def table(lines: list[list[tuple]], kind, n_steps: int) -> dict:
    """The dictionary that `reduced` returns, of kernels in queues."""
    by_kind, by_name, where = collections.Counter(), collections.defaultdict(lambda: [0, 0]), {}
    for events in lines:
        for (_, _, name, instruction), own in zip(events, own_times(events)):
            key = kind(name, instruction), name
            by_kind[key[0]] += own
            by_name[key][0] += own
            by_name[key][1] += 1
            where.setdefault(key, instruction)
    everything = sorted((event for events in lines for event in events), key=lambda e: e[0])
    gaps, end, before = [], everything[0][1], everything[0]
    for event in everything:
        if event[0] > end:
            gaps.append((event[0] - end, before[2], event[2]))
        if event[1] > end:
            end, before = event[1], event
    ms = lambda nanoseconds: nanoseconds / 1e6 / n_steps
    span, total = end - everything[0][0], sum(by_kind.values())
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
            {"kernel": name[:120], "kind": k, "of": where[k, name], "times": n / n_steps, "ms": ms(own)}
            for (k, name), (own, n) in longest
        ],
        "gaps": [{"us": gap / 1e3, "after": a[:80], "before": b[:80]} for gap, a, b in sorted(gaps)[::-1][:LONGEST]],
    }
