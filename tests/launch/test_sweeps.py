"""The sweeps that ship: what they would run, against the paper; --dry_run."""

import csv
import json
import math
import pathlib

import helpers
import numpy as np
import pytest
from etils import epath

import fit
from configs.sweeps import joint_moe, lr_grid, lr_halving, memory_matched, quickstart
from fit.planning.emit import plan_config
from fit.table.table import Table, write
from launch import jobs as jobs_lib
from launch import prices

DATA = pathlib.Path(__file__).parents[1] / "data"


def load(name):
    return jobs_lib.load(f"configs/sweeps/{name}.py", epath.Path("/nowhere"))


def dry_run(name, *flags):
    done = helpers.succeeds(
        "launch.sweep", f"--sweep=configs/sweeps/{name}.py", "--workdir=nowhere", "--dry_run", *flags
    )
    return done.stdout.splitlines()


def test_joint_moe_is_appendix_h():
    """Every run's sizes and tokens, as --dry_run prints them; the totals, computed from the paper's list alone."""
    with open(DATA / "joint_moe_appendix_h.csv") as file:
        listed = [{name: float(row[name]) for name in ("E", "N_act", "N_total", "D")} for row in csv.DictReader(file)]
    *lines, total = dry_run("joint_moe", "--accelerator=H100:8", "--text_elsewhere")[:-1]
    printed = set()
    for line in lines[1:]:
        name, n_active, n_total, _, n_tokens = line.split(maxsplit=4)
        for budget in n_tokens.partition("  ")[0].split(", "):
            sizes = (number.replace(",", "") for number in (n_active, n_total, budget))
            printed.add((int(name.split("-")[1][1:]), *map(int, sizes)))
    assert printed == {(int(r["E"]), int(r["N_act"]), int(r["N_total"]), int(r["D"])) for r in listed}
    assert total.startswith("270 runs in 51 jobs")

    models = {}
    for row in listed:
        models.setdefault((row["E"], row["N_act"], row["N_total"]), []).append(row["D"])
    alone = sum(6 * row["N_act"] * row["D"] for row in listed)
    shared = sum(6 * n * (0.8 * max(d) + 0.2 * sum(d)) for (_, n, _), d in models.items())
    words = total.replace(";", "").replace(":", "").split()
    assert float(words[words.index("FLOPs") - 1]) == pytest.approx(shared, rel=2e-3)
    assert float(words[words.index("one") + 3]) == pytest.approx(alone, rel=2e-3)
    assert f"saves {1 - shared / alone:.0%}" in total


def test_joint_moe_takes_the_listed_tokens_to_the_batch():
    jobs, configs = load("joint_moe")
    assert len({job.name for job in jobs}) == 51
    for job in jobs:
        assert configs[job.name].model.d_ff == 3 * job.d_model
        for branch, budget in job.budgets.items():
            first, last = job.segments[branch]
            assert 0 <= last - budget < 262_144  # whole batches
            assert 0 <= first - 0.8 * budget < 262_144
    assert {row[0] for row in joint_moe.TABLE} == {job.d_model for job in jobs}


def test_dry_run_prices_a_sweep():
    """Hours are FLOPs over peak times MFU; the price is theirs."""
    *_, total, assumed = dry_run("quickstart", "--accelerator=H100", "--mfu=0.5", "--dollars_per_hour=1e6")
    _, jobs = quickstart.get_sweep()
    assert f"{sum(len(job['n_tokens']) for job in jobs)} runs in {len(jobs)} jobs" in total

    def n_active(d):
        return 2 * d * 257 + d // 8 * 13 * d**2

    shared = sum(
        6 * n_active(job["model.d_model"]) * (0.8 * max(job["n_tokens"]) + 0.2 * sum(job["n_tokens"])) for job in jobs
    )
    price = float(assumed.split("$")[1].replace(",", ""))
    assert price == pytest.approx(1e6 * shared / (0.5 * 989e12 * 3600), rel=0.02)
    assert not pathlib.Path("nowhere").exists()
    start = ("launch.sweep", "--sweep=configs/sweeps/quickstart.py", "--workdir=nowhere", "--dry_run")
    assert "needs --accelerator" in helpers.fails(*start, "--dollars_per_hour=2")
    assert "none of A100, H100" in helpers.fails(*start, "--accelerator=H1000")


def test_a_dry_run_takes_the_hours_of_the_plan(tmp_path):
    """The plan and the dry run of its config count the same step, so that both say the same hours."""
    plan = fit.plan("joint-moe-2025", chips="H100:16", experts=[8], hours=50)
    hours = plan.buildable.cost.training_hours
    path = tmp_path / "planned.py"
    path.write_text(plan_config.source(fit.load("joint-moe-2025"), plan, None))
    start = ("launch.sweep", f"--sweep={path}", f"--workdir={tmp_path}/run", "--dry_run", "--text_elsewhere")
    done = helpers.succeeds(*start, "--accelerator=H100:2x8", "--dollars_per_hour=2")
    *_, total = done.stdout.splitlines()
    assert total.startswith("at modelled speeds (MFU ") and "80% range" in total
    assert float(total.split("H100-hours")[0].split()[-1].replace(",", "")) == pytest.approx(16 * hours, rel=1e-3)
    assert float(total.split("$")[1].replace(",", "")) == pytest.approx(2 * 16 * hours, rel=1e-3)
    at_mfu = helpers.run(*start, "--accelerator=H100:2x8", "--mfu=0.4").stdout.splitlines()[-1]
    flops = plan.buildable.training_flops
    assert float(at_mfu.split("H100-hours")[0].split()[-1].replace(",", "")) == pytest.approx(
        flops / (0.4 * 989e12 * 3600), rel=2e-3
    )


def test_a_job_whose_mesh_is_impossible_is_priced_at_an_mfu():
    jobs, configs = load("quickstart")
    mixture = next(job for job in jobs if job.n_experts == 8)
    price = prices.price_of(mixture, configs[mixture.name], "H100:8", 1, None)
    assert not price.modelled and price.mfu == prices.DEFAULT_MFU
    assert price.chip_hours == pytest.approx(mixture.flops / (989e12 * 0.4 * 3600), rel=1e-3)
    modelled = prices.price_of(mixture, configs[mixture.name], "H100", 1, None)
    assert modelled.modelled and modelled.chip_hours > price.chip_hours
    assert "; 1 jobs, whose mesh is impossible here, at 40%" in prices.summary([price, modelled], 1e15)


def test_lr_grid_surrounds_equation_10():
    jobs, configs = load("lr_grid")
    _, grid = lr_grid.get_sweep()
    assert {job.n_experts for job in jobs} == {1, 4, 8, 32} == set(grid["model.n_experts"])
    for job in jobs:
        law = configs[job.name].optimizer.lr_law
        peak = math.exp(law.constant + law.n_active * math.log(job.n_active) + law.n_experts * math.log(job.n_experts))
        paper = math.exp(
            8.391640956234012 - 0.8121798244457074 * math.log(job.n_active) - 0.25 * math.log(job.n_experts)
        )
        assert 2**-1.5 * 0.999 < peak / paper < 2**1.5 * 1.001


@pytest.mark.parametrize("name, n_budgets", [("memory_matched", 10), ("memory_matched_small", 2)])
def test_memory_matched_models_share_memory_and_flops(name, n_budgets):
    jobs, _ = load(name)
    dense, *others = jobs
    assert dense.n_experts == 1 and [job.n_experts for job in others] == [2, 4]
    for job in others:
        assert 0.85 < job.n_total / dense.n_total < 1.001  # the mixtures have no more memory than the dense model
        flops = [np.array(list(j.budgets.values())) * j.n_active for j in (job, dense)]
        assert len(job.budgets) == n_budgets and np.allclose(*flops, rtol=1e-5)


def test_memory_matched_has_the_papers_tokens():
    """App. H lists these runs' tokens for E = 2 and 4, rounded to two or three digits."""
    jobs, _ = load("memory_matched")
    with open(DATA / "joint_moe_appendix_h.csv") as file:
        listed = [(float(row["N_act"]), float(row["E"]), float(row["D"])) for row in csv.DictReader(file)]
    for job in jobs:
        paper = [d for n, e, d in listed if (n, e) == (job.n_active, job.n_experts)]
        near = [budget for budget in job.budgets.values() if min(abs(d / budget - 1) for d in paper) < 0.02]
        assert len(near) >= 7
    assert len(memory_matched.DENSE_TOKENS) == 10


def test_a_plan_becomes_a_sweep(tmp_path):
    """The models of planned.py lie on both sides of the plan's optimum, at its FLOPs."""
    done = helpers.run("fit", "plan", "--law=joint-moe-2025", "--flops=1e20", "--experts=1,2,4,8,16,32", "--json")
    optima = {row["n_experts"]: row for row in json.loads(done.stdout)["optima"]}
    jobs, _ = load("planned")
    assert {job.n_experts for job in jobs} == optima.keys()
    for n_experts, optimum in optima.items():
        below, above = (job for job in jobs if job.n_experts == n_experts)
        assert below.n_active <= optimum["n_active"] <= above.n_active
        assert above.d_model - below.d_model == 64
        for job in (below, above):
            (n_tokens,) = job.budgets.values()
            assert 6 * job.n_active * n_tokens == pytest.approx(1e20, rel=1e-6)


def test_each_start_of_lr_halving_adds_the_rates_around_the_best(tmp_path):
    """Losses with a lowest rate for each model, at the end of the grid for one; runs of the highest rate diverge."""
    path = tmp_path / "runs.csv"
    best = dict(zip(map(repr, lr_halving.MODELS), (4.1, 3.2, 9.0, 3.8), strict=True))

    def model(job):
        return {field: job[field] for field in lr_halving.MODELS[0]}

    for n_jobs in (36, 56, 68, 68):
        _, jobs = lr_halving.get_sweep(path)
        assert len(jobs) == n_jobs and all(job in jobs for job in lr_halving.get_sweep("none")[1])
        rows = [  # as launch.collect writes them
            dict(
                overrides="seed=1 " + " ".join(f"{field}={value!r}" for field, value in job.items()),
                n_tokens=n_tokens,
                loss=2 + abs(job["optimizer.lr_law.constant"] - best[repr(model(job))]) - n_tokens / 1e9,
            )
            for job in jobs
            for n_tokens in job["n_tokens"]
            if job["optimizer.lr_law.constant"] < max(lr_halving.CONSTANTS)
        ]
        write(Table("", {name: [row[name] for row in rows] for name in rows[0]}, []), str(path))
    for which in lr_halving.MODELS:
        ends = [job["optimizer.lr_law.constant"] for job in jobs if model(job) == which][-3:]
        optimum = min(lr_halving.CONSTANTS[:-1], key=lambda c: abs(c - best[repr(which)]))
        assert ends[1] == optimum and max(ends) - min(ends) == pytest.approx(math.log(2), abs=1e-3)
