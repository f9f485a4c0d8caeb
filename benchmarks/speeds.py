"""How well speeds of training are known before anything runs: each published source predicted from all others.

python -m benchmarks.speeds            # prints the table
python -m benchmarks.speeds --write    # fits all sources and writes fit/planning/efficiencies.json
"""

import dataclasses
import json
import math
import sys

import numpy as np

from fit.planning import speed

Z80 = speed.Z80


def pairs(runs: list[speed.Run], against: str) -> list[tuple[speed.Run, speed.Run]]:
    """(run, reference) of one source and chip. against: "dense": a mixture and the dense model nearest in active
    parameters; "fewer": a mixture and that of the same width with the fewest experts."""
    found = []
    for run in runs:
        if not run.is_mixture:
            continue
        beside = [other for other in runs if other.source == run.source and other.chip == run.chip and other is not run]
        if against == "dense":
            beside = [other for other in beside if not other.is_mixture]
        else:
            same = [o for o in beside if o.is_mixture and o.shape.d_model == run.shape.d_model]
            beside = [o for o in same if o.shape.n_experts < run.shape.n_experts and o.shape.n_experts == 64]
        if beside:
            active = float(run.row["n_active"])
            found.append((run, min(beside, key=lambda o: abs(math.log(float(o.row["n_active"]) / active)))))
    return found


def error_of_ratio(calibration: speed.Calibration, one: speed.Run, other: speed.Run) -> float:
    """ln of the predicted over the measured ratio of two runs' speeds."""
    _, predicted, _ = calibration.ratio(one.chip, (one.shape, one.setup), (other.shape, other.setup))
    return math.log(predicted * other.tokens_per_second / one.tokens_per_second)


def error_of_speed(calibration: speed.Calibration, run: speed.Run) -> float:
    """ln of the predicted over the measured speed."""
    return math.log(calibration.tokens_per_second(run.chip, run.shape, run.setup)[1] / run.tokens_per_second)


def line(name: str, errors: list[float], half_range: list[float]) -> str:
    """A row of the table."""
    if not errors:
        return f"| {name} | 0 | | | |"
    sizes = np.exp(np.abs(errors)) - 1
    held = np.mean(np.abs(errors) <= half_range)
    return f"| {name} | {len(errors)} | {np.median(sizes):.0%} | {np.quantile(sizes, 0.9):.0%} | {held:.0%} |"


def main() -> None:
    runs = [run for run in speed.read() if run.row["calibrates"] == "yes"]
    if "--write" in sys.argv[1:]:
        fitted = dataclasses.asdict(speed.calibrate(runs))
        speed.CALIBRATED.write_text(json.dumps(fitted, indent=1) + "\n", encoding="utf-8")
        print(json.dumps(fitted, indent=1))
        return
    kinds = ("all", "dense", "mixtures", "ratio of mixture to dense", "ratio of more experts to 64")
    errors: dict[str, list[float]] = {kind: [] for kind in kinds}
    halves: dict[str, list[float]] = {kind: [] for kind in kinds}
    print("# How well training speeds are predicted\n")
    print("Each source predicted from the others, leaving its runs out:\n")
    print("| source | runs | median error | 90% of errors below | within the 80% range |\n|---|---|---|---|---|")
    for source in sorted({run.source for run in runs}):
        left_out = [run for run in runs if run.source == source]
        fitted = speed.calibrate([run for run in runs if run.source != source])
        wide = Z80 * math.hypot(fitted.between_sources, fitted.within_source)
        narrow = Z80 * math.sqrt(2) * fitted.within_source
        own = [error_of_speed(fitted, run) for run in left_out]
        name = "/".join(source.split("/")[1:3]) + " " + source.rsplit("/", 1)[-1]
        print(line(name, own, [wide] * len(own)))
        for run, error in zip(left_out, own):
            for kind in ("all", "mixtures" if run.is_mixture else "dense"):
                errors[kind].append(error)
                halves[kind].append(wide)
        for against, kind in (("dense", kinds[3]), ("fewer", kinds[4])):
            for one, other in pairs(left_out, against):
                errors[kind].append(error_of_ratio(fitted, one, other))
                halves[kind].append(narrow)
    for kind in kinds:
        print(line(f"**{kind}**", errors[kind], halves[kind]))


if __name__ == "__main__":
    main()
