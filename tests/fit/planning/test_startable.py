"""What a plan emits is what the trainer starts: random plans against the trainer's own checks, and real dry runs."""

import contextlib
import json
import math
import shlex

import fit_command
import fit_runs
import helpers
import numpy as np
import pytest

import fit
from benchmarks import plans_start
from configs import joint_moe
from fit.model import hardware
from fit.model.shape import ModelShape
from fit.planning.emit import plan_config
from fit.planning.recipe import which_recipe
from fit.planning.space import meshes
from jmoe.config import counts
from jmoe.config.check import check_mesh
from jmoe.errors import UserError


@pytest.fixture(scope="module")
def plans():
    """[(case, plan)] of cases of the grid in which each kind, number of chips, law and limit stands as often as any
    other, in other company each time. `python -m benchmarks.plans_start` takes all 2,352."""
    found = []
    for i in range(14):
        case = plans_start.Case(
            law=plans_start.LAWS[i % 4],
            kind=plans_start.KINDS[i % 7],
            count=plans_start.COUNTS[(2 * i + i // 7) % 7],
            hours=plans_start.HOURS[i % 3],
            limits=tuple(plans_start.LIMITS[(i + i // 4) % 4].items()),
        )
        with contextlib.suppress(fit.UserError):
            found.append((case, plans_start.plan_of(case)))
    return [(case, plan) for case, plan in found if plan.buildable is not None]


def test_the_trainer_starts_what_is_planned(plans, tmp_path):
    """Whatever has a feasible model has a config that is accepted, and whose dry run takes the plan's hours."""
    assert len(plans) >= 12
    for case, plan in plans:
        config = plans_start.config_of(case, plan, str(tmp_path))
        assert plans_start.refusal(case, plan, config) == "", case.command
        assert plans_start.other_hours(case, plan, config) == "", case.command
        built = plan.buildable
        layout = built.layout
        assert (config.mesh.expert, config.mesh.model, config.remat) == (layout.expert, layout.model, layout.remat)
        assert tuple(map(tuple, config.batch_tokens)) == layout.ramp and config.data.seq_len == built.sequence
        assert config.microbatch_tokens == layout.microbatch_tokens
        assert 0.95 * case.hours < built.cost.training_hours <= case.hours * (1 + 1e-9)
        for column in ("n_active", "n_tokens", "loss"):
            assert plan.best[column] == pytest.approx(built[column], rel=1e-12)


def test_the_batch_is_between_the_floor_and_the_recipes(plans):
    """By the laws of batch, one by one, as their papers have them."""
    for case, plan in plans:
        built = plan.buildable
        batch = built.batch_tokens[-1][1]
        least, most = built.batch_allowed
        assert least <= batch * (1 + 1e-9) and batch <= most * (1 + 1e-9), case.command
        assert (built.sequence == which_recipe.PRETRAIN_SEQUENCE) == bool(built.recipe_laws)
        if built.recipe_laws:
            batches = [row["batch_tokens"] for row in built.recipe_laws]
            mean = math.exp(np.mean(np.log(batches)))
            assert [least, most] == pytest.approx([min(*batches, mean / 2), mean], rel=1e-6)


@pytest.mark.parametrize("hours", [0.01, 1.0])
def test_a_law_of_ones_own_runs_is_started_with_the_batches_that_are_timed(hours, tmp_path):
    """Its runs' config has a batch of 4,096 tokens in groups of as many, which the law does not know."""
    case = plans_start.Case("jmoe-bytes-2026", "H100", 8, hours, (("experts", (8,)),))
    plan = plans_start.plan_of(case)
    config = plans_start.config_of(case, plan, str(tmp_path))
    assert plans_start.refusal(case, plan, config) == "" and plans_start.other_hours(case, plan, config) == ""
    assert [list(step) for step in config.batch_tokens] == plan.buildable.batch_tokens


def fitted(tmp_path, **columns):
    """The path of a law.json fitted to the demo's runs with more columns."""
    runs = fit_runs.write_demo_csv(tmp_path / "runs.csv", **columns)
    fit.save(fit.law(runs, "joint", starts=4), tmp_path / "law.json")
    return str(tmp_path / "law.json")


N_TOKENS = fit_runs.demo_runs()[0].n_tokens
BATCHES = {  # by the batches at the end of the runs: (the ramp, hours within which a plan has the recipe of the runs)
    "one": (np.full(36, 4_096), ((0, 4_096),)),
    "odd": (np.full(36, 5_000), ((0, 5_000),)),
    "ramp": (np.where(N_TOKENS > 400_000, 8_192, 4_096), ((0, 4_096), (327_680, 8_192))),
}


@pytest.mark.parametrize("name", BATCHES)
def test_a_plan_has_the_batches_of_a_table_that_says_them(name, tmp_path):
    """In whole groups of each mesh, and never larger: on 8 chips, and on more than there are rows in a batch."""
    column, ramp = BATCHES[name]
    law = fitted(tmp_path, batch_tokens=column.tolist())
    for kind, count in (("H100", 1), ("H100", 8), ("v5e", 64)):
        case = plans_start.Case(law, kind, count, 1e-4)
        plan = plans_start.plan_of(case)
        built = plan.buildable
        config = plans_start.config_of(case, plan, str(tmp_path))
        assert plans_start.refusal(case, plan, config) == "" and plans_start.other_hours(case, plan, config) == ""
        assert "batch_of_layout" not in {found.code for found in plan.findings}
        assert [list(step) for step in config.batch_tokens] == built.batch_tokens
        assert config.batch_tokens[-1][1] == built.cost.step_tokens
        mesh_ = built.cost.mesh
        unit = mesh_.data * mesh_.expert * config.model.group_tokens
        for (start, batch), (ramp_start, most) in zip(config.batch_tokens, ramp, strict=True):
            assert start == ramp_start and most / 2 < batch <= most and batch % unit == 0
        assert built.batch_allowed == [ramp[-1][1] / 2, ramp[-1][1]]
    flags = [f"--law={law}", "--chips=H100:8", "--hours=0.0001", f"--emit_config={tmp_path}/typed.py", "--json"]
    typed = json.loads(fit_command.printed("plan", *flags))["buildable"]
    config = plans_start.module_of(tmp_path / "typed.py", "typed").get_config()
    assert [list(step) for step in config.batch_tokens] == typed["batch_tokens"]


def test_a_table_of_the_papers_batches_plans_as_without_the_column(tmp_path):
    """Its config says them already: up to 262,144 tokens."""
    papers = dict(config=["configs/joint_moe.py"] * 36)
    plans = []
    for column in ({}, {"batch_tokens": [65_536] * 36}):  # the runs end within the first 500M tokens
        law = fit.load(fitted(tmp_path, **papers, **column))
        plans.append(fit.plan(law, chips="H100:8", hours=0.01).to_dict())
    assert plans[0] == plans[1]
    assert plans[0]["buildable"]["batch_tokens"] == [[0, 65_536], [500_000_000, 131_072], [1_000_000_000, 262_144]]


def papers_law(tmp_path, **columns):
    """The path of a law.json fitted to the paper's grid of runs, with more columns of one value each."""
    runs = fit_runs.paper_runs()
    columns = dict(vocab_size=50_257, width_per_block=64, seq_len=512) | columns
    table = fit_runs.write_csv(
        tmp_path / "runs.csv", runs, **{name: [value] * len(runs.loss) for name, value in columns.items()}
    )
    fit.save(fit.law(table, "joint", starts=4), tmp_path / "law.json")
    return str(tmp_path / "law.json")


def test_a_batch_of_an_odd_number_of_groups_is_split_as_others_are(tmp_path):
    """The chips do not hold it whole. 31 times 65,536 tokens have no half, and still cost hardly more than 32 times."""
    losses = []
    for n_groups in (31, 32):
        law = papers_law(tmp_path, batch_tokens=n_groups * 65_536, config="configs/joint_moe.py", overrides="")
        case = plans_start.Case(law, "v5e", 8, 24)
        plan = plans_start.plan_of(case)
        config = plans_start.config_of(case, plan, str(tmp_path))
        assert plans_start.refusal(case, plan, config) == "" and plans_start.other_hours(case, plan, config) == ""
        assert config.batch_tokens == ((0, n_groups * 65_536),)
        assert 0 < config.microbatch_tokens < n_groups * 65_536
        losses.append(plan.buildable.loss)
    assert losses[0] == pytest.approx(losses[1], rel=0.005)


def test_a_law_without_a_config_has_the_batches_of_its_table(tmp_path):
    """Models of the paper's shape start from the paper's config, with these batches."""
    law = fit.load(papers_law(tmp_path, batch_tokens=32_768))
    plan = fit.plan(law, flops=1e19, shape="paper")
    assert plan.base_config == "configs/joint_moe.py" and plan.buildable.batch_tokens == [[0, 32_768]]
    (tmp_path / "planned.py").write_text(plan_config.source(law, plan))
    config = plans_start.module_of(tmp_path / "planned.py", "planned").get_config()
    assert config.batch_tokens == ((0, 32_768),)
    assert fit.plan(law, flops=1e16, chips="H100:8").buildable.batch_tokens == [[0, 32_768]]


CASES = [
    plans_start.Case("joint-moe-2025", "H100", 64, 240),
    plans_start.Case("joint-moe-2025", "v5e", 256, 240, (("like", "Qwen3-30B-A3B"),)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind}-{case.count}")
def test_the_command_that_a_plan_prints_starts_its_config(case, tmp_path, monkeypatch):
    """As it stands, but for the slice of a TPU, in a process; then with a text that is too short."""
    monkeypatch.chdir(tmp_path)
    printed = fit_command.printed("plan", *case.command.split()[2:], "--emit_config=planned.py")
    name, _ = plans_start.accelerator(case.kind, case.count)
    _, _, module, *flags = shlex.split(printed[printed.index("  python -m") :].replace("v5e:SLICE", name))
    helpers.succeeds(module, *flags)
    with_text = helpers.fails(module, *[flag for flag in flags if flag != "--text_elsewhere"])
    assert "this would be refused" in with_text and "training tokens" in with_text


SIZES = dict(
    d_model=[96, 640, 1024, 4352],
    n_heads=[8, 12, 40],
    n_kv_heads=[2, 4],
    d_ff=[96, 384, 1000],
    n_experts=[1, 8, 48],
    d_expert=[0, 128, 100],
    n_dense_blocks=[0, 1],
)


def test_plans_and_the_trainer_divide_alike():
    """Random shapes on random meshes: check_mesh refuses exactly the meshes that do not divide them."""
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(400):
        config = joint_moe.get_config()
        shape = {name: int(rng.choice(values)) for name, values in SIZES.items()}
        shape |= dict(n_blocks=4, head_dim=64, vocab_size=512, tied_embeddings=False, top_k=1)
        if shape["n_experts"] == 1:
            shape |= dict(d_expert=0, n_dense_blocks=0)
        config.model.update(shape)
        config.model.group_tokens = 512
        data, expert, model = (int(rng.choice(sizes)) for sizes in ([1, 2, 6, 64], [1, 2, 3, 8], [1, 2, 4, 8]))
        config.mesh.expert, config.mesh.model = expert, model
        config.batch_tokens = ((0, 512 * data * expert),)
        counted = ModelShape.of_config(shape)
        divides = meshes.divides(counted, 512, bool(shape["d_expert"]), data, expert, model)
        try:
            assert check_mesh(config, data * expert * model) == (data, expert, model)
            assert divides
        except UserError as error:
            refused += 1
            assert not divides and "does not divide over" in str(error)
    assert 100 < refused < 390


def test_shapes_are_those_of_the_grid(plans):
    """And at the sizes of the law's runs their own width per block."""
    for _, plan in plans:
        built = plan.buildable.to_dict()
        d, experts = built["d_model"], built["n_experts"]
        assert d % hardware.step(d) == 0 and built["d_ff"] % 128 == 0 and built.get("d_expert", 0) % 128 == 0
        assert built["vocab_size"] % 128 == 0
        assert experts == 1 or experts % 8 == 0 or math.log2(experts).is_integer()
        head_dim = built.get("head_dim") or d // built["n_heads"]
        assert head_dim in (64, 128) and built["n_heads"] % built.get("n_kv_heads", built["n_heads"]) == 0
        assert d <= 2048 or built["n_heads"] % 8 == 0
    own = fit.plan("joint-moe-2025", flops=1e20).buildable
    assert own["n_active"] < 2.7e9 and 64 / 1.15 <= own["d_model"] / own["n_blocks"] <= 64 * 1.15
    far = fit.plan("joint-moe-2025", flops=1e23).buildable
    assert far["n_active"] > 2.7e9 and far["d_model"] / far["n_blocks"] > 80


@pytest.mark.parametrize(
    "asked, experts, of_law",
    [
        ("--chips=H100:64 --hours=24 --like=Qwen3-30B-A3B", 256, 32),
        ("--flops=1e20 --shape=paper,granularity:4", 128, 32),
    ],
)
def test_one_convention_for_experts(asked, experts, of_law, tmp_path):
    """n_experts is what the config builds, in JSON and text; the law's count stands beside it."""
    flags = ["plan", "--law=joint-moe-2025", *asked.split()]
    plan = fit_command.answer(*flags, f"--emit_config={tmp_path}/c.py")
    built = plan["buildable"]
    config = plans_start.module_of(tmp_path / "c.py", "c").get_config()
    assert built["n_experts"] == config.model.n_experts == experts
    assert built["law_experts"] == plan["best"]["n_experts"] == of_law
    assert counts.n_active(config.model) == built["n_active"] and counts.n_total(config.model) == built["n_total"]
    assert counts.n_exact(config.model) == built["exact_parameters"]
    printed = " ".join(fit_command.printed(*flags, "--verbose").split())
    assert f"buildable: n_experts {built['n_experts']}, " in printed
    assert f"the law counts its {experts} experts as {of_law} as wide as a dense layer" in printed


def test_the_mesh_that_a_user_asks_for(tmp_path):
    """Is taken where it divides; else one sentence says so."""
    flags = ["plan", "--law=joint-moe-2025", "--flops=1e21", "--chips=H100:64"]
    chosen = fit_command.answer(*flags, "--mesh=expert:4,model:2,remat:dots")["buildable"]["cost"]["mesh"]
    assert [chosen[name] for name in ("data", "expert", "model", "remat")] == [8, 4, 2, "dots"]
    said = fit_command.refused("plan", "--law=joint-moe-2025", "--flops=1e21", "--chips=H100:48", "--mesh=model:3")
    assert "--mesh=model:3: no model of the plan divides over such a mesh" in said
