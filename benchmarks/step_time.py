"""The counts of fit/model/step_counts.py compared with what compilers made of the same steps; nothing runs.

    python -m benchmarks.step_time

Compiled figures are those of tests/data/ceilings.json, of benchmarks/compiled.md ("Beside MaxText" and "Today's
mixtures") and of benchmarks/README.md ("Scaling on paper"). All are per chip and step. FLOPs are those of products.
Sent is what leaves a chip by any collective, memory is what is read and written of main memory. That of "Beside
MaxText" is counted again, in programs compiled with JAX_EXEC_TIME_OPTIMIZATION_EFFORT=-1 (2026-11-27).
"""

import dataclasses
import json
import pathlib

import numpy as np

from fit.model import step_counts
from fit.model.layout import Layout
from fit.model.shape import ModelShape
from fit.model.step_counts import StepCounts

CEILINGS = pathlib.Path(__file__).parents[1] / "tests" / "data" / "ceilings.json"


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled step, per chip; 0 stands for what is not recorded.

    Attributes:
        name: the model and the chips.
        shape: the model.
        layout: batch and mesh.
        flops: of matrix products.
        sent: bytes that leave a chip by any collective.
        memory: bytes of main memory that are read and written.
        where: the record that the figures are from.
    """

    name: str
    shape: ModelShape
    layout: Layout
    flops: float
    sent: float
    memory: float
    where: str


def _model(d_model: int, n_blocks: int, n_heads: int, d_ff: int, vocab_size: int, **more: int) -> ModelShape:
    """Returns a model from the fields of config.model."""
    fields = dict(d_model=d_model, n_blocks=n_blocks, n_heads=n_heads, d_ff=d_ff, vocab_size=vocab_size)
    return ModelShape.of_config(fields | dict(n_experts=1) | more)


MIXTRAL = _model(4096, 32, 32, 14_336, 32_000, n_kv_heads=8, n_experts=8, top_k=2)
OLMOE = _model(2048, 16, 16, 1024, 50_304, n_experts=64, top_k=8)
QWEN3 = _model(2048, 48, 32, 768, 151_936, n_kv_heads=4, head_dim=128, n_experts=128, top_k=8)
QUARTER = _model(1024, 2, 8, 3584, 32_000, n_kv_heads=2, n_experts=8, top_k=2)
SWITCH = _model(1024, 16, 16, 3072, 50_257, n_experts=32)
DEEPSEEK = _model(
    7168,
    61,
    128,
    18_432,
    129_280,
    n_kv_heads=8,
    head_dim=128,
    d_expert=2048,
    n_shared_experts=1,
    n_experts=256,
    top_k=8,
    n_dense_blocks=3,
)


def _recorded(name: str) -> tuple[float, float, float]:
    """Returns (FLOPs, bytes sent, bytes of main memory) of a program of ceilings.json."""
    program = json.loads(CEILINGS.read_text(encoding="utf-8"))["programs"][name]
    collectives = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all")
    sent = sum(program.get(f"{kind}_bytes", 0) for kind in collectives)
    return program["matmul_flops"], sent, program["main_memory_bytes"]


def peak_bytes() -> dict[str, float]:
    """Returns the peak memory of a device in some of the programs: those of ceilings.json, and recorded beside them.

    Those of compiled.md that were compiled before dense weights were spread over the expert axis are left out.
    """
    recorded = json.loads(CEILINGS.read_text(encoding="utf-8"))["programs"]
    peaks = {name: program["peak_memory_bytes"] for name, program in recorded.items()}
    gib = 2**30
    return peaks | {
        "dense, remat dots": 9_249_529_344,
        "mixtral.py, 512 v5p": 6.4 * gib,
        "olmoe.py, 64 v5p": 26.6 * gib,
    }


def programs() -> list[Program]:
    """Returns all compiled steps whose figures are recorded."""
    two = dict(n_blocks=2)
    dense = _model(128, 8, 2, 384, 257)
    scaling = _model(1024, 16, 16, 3072, 50_257, n_experts=8)
    recorded = []
    for name, shape, layout in (
        ("dense", dense, Layout(1_048_576, 512, data=4)),
        ("Switch, 32 experts", SWITCH, Layout(262_144, 512, expert=16, flash=False)),
        ("Mixtral", MIXTRAL, Layout(2_097_152, 4096, data=64, expert=8)),
        ("OLMoE, nothing dropped", dataclasses.replace(OLMOE, **two), Layout(98_304, 4096, data=8, buffer=1)),
        ("8 of 64, on 8 devices", dataclasses.replace(OLMOE, **two), Layout(65_536, 4096, expert=8, slots=1.25)),
        (
            "Mixtral a quarter as wide, nothing dropped, on 8 devices",
            QUARTER,
            Layout(32_768, 4096, expert=8, buffer=1.5),
        ),
    ):
        recorded.append(Program(name, shape, layout, *_recorded(name), where="ceilings.json"))

    of_dots = Layout(1_048_576, 512, data=4, remat="dots")
    recorded.append(Program("dense, remat dots", dense, of_dots, 0, 0, 107e9, "tests/data/compiled/remat-1"))

    million = dict(batch_tokens=1_048_576, sequence=4096)
    eight = dict(data=8, expert=8)
    dense_1b = _model(2048, 16, 16, 8192, 50_304)
    peers = (
        ("dense 1B, 64 v5p", dense_1b, Layout(**million, data=64), 164e12, 9.67e9, 249e9),
        ("OLMoE, 64 v5p", OLMOE, Layout(**million, data=64, buffer=1), 165e12, 54.1e9, 616e9),
        ("Mixtral dropless, 64 v5p", MIXTRAL, Layout(**million, **eight, buffer=1.5), 1633e12, 94.7e9, 2.44e12),
        ("Mixtral capacity 1, 64 v5p", MIXTRAL, Layout(**million, **eight), 1633e12, 75.9e9, 1.53e12),
        ("Qwen3-30B-A3B, 64 v5p", QWEN3, Layout(**million, data=64, buffer=1), 502e12, 239e9, 2.22e12),
    )
    recorded += [Program(*peer, where="compiled.md, peers") for peer in peers]

    machine = dict(batch_tokens=131_072, sequence=4096)
    mixtral_8 = dataclasses.replace(MIXTRAL, n_blocks=8)
    qwen3_12 = dataclasses.replace(QWEN3, n_blocks=12)
    of_one_machine = (
        ("dense 1B, 8 H100", dense_1b, Layout(**machine, data=8), 162e12, 6.36e9, 275e9),
        ("Mixtral dropless, 8 H100", mixtral_8, Layout(**machine, expert=8, buffer=1.5), 415e12, 16.2e9, 761e9),
        ("Mixtral capacity 1, 8 H100", mixtral_8, Layout(**machine, expert=8), 415e12, 11.5e9, 442e9),
        ("OLMoE dropless, 8 H100", OLMOE, Layout(**machine, data=8, buffer=1), 162e12, 36e9, 720e9),
        ("OLMoE capacity 1, 8 H100", OLMOE, Layout(**machine, data=8), 162e12, 36e9, 588e9),
        ("Qwen3-30B-A3B, 8 H100", qwen3_12, Layout(**machine, data=8, buffer=1), 145e12, 41.4e9, 687e9),
    )
    recorded += [Program(*peer, where="compiled.md, peers") for peer in of_one_machine]

    today = (
        ("mixtral.py, 512 v5p", MIXTRAL, Layout(2_097_152, 4096, 64, 8), 1.20, 74.0e9),
        ("olmoe.py, 64 v5p", OLMOE, Layout(4_194_304, 4096, 64), 1.16, 54.1e9),
        ("qwen3_moe.py, 512 v5p", QWEN3, Layout(4_194_304, 4096, 64, 8), 1.10, 87.1e9),
        # a chip works on 12,288 tokens at once
        (
            "deepseek_v3_like.py, 1,024 v5p",
            DEEPSEEK,
            Layout(62_914_560, 4096, 16, 64, microbatch_tokens=12_288 * 1024),
            1.19,
            2.914e12,
        ),
    )
    for name, shape, layout, over, sent in today:
        full = shape.flops_per_token(layout.sequence) + 6 * shape.n_blocks * shape.query_units * layout.sequence
        recorded.append(
            Program(name, shape, layout, over * full * layout.tokens_per_device, sent, 0, "compiled.md, today")
        )

    for data, sent in ((1, 5.297e9), (8, 6.667e9), (64, 6.706e9)):
        layout = Layout(32_768 * 8 * data, 512, data, 8, flash=False)
        name = f"App. H, {8 * data} v5p"
        recorded.append(Program(name, scaling, layout, 0, sent, 0, "benchmarks/README.md, scaling"))
    return recorded


def counted(program: Program) -> StepCounts:
    """Returns our counts of a compiled step whose chips are all in one fast network."""
    return step_counts.count(program.shape, program.layout, program.layout.n_devices, gathers_between=False)


def main() -> None:
    """Prints the ratios of our counts to the compiled ones."""
    print("| step | FLOPs: ours / compiled | sent | main memory | record |\n|---|---|---|---|---|")
    kinds: dict[str, list[float]] = {"flops": [], "sent": [], "memory": []}
    for program in programs():
        ours = counted(program)
        cells = []
        for kind, value in (("flops", ours.flops), ("sent", ours.sent_bytes), ("memory", ours.main_memory)):
            recorded = getattr(program, kind)
            cells.append(f"{value / recorded:.2f} ({recorded:.3g})" if recorded else "")
            if recorded:
                kinds[kind].append(value / recorded)
        print(f"| {program.name} | {' | '.join(cells)} | {program.where} |")
    recorded = {program.name: program for program in programs()}
    kinds["peak memory of a device"] = [
        float(counted(recorded[name]).device_bytes / peak) for name, peak in peak_bytes().items()
    ]
    for kind, ratios in kinds.items():
        near = np.sum(np.abs(np.array(ratios) - 1) <= 0.1)
        print(f"{kind}: {near} of {len(ratios)} within 10%, {min(ratios):.2f} to {max(ratios):.2f}")


if __name__ == "__main__":
    main()
