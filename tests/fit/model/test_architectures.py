"""Plans of models that are not the paper's: counts against the trainer's own counter, laws that know how their runs
were built, the flags that ask for others, and what a law cannot know."""

import dataclasses
import itertools
import json
import runpy
from types import SimpleNamespace

import fit_command
import fit_runs
import numpy as np
import pytest

import fit
from configs import joint_moe, quickstart
from fit import __main__ as command_line
from fit.fitted_law import models
from fit.fitted_law.law_files import load
from fit.model.architecture import Architecture, Model
from fit.planning.emit import plan_config
from fit.planning.inputs.constraints import Constraints
from fit.planning.inputs.problem import Problem
from fit.planning.search import solver
from fit.studies.next_runs import next_sweep
from fit.studies.next_runs.results import Trunk
from fit.table.table import Table
from jmoe.config import counts, schema
from jmoe.config.check import check_config
from tests.fit.model.test_model_shape import assert_counts

BUILT = {  # runs of grouped queries, wide heads, tied ends, 2 of E narrow experts and a shared one after a dense block
    "model.n_kv_heads": lambda d: d // 16,
    "model.head_dim": lambda d: 12,
    "model.tied_embeddings": lambda d: True,
    "model.top_k": lambda d: 2,
    "model.d_expert": lambda d: d,
    "model.n_shared_experts": lambda d: 1,
    "model.n_dense_blocks": lambda d: 1,
}


def trainers(fields):
    """A config.model of these fields."""
    model = joint_moe.get_config().model
    model.update(fields | dict(final_norm=True))
    return model


def test_counts_are_the_trainers():
    """Exact ones of what is built, of 300 drawn architectures; the real-valued ones meet them where all divides."""
    rng = np.random.default_rng(0)
    whole = 0

    def draw(*values):
        return values[rng.integers(len(values))]

    for _ in range(300):
        split = draw(1, 2, 4)
        shared = draw(0, 1, 2)
        top_k = draw(1, 2, 3, 4)
        architecture = Architecture(
            257,
            draw(8, 16, 64),
            True,
            granularity=split,
            shared=shared,
            active_width=(top_k + shared) / split,
            n_dense=draw(0, 1, 2),
            kv_share=draw(1.0, 0.5, 0.3),
            attention=draw(1.0, 1.5),
            head_dim=draw(0, 16),
            ff=draw(3.0, 2.0, 8 / 3),
            tied=draw(True, False),
            counts_routed_experts=True,
        )
        model = Model(architecture, draw(3, 4, 6), draw(1, 8, 64))
        shape = model.shape
        config = trainers(model.fields)
        assert_counts(shape, config)
        assert shape.exact_parameters(False, architecture.final_norm) == counts.n_exact(config)
        ratio = model.fields["n_kv_heads"] / model.fields["n_heads"]
        fits = model.fields["n_heads"] * model.fields["head_dim"] == architecture.attention * shape.d_model
        if fits and ratio == architecture.kv_share and shape.d_model % 12 == 0:
            whole += 1
            at = shape.d_model, shape.n_experts
            assert float(architecture.n_active(*at)) == pytest.approx(shape.n_active, rel=1e-12)
            assert float(architecture.n_total(*at)) == pytest.approx(shape.n_total, rel=1e-12)
            assert float(architecture.kv_elements(at[0], 100)) == pytest.approx(shape.kv_elements(100), rel=1e-12)
            size = architecture.n_active(*at)
            assert float(architecture.d_model(size, at[1])) == pytest.approx(shape.d_model, rel=1e-12)
    assert whole > 20


def table_of(built=BUILT, experts=(1, 8, 16), **changed):
    """runs.csv as launch.collect makes it of models of these fields, losses by TINY."""
    rows = []
    configs = []
    overrides = []
    for d, e, n_tokens in itertools.product((32, 48, 64), experts, (1_000_000, 3_000_000)):
        own = {"model.d_model": d, "model.n_experts": e}
        dense = ("model.d_expert", "model.n_shared_experts", "model.n_dense_blocks", "model.top_k")
        own |= {name: of(d) for name, of in built.items() if e > 1 or name not in dense}
        config = quickstart.get_config()
        config.update_from_flattened_dict(own)
        n_active = counts.n_active(config.model)
        n_total = counts.n_total(config.model)
        loss = float(fit_runs.joint_loss(n_active, n_tokens, e, fit_runs.TINY))
        row = dict(n_active=n_active, n_total=n_total, n_tokens=n_tokens, n_experts=e, loss=loss)
        row |= dict(d_model=d, n_blocks=d // 8, width_per_block=8, vocab_size=257, seq_len=128, final_norm=True)
        rows.append(row | schema.columns(config) | changed)
        configs.append(config.to_dict())
        overrides.append(" ".join(f"{name}={value!r}" for name, value in own.items()))
    schema.with_columns(rows, configs)
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    columns |= dict(config=["configs/quickstart.py"] * len(rows), overrides=overrides)
    return Table("runs.csv", columns, list(range(2, len(rows) + 2)))


def law_of(table, folder, form="joint", coefficients=fit_runs.TINY):
    """The path of a law.json of these runs."""
    record = dict(form=form, coefficients=coefficients, models=fit_runs.models_of(table).to_dict())
    (folder / "law.json").write_text(json.dumps(record))
    return f"{folder}/law.json"


def test_a_law_counts_models_as_its_runs_are_built(tmp_path):
    table = table_of()
    law = load(law_of(table, tmp_path))
    own = law.architecture
    assert (own.tied, own.kv_share, own.attention, own.head_dim) == (True, 0.5, 1.5, 12)
    assert (own.granularity, own.top_k, own.shared, own.n_dense) == (3, 2, 1, 1)
    read = {name: np.array(table.columns[name], float) for name in ("d_model", "n_experts", "n_active", "n_total")}
    np.testing.assert_allclose(own.n_active(read["d_model"], read["n_experts"]), read["n_active"], rtol=1e-12)
    np.testing.assert_allclose(own.n_total(read["d_model"], read["n_experts"]), read["n_total"], rtol=1e-12)
    np.testing.assert_allclose(own.d_model(read["n_active"], read["n_experts"]), read["d_model"], rtol=1e-9)
    assert law.models.miscounted is None and not list(law.models.findings())
    config = f"{tmp_path}/planned.py"
    flags = [f"--law={tmp_path}/law.json", "--flops=1e13", "--memory_gb=0.002", "--kv_tokens=4096"]
    assert command_line.run(["plan", *flags, f"--emit_config={config}"]) == 0
    for experts in (None, [1], [16]):  # dense ones too
        plan = fit.plan(law, flops=1e13, memory_gb=0.002, kv_tokens=4096, experts=experts)
        built = plan.buildable
        model = trainers({name: built[name] for name in (*models.BUILT, *plan_config.SHAPE)})
        assert (built["n_active"], built["n_total"]) == (counts.n_active(model), counts.n_total(model))
        memory = 2 * counts.n_exact(model) + 2 * counts.kv_elements(model, 4096)
        assert built["memory_bytes"] == memory <= 2e6
        assert built["loss"] == pytest.approx(
            fit_runs.joint_loss(built["n_active"], built["n_tokens"], built["n_experts"], fit_runs.TINY)
        )
    made = runpy.run_path(config)["get_config"]()
    check_config(schema.complete(made))
    assert (
        counts.n_active(made.model) == fit.plan(law, flops=1e13, memory_gb=0.002, kv_tokens=4096).buildable["n_active"]
    )


def test_the_best_size_of_such_models_by_a_grid(tmp_path):
    law = load(law_of(table_of(), tmp_path))
    limits = Constraints(flops=1e13, memory_bytes=1e6, kv_tokens=4096)
    solved = solver.best_models(Problem(law, law.architecture, limits), np.array([1.0, 8, 16]))
    d = np.geomspace(16, 512, 400_001)
    for i, e in enumerate((1, 8, 16)):
        blocks = d / 8
        own = 257 * d
        expert = 3 * d**2
        dense = 9 * d**2
        attention = 1.5 * d**2 * 3

        def moe(n, e=e, blocks=blocks, expert=expert, dense=dense):
            return dense * blocks if e == 1 else dense + (blocks - 1) * n * expert

        active = own + attention * blocks + moe(3)
        total = own + attention * blocks + moe(e + 1)
        memory = 2 * total + 2 * 2 * 4096 * blocks * 1.5 * d / 2
        loss = fit_runs.joint_loss(active, 1e13 / (6 * active), e, fit_runs.TINY)
        loss = np.where(memory <= 1e6, loss, np.inf)
        assert solved.loss[i] == pytest.approx(loss.min(), rel=1e-6)
        assert solved.n_total[i] == pytest.approx(total[np.argmin(loss)], rel=1e-3)


def test_heads_by_their_column(tmp_path):
    """Of models with other heads or another feed-forward layer than the recipe's, the table of runs says which."""
    plain = table_of({}, (1, 8))
    assert fit_runs.models_of(plain).architecture is None and not {"n_heads", "d_ff"} & set(plain.columns)
    built = {
        "model.n_heads": lambda d: d // 16,
        "model.d_ff": lambda d: 2 * d,
        "model.n_kv_heads": lambda d: d // 32 or 1,
    }
    table = table_of(built, (1, 8))
    assert table.columns["n_heads"][0] == 2 and table.columns["d_ff"][0] == 64
    table.columns["overrides"] = [""] * len(table)  # as where the config itself says so
    own = load(law_of(table, tmp_path)).architecture
    assert (own.ff, own.head_dim, own.attention, own.granularity) == (2, 16, 1, 1)
    d, e = (np.array(table.columns[name], float) for name in ("d_model", "n_experts"))
    assert np.median(abs(own.n_active(d, e) / np.array(table.columns["n_active"]) - 1)) < 1e-12


def test_runs_to_train_next_are_built_as_those_so_far(tmp_path):
    law = load(law_of(table_of(), tmp_path))
    trunk = Trunk(n_experts=16, d_model=40, n_blocks=5, n_active=1e6, n_tokens=[1_000_000], flops=5e11)
    result = SimpleNamespace(trunks=[trunk, dataclasses.replace(trunk, n_experts=1)], flops=1e12, seed=3)
    (tmp_path / "next.py").write_text(next_sweep.sweep_source(law, law.architecture, result))
    base, jobs = runpy.run_path(str(tmp_path / "next.py"))["get_sweep"]()
    for job, e in zip(jobs, (16, 1), strict=True):
        config = runpy.run_path(base)["get_config"]()
        config.update_from_flattened_dict(job)
        check_config(schema.complete(config))
        assert counts.n_active(config.model) == Model(law.architecture, 5, e).shape.n_active


def planned(*flags):
    return fit_command.answer("plan", *flags)


def test_flags_that_ask_for_nothing_change_nothing():
    limits = ("--law=joint-moe-2025", "--flops=1e22", "--memory_gb=80", "--kv_tokens=1e6", "--shape=paper")
    without = planned(*limits)
    with_defaults = planned(*limits, "--shape=used:1,kv_share:1,dense_blocks:0")
    assert without.pop("options") != with_defaults.pop("options") and without == with_defaults


def test_how_much_a_token_uses_is_chosen_by_a_law_that_reads_it():
    limits = ("--law=sparsity-2025", "--flops=1e20", "--memory_gb=8", "--experts=1,4,16,50", "--shape=vocab_size:50257")
    plan = planned(*limits, "--shape=used:1,used:2,used:4", "--shape=kv_share:0.5")
    best = {}
    d = np.geomspace(64, 12_800, 200_001)
    for e, used in itertools.product((1, 4, 16, 50), (1, 2, 4)):

        def count(experts):
            return 2 * d * 50257 + (3 + 9 * experts) * d**3 / 64

        active = count(used if e > 1 else 1)
        total = count(e)
        columns = dict(n_total=total, n_tokens=1e20 / (6 * active), sparsity=1 - used / e if e > 1 else 0)
        loss = np.where(2 * total <= 8e9, load("sparsity-2025").predict(**columns), np.inf)
        best[used] = min(best.get(used, (np.inf, 0)), (loss.min(), e))
    assert [(row["active_width"], row["n_experts"]) for row in plan["architectures"]] == [
        (u, best[u][1]) for u in (1, 2, 4)
    ]
    for row in plan["architectures"]:
        assert row["loss"] == pytest.approx(best[row["active_width"]][0], rel=1e-5)
    assert plan["active_width"] == min(best, key=best.get)
    told = [w for w in plan["warnings"] if "--shape=kv_share:0.5: the sparsity law has no column" in w]
    assert len(told) == 1 and "active_width" not in told[0]


def test_a_list_of_used_may_name_the_laws_own():
    """Of the models that a law's own are, too, by FLOPs or by a loss to reach, from Python as from the command line."""
    law = "comprehensive-2025"
    for limit in (dict(flops=1e21), dict(target_loss=2.3)):
        both = fit.plan(law, memory_gb=80, experts=[1, 8], shape=dict(used=[1, 2]), verbose=True, **limit)
        alone = {used: fit.plan(law, memory_gb=80, experts=[1, 8], shape=dict(used=used), **limit) for used in (1, 2)}
        assert [(row["active_width"], row["loss"]) for row in both.architectures] == [
            (u, alone[u].best["loss"]) for u in (1, 2)
        ]
        assert both.best == alone[both.active_width].best and both.buildable == alone[both.active_width].buildable
        assert f"above and below it is {both.active_width:g}:" in str(both)
