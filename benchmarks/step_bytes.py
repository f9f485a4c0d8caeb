"""The bytes that a step compiled for an H100 moves through main memory, by cause, beside the least that is needed:

    python -m benchmarks.step_bytes [--only="8 of 64"] [--blocks=2] [--keep=DIR]

Needs the compiler of the [cuda] extra, 5 GB, and no GPU: nothing is measured. The steps are those of
benchmarks.gpu_ceilings, and a dense one. --keep writes the compiled programs to a folder, and reads what it has.

An instruction's cause is the function of ours that it was traced in, also in the backward pass. A fusion has the cause
of its product if it has one, else the cause of most of the bytes that its instructions make, most of which stay on the
chip. What is not in a block, and neither head, loss nor embedding, is the optimizer's, with the casts of its weights.

The least: each product reads two arrays and writes one, three times in all (forward, and both gradients); attention's
kernel reads or writes 12 arrays of all heads, and the log sum exp of each row. All else is part of them:

  RoPE                   nothing: queries and keys are turned where they are written
  SwiGLU                 writes the hidden units, reads gate and up again, and has gradients of both for that of one
  dispatch and combine   reads a row for each choice twice, to sum them; products read their rows by index
  norms and residual     reads the residual stream three times for each half of a block
  router                 its product in float32
  head and loss          reads tokens and head twice, writes their gradients: logits, made twice, stay on the chip
  embedding              reads and writes rows twice, and writes the table's gradient
  optimizer              28 bytes of a parameter: itself and two moments, read and written; gradient; bfloat16 copy

Arrays are bfloat16, operands count once, and no row is dropped or padded. GB are 1e9 bytes.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import argparse
import pathlib
import re
import sys
from collections import Counter

import jax
from ml_collections import ConfigDict

from configs import joint_moe
from jmoe.config import counts
from jmoe.cost import instruction_flops
from jmoe.cost.hlo import Instruction
from jmoe.cost.memory import compile_step
from jmoe.cost.program import Program
from jmoe.cost.topologies import topology_devices
from jmoe.errors import UserError

ATTENTION_PRODUCTS = "products of attention"
EXPERT_PRODUCTS = "products of experts"  # of the dense layer, where there are none
ATTENTION = "attention's kernel"
ROPE = "RoPE; q, k, v apart"
SWIGLU = "SwiGLU"
DISPATCH = "dispatch and combine"
ROUTER = "router"
NORMS = "norms and residual"
HEAD = "head and loss"
EMBEDDING = "embedding"
OPTIMIZER = "optimizer and casts"
OF_BLOCK = (EXPERT_PRODUCTS, ATTENTION_PRODUCTS, ATTENTION, ROPE, SWIGLU, DISPATCH, ROUTER, NORMS)
OF_REST = (HEAD, EMBEDDING, OPTIMIZER)
PRODUCT_OF = {SWIGLU: EXPERT_PRODUCTS, ROPE: ATTENTION_PRODUCTS}
CAUSES = {  # by function of jmoe/model
    "Attention.__call__": ROPE,
    "rope": ROPE,
    "flash": ATTENTION,
    "norm": NORMS,
    "_add_to_residual": NORMS,
    "MLP.__call__": SWIGLU,
    "_experts": SWIGLU,
    "_experts_on_sorted_rows": SWIGLU,
    "dispatch": DISPATCH,
    "combine": DISPATCH,
    "MoE.__call__": ROUTER,
    "_means_and_gradients": HEAD,
    "embed": EMBEDDING,
}
BLOCK = "Block.__call__"
UNMADE = ("parameter", "constant", "bitcast", "broadcast")  # opcodes of a fusion that make nothing new
STEPS = {  # fields of config.model
    "dense": {},
    "2 of 8, capacity 1.0": {"n_experts": 8, "top_k": 2, "capacity_factor": 1.0},
    "8 of 64, capacity 1.0": {"n_experts": 64, "top_k": 8, "d_expert": 384, "capacity_factor": 1.0},
    "8 of 64, nothing dropped": {"n_experts": 64, "top_k": 8, "d_expert": 384, "capacity_factor": None},
}
N_TOKENS = 65_536


def config_of(name: str, n_blocks: int) -> ConfigDict:
    """The config of one of STEPS."""
    config = joint_moe.get_config()
    config.model.update(d_model=1024, n_blocks=n_blocks, attention="flash", **STEPS[name])
    config.data.seq_len = 2_048
    config.batch_tokens = ((0, N_TOKENS),)
    config.remat = "dots"
    config.unroll = True
    return config.lock()


def compiled(name: str, n_blocks: int, folder: pathlib.Path | None) -> str:
    """The text of a step compiled for an H100; read from the folder if that has it, else written there."""
    path = None
    if folder:
        path = folder / f"{name.replace(',', '').replace(' ', '-')}-{n_blocks}.txt"
        if path.exists():
            return path.read_text()
    print(f"compiling {name}", file=sys.stderr)
    jax.config.update("jax_enable_compilation_cache", False)  # programs for absent devices cannot be read back
    _, step = compile_step(config_of(name, n_blocks), topology_devices("H100:1", 1))
    text = step.as_text() or ""
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return text


def bytes_by_cause(text: str) -> dict[str, int]:
    """Bytes of the main memory that a compiled program reads and writes, by cause.

    Args:
      text: of the program, as XLA prints it.
    """
    program = Program(text)
    stacks = call_stacks(text)
    total: Counter[str] = Counter()
    for instruction, times, fused in program.runs:
        n_bytes = 0 if fused else times * program.instruction_bytes(instruction)
        if not n_bytes:
            continue
        cause = _cause(program, stacks, instruction)
        if cause is None:  # made by the compiler alone, for what reads its result
            cause = _cause_of_readers(program, stacks, instruction)
        total[cause or OPTIMIZER] += n_bytes
    return dict(total)


def call_stacks(text: str) -> dict[int, tuple[str, ...]]:
    """Functions of Python that called each other, the innermost first, by the number that instructions refer to.

    They are in the tables before the instructions of a program: names, places in files, frames with their callers. A
    frame's caller is written as its number plus one.
    """
    names = {number: name for number, name in re.findall(r'^(\d+) "([^"]*)"$', _table(text, "FunctionNames"), re.M)}
    places = dict(re.findall(r"^(\d+) \{.*?function_name_id=(\d+)", _table(text, "FileLocations"), re.M))
    frames = re.findall(
        r"^(\d+) \{file_location_id=(\d+)(?: parent_frame_id=(\d+))?", _table(text, "StackFrames"), re.M
    )
    stacks: dict[int, tuple[str, ...]] = {}
    for number, place, caller in frames:  # a caller comes before what it calls
        above = stacks.get(int(caller) - 1, ()) if caller else ()
        stacks[int(number)] = (names[places[place]], *above)
    return stacks


def _table(text: str, title: str) -> str:
    """The lines below `title` up to an empty one; "" if there are none."""
    match = re.search(rf"^{title}\n(.*?)(?:\n\n|\Z)", text, re.M | re.S)
    return match[1] if match else ""


def _stack_frame(instruction: Instruction) -> int:
    """The number in `call_stacks` of the calls that an instruction comes from, 0 if XLA does not say."""
    number = re.search(r"stack_frame_id=(\d+)", instruction.attributes)
    return int(number[1]) if number else 0


def _cause_of_readers(program: Program, stacks: dict[int, tuple[str, ...]], instruction: Instruction) -> str | None:
    """The cause of the first instruction that reads the result of this one and has a cause, None if there is none."""
    for reader in program.computations[instruction.computation].values():
        if instruction not in reader.operands:
            continue
        cause = _cause(program, stacks, reader)
        if cause is None and reader.opcode == "bitcast":
            cause = _cause_of_readers(program, stacks, reader)
        if cause:
            return cause
    return None


def _cause(program: Program, stacks: dict[int, tuple[str, ...]], instruction: Instruction) -> str | None:
    """The cause of one instruction, None if XLA does not say where it comes from."""
    made: Counter[str] = Counter()
    for part in _parts(program, instruction):
        stack = stacks.get(_stack_frame(part))
        if stack is None:
            continue
        cause = _cause_of_calls(stack)
        if instruction_flops.matmul_flops(part):
            return PRODUCT_OF.get(cause, cause)
        made[cause] += sum(array.bytes for array in part.arrays)
    return max(made, key=made.__getitem__) if made else None


def _parts(program: Program, instruction: Instruction) -> list[Instruction]:
    """The instruction, or those of the computations that it calls if it is a fusion."""
    if not instruction.opcode.startswith("fusion"):
        return [instruction]
    parts = []
    for computation in instruction.called():
        for part in program.computations[computation].values():
            if part.opcode not in UNMADE:
                parts += _parts(program, part)
    return parts


def _cause_of_calls(stack: tuple[str, ...]) -> str:
    """The cause of what was traced in these functions, the innermost first."""
    for function in stack:
        cause = CAUSES.get(function)
        if cause == NORMS and BLOCK not in stack:
            return HEAD  # the final norm
        if cause:
            return cause
    return OPTIMIZER


def least(model: ConfigDict, n_tokens: int, seq_len: int) -> dict[str, int]:
    """The least bytes by cause, as the module says: of one block, and of what is not in a block.

    Args:
      model: config.model, whose blocks are all of one kind.
      n_tokens: of a step.
      seq_len: of a row.
    """
    n = n_tokens
    d = model.d_model
    v = model.vocab_size
    n_heads, n_kv_heads, head_dim = counts.heads(model)
    h = n_heads * head_dim
    qkv = h + 2 * n_kv_heads * head_dim
    is_mixture = model.n_experts > 1
    rows = n * model.top_k if is_mixture else n
    e = model.n_experts
    f = model.d_expert or model.d_ff
    router = 3 * (2 * n * d + 4 * d * e + 4 * n * e)
    return {
        EXPERT_PRODUCTS: 2 * 3 * (_product(rows, d, 2 * f, e) + _product(rows, f, d, e)),
        ATTENTION_PRODUCTS: 2 * 3 * (_product(n, d, qkv) + _product(n, h, d)),
        ATTENTION: 2 * (6 * n * h + 3 * n * (qkv - h)) + 2 * 4 * n * n_heads,
        ROPE: 0,
        SWIGLU: 2 * 4 * rows * f,
        DISPATCH: 2 * 2 * rows * d if is_mixture else 0,
        ROUTER: router if is_mixture else 0,
        NORMS: 2 * 6 * n * d,
        HEAD: 2 * 3 * (n * d + d * v),
        EMBEDDING: 2 * (4 * n * d + v * d),
        OPTIMIZER: 28 * counts.n_exact(model),
    }


def _product(rows: int, n_in: int, n_out: int, n_matrices: int = 1) -> int:
    """Elements that a product of rows by matrices reads and writes."""
    return rows * n_in + n_matrices * n_in * n_out + rows * n_out


def table(name: str, found: dict[str, int], needed: dict[str, int], n_blocks: int) -> list[str]:
    """The lines of a step's table.

    Args:
      name: of the step.
      found: of `bytes_by_cause`, all blocks together.
      needed: of `least`, one block.
      n_blocks: of the step.
    """
    rows = [(cause, found.get(cause, 0) / n_blocks, needed[cause]) for cause in OF_BLOCK]
    rest = [(cause, found.get(cause, 0), needed[cause]) for cause in OF_REST]
    lines = [f"| {name} | GB | least | over it |", "|---|---|---|---|"]
    lines += [_line(*row) for row in rows if row[1]]
    block = _line("**one block**", sum(row[1] for row in rows), sum(row[2] for row in rows))
    return [*lines, block, *(_line(*row) for row in rest), _line("**the rest**", *_sums(rest))]


def _sums(rows: list[tuple[str, int, int]]) -> tuple[int, int]:
    return sum(row[1] for row in rows), sum(row[2] for row in rows)


def _line(cause: str, found: float, needed: float) -> str:
    return f"| {cause} | {found / 1e9:.2f} | {needed / 1e9:.2f} | {(found - needed) / 1e9:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=2, help="blocks of the model")
    parser.add_argument("--only", choices=list(STEPS), help="compile this step alone")
    parser.add_argument("--keep", type=pathlib.Path, metavar="DIR", help="folder of compiled programs")
    args = parser.parse_args()
    if args.blocks < 1:
        parser.error(f"--blocks={args.blocks}: a model has at least one block")
    for name in [args.only] if args.only else STEPS:
        config = config_of(name, args.blocks)
        try:
            found = bytes_by_cause(compiled(name, args.blocks, args.keep))
        except (UserError, OSError) as error:
            sys.exit(f"error: {error}")
        needed = least(config.model, N_TOKENS, config.data.seq_len)
        print("\n".join(table(name, found, needed, args.blocks)), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
