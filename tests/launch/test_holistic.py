"""The sweeps of architectures: counted by the trainer's own counter, within the budget, accepted by the trainer."""

import csv

import numpy as np
import pytest
from etils import epath

from configs.sweeps import holistic_phase1, sparsity_small
from fit.studies.architecture_search import search_runs, triads
from jmoe.config import counts
from jmoe.config.check import check_config
from jmoe.config.schema import columns, with_columns
from launch import jobs as jobs_lib


def load(name):
    """The config of each job of a sweep."""
    jobs, configs = jobs_lib.load(f"configs/sweeps/{name}.py", epath.Path("/nowhere"))
    return [configs[job.name] for job in jobs]


@pytest.mark.parametrize("name, count", [
    ("holistic_phase1", 177), ("holistic_phase2", None), ("holistic_refit", 30), ("holistic_small", None),
])  # fmt: skip
def test_models_have_the_triads_that_the_laws_count(name, count):
    models = load(name)
    assert len(models) == (count or len(models)) > 20
    for config in models:
        check_config(config)
        m = config.model
        fixed = triads.family(m.n_heads, m.head_dim, m.n_kv_heads, m.n_experts, m.top_k, m.n_shared_experts)
        shape = triads.sized(fixed, m.d_model, m.n_dense_blocks, m.n_blocks - m.n_dense_blocks, m.d_expert)
        seq_len = config.data.seq_len
        assert holistic_phase1.counted(m, seq_len) == triads.of_shape(shape, seq_len)
        assert config.batch_tokens[0][1] % config.data.seq_len == 0


def test_phase_1_cells_by_the_trainers_counter():
    """Every buildable cell's model within 5% of its triad, on the budget's FLOPs, at the budget's batch and rate."""
    models = iter(load("holistic_phase1"))
    built = 0
    for cell in holistic_phase1.cells():
        if not cell.models.by_width:
            continue
        config = next(models)
        triad = holistic_phase1.counted(config.model, 8192)
        assert max(abs(a / b - 1) for a, b in zip(triad, cell.triad, strict=True)) <= 0.05
        assert triad[0] * config.n_tokens[0] == pytest.approx(cell.flops, rel=1e-6)
        assert config.optimizer.lr_law.n_active == 0 and 4.8e-4 < np.exp(config.optimizer.lr_law.constant) < 1.21e-3
        built += 1
    assert built == 177 and next(models, None) is None


def test_sparsity_at_equal_flops():
    models = load("sparsity_small")
    assert sum(len(config.n_tokens) for config in models) == 34
    for config in models:
        check_config(config)
        spent = [counts.training_flops(counts.n_active(config.model), n) for n in config.n_tokens]
        assert spent == pytest.approx(sparsity_small.BUDGETS, rel=1e-4)
    fine = [config.model for config in models if config.model.top_k > 1]
    (whole,) = (c.model for c in models if c.model.n_experts == 8 and c.model.d_model == 24)
    assert [m.n_experts for m in fine] == [16, 32]
    assert {counts.n_total(m) for m in fine} == {counts.n_total(whole)}
    assert {counts.n_active(m) for m in fine} == {counts.n_active(whole)}


def test_runs_csv_gives_the_triads_back(tmp_path):
    """Rows of results as the trainer and launch.collect make them: with a column of heads or, as tables had them before
    there was one, in the column overrides alone."""
    jobs, configs = jobs_lib.load("configs/sweeps/holistic_small.py", epath.Path("/nowhere"))
    models = [configs[job.name].model for job in jobs]
    rows = []
    for job, model in zip(jobs, models, strict=True):
        config = configs[job.name]
        counted = dict(n_active=counts.n_active(model), n_total=counts.n_total(model), n_experts=model.n_experts)
        shape = dict(d_model=model.d_model, n_blocks=model.n_blocks, seq_len=128, **columns(config))
        overrides = " ".join(f"{field}={value!r}" for field, value in job.overrides.items())
        rows.append(counted | shape | dict(n_tokens=config.n_tokens[0], loss=2.0, overrides=overrides))
    with_columns(rows, [configs[job.name] for job in jobs])
    triads = np.array([holistic_phase1.counted(model, 128) for model in models], float).T
    for fields in (list(rows[0]), [name for name in rows[0] if name != "n_heads"]):
        with open(tmp_path / "runs.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, fields, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
        runs = search_runs.read(str(tmp_path / "runs.csv"))
        np.testing.assert_array_equal((runs.m, runs.active, runs.total), triads)
    assert "n_heads" in rows[0]
    assert len(set(search_runs.budget_labels(runs.flops))) == 2 and runs.y_max == pytest.approx(17 / 3)
