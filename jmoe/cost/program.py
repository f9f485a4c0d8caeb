"""What a compiled program does: matmuls, memory traffic, collectives, arrays.

XLA's own cost analysis counts the body of a loop once. Program counts every instruction as often as it runs, so a scan
over layers counts each layer. All numbers are per device; arrays kept on the chip cause no main memory traffic.
"""

import dataclasses
import functools
import math
import re

from jmoe.cost import hlo
from jmoe.cost.hlo import Array, Instruction

COLLECTIVES = ("all-to-all", "ragged-all-to-all", "all-gather", "reduce-scatter", "all-reduce", "collective-permute")
# One FLOP an element, as XLA counts them.
_ELEMENTWISE = frozenset(
    "add subtract multiply divide maximum minimum negate abs compare select clamp and or xor not "
    "shift-left shift-right-logical shift-right-arithmetic power remainder reduce".split()
)
_FREE = frozenset(
    "parameter constant get-tuple-element tuple bitcast while conditional call call-start call-update after-all "
    "partition-id iota opt-barrier".split()
)
_SLICES = ("dynamic-slice", "slice", "gather")
# Kernels whose text is not HLO: Pallas's for TPUs and for GPUs, Triton's.
_KERNELS = ("tpu_custom_call", "mosaic_gpu_v2", "triton_kernel_call", "triton_kernel_call_ffi")
_DECLARED = '"cost_estimate":{"flops":"'


@dataclasses.dataclass(frozen=True)
class Collective:
    kind: str
    source: str
    times: int  # in one run of the program
    group: int  # devices that take part; slices, of a transfer between slices
    bytes: int  # that leave one device each time, by the usual ring algorithm


class Program:
    """The computations of one compiled program, from its text, and how often each instruction runs."""

    def __init__(self, text: str):
        self.computations, self.entry = hlo.parse(text)

    @functools.cached_property
    def runs(self) -> list[tuple[Instruction, int, bool]]:
        """(instruction, times it runs, whether it is part of a fusion), callees after their callers."""
        runs = []

        def walk(name, times, fused):
            for instruction in self.computations[name].values():
                runs.append((instruction, times, fused))
                opcode = instruction.opcode
                if opcode == "while":
                    walk(instruction.attribute("body"), times * self.trip_count(instruction), fused)
                elif opcode in ("fusion", "call", "call-start", "conditional", "async-start"):
                    for callee in instruction.called():
                        walk(callee, times, fused or opcode == "fusion")

        walk(self.entry, 1, False)
        return runs

    def trip_count(self, loop: Instruction) -> int:
        """Iterations of a loop: XLA's own note, else the only constant that its condition compares with; 1 if their
        number is known only when it runs (the trips of rows to their experts); ValueError where there are several."""
        if noted := re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.attributes):
            return int(noted[1])
        instructions = self.computations[loop.attribute("condition")].values()
        constants = {i.arguments for i in instructions if i.opcode == "constant"}
        limits = {int(constant) for constant in constants if re.fullmatch(r"\d+", constant)}
        if len(limits) > 1:
            raise ValueError(f"loop {loop.name}: its condition compares with {sorted(limits)}, not with one constant")
        return limits.pop() if limits else 1

    def matmul_flops(self, *, loops_once: bool = False, passes: bool = False, filled: float = 1.0) -> int:
        """Two FLOPs for each multiply-add of dots and convolutions (the TPU's form of a dot).

        loops_once: count each instruction once, as XLA's cost analysis does.
        passes: multiply by the number of bfloat16 products that a TPU makes of a float32 product of that precision.
        filled: the part of the rows of ragged products that belong to a group; a TPU's kernel works on no others, but
          declares them all, and a GPU's, whose FLOPs follow from its shapes, works on no others either.
        """
        total = 0
        for one, times, _ in self.runs:
            flops = self._matmul(one)
            if flops and _is_ragged(one):
                flops = int(filled * flops)
            if passes:
                flops *= _passes(one.attributes)
            total += flops if loops_once else times * flops
        return total

    def estimated_flops(self) -> int:
        """Those of matmul_flops that belong to kernels which declare none, and follow from their shapes."""
        return sum(times * self._undeclared(one) for one, times, _ in self.runs)

    def estimated_bytes(self) -> int:
        """Those of main_memory_bytes that belong to kernels which declare no FLOPs: each array is read or written once.

        A kernel of products may read an array more than once.
        """
        return sum(
            times * self._traffic(one)
            for one, times, fused in self.runs
            if not fused and _is_kernel(one) and _DECLARED not in one.attributes
        )

    def bytes_by_source(self) -> dict[str, int]:
        """main_memory_bytes by the operation of our program that they come from, else by the instruction's name."""
        totals: dict[str, int] = {}
        for one, times, fused in self.runs:
            if not fused and (moved := times * self._traffic(one)):
                source = one.source or one.name
                totals[source] = totals.get(source, 0) + moved
        return totals

    def flops_by_source(self) -> dict[str, int]:
        """matmul_flops by the operation of our program that they come from, else by the instruction's name."""
        totals: dict[str, int] = {}
        for one, times, _ in self.runs:
            if flops := times * self._matmul(one):
                source = one.source or one.name
                totals[source] = totals.get(source, 0) + flops
        return totals

    def elementwise_flops(self, *, loops_once: bool = False) -> int:
        """One FLOP for each element of an arithmetic result, and for each element that a reduction takes in."""
        total = 0
        for one, times, _ in self.runs:
            if one.opcode in _ELEMENTWISE:
                counted = one.operands[0] if one.opcode == "reduce" else one
                total += counted.arrays[0].elements * (1 if loops_once else times)
        return total

    def main_memory_bytes(self) -> int:
        """Bytes read from and written to the main memory, without arrays that stay inside a fusion."""
        return sum(times * self._traffic(instruction) for instruction, times, fused in self.runs if not fused)

    def between_slices(self, n_slices: int) -> list[Collective]:
        """Every transfer over the network between `n_slices` TPU slices. The compiler cuts a collective that spans
        slices into collectives within each slice, which `collectives` lists, and such transfers."""
        transfers = []
        for instruction, times, _ in self.runs:
            found = re.search(r'_xla_megascale_transfer_type="(\w+)"', instruction.attributes)
            if instruction.opcode == "send" and found:
                kind = found[1].lower().replace("_", "-")
                size = instruction.operands[0].arrays[0].bytes
                sent = _sent(kind, size, n_slices)
                transfers.append(Collective(kind, instruction.source, times, n_slices, sent))
        return transfers

    def collectives(self) -> list[Collective]:
        """Every collective between devices; a start and its done count once."""
        collectives = []
        for instruction, times, _ in self.runs:
            kind = instruction.opcode.removesuffix("-start")
            if kind not in COLLECTIVES:
                continue
            if kind == "all-reduce" and "reduce-scatter" in instruction.computation:  # on a TPU a slice of it follows
                kind = "reduce-scatter"
            # a ragged one's first operand is its rows; how many leave is known when it runs: here, equally many to each
            sent = instruction.operands[: 1 if kind == "ragged-all-to-all" else None]
            size = sum(source.arrays[0].bytes for source in sent)
            group = _group_size(instruction.attributes)
            if group > 1 or kind == "collective-permute":
                collectives.append(Collective(kind, instruction.source, times, group, _sent(kind, size, group)))
        return collectives

    def arrays(self) -> dict[Array, str]:
        """Each kind of array that is written to memory (none inside a fusion), and where the first of it was made."""
        sources: dict[Array, str] = {}
        for instruction, _, fused in self.runs:
            if not fused and instruction.opcode not in ("tuple", "while", "get-tuple-element"):
                for array in instruction.arrays:
                    sources.setdefault(array, instruction.source)
        return sources

    def _callee(self, fusion: Instruction) -> tuple[dict[int, Instruction], Instruction]:
        """The parameters, by number, and the root of the computation that a fusion calls."""
        (callee,) = fusion.called()
        inside = self.computations[callee].values()
        parameters = {int(i.arguments): i for i in inside if i.opcode == "parameter"}
        return parameters, next(i for i in inside if i.is_root)

    def _matmul(self, instruction: Instruction) -> int:
        opcode, attributes = instruction.opcode, instruction.attributes
        if opcode == "convolution":
            return _convolution(instruction)
        contracted = None
        if opcode == "dot":
            contracted = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", attributes)
        elif opcode == "custom-call" and "__cublas" in attributes:
            contracted = re.search(r'"lhs_contracting_dimensions":\[([^\]]*)\]', attributes)
        elif opcode == "custom-call" and (estimate := re.search(r'"cost_estimate":\{"flops":"(\d+)"', attributes)):
            return int(estimate[1])  # a Pallas kernel's own count, for its text is not HLO
        elif opcode == "custom-call" and "__cudnn$fmha" in attributes:
            return self._cudnn_attention(instruction)
        if contracted is None:
            return self._undeclared(instruction)
        dims = instruction.operands[0].arrays[0].dims
        return 2 * instruction.arrays[0].elements * math.prod(dims[int(i)] for i in re.findall(r"\d+", contracted[1]))

    def _undeclared(self, instruction: Instruction) -> int:
        """FLOPs of a kernel that declares none, by its shapes; 0 for all else.

        A kernel is one of these products, or counts nothing:
          [M, K] x [..., K, N] to [M, N], each row by one matrix;
          [K, M] or [M, K] x [M, N] to [E, K, N], the gradient of such matrices, each row in one of them;
          attention [.., T, K] over [.., U, K] and [.., U, K], two products without a mask.
        """
        if not _is_kernel(instruction) or _DECLARED in instruction.attributes:
            return 0
        arrays = [array for source in instruction.operands for array in source.arrays]
        dims = [a.dims for a in arrays if len(a.dims) > 1 and a.dtype[0] in "bf"]
        out = instruction.arrays[0].dims
        if len(dims) == 3 and dims[0] == out and dims[1] == dims[2] and out[-1] == dims[1][-1]:
            return 2 * 2 * math.prod(out) * dims[1][-2]
        if len(dims) != 2:
            return 0
        a, b = dims
        if a[-1] == b[-2] and out == (*a[:-1], b[-1]):
            return 2 * math.prod(out) * a[-1]
        if len(a) == len(b) == 2 and len(out) == 3:
            if a[1] == b[0] and out[1:] == (a[0], b[1]):  # transposed before
                return 2 * a[0] * a[1] * b[1]
            if a[0] == b[0] and out[1:] == (a[1], b[1]):
                return 2 * a[0] * a[1] * b[1]
        return 0

    def _cudnn_attention(self, instruction: Instruction) -> int:
        """FLOPs of 2 products forward or 5 backward, B H T T K multiply-adds each; half of that where it is causal."""
        scores = re.search(r'"intermediate_tensor_shape":.*?"dimensions":\s*\[([^\]]*)\]', instruction.attributes)
        elements = math.prod(int(n) for n in re.findall(r"\d+", scores[1]))
        products = 5 if "Backward" in instruction.attributes else 2
        half = 2 if re.search(r'"mask_type":\s*"CAUSAL"', instruction.attributes) else 1
        return products * 2 * elements * instruction.operands[0].arrays[0].dims[-1] // half

    def _traffic(self, instruction: Instruction) -> int:
        """Bytes of the main memory that one run of an instruction reads and writes."""
        opcode, sources = instruction.opcode, instruction.operands
        if opcode in _FREE or opcode.endswith("-done"):
            return 0
        if opcode == "send":  # its result is its operand
            return sources[0].arrays[0].main_bytes
        if opcode in ("copy-start", "slice-start"):  # one array moved between two places
            moved = [a for a in instruction.arrays if a.dims]
            return min(a.bytes for a in moved) * sum(not a.on_chip for a in moved)
        if opcode == "fusion":
            parameters, root = self._callee(instruction)
            in_memory = [n for n, source in enumerate(sources) if not any(a.on_chip for a in source.arrays)]
            read = sum(self._read(parameters[n]) for n in in_memory)
            return read + (0 if instruction.arrays[0].on_chip else self._written(root))
        written = sum(a.main_bytes for a in instruction.arrays)
        if opcode in _SLICES:
            return written + min(written, sources[0].arrays[0].main_bytes)
        if opcode == "dynamic-update-slice":
            return 2 * sources[1].arrays[0].main_bytes
        return written + sum(a.main_bytes for source in sources for a in source.arrays)

    def _read(self, value: Instruction) -> int:
        """Bytes of `value`, a parameter of a fused computation, that are read: slices where only slices are used."""
        everything, total = sum(a.bytes for a in value.arrays), 0
        for user in self.computations[value.computation].values():
            for position, operand in enumerate(user.operands):
                if operand is not value:
                    continue
                if user.opcode in _SLICES and position == 0:
                    total += user.arrays[0].bytes
                elif user.opcode == "bitcast":
                    total += self._read(user)
                elif user.opcode == "fusion":
                    total += self._read(self._callee(user)[0][position])
                elif user.opcode != "dynamic-update-slice" or position != 0:
                    return everything
        return min(everything, total)

    def _written(self, value: Instruction) -> int:
        """Bytes that the root `value` of a fused computation writes: the update where an array is updated in place."""
        if value.opcode == "dynamic-update-slice":
            return value.operands[1].arrays[0].bytes
        if value.opcode == "bitcast":
            return self._written(value.operands[0])
        if value.opcode == "tuple":
            return sum(map(self._written, value.operands))
        if value.opcode == "fusion":
            return self._written(self._callee(value)[1])
        return sum(a.bytes for a in value.arrays)


def _is_kernel(instruction: Instruction) -> bool:
    """Whether it calls a kernel of Pallas or Triton."""
    target = re.search(r'custom_call_target="([^"]*)"', instruction.attributes)
    return instruction.opcode == "custom-call" and bool(target) and target[1] in _KERNELS


def _is_ragged(instruction: Instruction) -> bool:
    """Whether it is a product of rows by groups: libtpu's kernel by its name, tokamax's by what it notes.

    Inside a loop Triton's kernels note nothing; they are known by the groups' int32 bounds among their operands.
    """
    if "ragged-dot" in instruction.name:
        return True
    if not _is_kernel(instruction):
        return False
    arrays = [array for source in instruction.operands for array in source.arrays]
    has_bounds = any(array.dtype == "s32" and len(array.dims) == 1 for array in arrays)
    return has_bounds or "ragged" in instruction.attributes


def _passes(attributes: str) -> int:
    """The number of bfloat16 products that a TPU makes of one product of this precision."""
    precisions = re.search(r"operand_precision=\{(\w+),(\w+)\}", attributes)
    return max({"high": 3, "highest": 6}.get(name, 1) for name in precisions.groups()) if precisions else 1


def _group_size(attributes: str) -> int:
    """Devices in one replica group, in any of the notations {{0,1},{2,3}}, [2,4]<=[8] and mesh['x'=2,'y'=4] {'y'}."""
    if listed := re.search(r"replica_groups=\{\{([\d,]*)\}", attributes):
        return len(listed[1].split(","))
    if tiled := re.search(r"replica_groups=\[\d+,(\d+)\]", attributes):
        return int(tiled[1])
    if mesh := re.search(r"replica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}", attributes):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", mesh[1]))
        axes = re.findall(r"'(\w+)'(?::\(\d+\)(\d+))?", mesh[2])
        return math.prod(int(part or sizes[name]) for name, part in axes)
    return 1


def _sent(kind: str, size: int, group: int) -> int:
    """Bytes that leave one device for operands of `size` bytes."""
    if kind == "collective-permute":
        return size
    return size * (group - 1) * {"all-gather": group, "all-reduce": 2}.get(kind, 1) // group


def _convolution(instruction: Instruction) -> int:
    """FLOPs of a convolution; places where the window meets padding or the holes of a dilated image cost nothing."""
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", instruction.attributes)
    shapes = (one.arrays[0].dims for one in (*instruction.operands, instruction))
    image, kernel, out = (dict(zip(names, dims)) for names, dims in zip(labels.groups(), shapes))
    window = re.search(r"window=\{([^}]*)\}", instruction.attributes)
    fields = dict(field.split("=") for field in window[1].split()) if window else {}
    flops = 2 * out["b"] * out["f"] * kernel["i"]
    for i, label in enumerate(sorted(label for label in out if label.isdigit())):
        field = lambda name, default: fields[name].split("x")[i] if name in fields else default
        stride, dilation, kernel_dilation = (int(field(name, 1)) for name in ("stride", "lhs_dilate", "rhs_dilate"))
        low = int(field("pad", "0_0").split("_")[0])
        end = (image[label] - 1) * dilation + 1
        flops *= sum(
            0 <= (at := o * stride + k * kernel_dilation - low) < end and at % dilation == 0
            for o in range(out[label])
            for k in range(kernel[label])
        )
    return flops
