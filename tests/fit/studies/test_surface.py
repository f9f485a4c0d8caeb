"""IsoFLOP surfaces and parabolas against brute force and closed forms."""

import re

import fit_command
import fit_runs
import numpy as np
import pytest
from fit_runs import TABLE_3, joint_loss

import fit
from fit.errors import UserError
from fit.fitted_law.law_files import load
from fit.fitting import isoflop
from fit.studies.surfaces import surface, within_runs
from fit.table.table import Table, read, write

# an interior optimum: coefficients of x, x^2, z, z^2, xz, (xz)^2, 1
KNOWN = np.array([-1.2, 0.03, -0.2, 0.02, 0.002, 1e-5, 14.0])
SIZES = np.geomspace(1e8, 2e10, 8)
SPARSITIES = np.array([0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98])


def grid():
    n, s = (v.ravel() for v in np.meshgrid(SIZES, SPARSITIES))
    return n, s


def known(n, s):
    x = np.log(n)
    z = -np.log(1 - s)
    return sum(c * term for c, term in zip(KNOWN, (x, x**2, z, z**2, x * z, (x * z) ** 2, 1), strict=True))


def test_a_surface_is_its_polynomial_and_its_optima_are_those_of_a_grid():
    n, s = grid()
    result = surface.fit(n, s, known(n, s))
    # the columns nearly depend on each other: predictions are what counts
    fine_n = np.geomspace(1e8, 2e10, 1201)
    fine_s = -np.expm1(-np.linspace(0, -np.log(0.02), 1201))
    loss = known(fine_n[:, None], fine_s[None])
    np.testing.assert_allclose(result.loss(fine_n[:, None], fine_s[None]), loss, rtol=1e-8)
    best, (i, j) = result.best(), np.unravel_index(np.argmin(loss), loss.shape)
    assert best["loss"] == pytest.approx(loss.min(), rel=1e-7) and best["at_edge"] == []
    assert best["n_total"] == pytest.approx(fine_n[i], rel=5e-3) and best["sparsity"] == pytest.approx(
        fine_s[j], abs=2e-3
    )
    for k in (0, 400, 800, 1200):
        size, at = result.best_size(fine_s[k])
        assert size == pytest.approx(fine_n[loss[:, k].argmin()], rel=5e-3) and at <= loss[:, k].min() * (1 + 1e-9)
        sparsity, at = result.best_sparsity(fine_n[k])
        assert sparsity == pytest.approx(fine_s[loss[k].argmin()], abs=2e-3) and at <= loss[k].min() * (1 + 1e-9)


def test_a_surface_that_falls_to_an_end_says_so():
    """Of losses by the sparsity law at 1e20 FLOPs, up to three times smaller and larger than its best size at each
    sparsity: the surface finds these sizes, and no interior optimum over both."""
    sparsity = np.array([0, 0.5, 0.75, 0.9, 0.95, 0.98])
    best = np.array([0.6392e9, 1.0659e9, 1.8389e9, 3.97e9, 7.3355e9, 17.0687e9])
    n = (best[:, None] * np.geomspace(1 / 3, 3, 7)).ravel()
    s = np.repeat(sparsity, 7)
    loss = load("sparsity-2025").predict(n_total=n, n_tokens=1e20 / (6 * n * (1 - s)), sparsity=s)
    result = surface.fit(n, s, loss)
    assert result.best_size(sparsity)[0] == pytest.approx(best, rel=0.05)
    assert result.best()["at_edge"] == ["sparsity"] and result.best()["sparsity"] == pytest.approx(0.98)


def test_refits_predict_what_they_have_not_seen():
    n, s = grid()
    rng = np.random.default_rng(3)
    drawn, correlation = surface.refits(n, s, known(n, s) + 0.002 * rng.normal(size=len(n)))
    assert len(drawn) == 100 and np.all(correlation > 0.98)
    sizes = [one.best()["n_total"] for one in drawn]
    low, high = np.percentile(sizes, (1, 99))
    assert low < surface.fit(n, s, known(n, s)).best()["n_total"] < high < 2 * low
    noise = [surface.refits(n, s, 3 + np.random.default_rng(seed).normal(size=len(n)))[1] for seed in range(4)]
    assert np.mean(noise) < 0.3


def surface_table(path):
    """Two budgets on a grid of sizes and sparsities, as runs.csv has them."""
    n, s = grid()
    total, sparsity = np.tile(n, 2), np.tile(s, 2)
    flops = np.repeat([1e20, 3e20], len(n))
    active = total * (1 - 0.9 * sparsity)
    columns = dict(n_active=active, n_total=total, n_tokens=flops / (6 * active), n_experts=np.full(len(total), 1000))
    columns |= dict(top_k=1000 * (1 - sparsity), loss=known(total, sparsity) - 0.1 * (flops > 2e20))
    write(Table("runs", {name: values.tolist() for name, values in columns.items()}, [*range(len(total))]), str(path))


def test_surfaces_of_a_table(tmp_path):
    surface_table(tmp_path / "runs.csv")
    arguments = ["surface", f"--runs={tmp_path}/runs.csv"]
    rows = fit_command.answer(*arguments)["budgets"]
    assert [row["flops"] for row in rows] == pytest.approx([1e20, 3e20]) and [row["runs"] for row in rows] == [56, 56]
    n, s = grid()
    expected = surface.fit(n, s, known(n, s)).best()
    for row in rows:
        assert row["rmse"] < 1e-9 and row["correlation"] > 0.9999
        assert row["best"]["n_total"] == pytest.approx(expected["n_total"], rel=1e-4)
        assert row["intervals"]["sparsity"] == pytest.approx([expected["sparsity"]] * 2, abs=1e-4)
    assert "held-out correlation 1.000" in fit_command.printed(*arguments, f"--out={tmp_path}/surface.png")
    assert (tmp_path / "surface.png").stat().st_size > 10_000
    lines = (tmp_path / "runs.csv").read_text().splitlines()
    (tmp_path / "two.csv").write_text("\n".join(lines[:17]))  # two sparsities
    with pytest.raises(UserError, match="3 values each"):
        fit.surface(str(tmp_path / "two.csv"))


def test_finer_experts_are_left_out_whatever_their_column_is_called(tmp_path):
    surface_table(tmp_path / "runs.csv")
    columns = read(str(tmp_path / "runs.csv")).columns
    n_runs = len(columns["loss"])
    columns |= dict(d_model=[1024] * n_runs, d_expert=[256 if i % 8 == 3 else 1024 for i in range(n_runs)])
    renamed = {f"their_{name}": values for name, values in columns.items()}
    table = read(renamed, columns={name: f"their_{name}" for name in columns})
    for runs in (columns, table):
        assert [row["left_out"] for row in fit.surface(runs).budgets] == [7, 7]


def test_what_lies_within_the_runs():
    """Between the smallest and the largest size of each sparsity, on lines in z between sparsities."""
    n = np.array([1.0, 8, 2, 8, 4, 16]) * 1e6
    s = np.array([0, 0, 0.5, 0.5, 0.75, 0.75])
    low, high = within_runs.sparsity_range(n, s, np.array([1e6, 2e6, 2.0**1.5 * 1e6, 16e6, 32e6]))
    assert (low[0], high[0]) == pytest.approx((0, 0)) and (low[1], high[1]) == pytest.approx((0, 0.5))
    assert high[2] == pytest.approx(1 - 2**-1.5, abs=0.01) and (low[3], high[3]) == pytest.approx((0.75, 0.75))
    assert np.isnan(low[4]) and within_runs.sizes_within(n, s)[[0, -1]] == pytest.approx([4e6, 8e6], rel=0.02)


def isoflop_runs(noise=0.0, seed=0, budgets=(1e19, 1e20, 1e21), experts=(1, 8)):
    """(size, flops, loss, n_experts) on seven sizes around each budget's best by the joint law, half a percent apart in
    FLOPs as whole batches leave them."""
    rng = np.random.default_rng(seed)
    rows = []
    law = load("joint-moe-2025")
    for e in experts:
        m, mu, n, nu = law.chinchilla_coefficients_at(e)[:4]
        for flops in budgets:
            best = (m * mu / (n * nu)) ** (-1 / (mu + nu)) * (flops / 6) ** (nu / (mu + nu))
            for factor in np.geomspace(0.5, 2, 7):
                size = best * factor
                spent = flops * rng.uniform(0.995, 1.005)
                loss = joint_loss(size, spent / (6 * size), e, TABLE_3) * np.exp(noise * rng.normal())
                rows.append((size, spent, loss, e, best))
    return np.array(rows).T


def test_parabolas_find_the_best_sizes():
    size, flops, loss, e, best = isoflop_runs()
    result = isoflop.profiles(size, flops, loss, e)
    assert [one["n_experts"] for one in result] == [1, 8]
    for one in result:
        bests = np.unique(best[e == one["n_experts"]])
        assert [row["best"] for row in one["budgets"]] == pytest.approx(np.sort(bests), rel=0.05)
        _, mu, _, nu = load("joint-moe-2025").chinchilla_coefficients_at(one["n_experts"])[:4]
        assert one["power"][1] == pytest.approx(nu / (mu + nu), abs=0.02)


def test_intervals_hold_the_truth_about_as_often_as_they_claim():
    """80% intervals of parabolas with 4 degrees of freedom over drawn noise; the lowest points of parabolas through
    the losses without noise are the truth."""
    size, flops, loss, e, _ = isoflop_runs(budgets=(1e20,), experts=(1,))
    truth = isoflop.profiles(size, flops, loss)[0]["budgets"][0]["best"]
    hits = []
    for seed in range(200):
        noisy = loss * np.exp(0.0005 * np.random.default_rng(seed).normal(size=len(loss)))
        for one in isoflop.profiles(size, flops, noisy, seed=seed):
            low, high = one["budgets"][0]["interval"]
            hits.append(low <= truth <= high)
    assert len(hits) > 190 and 0.72 < np.mean(hits) < 0.88


def test_no_parabola_where_there_is_none():
    size = np.geomspace(1e8, 1e9, 6)
    flops = np.full(6, 1e20)
    assert isoflop.profiles(size, flops, 3 - 0.1 * np.log(size)) == []  # falls to the last size
    assert isoflop.profiles(size, flops, 3 - np.log(size / 3e8) ** 2) == []  # opens downwards
    assert isoflop.profiles(size[:3], flops[:3], np.log(size[:3] / 3e8) ** 2) == []  # three sizes
    assert isoflop.profiles(size, 6 * size * 1e9, np.log(size / 3e8) ** 2) == []  # no FLOPs twice
    three = isoflop.profiles(size, flops, 3 + np.log(size / 3e8) ** 2)[0]
    assert three["budgets"][0]["best"] == pytest.approx(3e8) and three["power"] is None


def test_several_forms_come_with_parabolas(tmp_path):
    size, flops, loss, e, _ = isoflop_runs(noise=0.0003)
    runs = fit_runs.runs_of("made", size, flops / (6 * size), e, loss)
    path = fit_runs.write_csv(tmp_path / "runs.csv", runs)
    printed = fit_command.printed("law", f"--runs={path}", "--form=chinchilla,clark", "--verbose")
    *_, dense, mixture = re.sub(r"\n {4,}", " ", printed).splitlines()
    for line, experts in ((dense, "1 expert"), (mixture, "8 experts")):
        assert line.startswith(f"isoFLOP parabolas, {experts}: n_active = ") and "n_active_opt = " in line
