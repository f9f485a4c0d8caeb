"""Draws of published laws: centred, as wide as they should be, labelled; laws without them say why."""

import json

import fit_command
import numpy as np
import pytest
from fit_runs import TABLE_3, joint_loss

import fit
from benchmarks import published_draws as made
from fit.fitted_law import published_draws
from fit.laws import PRESETS
from fit.render import tables
from fit.render.planner import page

SOURCE = "simulated from the published grid"
WITH_DRAWS = tuple(name for name in PRESETS if published_draws.bootstrap_of(name))
DENSE = dict(sizes=np.geomspace(1e8, 5e10, 5), ratios=np.array([8.0, 30.0, 120.0]))


def questions(law):
    """Columns of models that the draws were not made at."""
    sizes, ratios, experts = np.meshgrid(*DENSE.values(), [1.0, 3.0, 8.0, 24.0])
    columns = dict(n_active=sizes.ravel(), n_tokens=(sizes * ratios).ravel(), n_experts=experts.ravel())
    return {name: columns[name] for name in law.form.columns}


def drawn_losses(law, columns):
    """[draws, models]"""
    return law.loss({name: values[:, None] for name, values in law.draws.items()}, columns)


def half_widths(values):
    """Half the width of the interval from the 10th to the 90th percentile over the first axis."""
    low, high = np.percentile(values, (10, 90), axis=0)
    return (high - low) / 2


def joint_grid():
    """The 240 fitted runs of Appendix H: columns, and the losses of Table 3."""
    with open(made.APPENDIX_H) as file:
        names = file.readline().strip().split(",")
        rows = [line.split(",") for line in file]
    n_active, n_tokens, n_experts = (
        np.array([float(row[names.index(name)]) for row in rows]) for name in ("N_act", "D", "E")
    )
    loss = joint_loss(n_active, n_tokens, n_experts, TABLE_3)
    fitted = np.sort(np.argsort(loss, kind="stable")[30:])
    return n_active[fitted], n_tokens[fitted], n_experts[fitted], loss[fitted]


@pytest.mark.parametrize("name", PRESETS)
def test_every_published_law_has_draws_or_says_why_not(name):
    law = fit.load(name)
    assert (name in WITH_DRAWS) == (name in made.ALL)
    if name not in WITH_DRAWS:
        assert law.draws is None and law.no_draws
        return
    assert not law.no_draws and law.source_of_draws == SOURCE
    assert all(values.shape == (made.DRAWS,) and np.isfinite(values).all() for values in law.draws.values())
    # made for these coefficients: made again once a preset's change
    assert json.loads((published_draws.FOLDER / f"{name}.json").read_text())["coefficients"] == law.coefficients


@pytest.mark.parametrize("name", WITH_DRAWS)
def test_the_median_of_the_draws_is_the_published_law(name):
    law = fit.load(name)
    columns = questions(law)
    drawn = drawn_losses(law, columns)
    off = np.abs(np.median(drawn, axis=0) - law.predict(**columns)) / half_widths(drawn)
    # 200 draws leave a median open by 0.07 half-widths
    assert off.max() < 0.25 and off.mean() < 0.08


def test_joint_losses_spread_as_the_printed_errors_say():
    """The losses of compute-optimal models spread as linear theory says of 240 runs with errors of 0.0062."""
    *columns, loss = joint_grid()
    names = list(TABLE_3)

    def gradient(*models):
        slopes = []
        for name in names:
            step = 1e-6 * abs(TABLE_3[name])
            higher, lower = (
                np.log(joint_loss(*models, TABLE_3 | {name: TABLE_3[name] + sign * step})) for sign in (1, -1)
            )
            slopes.append((higher - lower) / (2 * step))
        return np.stack(slopes, axis=1)

    scale = np.abs(list(TABLE_3.values()))
    runs = gradient(*columns) * scale
    law = fit.load("joint-moe-2025")
    for n_experts in (1.0, 4.0, 16.0):
        reduced = law.chinchilla_coefficients_at(n_experts)
        flops = np.array([3e19, 3e20, 3e21])
        ratio = reduced.mu * reduced.m / (reduced.nu * reduced.n)
        n_active = ratio ** (-1 / (reduced.mu + reduced.nu)) * (flops / 6) ** (reduced.nu / (reduced.mu + reduced.nu))
        models = n_active, flops / 6 / n_active, np.full(3, n_experts)
        asked = gradient(*models) * scale
        expected = 0.0062 * np.sqrt(np.sum(asked @ np.linalg.pinv(runs.T @ runs, rcond=1e-13) * asked, axis=1))
        drawn = drawn_losses(law, dict(zip(law.form.columns, models, strict=True)))
        assert half_widths(np.log(drawn)) / 1.2816 == pytest.approx(expected, rel=0.3)


def test_chinchilla_draws_spread_as_its_paper_prints():
    """Standard errors of Besiroglu et al. 2024, by 4,000 resamples of the same 240 points."""
    printed = dict(A=124.52, B=1293.28, E=0.0257, alpha=0.0154, beta=0.0206)
    for name, values in fit.load("chinchilla-refit-2024").draws.items():
        assert np.std(values) == pytest.approx(printed[name], rel=0.25), name


def test_no_interval_is_much_narrower_than_table_5():
    """The 18 printed intervals of N and D of compute-optimal models, of the joint law's paper."""
    law = fit.load("joint-moe-2025")
    rows = list(tables.table_5(law, law.architecture, made.TABLE_5_EXPERTS, made.TABLE_5_FLOPS))
    printed = made.TABLE_5.reshape(-1, 4) * 1e9
    assert len(rows) == len(printed) == 18
    for row, (n_low, n_high, d_low, d_high) in zip(rows, printed, strict=True):
        assert np.log(row["n_active_high"] / row["n_active_low"]) > np.log(n_high / n_low) / made.NARROWER
        assert np.log(row["n_tokens_high"] / row["n_tokens_low"]) > np.log(d_high / d_low) / made.NARROWER
        assert row["n_active_low"] < n_high and n_low < row["n_active_high"]
    assert SOURCE in tables.note("5", law, rows)


def test_json_and_the_page_say_what_the_draws_are():
    plan = fit.plan("joint-moe-2025", flops=1e22)
    assert plan.to_dict()["odds"]["source"] == SOURCE
    law = fit.load("joint-moe-2025")
    entry = page.page_data([law], None)["laws"][0]
    assert entry["bootstrap"]["source"] == SOURCE and SOURCE in entry["origin"]
    model = ["--n_active=1e9", "--n_tokens=2e10", "--n_experts=8"]
    assert SOURCE in fit_command.printed("predict", "--law=joint-moe-2025", *model)
    predicted = fit.predict(law, n_active=1e9, n_tokens=2e10, n_experts=8)
    assert predicted.to_dict()["source_of_draws"] == SOURCE


def test_a_law_fitted_here_is_not_called_simulated():
    law = fit.load("jmoe-bytes-2026")
    assert law.draws and not law.source_of_draws
    assert fit.plan(law, flops=1e14).odds.source is None
