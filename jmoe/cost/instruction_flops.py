"""FLOPs of one instruction of a compiled program, from its shapes and attributes."""

import math
import re
from typing import NamedTuple

from jmoe.cost.hlo import Instruction

# one FLOP an element, as XLA counts them
_ELEMENTWISE = frozenset(
    "add subtract multiply divide maximum minimum negate abs compare select clamp and or xor not "
    "shift-left shift-right-logical shift-right-arithmetic power remainder reduce".split()
)
# kernels whose text is not HLO: Pallas's for TPUs and for GPUs, Triton's
_KERNELS = ("tpu_custom_call", "mosaic_gpu_v2", "triton_kernel_call", "triton_kernel_call_ffi")
_DECLARED = '"cost_estimate":{"flops":"'


def matmul_flops(instruction: Instruction) -> int:
    """FLOPs of the products in one run of an instruction; 0 if it is none."""
    opcode = instruction.opcode
    attributes = instruction.attributes
    if opcode == "convolution":
        return _convolution_flops(instruction)
    contracted = None
    if opcode == "dot":
        contracted = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", attributes)
    elif opcode == "custom-call" and "__cublas" in attributes:
        contracted = re.search(r'"lhs_contracting_dimensions":\[([^\]]*)\]', attributes)
    elif opcode == "custom-call":
        estimate = re.search(r'"cost_estimate":\{"flops":"(\d+)"', attributes)
        if estimate:
            return int(estimate[1])  # a Pallas kernel's own count, for its text is not HLO
        if "__cudnn$fmha" in attributes:
            return _cudnn_attention_flops(instruction)
    if contracted is None:
        return undeclared_flops(instruction)
    dims = instruction.operands[0].arrays[0].dims
    return 2 * instruction.arrays[0].elements * math.prod(dims[int(i)] for i in re.findall(r"\d+", contracted[1]))


def elementwise_flops(instruction: Instruction) -> int:
    """FLOPs of the arithmetic by element in one run of an instruction; 0 if it is none."""
    if instruction.opcode not in _ELEMENTWISE:
        return 0
    counted = instruction.operands[0] if instruction.opcode == "reduce" else instruction
    return counted.arrays[0].elements


def _is_kernel(instruction: Instruction) -> bool:
    """Whether it calls a kernel of Pallas or Triton, whose text is not HLO."""
    target = re.search(r'custom_call_target="([^"]*)"', instruction.attributes)
    return instruction.opcode == "custom-call" and target is not None and target[1] in _KERNELS


def is_undeclared(instruction: Instruction) -> bool:
    """Whether it calls a kernel that does not say how many FLOPs it takes."""
    return _is_kernel(instruction) and _DECLARED not in instruction.attributes


def is_ragged(instruction: Instruction) -> bool:
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


def undeclared_flops(instruction: Instruction) -> int:
    """FLOPs of a kernel that declares none, by its shapes; 0 for all else.

    A kernel is one of these products, or counts nothing:
      [M, K] x [..., K, N] to [M, N], each row by one matrix;
      [K, M] or [M, K] x [M, N] to [E, K, N], the gradient of such matrices, each row in one of them;
      attention [.., T, K] over [.., U, K] and [.., U, K], two products without a mask.
    """
    if not is_undeclared(instruction):
        return 0
    arrays = [array for operand in instruction.operands for array in operand.arrays]
    dims = [array.dims for array in arrays if len(array.dims) > 1 and array.dtype[0] in "bf"]
    out = instruction.arrays[0].dims
    if len(dims) == 3 and dims[0] == out and dims[1] == dims[2] and out[-1] == dims[1][-1]:
        return 2 * 2 * math.prod(out) * dims[1][-2]
    if len(dims) != 2:
        return 0
    a, b = dims
    if a[-1] == b[-2] and out == (*a[:-1], b[-1]):
        return 2 * math.prod(out) * a[-1]
    if len(a) == len(b) == 2 and len(out) == 3:
        is_product = a[1] == b[0] and out[1:] == (a[0], b[1])
        is_transposed = a[0] == b[0] and out[1:] == (a[1], b[1])
        if is_product or is_transposed:
            return 2 * a[0] * a[1] * b[1]
    return 0


def _cudnn_attention_flops(instruction: Instruction) -> int:
    """FLOPs of 2 products forward or 5 backward, B H T T K multiply-adds each; half of that where it is causal."""
    scores = _required(r'"intermediate_tensor_shape":.*?"dimensions":\s*\[([^\]]*)\]', instruction)
    elements = math.prod(int(n) for n in re.findall(r"\d+", scores[1]))
    n_products = 5 if "Backward" in instruction.attributes else 2
    divisor = 2 if re.search(r'"mask_type":\s*"CAUSAL"', instruction.attributes) else 1
    return n_products * 2 * elements * instruction.operands[0].arrays[0].dims[-1] // divisor


def _required(pattern: str, instruction: Instruction) -> re.Match[str]:
    """The match of a pattern in an instruction's attributes; ValueError where there is none."""
    match = re.search(pattern, instruction.attributes)
    if match is None:
        raise ValueError(f"{instruction.opcode} {instruction.name} has no attribute like {pattern}")
    return match


def passes(attributes: str) -> int:
    """The number of bfloat16 products that a TPU makes of one product of this precision."""
    precisions = re.search(r"operand_precision=\{(\w+),(\w+)\}", attributes)
    if precisions is None:
        return 1
    return max({"high": 3, "highest": 6}.get(name, 1) for name in precisions.groups())


class _Window(NamedTuple):
    """How a convolution's window moves along one axis."""

    stride: int
    image_dilation: int
    kernel_dilation: int
    padding_before: int


def _convolution_flops(instruction: Instruction) -> int:
    """FLOPs of a convolution; places where the window meets padding or the holes of a dilated image cost nothing."""
    labels = _required(r"dim_labels=(\w+)_(\w+)->(\w+)", instruction).groups()
    shapes = [value.arrays[0].dims for value in (*instruction.operands, instruction)]
    image, kernel, out = (dict(zip(names, dims, strict=True)) for names, dims in zip(labels, shapes, strict=True))
    flops = 2 * out["b"] * out["f"] * kernel["i"]
    for i, axis in enumerate(sorted(label for label in out if label.isdigit())):
        flops *= _n_products(_window(instruction, i), image[axis], kernel[axis], out[axis])
    return flops


def _window(instruction: Instruction, axis: int) -> _Window:
    """The window of a convolution along its axis number `axis`."""
    window = re.search(r"window=\{([^}]*)\}", instruction.attributes)
    fields = dict(field.split("=") for field in window[1].split()) if window else {}

    def value_of(name: str, default: str) -> str:
        return fields[name].split("x")[axis] if name in fields else default

    return _Window(
        stride=int(value_of("stride", "1")),
        image_dilation=int(value_of("lhs_dilate", "1")),
        kernel_dilation=int(value_of("rhs_dilate", "1")),
        padding_before=int(value_of("pad", "0_0").split("_")[0]),
    )


def _n_products(window: _Window, image_size: int, kernel_size: int, out_size: int) -> int:
    """How often a kernel's element meets an element of the image, along one axis."""
    dilated_size = (image_size - 1) * window.image_dilation + 1
    n_products = 0
    for position in range(out_size):
        start = position * window.stride - window.padding_before
        for k in range(kernel_size):
            index = start + k * window.kernel_dilation
            if 0 <= index < dilated_size and index % window.image_dilation == 0:
                n_products += 1
    return n_products
