"""The cost of steps with and without a capacity on an H100 that is not here, held to benchmarks/gpu_ceilings.json:

    python -m benchmarks.gpu_ceilings [--blocks=4] [--only="2 of 8"] [--write]

Needs the compiler of the [cuda] extra, 5 GB. Four steps are compiled, each in some minutes: 2 of 8 and 8 of 64 experts,
capacity 1.0 and nothing dropped; d_model 1,024, 65,536 tokens in rows of 2,048, flash attention, remat=dots, unrolled.
It prints a table, and ends with exit code 1 where FLOPs, bytes or peak memory lie more than 3% from the file's, or
where a step without a capacity takes more than MOST times the step with capacity 1.0, at published peaks. --write
writes the file instead.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

FILE = pathlib.Path(__file__).with_name("gpu_ceilings.json")
NEAR = 0.03
MOST = 1.15
MIXTURES = {
    "2 of 8": ("--config.model.n_experts=8", "--config.model.top_k=2"),
    "8 of 64": ("--config.model.n_experts=64", "--config.model.top_k=8", "--config.model.d_expert=384"),
}
CAPACITIES = {"capacity 1.0": "1.0", "nothing dropped": "None"}
STEP = (
    "--config=configs/joint_moe.py",
    "--config.model.d_model=1024",
    "--config.model.attention=flash",
    "--config.data.seq_len=2048",
    "--config.batch_tokens=((0, 65536),)",
    "--config.remat=dots",
    "--config.unroll=True",
    "--topology=H100:1",
)


def compiled(mixture: str, capacity: str, n_blocks: int) -> dict:
    """jmoe.compile's report of one step.

    Args:
      mixture: a name of MIXTURES.
      capacity: a name of CAPACITIES.
      n_blocks: blocks of the model.
    """
    flags = (*STEP, *MIXTURES[mixture], f"--config.model.capacity_factor={CAPACITIES[capacity]}")
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "report.json")
        command = [sys.executable, "-m", "jmoe.compile", *flags, f"--config.model.n_blocks={n_blocks}"]
        done = subprocess.run([*command, f"--json={path}"], capture_output=True, text=True)
        if not path.exists():
            sys.exit(done.stderr)
        return json.loads(path.read_text())


def costs(report: dict) -> dict[str, float]:
    """The figures held to the ceilings, and the seconds of the roofline."""
    return {
        "matmul_flops": report["flops"]["matmul"],
        "main_memory_bytes": report["main_memory_bytes"],
        "peak_memory_bytes": report["memory_bytes"]["peak"],
        "overlapped_seconds": report["roofline_seconds"]["overlapped"],
        "serial_seconds": report["roofline_seconds"]["serial"],
    }


def table(steps: dict[str, dict[str, float]]) -> list[str]:
    """The rows of benchmarks/compiled.md: `costs` by "MIXTURE, CAPACITY"."""
    lines = [
        "| experts | | FLOPs of products | main memory | peak | step, all overlapped | step, nothing overlapped |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, step in steps.items():
        mixture, _, capacity = name.partition(", ")
        cells = [
            mixture,
            capacity,
            f"{step['matmul_flops'] / 1e12:.1f} T",
            f"{step['main_memory_bytes'] / 1e9:.0f} GB",
            f"{step['peak_memory_bytes'] / 2**30:.1f} GiB",
            f"{step['overlapped_seconds'] * 1e3:.1f} ms",
            f"{step['serial_seconds'] * 1e3:.1f} ms",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def faults(steps: dict[str, dict[str, float]], ceilings: dict[str, dict[str, float]]) -> list[str]:
    """A sentence for each cost that is far from its ceiling, and each dropless step that takes too long."""
    sentences = []
    for name, step in steps.items():
        for cost, value in step.items():
            ceiling = ceilings.get(name, {}).get(cost)
            if ceiling is None:
                sentences.append(f"{name}: {FILE.name} has no {cost}, found {value:.4g}; --write writes it")
            elif abs(value / ceiling - 1) > NEAR:
                sentences.append(f"{name}: {cost} {value:.4g}, in {FILE.name} {ceiling:.4g}")
    for mixture in MIXTURES:
        with_capacity = steps.get(f"{mixture}, capacity 1.0")
        dropless = steps.get(f"{mixture}, nothing dropped")
        if with_capacity and dropless:
            for cost in ("overlapped_seconds", "serial_seconds"):
                ratio = dropless[cost] / with_capacity[cost]
                if ratio > MOST:
                    sentences.append(f"{mixture}: nothing dropped takes {ratio:.2f} times the {cost}, at most {MOST}")
    return sentences


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=4, help="blocks of the model; the file is for 4")
    parser.add_argument("--only", choices=list(MIXTURES), help="compile this mixture alone")
    parser.add_argument("--write", action="store_true", help=f"write {FILE.name} instead of comparing with it")
    args = parser.parse_args()
    steps = {}
    for mixture in [args.only] if args.only else MIXTURES:
        for capacity in CAPACITIES:
            print(f"compiling {mixture}, {capacity}", file=sys.stderr)
            steps[f"{mixture}, {capacity}"] = costs(compiled(mixture, capacity, args.blocks))
    print("\n".join(table(steps)))
    ceilings = json.loads(FILE.read_text()) if FILE.exists() else {}
    if args.write:
        FILE.write_text(json.dumps(ceilings | steps, indent=1) + "\n")
        return 0
    sentences = faults(steps, ceilings)
    for sentence in sentences:
        print(f"error: {sentence}", file=sys.stderr)
    return 1 if sentences else 0


if __name__ == "__main__":
    sys.exit(main())
