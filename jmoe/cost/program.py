"""Counts what a compiled program does: matmuls, memory traffic, collectives, arrays.

XLA's own cost analysis counts the body of a loop once. Program counts every instruction as often as it runs, so a scan
over layers counts each layer. All numbers are per device. Arrays that stay on the chip cause no main memory traffic.
"""

import functools
import re
from collections.abc import Callable
from typing import NamedTuple

from jmoe.cost import hlo, instruction_flops
from jmoe.cost.collectives import COLLECTIVES, Collective, group_size, sent_bytes
from jmoe.cost.hlo import Array, Instruction

# opcodes that touch no main memory, or whose callees count instead
_FREE = frozenset(
    "parameter constant get-tuple-element tuple bitcast while conditional call call-start call-update after-all "
    "partition-id iota opt-barrier".split()
)
_FUSIONS = ("fusion", "fusion-start")
_SLICES = ("dynamic-slice", "slice", "gather")


class Execution(NamedTuple):
    """An instruction, and how a run of the program executes it."""

    instruction: Instruction
    times: int
    fused: bool  # whether it is part of a fusion


class Program:
    """The computations of one compiled program, from its text, and how often each instruction runs."""

    def __init__(self, text: str) -> None:
        """Parses `text`, the optimised HLO text of a jax.stages.Compiled."""
        self.computations, self.entry = hlo.parse(text)

    @functools.cached_property
    def runs(self) -> list[Execution]:
        """Every instruction, callees after their callers."""
        runs = []

        def walk(computation: str, times: int, fused: bool) -> None:
            """Adds the instructions of a computation that runs `times` times, and those of all that it calls."""
            for instruction in self.computations[computation].values():
                runs.append(Execution(instruction, times, fused))
                opcode = instruction.opcode
                if opcode == "while":
                    walk(instruction.attribute("body"), times * self.trip_count(instruction), fused)
                elif opcode in ("call", "call-start", "conditional", "async-start", *_FUSIONS):
                    for callee in instruction.called():
                        walk(callee, times, fused or opcode in _FUSIONS)

        walk(self.entry, 1, False)
        return runs

    def trip_count(self, loop: Instruction) -> int:
        """Iterations of a loop: XLA's own note, else the only constant that its condition compares with.

        1 if their number is known only when it runs, as when rows are sent to their experts in chunks.

        Raises:
          ValueError: The condition compares with several constants.
        """
        note = re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.attributes)
        if note:
            return int(note[1])
        instructions = self.computations[loop.attribute("condition")].values()
        constants = {instruction.arguments for instruction in instructions if instruction.opcode == "constant"}
        limits = {int(constant) for constant in constants if re.fullmatch(r"\d+", constant)}
        if len(limits) > 1:
            raise ValueError(f"loop {loop.name}: its condition compares with {sorted(limits)}, not with one constant")
        return limits.pop() if limits else 1

    def matmul_flops(self, *, passes: bool = False, filled: float = 1.0) -> int:
        """Two FLOPs for each multiply-add of dots and convolutions (the TPU's form of a dot).

        Args:
          passes: Multiply by the number of bfloat16 products that a TPU makes of a float32 product of that precision.
          filled: The part of the rows of ragged products that belong to a group. A TPU's kernel works on no others, but
            declares them all. A GPU's, whose FLOPs follow from its shapes, works on no others either.
        """
        total = 0
        for instruction, times, _ in self.runs:
            flops = instruction_flops.matmul_flops(instruction)
            if flops and instruction_flops.is_ragged(instruction):
                flops = int(filled * flops)
            if passes:
                flops *= instruction_flops.passes(instruction.attributes)
            total += times * flops
        return total

    def estimated_flops(self) -> int:
        """The part of matmul_flops that belongs to kernels which declare none, and follows from their shapes."""
        return sum(times * instruction_flops.undeclared_flops(instruction) for instruction, times, _ in self.runs)

    def estimated_bytes(self) -> int:
        """The part of main_memory_bytes that belongs to kernels which declare no FLOPs.

        Each array counts as read or written once. A kernel of products may read an array more than once.
        """
        return sum(
            times * self.instruction_bytes(instruction)
            for instruction, times, fused in self.runs
            if not fused and instruction_flops.is_undeclared(instruction)
        )

    def bytes_by_source(self) -> dict[str, int]:
        """main_memory_bytes by the operation of our program that they come from, else by the instruction's name."""
        return self._by_source(lambda run: 0 if run.fused else self.instruction_bytes(run.instruction))

    def flops_by_source(self) -> dict[str, int]:
        """matmul_flops by the operation of our program that they come from, else by the instruction's name."""
        return self._by_source(lambda run: instruction_flops.matmul_flops(run.instruction))

    def _by_source(self, cost_of: Callable[[Execution], int]) -> dict[str, int]:
        """Sums a cost of each execution by source, without sources that cost nothing."""
        totals: dict[str, int] = {}
        for run in self.runs:
            cost = run.times * cost_of(run)
            if cost:
                source = run.instruction.source or run.instruction.name
                totals[source] = totals.get(source, 0) + cost
        return totals

    def elementwise_flops(self) -> int:
        """One FLOP for each element of an arithmetic result, and for each element that a reduction reads."""
        return sum(times * instruction_flops.elementwise_flops(instruction) for instruction, times, _ in self.runs)

    def main_memory_bytes(self) -> int:
        """Bytes read from and written to the main memory, without arrays that stay inside a fusion."""
        return sum(times * self.instruction_bytes(instruction) for instruction, times, fused in self.runs if not fused)

    def between_slices(self, n_slices: int) -> list[Collective]:
        """Every transfer over the network between `n_slices` TPU slices.

        The compiler cuts a collective that spans slices into such transfers, and collectives within each slice, which
        `collectives` lists.
        """
        transfers = []
        for instruction, times, _ in self.runs:
            transfer_type = re.search(r'_xla_megascale_transfer_type="(\w+)"', instruction.attributes)
            if instruction.opcode == "send" and transfer_type:
                kind = transfer_type[1].lower().replace("_", "-")
                sent = sent_bytes(kind, instruction.operands[0].arrays[0].bytes, n_slices)
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
            operands = instruction.operands
            if kind == "ragged-all-to-all":
                # The first operand has the rows. How many leave is known when it runs: here, equally many to each.
                operands = operands[:1]
            size = sum(operand.arrays[0].bytes for operand in operands)
            group = group_size(instruction.attributes)
            if group > 1 or kind == "collective-permute":
                sent = sent_bytes(kind, size, group)
                collectives.append(Collective(kind, instruction.source, times, group, sent))
        return collectives

    def arrays(self) -> dict[Array, str]:
        """The arrays that are written to memory (none inside a fusion), and the source of the first of each kind."""
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
        parameters = {int(each.arguments): each for each in inside if each.opcode == "parameter"}
        return parameters, next(each for each in inside if each.is_root)

    def instruction_bytes(self, instruction: Instruction) -> int:
        """Bytes of the main memory that one run of an instruction reads and writes."""
        opcode = instruction.opcode
        operands = instruction.operands
        if opcode in _FREE or opcode.endswith("-done"):
            return 0
        if opcode == "send":  # its result is its operand
            return operands[0].arrays[0].main_bytes
        if opcode in ("copy-start", "slice-start"):  # one array moved between two places
            moved = [array for array in instruction.arrays if array.dims]
            n_in_main_memory = len([array for array in moved if not array.on_chip])
            return min(array.bytes for array in moved) * n_in_main_memory
        if opcode in _FUSIONS:
            return self._fusion_traffic(instruction)
        written = sum(array.main_bytes for array in instruction.arrays)
        if opcode in _SLICES:
            return written + min(written, operands[0].arrays[0].main_bytes)
        if opcode == "dynamic-update-slice":
            return 2 * operands[1].arrays[0].main_bytes
        return written + sum(array.main_bytes for operand in operands for array in operand.arrays)

    def _fusion_traffic(self, fusion: Instruction) -> int:
        """Bytes of the main memory that one run of a fusion reads and writes.

        A fusion may pass on the arrays of a collective that goes on beside it. These count where the collective starts.
        """
        parameters, root = self._callee(fusion)
        is_collective = root.opcode == "custom-call" and "AsyncCollective" in root.attributes
        results = (root,)
        if root.opcode == "tuple" or is_collective:
            results = root.operands
        passed_on = [result for result in results if result.opcode == "parameter"]
        total = 0
        for number, operand in enumerate(fusion.operands):
            if parameters[number] not in passed_on and not any(array.on_chip for array in operand.arrays):
                total += self._read_bytes(parameters[number])
        first = 0  # of the arrays of a result, in fusion.arrays
        if fusion.opcode == "fusion-start":  # its arrays are those of its operands, then its results
            first = sum(len(operand.arrays) for operand in fusion.operands)
        for result in results:
            arrays = fusion.arrays[first : first + len(result.arrays)]
            first += len(result.arrays)
            goes_on = result.opcode in COLLECTIVES and passed_on
            stays_on_chip = not is_collective and any(array.on_chip for array in arrays)
            if result not in passed_on and not goes_on and not stays_on_chip:
                total += self._written_bytes(result)
        return total

    def _read_bytes(self, value: Instruction) -> int:
        """Bytes of `value`, a parameter of a fused computation, that are read: slices where only slices are used."""
        whole = sum(array.bytes for array in value.arrays)
        if value.is_root:  # of a fusion within a fusion, whose result a product reads: its users are outside
            return whole
        total = 0
        for user in self.computations[value.computation].values():
            for position, operand in enumerate(user.operands):
                if operand is not value:
                    continue
                if user.opcode in _SLICES and position == 0:
                    total += user.arrays[0].bytes
                elif user.opcode == "bitcast":
                    total += self._read_bytes(user)
                elif user.opcode == "fusion":
                    parameters, _ = self._callee(user)
                    total += self._read_bytes(parameters[position])
                elif user.opcode != "dynamic-update-slice" or position != 0:  # an array updated in place is not read
                    return whole
        return min(whole, total)

    def _written_bytes(self, value: Instruction) -> int:
        """Bytes that the root `value` of a fused computation writes: the update where an array is updated in place."""
        if value.opcode == "dynamic-update-slice":
            return value.operands[1].arrays[0].bytes
        if value.opcode == "bitcast":
            return self._written_bytes(value.operands[0])
        if value.opcode == "tuple":
            return sum(map(self._written_bytes, value.operands))
        if value.opcode == "fusion":
            _, root = self._callee(value)
            return self._written_bytes(root)
        return sum(array.bytes for array in value.arrays)
