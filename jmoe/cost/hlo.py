"""Parses XLA's optimised text of a compiled program into instructions, their operands and the arrays they produce.

TPU text marks an array that lives on the chip, outside the main memory, by the memory space S(1).
"""

import dataclasses
import math
import re

# NAME (PARAMETERS) -> TYPE {, the first line of a computation
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(  # NAME = TYPE opcode(arguments), attributes; each may hold parentheses
    r"^\s+(ROOT )?%?([\w.\-]+) = (.*?) ([\w\-]+)\((.*?)\)((?:, [\w\-]+=.*)?)$"
)
# DTYPE[DIMS]{LAYOUT}, such as bf16[8,128]{1,0:T(8,128)S(1)}; the digits of DTYPE are its bits
_ARRAY = re.compile(r"\b(pred|token|[a-z]+(\d+)\w*)\[([\d,]*)\](\{[^{}]*\})?")
_NAME = re.compile(r"%([\w.\-]+)")


@dataclasses.dataclass(frozen=True)
class Array:
    """An array of a compiled program."""

    dtype: str
    bits: int  # of one element
    dims: tuple[int, ...]
    on_chip: bool

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        """Size, wherever the array lives."""
        return self.elements * self.bits // 8

    @property
    def main_bytes(self) -> int:
        """Bytes in the main memory (HBM)."""
        return 0 if self.on_chip else self.bytes

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


@dataclasses.dataclass(frozen=True, eq=False)
class Instruction:
    """An instruction of a compiled program: NAME = TYPE opcode(arguments), attributes."""

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
        """The value of `name=VALUE` in its attributes.

        Raises:
          ValueError: There is no such attribute.
        """
        match = re.search(rf"\b{name}=%?([\w.\-]+)", self.attributes)
        if match is None:
            raise ValueError(f"{self.opcode} {self.name} has no attribute {name}")
        return match[1]

    def called(self) -> list[str]:
        """The computations that a fusion, a call or a conditional calls."""
        branches = re.search(r"\bbranch_computations=\{([^}]*)\}", self.attributes)
        if branches:
            return _NAME.findall(branches[1])
        return re.findall(r"\b(?:calls|to_apply|true_computation|false_computation)=%?([\w.\-]+)", self.attributes)


def parse(text: str) -> tuple[dict[str, dict[str, Instruction]], str]:
    """Parses the text of a compiled program.

    Returns:
      Instruction by name, by the name of its computation; and the name of the computation that the program enters.
    """
    computations: dict[str, dict[str, Instruction]] = {}
    entry = ""
    computation = ""
    for line in _joined_lines(text):
        header = _HEADER.match(line)
        if header:
            computation = header[2]
            computations.setdefault(computation, {})
            if header[1]:
                entry = computation
        else:
            instruction = _instruction(line, computation, computations[computation])
            computations[computation][instruction.name] = instruction
    return computations, entry


def _joined_lines(text: str) -> list[str]:
    """The lines with headers and instructions, each whole: a kernel's metadata may have several lines."""
    lines = []
    for line in text.split("\n"):
        if _HEADER.match(line) or _INSTRUCTION.match(line):
            lines.append(line)
        # else the rest of an instruction whose braces are still open, or a line that does not matter
        elif lines and lines[-1].count("{") > lines[-1].count("}"):
            lines[-1] += " " + line
    return lines


def _instruction(line: str, computation: str, earlier: dict[str, Instruction]) -> Instruction:
    """The instruction of a line; `earlier` are those before it in its computation."""
    match = _INSTRUCTION.match(line)
    if match is None:
        raise ValueError(f"no instruction of HLO: {line!r:.200}")
    root, name, result_type, opcode, arguments, attributes = match.groups()
    arrays = tuple(_array(*groups) for groups in _ARRAY.findall(result_type))
    operands = tuple(earlier[operand] for operand in _NAME.findall(arguments))
    return Instruction(computation, name, opcode, arrays, operands, arguments, attributes, is_root=bool(root))


def _array(dtype: str, bits: str, dims: str, layout: str) -> Array:
    """The array that the groups of a match of _ARRAY describe; a token has no bits."""
    n_bits = 8 if dtype == "pred" else int(bits or 0)
    return Array(dtype, n_bits, tuple(int(dim) for dim in dims.split(",") if dim), "S(1)" in layout)
