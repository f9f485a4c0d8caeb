"""Laws that count parameters without embedding and head are planned with by their own counts."""

import numpy as np
import pytest

import fit
from fit import __main__ as command_line
from fit.errors import UserError
from fit.fitted_law.law import load

VOCABULARY = 50257
LAWS = ["fine-grained-dense-2024", "kaplan-2020"]


def published_loss(law, n_outside, n_tokens):
    """The papers' own formulas, of parameters without the embedding."""
    if law == "kaplan-2020":
        return ((8.8e13 / n_outside) ** (0.076 / 0.095) + 5.4e13 / n_tokens) ** 0.095
    return 0.47 + 16.3 / n_outside**0.126 + 26.7 / n_tokens**0.127


def best_of_a_grid(law, flops):
    """(loss, n_active with the embedding, n_tokens) of the best of many widths, d_model / 64 blocks deep."""
    width = np.geomspace(64, 40_000, 400_001)
    outside = 13 * width**3 / 64
    n_active = outside + 2 * VOCABULARY * width
    n_tokens = flops / (6 * n_active)
    loss = published_loss(law, outside, n_tokens)
    best = int(np.argmin(loss))
    return loss[best], n_active[best], n_tokens[best]


@pytest.mark.parametrize("flops", [1e18, 1e20, 1e21])
@pytest.mark.parametrize("law", LAWS)
def test_a_plan_is_the_best_by_the_laws_own_counts(law, flops):
    best = fit.plan(law, flops=flops).best
    loss, n_active, n_tokens = best_of_a_grid(law, flops)
    assert best["loss"] == pytest.approx(loss, rel=1e-7)
    assert [best["n_active"], best["n_tokens"]] == pytest.approx([n_active, n_tokens], rel=1e-3)
    outside = best["n_active"] - 2 * VOCABULARY * best["d_model"]
    assert load(law).predict(outside, best["n_tokens"]) == pytest.approx(best["loss"], rel=1e-9)


@pytest.mark.parametrize("law", LAWS)
def test_repeated_text_is_refused_where_its_size_is_not_known(law):
    with pytest.raises(UserError, match=f"law={law} counts sizes without the embedding"):
        fit.plan(law, flops=1e20, max_tokens=1e15, epochs=1)


def test_one_model_is_predicted_by_laws_that_read_more_than_its_size(capsys):
    """By the printed formulas; the fine-grained law's N leaves the embedding out, which --n_embedding says."""
    model = ["--n_active=1e9", "--n_total=8e9", "--n_tokens=2e10", "--n_experts=16", "--top_k=2", "--granularity=2"]
    expected = {
        "fine-grained-2024": 0.47 + (2.1 / 2**0.58 + 18.1) / 7.9e9**0.115 + 30.8 / 2e10**0.147,
        "sparsity-2025": 16612.50 / 8e9**0.5962
        + 5455.67 / 2e10**0.3954
        + 0.4598 / (1 / 8) ** -0.1666
        + 17.26 / ((1 / 8) ** 0.1603 * 8e9**0.1595)
        + 0.94,
    }
    for law, loss in expected.items():
        assert command_line.run(["predict", f"--law={law}", "--n_embedding=1e8", *model]) == 0
        assert float(capsys.readouterr().out) == pytest.approx(loss, abs=1e-6)
    assert command_line.run(["predict", "--law=comprehensive-2025", "--n_active=1e9", "--n_tokens=2e10"]) == 2
    assert "--n_total is missing" in capsys.readouterr().err
