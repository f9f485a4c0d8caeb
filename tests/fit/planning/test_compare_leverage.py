"""Efficiency leverage by its paper's checks, and of the models that laws choose."""

import dataclasses

import fit_runs
import numpy as np
import pytest

import fit
from fit.fitted_law.architecture_ratios import ArchitectureRatios
from fit.fitted_law.law_files import load
from fit.model import reference_model
from fit.model.architecture import Architecture
from fit.planning.several_laws import leverage


def test_efficiency_leverage():
    """More than 7 at A = 3.1%, G = 12 and 1e22 FLOPs; a best granularity of about 12; a dense model is worth itself."""
    assert 7 < leverage.leverage(0.031, 12, 1e22) < 7.5
    granularity = np.linspace(1, 40, 4000)
    assert granularity[np.argmax(leverage.leverage(0.031, granularity, 1e20))] == pytest.approx(12, abs=1)
    assert leverage.leverage(1.0, np.array([2, 12]), 1e20) == pytest.approx(1, abs=0.02)


def flops(shape, n_tokens):
    """Training FLOPs without embedding and head."""
    return 6 * (shape.n_active - shape.embedding_and_head) * n_tokens


def test_of_a_model_it_is_by_the_papers_definitions():
    """A is the share of all experts that a token uses, G = 2 d_model / d_expert."""
    shape = reference_model.read("Mixtral-8x7B").shape  # two of 8 experts of 14336 units, d_model 4096
    expected = leverage.leverage(2 / 8, 2 * 4096 / 14336, flops(shape, 1e9))
    found = leverage.of_shape(shape, 1e9)
    assert found["leverage"] == pytest.approx(expected) and found["outside"] == ["granularity"]
    shape = reference_model.read("DeepSeek-V3").shape  # 8 of 256 and one shared, of 2048 units, d_model 7168
    found = leverage.of_shape(shape, 1e9)
    expected = leverage.leverage(9 / 257, 7, flops(shape, 1e9))
    assert found["leverage"] == pytest.approx(expected) and found["outside"] == []


def test_of_whole_and_of_routed_experts_it_is_the_same():
    """8 experts of which each is split in 4, one narrow one shared, are 31 that a token chooses from."""
    whole = Architecture(granularity=4, shared=1)
    routed = dataclasses.replace(whole, counts_routed_experts=True)
    assert leverage.of_shape(whole.shape(1024.0, 8), 1e10) == leverage.of_shape(routed.shape(1024.0, 31), 1e10)


def test_a_comparison_has_that_of_the_models_it_names():
    """Built like Mixtral, and by a law that counts routed experts, of which a token uses two."""
    (row,) = fit.compare(["joint-moe-2025"], flops=1e22, like="Mixtral-8x7B", experts=(4,)).laws
    without_embedding = row.n_active - 2 * 32_000 * row.d_model
    expected = leverage.leverage(1 / 4, 2 * 4096 / 14336, 6 * without_embedding * row.n_tokens)
    assert row.leverage["leverage"] == pytest.approx(expected)


def test_a_law_that_counts_routed_experts_has_that_of_its_models(tmp_path):
    law = load(fit_runs.write_demo_law(tmp_path / "law.json"))
    law = dataclasses.replace(
        law, models=dataclasses.replace(law.models, architecture=ArchitectureRatios(granularity=4.0, top_k=2))
    )
    (row,) = fit.compare([law], flops=1e16, experts=(8,)).laws
    without_embedding = row.n_active - 2 * law.models.vocab_size * row.d_model
    expected = leverage.leverage(2 / 8, 2 * 4 / 3, 6 * without_embedding * row.n_tokens)
    assert row.leverage["leverage"] == pytest.approx(expected)
