"""Bytes that each chip sends at constant work per chip, found by compiling for slices of 8, 64 and 512 chips:

    python -m benchmarks.scaling [--json=PATH]

One model of App. H (d_model 1024, 8 experts: 321M active, 1.4B in all), 32,768 tokens a chip, experts over 8 chips, the
data axis over the rest. No step runs: `jmoe.compile` counts the collectives of the compiled step. It takes minutes.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

TOPOLOGIES = {8: "v5p:2x2x2", 64: "v5p:4x4x4", 512: "v5p:8x8x8"}
TOKENS_PER_CHIP = 32_768
MODEL = ("--config.model.d_model=1024", "--config.model.n_experts=8", "--config.mesh.expert=8")
KINDS = ("all-to-all", "reduce-scatter", "all-reduce", "all-gather")
REDUCTIONS = ("reduce-scatter", "all-reduce")


def compile_for(n_chips: int) -> dict:
    """Returns the report of jmoe.compile for a slice of `n_chips`."""
    batch = f"--config.batch_tokens=((0, {TOKENS_PER_CHIP * n_chips}),)"
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "report.json")
        flags = ("--config=configs/joint_moe.py", *MODEL, batch, f"--topology={TOPOLOGIES[n_chips]}", f"--json={path}")
        environment = os.environ | {"JAX_PLATFORMS": "cpu"}
        subprocess.run(
            [sys.executable, "-m", "jmoe.compile", *flags], env=environment, stdout=subprocess.DEVNULL, check=True
        )
        return json.loads(path.read_text())


def main() -> None:
    """Prints a line for each slice."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="File to write the reports to as well.")
    arguments = parser.parse_args()
    reports = {n: compile_for(n) for n in TOPOLOGIES}
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(reports, indent=1))

    print(f"| chips (data x expert) | {' | '.join(KINDS)} | all-to-all and reductions | all |")
    print("|" + "---|" * (len(KINDS) + 3))
    before = None
    for n, report in reports.items():
        sent = {kind: report["collectives"].get(kind, {"bytes": 0})["bytes"] / 1e9 for kind in KINDS}
        narrow = sum(sent[kind] for kind in ("all-to-all", *REDUCTIONS))
        growth = f" ({narrow / before - 1:+.1%})" if before else ""
        mesh = report["mesh"]
        cells = [f"{sent[kind]:.3f}" for kind in KINDS] + [f"{narrow:.3f}{growth}", f"{sum(sent.values()):.3f}"]
        print(f"| {n} ({mesh['data']} x {mesh['expert']}) | {' | '.join(cells)} |")
        before = narrow


if __name__ == "__main__":
    main()
