"""How well training speeds are predicted before anything runs: each published source from all others.

python -m benchmarks.speeds            # prints the table
python -m benchmarks.speeds --write    # fits all sources and writes fit/model/efficiencies.json

--write first takes our own steps of results/accelerators/ into fit/model/measured.csv.
"""

import csv
import dataclasses
import io
import json
import math
import pathlib
import sys

import numpy as np

from fit.model import efficiencies, measured
from fit.model.efficiencies import Z80, Calibration
from fit.model.measured import MeasuredRun
from fit.model.shape import ModelShape

OURS = "jmoe/results/accelerators/"  # how our own sources begin
OUR_STEPS = ("step 1", "step 8", "step 8,2", "step 8,2 dropless", "step 64,8", "step 64,8 dropless")


def own_rows(results: dict, source: str) -> list[dict]:
    """Returns rows of measured.csv: the steps that benchmarks/accelerator measured on one chip.

    Args:
        results: a file of results/accelerators/.
        source: what the rows call it.
    """
    from benchmarks import train_step

    base, _ = train_step.gpu_config()
    rows = []
    for part in OUR_STEPS:
        result = results["parts"].get(part, {}).get("result", {})
        steps = result.get("rows", [])
        if not steps or steps[0]["ms"] is None:
            continue
        step = steps[0]
        _, config = train_step.with_experts(base, part.removeprefix("step ").removesuffix(" dropless"))
        shape = ModelShape.of_config(config.model.to_dict())
        names = ("d_model", "n_blocks", "matrices", "n_experts", "n_shared_experts", "n_dense_blocks", "vocab_size")
        row = {name: getattr(shape, name) for name in names}
        row |= dict(attention_weights=int(shape.attention_weights), attention_width=shape.query_units)
        row |= dict(n_experts_per_token=shape.top_k)
        if shape.n_experts > 1:
            routing = "dropless" if part.endswith("dropless") else "capacity"
            row |= dict(d_expert=shape.d_expert, routing=routing, balanced="no")
        else:
            row["d_ff"] = shape.d_ff
        row |= dict.fromkeys(("n_chips", "data", "expert", "model", "pipeline", "context"), 1)
        row |= dict(source=source, place=f"{part}, tokens/s", date=result["machine"]["date"], software="jmoe (JAX)")
        row |= dict(chip=results["machine"]["name"], precision="bf16", architecture=f"jmoe {step['model']}")
        row |= dict(batch_tokens=step["batch"], sequence=config.data.seq_len, remat=step["remat"])
        row |= dict(microbatch_rows=step["batch"] // config.data.seq_len, n_active=step["n_active"])
        row |= dict(n_total=step["n_total"], tokens_per_second_per_chip=round(step["tokens/s"]))
        row |= dict(calibrates="yes", note="our own step on one chip; routers as initialised")
        rows.append(row)
    return rows


def write_own() -> None:
    """Writes our own steps into measured.csv, in place of those that it has."""
    with open(measured.MEASURED, newline="", encoding="utf-8") as file:
        lines = file.read().splitlines(keepends=True)
    names = next(csv.reader(lines[:1]))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, names, lineterminator="\n")
    folder = pathlib.Path(__file__).parents[1] / "results" / "accelerators"
    for path in sorted(folder.glob("*.json")):
        results = json.loads(path.read_text(encoding="utf-8"))
        if results["machine"]["platform"] != "cpu":
            writer.writerows(own_rows(results, f"{OURS}{path.name}"))
    others = "".join(line for line in lines if not line.startswith(OURS))
    measured.MEASURED.write_text(others + text.getvalue(), encoding="utf-8")


def pairs(runs: list[MeasuredRun], against: str) -> list[tuple[MeasuredRun, MeasuredRun]]:
    """Returns pairs of a mixture and its reference, both of one source and chip.

    Args:
        runs: the runs of all sources.
        against: "dense" for the dense model nearest in active parameters, "fewer" for the mixture of 64 experts of the
            same width nearest in active parameters, for mixtures of more experts.
    """
    found_pairs = []
    for run in runs:
        if not run.is_mixture:
            continue
        others = [other for other in runs if other.source == run.source and other.kind == run.kind and other is not run]
        if against == "dense":
            references = [other for other in others if not other.is_mixture]
        else:
            of_width = [other for other in others if other.is_mixture and other.shape.d_model == run.shape.d_model]
            references = [other for other in of_width if other.shape.n_experts == 64 < run.shape.n_experts]
        if references:
            reference = min(references, key=lambda other, run=run: distance(other, run))
            found_pairs.append((run, reference))
    return found_pairs


def distance(a: MeasuredRun, b: MeasuredRun) -> float:
    """Returns the absolute ln of the ratio of two runs' active parameters."""
    return abs(math.log(float(a.row["n_active"]) / float(b.row["n_active"])))


def error_of_ratio(calibration: Calibration, run: MeasuredRun, reference: MeasuredRun) -> float:
    """Returns ln of the predicted over the measured ratio of two runs' speeds."""
    return error_of_speed(calibration, run) - error_of_speed(calibration, reference)


def error_of_speed(calibration: Calibration, run: MeasuredRun) -> float:
    """Returns ln of the predicted over the measured speed; its software is as fast as in other sources, if any."""
    of_software = calibration.faster(calibration.software.get(run.software, 0.0))
    return math.log(run.seconds / of_software.step_cost(run.kind, run.shape, run.layout).seconds)


def half_range(calibration: Calibration, run: MeasuredRun) -> float:
    """Returns half of the 80% range of ln speed of a run of a source that the calibration does not know."""
    is_known = run.software in calibration.software
    between = calibration.within_software if is_known else calibration.between_sources
    return Z80 * math.hypot(between, calibration.within_source)


def line(name: str, errors: list[float], half_range: list[float]) -> str:
    """Returns a row of the table, in Markdown."""
    if not errors:
        return f"| {name} | 0 | | | |"
    sizes = np.exp(np.abs(errors)) - 1
    within_range = np.mean(np.abs(errors) <= half_range)
    return f"| {name} | {len(errors)} | {np.median(sizes):.0%} | {np.quantile(sizes, 0.9):.0%} | {within_range:.0%} |"


def main() -> None:
    """Prints the table, or with --write writes the efficiencies."""
    if "--write" in sys.argv[1:]:
        write_own()
    runs = [run for run in measured.read() if run.row["calibrates"] == "yes"]
    if "--write" in sys.argv[1:]:
        fitted = dataclasses.asdict(efficiencies.calibrate(runs))
        efficiencies.CALIBRATED.write_text(json.dumps(fitted, indent=1) + "\n", encoding="utf-8")
        print(json.dumps(fitted, indent=1))
        return
    print("# How well training speeds are predicted\n")
    left_out_one_by_one(runs, "source", [run.source for run in runs])
    left_out_one_by_one(runs, "software", [run.software for run in runs])


def left_out_one_by_one(runs: list[MeasuredRun], what: str, names: list[str]) -> None:
    """Prints the table of the runs of each name, predicted from those of all others.

    Args:
        runs: the runs.
        what: the names are of: "source" or "software".
        names: of each run.
    """
    kinds = ("all", "dense", "mixtures", "ratio of mixture to dense", "ratio of more experts to 64")
    errors: dict[str, list[float]] = {kind: [] for kind in kinds}
    halves: dict[str, list[float]] = {kind: [] for kind in kinds}
    print(f"Each {what} predicted from the others, leaving its runs out:\n")
    print(f"| {what} | runs | median error | 90% of errors below | within the 80% range |\n|---|---|---|---|---|")
    for name in sorted(set(names)):
        left_out = [run for run, of_run in zip(runs, names, strict=True) if of_run == name]
        fitted = efficiencies.calibrate([run for run, of_run in zip(runs, names, strict=True) if of_run != name])
        narrow = Z80 * math.sqrt(2) * fitted.within_source
        errors_here = [error_of_speed(fitted, run) for run in left_out]
        halves_here = [half_range(fitted, run) for run in left_out]
        short = name
        if what == "source":
            short = "/".join(name.split("/")[1:3]) + " " + name.rsplit("/", 1)[-1]
        print(line(short, errors_here, halves_here))
        for run, error, half in zip(left_out, errors_here, halves_here, strict=True):
            for kind in ("all", "mixtures" if run.is_mixture else "dense"):
                errors[kind].append(error)
                halves[kind].append(half)
        for against, kind in (("dense", kinds[3]), ("fewer", kinds[4])):
            for run, reference in pairs(left_out, against):
                errors[kind].append(error_of_ratio(fitted, run, reference))
                halves[kind].append(narrow)
    for kind in kinds:
        print(line(f"**{kind}**", errors[kind], halves[kind]))
    print()


if __name__ == "__main__":
    main()
