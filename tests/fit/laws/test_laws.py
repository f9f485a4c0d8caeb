"""The laws against plain NumPy, the paper's tables and published checks."""

import fit_runs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fit.fitted_law.law_files import load
from fit.laws import FORMS
from fit.laws.joint import log_expert_scale


@pytest.fixture(scope="module", autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def test_joint_prediction_is_eq_6():
    n, d, e = fit_runs.paper_grid()
    expected = fit_runs.joint_loss(n, d, e, fit_runs.TABLE_3)
    np.testing.assert_allclose(load("joint-moe-2025").predict(n, d, e), expected, rtol=1e-13)
    printed = fit_runs.TABLE_3 | {"E_start": 2.0732}
    np.testing.assert_allclose(
        load("joint-moe-2025-as-printed").predict(n, d, e), fit_runs.joint_loss(n, d, e, printed), rtol=1e-13
    )


def test_chinchilla_prediction_is_eq_2():
    c = FORMS["chinchilla"].presets["chinchilla-2022"]["coefficients"]
    n, d = np.array([1e8, 7e10]), np.array([2e9, 1.4e12])
    expected = c["E"] + c["A"] / n ** c["alpha"] + c["B"] / d ** c["beta"]
    np.testing.assert_allclose(load("chinchilla-2022").predict(n, d, 1), expected, rtol=1e-13)


def test_clark_prediction_is_its_formula():
    c = FORMS["clark"].presets["clark-2022-sbase"]["coefficients"]
    law = load("clark-2022-sbase")

    def loss(n, e):
        scale = 1 / (1 / (e - 1 + 1 / (1 / c["E_start"] - 1 / c["E_max"])) + 1 / c["E_max"])
        x, y = np.log10(n), np.log10(scale)
        return 10 ** (c["a"] * x + c["b"] * y + c["c"] * x * y + c["d"])

    n, e = np.array([5e6, 1e8, 1e9]), np.array([1.0, 64.0, 512.0])
    np.testing.assert_allclose(law.predict(n, 1.0, e), loss(n, e), rtol=1e-13)


# Table 4 of the paper.
TABLE_4 = {
    1: (30.3640, -0.1817, 53.9838, -0.1965),
    2: (27.7982, -0.1780, 66.8401, -0.2065),
    4: (24.8462, -0.1731, 87.7022, -0.2192),
    8: (21.8330, -0.1676, 119.9126, -0.2338),
    16: (19.0159, -0.1617, 167.5073, -0.2494),
    32: (16.5424, -0.1557, 234.6726, -0.2652),
}


@pytest.mark.parametrize("experts", TABLE_4)
def test_joint_preset_reduces_to_table_4(experts):
    m, mu, n, nu, c = load("joint-moe-2025").chinchilla_coefficients_at(experts)[:5]
    printed = TABLE_4[experts]
    assert m == pytest.approx(printed[0], rel=2e-4)
    assert n == pytest.approx(printed[2], rel=2e-4)
    # The coefficients of ln Ê have two significant digits (gamma .0098), so a fifth digit of mu and nu is not known.
    assert mu == pytest.approx(printed[1], abs=1.5e-4)
    assert nu == pytest.approx(printed[3], abs=1.5e-4)
    assert c == 1.3637


@pytest.mark.parametrize("form", FORMS)
def test_free_parameters_round_trip(form):
    law = FORMS[form]
    for preset in law.presets.values():
        free = law.to_params(preset["coefficients"])
        assert free.shape == (len(law.param_names),)
        np.testing.assert_allclose(
            law.to_coefficients(free), [preset["coefficients"][k] for k in law.names], rtol=1e-12
        )
        assert preset["source"] and set(preset["coefficients"]) == set(law.names)
    for free in law.starts()[:: max(1, len(law.starts()) // 20)]:  # forms without presets too
        coefficients = dict(zip(law.names, law.to_coefficients(free), strict=True))
        np.testing.assert_allclose(law.to_params(coefficients), free, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("form", FORMS)
def test_recentred_law_is_the_same_law(form):
    law, rng = FORMS[form], np.random.default_rng(0)
    for free in law.starts()[:: max(1, len(law.starts()) // 20)]:
        columns = dict(
            n_experts=rng.integers(1, 64, 5), top_k=rng.integers(1, 20, 5), granularity=rng.uniform(1, 16, 5)
        )
        columns |= dict(sparsity=rng.uniform(0, 0.98, 5), shared_share=rng.uniform(0, 0.7, 5))
        columns |= {f"ln {name}": rng.normal(20, 2, 5) for name in ("n_active", "n_total", "n_tokens")}
        columns |= {name[3:]: np.exp(v) for name, v in columns.items() if name.startswith("ln ")}
        origin = dict(n_active=18.5, n_tokens=21.0, n_total=20.0)
        moved = {f"ln {name}": columns[f"ln {name}"] - origin[name] for name in law.slopes}
        shifted, as_is = law.log_loss(law.recentre(free, origin), columns | moved), law.log_loss(free, columns)
        np.testing.assert_allclose(shifted, as_is, rtol=1e-9, atol=1e-9)


SLOPE = jax.jit(jax.grad(lambda log_start, t, e: log_expert_scale(jnp, e, log_start, t), argnums=(0, 1)))


@given(log_start=st.floats(-5, 8), t=st.floats(-400, 400), experts=st.integers(1, 10**6))
@settings(max_examples=100)
def test_expert_scale_stays_between_its_ends_and_differentiable(log_start, t, experts):
    with jax.enable_x64(True):
        value = float(log_expert_scale(jnp, experts, log_start, t))
        slope = SLOPE(log_start, t, float(experts))
        log_max = log_start + np.logaddexp(0, t)  # E_start < E_max by construction
        assert log_start - 1e-9 <= value <= log_max + 1e-9
        assert np.all(np.isfinite(slope))
        np.testing.assert_allclose(log_expert_scale(jnp, 1, log_start, t), log_start, atol=1e-9)


def test_paper_start_grid():
    starts = FORMS["joint"].starts()
    assert starts.shape == (19683, 11) and len(np.unique(starts, axis=0)) == 19683
    assert set(np.round(np.exp(starts[:, 0]))) == {30, 100, 300} and set(starts[:, 1]) == {-0.05, -0.25, -0.5}
