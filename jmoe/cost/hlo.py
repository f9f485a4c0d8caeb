"""What a compiled program does, read from XLA's optimised text: matmuls, memory traffic, collectives, arrays.

XLA's own cost analysis counts the body of a loop once; here every instruction counts as often as it runs, so a scan
over layers counts each layer. All numbers are per device. TPU text marks arrays that live on chip by the memory space
S(1); they cost no traffic of the main memory.
"""

import dataclasses
import functools
import math
import re

_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_ARRAY = re.compile(r"\b(pred|bf16|token|[a-z]+(\d+)\w*)\[([\d,]*)\](\{[^{}]*\})?")
_NAME = re.compile(r"%([\w.\-]+)")

COLLECTIVES = ("all-to-all", "all-gather", "reduce-scatter", "all-reduce", "collective-permute")
# One FLOP an element, as XLA counts them.
_ELEMENTWISE = frozenset(
    "add subtract multiply divide maximum minimum negate abs compare select clamp and or xor not "
    "shift-left shift-right-logical shift-right-arithmetic power remainder".split()
)
_FREE = frozenset(
    "parameter constant get-tuple-element tuple bitcast while conditional call after-all partition-id iota "
    "opt-barrier".split()
)


@dataclasses.dataclass(frozen=True)
class Array:
    dtype: str
    bits: int  # of one element
    dims: tuple[int, ...]
    on_chip: bool

    @property
    def elements(self) -> int:
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        return self.elements * self.bits // 8

    @property
    def main_bytes(self) -> int:
        """Bytes in the main memory (HBM)."""
        return 0 if self.on_chip else self.bytes

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


@dataclasses.dataclass(frozen=True)
class Instruction:
    name: str
    opcode: str
    arrays: tuple[Array, ...]  # of the result
    operands: tuple[str, ...]
    arguments: str  # the text between the parentheses
    attributes: str  # the text after them
    is_root: bool

    @property
    def source(self) -> str:
        """Where in the program it was written, "" if XLA does not say."""
        found = re.search(r'op_name="([^"]*)"', self.attributes)
        return found[1].replace("\\'", "'") if found else ""


@dataclasses.dataclass(frozen=True)
class Collective:
    kind: str
    source: str
    times: int  # in one run of the program
    group: int  # devices that take part
    bytes: int  # that leave one device each time, by the usual ring


class Program:
    """The computations of one compiled program and how often each instruction runs."""

    def __init__(self, text: str):
        self.computations: dict[str, dict[str, Instruction]] = {}
        for line in text.splitlines():
            if header := _HEADER.match(line):
                current = self.computations[header[2]] = {}
                if header[1]:
                    self.entry = header[2]
            elif found := _INSTRUCTION.match(line):
                instruction = _instruction(found[2], found[3], bool(found[1]))
                current[instruction.name] = instruction

    @functools.cached_property
    def runs(self) -> list[tuple[str, Instruction, int, bool]]:
        """(computation, instruction, times it runs, whether it is part of a fusion), callees after their callers."""
        found = []

        def walk(name, times, fused):
            for instruction in self.computations[name].values():
                found.append((name, instruction, times, fused))
                opcode = instruction.opcode
                if opcode == "while":
                    walk(_attribute(instruction, "body"), times * self.trip_count(instruction), fused)
                elif opcode in ("fusion", "call", "conditional", "async-start"):
                    for callee in _called(instruction):
                        walk(callee, times, fused or opcode == "fusion")

        walk(self.entry, 1, False)
        return found

    def trip_count(self, loop: Instruction) -> int:
        """Iterations of a counted loop: what XLA says, else the only constant that its condition compares with.

        Raises:
          ValueError: the condition has another form.
        """
        if said := re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.attributes):
            return int(said[1])
        instructions = self.computations[_attribute(loop, "condition")].values()
        limits = {
            int(i.arguments) for i in instructions if i.opcode == "constant" and re.fullmatch(r"\d+", i.arguments)
        }
        if len(limits) != 1:
            raise ValueError(f"loop {loop.name}: its condition compares with {sorted(limits)}, not with one constant")
        return limits.pop()

    def matmul_flops(self, *, loops_once: bool = False, passes: bool = False) -> int:
        """Two FLOPs for each multiplication and addition of dots and convolutions (the TPU's form of a dot).

        passes: times the bfloat16 products that a float32 product of that precision is made of on a TPU.
        """
        return sum(
            (1 if loops_once else times)
            * (_passes(instruction.attributes) if passes else 1)
            * self._matmul(computation, instruction)
            for computation, instruction, times, _ in self.runs
        )

    def elementwise_flops(self, *, loops_once: bool = False) -> int:
        """One FLOP for each element of an arithmetic result, and for each element that a reduction takes in."""
        total = 0
        for computation, instruction, times, _ in self.runs:
            if instruction.opcode in _ELEMENTWISE:
                elements = instruction.arrays[0].elements
            elif instruction.opcode == "reduce":
                elements = self._operand(computation, instruction, 0).elements
            else:
                continue
            total += elements * (1 if loops_once else times)
        return total

    def matmuls(self) -> dict[str, int]:
        """FLOPs of the matmuls by where they were written, loops counted."""
        found: dict[str, int] = {}
        for computation, instruction, times, _ in self.runs:
            if flops := self._matmul(computation, instruction):
                found[instruction.source] = found.get(instruction.source, 0) + times * flops
        return found

    def main_memory_bytes(self, *, loops_once: bool = False) -> int:
        """Bytes read from and written to the main memory, arrays between the parts of a fusion left out."""
        return sum(
            (1 if loops_once else times) * self._traffic(computation, instruction)
            for computation, instruction, times, fused in self.runs
            if not fused
        )

    def collectives(self) -> list[Collective]:
        """Every collective; a start and its done count once. What a single device exchanges with itself is left out."""
        found = []
        for computation, instruction, times, _ in self.runs:
            kind = instruction.opcode.removesuffix("-start")
            if kind not in COLLECTIVES:
                continue
            if kind == "all-reduce" and "reduce-scatter" in computation:  # the TPU's form: a slice of the sum follows
                kind = "reduce-scatter"
            size = sum(self._operand(computation, instruction, i).bytes for i in range(len(instruction.operands)))
            group = _group_size(instruction.attributes)
            if group > 1 or kind == "collective-permute":
                sent = _sent(kind, size, group)
                found.append(Collective(kind, instruction.source, times, group, sent))
        return found

    def arrays(self) -> dict[Array, str]:
        """Each array that exists as a whole (results inside of fusions do not) and where one of them was written."""
        found: dict[Array, str] = {}
        for _, instruction, _, fused in self.runs:
            if not fused and instruction.opcode not in ("tuple", "while", "get-tuple-element"):
                for array in instruction.arrays:
                    found.setdefault(array, instruction.source)
        return found

    def _operand(self, computation: str, instruction: Instruction, index: int) -> Array:
        return self.computations[computation][instruction.operands[index]].arrays[0]

    def _matmul(self, computation, instruction) -> int:
        opcode = instruction.opcode
        if opcode == "convolution":
            kernel = self._operand(computation, instruction, 1)
            return _convolution(instruction, self._operand(computation, instruction, 0), kernel)
        contracted = None
        if opcode == "dot":
            contracted = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", instruction.attributes)
        elif opcode == "custom-call" and "__cublas" in instruction.attributes:
            contracted = re.search(r'"lhs_contracting_dimensions":\[([^\]]*)\]', instruction.attributes)
        elif opcode == "custom-call" and (
            said := re.search(r'"cost_estimate":\{"flops":"(\d+)"', instruction.attributes)
        ):
            return int(said[1])  # a Pallas kernel's own count; its text is not HLO
        elif opcode == "custom-call" and "__cudnn$fmha" in instruction.attributes:
            return self._cudnn_attention(computation, instruction)
        if contracted is None:
            return 0
        left = self._operand(computation, instruction, 0)
        return (
            2 * instruction.arrays[0].elements * math.prod(left.dims[int(i)] for i in re.findall(r"\d+", contracted[1]))
        )

    def _cudnn_attention(self, computation, instruction) -> int:
        """2 products of [B, H, T, T] and K forward, 5 backward; where it is causal cuDNN makes half of each."""
        scores = re.search(r'"intermediate_tensor_shape":.*?"dimensions":\s*\[([^\]]*)\]', instruction.attributes)
        elements = math.prod(int(n) for n in re.findall(r"\d+", scores[1]))
        products = 5 if "Backward" in instruction.attributes else 2
        half = 2 if re.search(r'"mask_type":\s*"CAUSAL"', instruction.attributes) else 1
        return products * 2 * elements * self._operand(computation, instruction, 0).dims[-1] // half

    def _traffic(self, computation, instruction) -> int:
        table, opcode = self.computations[computation], instruction.opcode
        if opcode in _FREE or opcode.endswith("-done"):
            return 0
        if opcode in ("copy-start", "slice-start"):  # one array moved between two places
            moved = [a for a in instruction.arrays if a.dims]
            return min(a.bytes for a in moved) * sum(not a.on_chip for a in moved)
        if opcode == "fusion":
            (callee,) = _called(instruction)
            inside = self.computations[callee]
            parameters = {int(i.arguments): i for i in inside.values() if i.opcode == "parameter"}
            read = sum(
                self._read(callee, parameters[n])
                for n, name in enumerate(instruction.operands)
                if not any(a.on_chip for a in table[name].arrays)
            )
            written = self._written(callee, next(i for i in inside.values() if i.is_root))
            return read + (0 if instruction.arrays[0].on_chip else written)
        written = sum(a.main_bytes for a in instruction.arrays)
        sources = [table[name] for name in instruction.operands]
        if opcode in ("dynamic-slice", "slice", "gather"):
            return written + min(written, sources[0].arrays[0].main_bytes)
        if opcode == "dynamic-update-slice":
            return 2 * sources[1].arrays[0].main_bytes
        return written + sum(a.main_bytes for source in sources for a in source.arrays)

    def _read(self, computation, value) -> int:
        """Bytes of `value`, a parameter of a fused computation, that are read: slices where only slices are used."""
        whole, total = sum(a.bytes for a in value.arrays), 0
        for user in self.computations[computation].values():
            for position, name in enumerate(user.operands):
                if name != value.name:
                    continue
                if user.opcode in ("dynamic-slice", "slice", "gather") and position == 0:
                    total += user.arrays[0].bytes
                elif user.opcode == "bitcast":
                    total += self._read(computation, user)
                elif user.opcode == "fusion":
                    (callee,) = _called(user)
                    inside = self.computations[callee].values()
                    total += self._read(
                        callee, next(i for i in inside if i.opcode == "parameter" and int(i.arguments) == position)
                    )
                elif user.opcode != "dynamic-update-slice" or position != 0:
                    return whole
        return min(whole, total)

    def _written(self, computation, value) -> int:
        """Bytes that the root `value` of a fused computation writes: the update where an array is updated in place."""
        table = self.computations[computation]
        if value.opcode == "dynamic-update-slice":
            return table[value.operands[1]].arrays[0].bytes
        if value.opcode == "bitcast":
            return self._written(computation, table[value.operands[0]])
        if value.opcode == "tuple":
            return sum(self._written(computation, table[name]) for name in value.operands)
        if value.opcode == "fusion":
            (callee,) = _called(value)
            return self._written(callee, next(i for i in self.computations[callee].values() if i.is_root))
        return sum(a.bytes for a in value.arrays)


def _instruction(name: str, text: str, is_root: bool) -> Instruction:
    """Splits `TYPE opcode(arguments), attributes`."""
    end = _closing(text, 0) if text.startswith("(") else text.index(" ")
    kind, text = text[:end], text[end:].lstrip()
    opening = text.index("(")
    closing = _closing(text, opening)
    arguments, attributes = text[opening + 1 : closing - 1], text[closing:]
    operands = tuple(_NAME.findall(arguments))
    return Instruction(name, text[:opening], _arrays(kind), operands, arguments, attributes, is_root)


def _closing(text: str, start: int) -> int:
    """The index after the parenthesis that closes the one at `start`."""
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] == "(") - (text[i] == ")")
        if depth == 0:
            return i + 1
    raise ValueError(f"unbalanced parentheses: {text[:80]}")


def _arrays(text: str) -> tuple[Array, ...]:
    found = []
    for dtype, bits, dims, layout in _ARRAY.findall(text):
        bits = 8 if dtype == "pred" else 16 if dtype == "bf16" else int(bits or 0)
        found.append(Array(dtype, bits, tuple(int(d) for d in dims.split(",") if d), "S(1)" in layout))
    return tuple(found)


def _attribute(instruction: Instruction, name: str) -> str:
    return re.search(rf"\b{name}=%?([\w.\-]+)", instruction.attributes)[1]


def _called(instruction: Instruction) -> list[str]:
    if found := re.search(r"\bbranch_computations=\{([^}]*)\}", instruction.attributes):
        return _NAME.findall(found[1])
    return re.findall(r"\b(?:calls|to_apply|true_computation|false_computation)=%?([\w.\-]+)", instruction.attributes)


def _passes(attributes: str) -> int:
    found = re.search(r"operand_precision=\{(\w+),(\w+)\}", attributes)
    return max({"high": 3, "highest": 6}.get(precision, 1) for precision in found.groups()) if found else 1


def _group_size(attributes: str) -> int:
    """Devices in one replica group, in any of the notations {{0,1},{2,3}}, [2,4]<=[8] and mesh['x'=2,'y'=4] {'y'}."""
    if found := re.search(r"replica_groups=\{\{([\d,]*)\}", attributes):
        return len(found[1].split(","))
    if found := re.search(r"replica_groups=\[\d+,(\d+)\]", attributes):
        return int(found[1])
    if found := re.search(r"replica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}", attributes):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", found[1]))
        axes = re.findall(r"'(\w+)'(?::\(\d+\)(\d+))?", found[2])
        return math.prod(int(part or sizes[name]) for name, part in axes)
    return 1


def _sent(kind: str, size: int, group: int) -> int:
    """Bytes that leave one device for operands of `size` bytes."""
    if kind == "all-gather":
        return size * (group - 1)
    if kind == "all-reduce":
        return 2 * size * (group - 1) // group
    if kind == "collective-permute":
        return size
    return size * (group - 1) // group


def _convolution(instruction: Instruction, image: Array, kernel: Array) -> int:
    """FLOPs of a convolution; places where the window meets padding or the holes of a dilated image cost nothing."""
    image_labels, kernel_labels, out_labels = re.search(
        r"dim_labels=(\w+)_(\w+)->(\w+)", instruction.attributes
    ).groups()
    window = re.search(r"window=\{([^}]*)\}", instruction.attributes)
    fields = dict(field.split("=") for field in window[1].split()) if window else {}

    def field(name, n, default):
        return fields[name].split("x") if name in fields else [default] * n

    out = instruction.arrays[0]
    spatial = sorted(label for label in out_labels if label.isdigit())
    n = len(spatial)
    strides, dilations = field("stride", n, "1"), field("lhs_dilate", n, "1")
    kernel_dilations, pads = field("rhs_dilate", n, "1"), field("pad", n, "0_0")
    flops = (
        2 * out.dims[out_labels.index("b")] * out.dims[out_labels.index("f")] * kernel.dims[kernel_labels.index("i")]
    )
    for i, label in enumerate(spatial):
        stride, dilation, kernel_dilation = int(strides[i]), int(dilations[i]), int(kernel_dilations[i])
        low = int(pads[i].split("_")[0])
        end = (image.dims[image_labels.index(label)] - 1) * dilation + 1
        flops *= sum(
            0 <= (at := o * stride + k * kernel_dilation - low) < end and at % dilation == 0
            for o in range(out.dims[out_labels.index(label)])
            for k in range(kernel.dims[kernel_labels.index(label)])
        )
    return flops
