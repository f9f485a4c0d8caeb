"""Does the trainer start what plans emit? A plan for every case of a grid, its config, and the checks of a dry run.

    python -m benchmarks.plans_start [--sample=100] [--seed=0]
    python -m benchmarks.plans_start --compile=0

Each of 8 to 1,024 chips of seven kinds for a day, ten days and a hundred, by four published laws, without a limit on
memory, within 80 GB, and with models like Qwen3-30B-A3B and OLMoE: 1,764 + 588 cases. Each plan is emitted as a config,
which is loaded and checked as launch.sweep --dry_run checks it: check_config, check_mesh and preflight's memory.
Printed: how many are accepted, how many have no feasible model, and every refusal or price other than the plan's. With
--compile, libtpu compiles a plan of COMPILED instead, and the memory of both is printed.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import collections
import dataclasses
import itertools
import json
import math
import pathlib
import random
import sys
import tempfile
import time
from collections.abc import Iterator

from absl import app, flags
from ml_collections import ConfigDict

import fit
from fit.planning import make_plan
from fit.planning.emit import plan_config
from fit.planning.inputs.options import PlanOptions
from fit.planning.plan import Plan
from jmoe.config import schema
from jmoe.config.check import check_config, check_mesh
from jmoe.config.schema import module_of
from jmoe.errors import UserError
from launch import accelerators, preflight, prices

COUNTS = (8, 16, 32, 64, 128, 256, 1024)
KINDS = ("H100", "H200", "B200", "v5e", "v5p", "v6e", "tpu7x")
HOURS = (24, 240, 2400)
LAWS = ("joint-moe-2025", "sparsity-2025", "comprehensive-2025", "fine-grained-2024")
LIMITS = ({}, {"memory_gb": 80}, {"like": "Qwen3-30B-A3B"}, {"like": "OLMoE-1B-7B"})
# the largest slice of a flat TPU; more chips are several slices
MOST_OF_SLICE = {"v5e": 256, "v6e": 256}

SAMPLE = flags.DEFINE_integer("sample", None, "Number of cases to draw at random. Default: all.")
SEED = flags.DEFINE_integer("seed", 0, "Seed of that draw.")
COMPILE = flags.DEFINE_integer("compile", None, "Number of a case of COMPILED, from 0, to compile instead.")


@dataclasses.dataclass(frozen=True)
class Case:
    """The options of a plan.

    Attributes:
        law: the name of a published law.
        kind: the kind of chip.
        count: number of chips.
        hours: hours of training.
        limits: further arguments of fit.plan, as (name, value).
    """

    law: str
    kind: str
    count: int
    hours: int
    limits: tuple[tuple[str, object], ...] = ()

    @property
    def command(self) -> str:
        """The command that prints this plan."""
        more = "".join(f" --{name}={value}" for name, value in self.limits)
        return f"fit plan --law={self.law} --chips={self.kind}:{self.count} --hours={self.hours}{more}"


COMPILED = [
    Case("joint-moe-2025", "v5e", 16, 24),
    Case("joint-moe-2025", "v5p", 16, 240),
    Case("sparsity-2025", "v5e", 16, 240),
    Case("fine-grained-2024", "v6e", 16, 24, (("memory_gb", 80),)),
    Case("joint-moe-2025", "v6e", 64, 240, (("like", "Qwen3-30B-A3B"),)),
    Case("comprehensive-2025", "v5p", 64, 240),
    Case("joint-moe-2025", "v5p", 128, 2400, (("like", "OLMoE-1B-7B"),)),
    Case("joint-moe-2025", "v5e", 256, 240),
    Case("sparsity-2025", "v5p", 32, 24, (("memory_gb", 80),)),
    Case("joint-moe-2025", "v6e", 256, 2400),
    Case("fine-grained-2024", "v5p", 256, 2400),
    Case("comprehensive-2025", "v5e", 64, 240, (("like", "OLMoE-1B-7B"),)),
]


def grid() -> list[Case]:
    """Returns all cases."""
    return [
        Case(law, kind, count, hours, tuple(limits.items()))
        for law, kind, count, hours, limits in itertools.product(LAWS, KINDS, COUNTS, HOURS, LIMITS)
    ]


def sample(n_cases: int, seed: int = 0) -> list[Case]:
    """Returns some of the cases, drawn at random."""
    return random.Random(seed).sample(grid(), n_cases)


def accelerator(kind: str, count: int) -> tuple[str, int]:
    """Returns the value of --accelerator for so many chips, and the number of slices."""
    if not kind.startswith(accelerators.TPUS):
        return f"{kind}:{max(1, count // 8)}x{min(count, 8)}", 1
    on_slice = min(count, MOST_OF_SLICE.get(kind, count))
    if kind in MOST_OF_SLICE:
        (size,) = (s for s, (hosts, chips) in accelerators.FLAT.items() if hosts * chips == on_slice and "/" not in s)
        return f"{kind}:{size}", count // on_slice
    cubes = [size for size in accelerators.CUBES if math.prod(map(int, size.split("x"))) == on_slice]
    if cubes:
        return f"{kind}:{cubes[0]}", 1
    if on_slice % 64 == 0 and not math.log2(on_slice).is_integer():
        return f"{kind}:4x4x{on_slice // 16}", 1
    edge = 4 * 2 ** (int(math.log2(on_slice // 64)) // 3)
    rest = on_slice // edge**3
    sizes = sorted([edge, edge * min(rest, 2), edge * max(rest // 2, 1)])
    return f"{kind}:{'x'.join(map(str, sizes))}", 1


def plan_of(case: Case) -> Plan:
    """Returns the plan of a case; fit.UserError if none is feasible."""
    limits = dict(case.limits) | dict(chips=f"{case.kind}:{case.count}", hours=case.hours)
    return make_plan.best_plan(fit.load(case.law), PlanOptions(**limits))


def config_of(case: Case, plan: Plan, folder: str) -> ConfigDict:
    """Loads the config that the plan emits."""
    path = pathlib.Path(folder) / "planned.py"
    path.write_text(plan_config.source(fit.load(case.law), plan), encoding="utf-8")
    return module_of(path, "planned").get_config()


def refusal(case: Case, plan: Plan, config: ConfigDict) -> str:
    """Returns why a dry run would refuse the config on those of the case's chips that train; "" if it would not."""
    assert plan.chips is not None
    n_devices, capacity = accelerators.devices(*accelerator(case.kind, plan.chips.n_used))
    try:
        check_config(schema.complete(config))
        sizes = check_mesh(config, n_devices)
    except UserError as error:
        return str(error)
    if preflight.least_bytes(config, sizes) > capacity:
        return "it does not fit"
    return ""


def other_hours(case: Case, plan: Plan, config: ConfigDict) -> str:
    """Returns the hours of a dry run where they are not the plan's within 1%, else ""."""
    assert plan.chips is not None and plan.buildable is not None and plan.buildable.cost is not None
    count = plan.chips.n_used
    of_chip = prices.tokens_per_chip_second(config, *accelerator(case.kind, count))
    planned = plan.buildable.cost.training_hours
    hours = math.inf if of_chip is None else plan.buildable.n_tokens / of_chip / count / 3600
    return "" if abs(hours / planned - 1) < 0.01 else f"{hours:g} hours, planned {planned:g}"


def outcomes(cases: list[Case]) -> Iterator[tuple[Case, str, str]]:
    """Yields (case, outcome, why).

    The outcome is "accepted", "no model", "not emitted", "refused" or "priced otherwise".
    """
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            try:
                plan = plan_of(case)
            except fit.UserError as error:
                yield case, "no model", str(error)
                continue
            if plan["buildable"] is None:
                yield case, "no model", "no buildable model meets the limits"
                continue
            try:
                config = config_of(case, plan, folder)
            except fit.UserError as error:
                yield case, "not emitted", str(error)
                continue
            why = refusal(case, plan, config)
            if why:
                yield case, "refused", why
                continue
            why = other_hours(case, plan, config)
            yield case, "priced otherwise" if why else "accepted", why


def compiled(case: Case) -> dict:
    """Returns the bytes of a device by the plan and by libtpu, and the seconds that compiling took."""
    from jmoe.cost import memory
    from jmoe.cost.topologies import topology_devices

    plan = plan_of(case)
    with tempfile.TemporaryDirectory() as folder:
        config = config_of(case, plan, folder)
    began = time.monotonic()
    assert plan.chips is not None
    topology, _ = accelerator(case.kind, plan.chips.n_used)
    row = dict(plan=case.command, topology=topology, planned=plan["buildable"]["cost"]["mesh"]["step_bytes"])
    row |= {name: plan["buildable"][name] for name in ("n_active", "n_total", "n_experts", "d_model", "n_blocks")}
    row |= {name: plan["buildable"]["cost"]["mesh"][name] for name in ("data", "expert", "model", "remat")}
    try:
        _, step = memory.compile_step(config, topology_devices(topology))
        row["compiled"] = memory.of_step(step)["peak"]
        row["ratio"] = row["planned"] / row["compiled"]
    except memory.DoesNotFit as error:
        row["refused"] = str(error)
    return row | dict(seconds=time.monotonic() - began)


def main(_: object) -> None:
    """Prints the outcomes of all cases, or with --compile of one."""
    if COMPILE.value is not None:
        print(json.dumps(compiled(COMPILED[COMPILE.value])))
        return
    cases = grid() if SAMPLE.value is None else sample(SAMPLE.value, SEED.value)
    count: collections.Counter = collections.Counter()
    for number, (case, outcome, why) in enumerate(outcomes(cases), 1):
        count[outcome] += 1
        if outcome != "accepted":
            print(f"{outcome}: {case.command}: {why}")
        if number % 100 == 0:
            print(f"{number} of {len(cases)}: {dict(count)}", file=sys.stderr)
    print(f"{len(cases)} plans: {', '.join(f'{n} {outcome}' for outcome, n in count.items())}")


if __name__ == "__main__":
    app.run(main)
