"""Parses XLA's optimised text of a compiled program into instructions, their operands and the arrays they produce.

TPU text marks an array that lives on the chip, outside the main memory, by the memory space S(1).
"""

import dataclasses
import math
import re

_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(  # NAME = TYPE opcode(arguments), attributes; each may hold parentheses
    r"^\s+(ROOT )?%?([\w.\-]+) = (.*?) ([\w\-]+)\((.*?)\)((?:, [\w\-]+=.*)?)$"
)
_ARRAY = re.compile(r"\b(pred|token|[a-z]+(\d+)\w*)\[([\d,]*)\](\{[^{}]*\})?")
_NAME = re.compile(r"%([\w.\-]+)")


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


@dataclasses.dataclass(frozen=True, eq=False)
class Instruction:
    computation: str  # that it is part of
    name: str
    opcode: str
    arrays: tuple[Array, ...]  # of the result
    operands: tuple["Instruction", ...] = dataclasses.field(repr=False)
    arguments: str  # the text between the parentheses
    attributes: str  # the text after them
    is_root: bool

    @property
    def source(self) -> str:
        """The place in our program that it comes from (op_name), "" if XLA does not say."""
        name = re.search(r'op_name="([^"]*)"', self.attributes)
        return name[1].replace("\\'", "'") if name else ""

    def attribute(self, name: str) -> str:
        """The value of `name=VALUE` in its attributes."""
        return re.search(rf"\b{name}=%?([\w.\-]+)", self.attributes)[1]

    def called(self) -> list[str]:
        """The computations that a fusion, a call or a conditional calls."""
        if branches := re.search(r"\bbranch_computations=\{([^}]*)\}", self.attributes):
            return _NAME.findall(branches[1])
        return re.findall(r"\b(?:calls|to_apply|true_computation|false_computation)=%?([\w.\-]+)", self.attributes)


def parse(text: str) -> tuple[dict[str, dict[str, Instruction]], str]:
    """The instructions of each computation by their names, and the name of the computation that the program enters."""
    computations, entry, lines = {}, "", []
    for line in text.split("\n"):
        if _HEADER.match(line) or _INSTRUCTION.match(line):
            lines.append(line)
        elif lines and lines[-1].count("{") > lines[-1].count("}"):  # a kernel's metadata may have several lines
            lines[-1] += " " + line
    for line in lines:
        if header := _HEADER.match(line):
            computation, inside = header[2], computations.setdefault(header[2], {})
            entry = computation if header[1] else entry
        else:
            root, name, kind, opcode, arguments, attributes = _INSTRUCTION.match(line).groups()
            arrays = tuple(_array(*found) for found in _ARRAY.findall(kind))
            operands = tuple(inside[operand] for operand in _NAME.findall(arguments))
            inside[name] = Instruction(
                computation, name, opcode, arrays, operands, arguments, attributes, is_root=bool(root)
            )
    return computations, entry


def _array(dtype: str, bits: str, dims: str, layout: str) -> Array:
    n_bits = 8 if dtype == "pred" else int(bits or 0)
    return Array(dtype, n_bits, tuple(int(d) for d in dims.split(",") if d), "S(1)" in layout)
