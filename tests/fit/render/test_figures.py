"""Pictures and the report: what they show, where they stop being sure, and that they can be read."""

import dataclasses
import html
import io
import re

import fit_runs
import matplotlib.collections
import matplotlib.colors
import numpy as np
import PIL.Image
import pytest

import fit
from fit import __main__ as command_line
from fit.errors import UserError
from fit.fitted_law import extrapolation
from fit.fitted_law.law_files import load
from fit.render import figures
from fit.render.figures import style
from fit.render.figures.draw import draw


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A law of models of a few ten thousand parameters with its runs, as a fit to a quick sweep leaves them."""
    folder = tmp_path_factory.mktemp("figures")
    runs = fit_runs.write_demo_csv(folder / "runs.csv")
    fit.save(fit.law(runs, "joint", holdout="largest-compute:3", bootstrap=20, starts=4), folder / "law.json")
    return folder


@pytest.fixture(scope="module")
def law(folder):
    return load(str(folder / "law.json"))


@pytest.fixture(scope="module")
def runs(folder, law):
    return figures.measured(law, str(folder / "runs.csv"))


@pytest.fixture(scope="module")
def drawn(law, runs):
    """{name: (figure, columns)} of every figure, with nothing said but the law and its runs."""
    pictures = {which: draw(which, law, law.architecture, law.experts, (), runs) for which in figures.FIGURES}
    with style.in_style():
        for figure, _ in pictures.values():
            figure.canvas.draw()
    return pictures


def texts(figure):
    return [t.get_text() for t in figure.findobj(matplotlib.text.Text) if t.get_text() and t.get_visible()]


@pytest.mark.parametrize("which", figures.FIGURES)
def test_numbers_are_written_as_people_write_them(drawn, which):
    found = texts(drawn[which][0])
    assert found and not [t for t in found if re.search(r"\de[+-]?\d", t)]


@pytest.mark.parametrize("which", figures.FIGURES)
def test_no_legend_covers_data(drawn, which):
    figure, _ = drawn[which]
    assert figure.legends and not any(axis.get_legend() for axis in figure.axes)
    for legend in figure.legends:
        box = legend.get_window_extent()
        assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1
        for axis in figure.axes:
            assert not box.overlaps(axis.get_window_extent())


def test_a_small_law_draws_where_its_runs_are(drawn, law):
    low, high = law.ranges["training_flops"]
    for which, (_, columns) in drawn.items():
        if "flops" in columns:
            assert min(columns["flops"]) >= low and min(columns["flops"]) <= high, which
        if "loss" in columns:
            assert 1 < np.nanmin(columns["loss"]) < 2.5, which  # the runs have 1.8 to 2.4
        if "n_experts" in columns:
            assert max(columns["n_experts"]) <= 8, which
    assert any("KB" in t for t in texts(drawn["memory"][0]))


def test_lines_are_solid_only_where_the_law_was_fitted(drawn, law):
    for axis, flops in zip(drawn["2a"][0].axes, dict.fromkeys(drawn["2a"][1]["flops"]), strict=True):
        kinds = {"-": [], "--": []}
        for line in axis.lines:
            if line.get_linestyle() in kinds:
                d, loss = (np.asarray(v, float) for v in line.get_data())
                kinds[line.get_linestyle()].append(d[np.isfinite(loss)])
        solid, dashed = (np.concatenate(kinds[kind]) for kind in ("-", "--"))
        within, beyond = (
            extrapolation.are_inside(law, n_active=flops / (6 * tokens), n_tokens=tokens, n_experts=1)
            for tokens in (solid, dashed)
        )
        assert len(solid) and within.all()
        assert np.mean(beyond) < 0.03  # but for the points where dashes begin


def test_experts_and_budgets_beyond_the_runs_are_dashed(law):
    figure, columns = draw("2a", law, law.architecture, (1, 16), (1e15,))
    assert all(columns["extrapolated"])
    assert {line.get_linestyle() for line in figure.axes[0].lines if np.isfinite(line.get_ydata()).sum() > 1} == {"--"}
    inner, columns = draw("2a", law, law.architecture, (1, 16), (1e11,))
    beyond = np.array(columns["extrapolated"])[np.array(columns["n_experts"]) == 16]
    assert beyond.all() and not all(columns["extrapolated"])


def test_residuals_lie_below_the_fit(drawn, law, runs):
    measured, out = runs
    figure, columns = drawn["5"]
    (panel,) = [axis for axis in figure.axes if axis.get_ylabel() == "residual (%)"]
    above = figure.axes[0]
    assert panel.get_shared_x_axes().joined(panel, above) and panel.get_position().y1 < above.get_position().y0
    points = np.concatenate([line.get_xydata() for line in panel.lines if line.get_linestyle() == "None"])
    predicted = fit_runs.joint_loss(measured.n_active, measured.n_tokens, measured.n_experts, law.coefficients)
    expected = np.stack([measured.loss, 100 * (predicted / measured.loss - 1)], axis=1)
    np.testing.assert_allclose(points[np.lexsort(points.T)], expected[np.lexsort(expected.T)], rtol=1e-9)
    hollow = [line for line in panel.lines if line.get_markerfacecolor() == "white"]
    assert sum(len(line.get_xdata()) for line in hollow) == out.sum() == 3 == sum(columns["held_out"])


def test_runs_near_a_budget_lie_off_its_curves_by_their_own_error(drawn, law, runs):
    """Moved to the budget's tokens, whatever budget they were trained with; runs without error lie on the curves."""
    measured, _ = runs
    columns = (measured.n_active, measured.n_tokens, measured.n_experts)
    error = measured.loss / fit_runs.joint_loss(*columns, law.coefficients)
    total = 0
    for axis, flops in zip(drawn["2a"][0].axes, dict.fromkeys(drawn["2a"][1]["flops"]), strict=True):
        points = [line.get_xydata() for line in axis.lines if line.get_markeredgecolor() == "black"]
        near = np.abs(np.log(6 * measured.n_active * measured.n_tokens / flops)) < np.log(1.25)
        tokens = flops / (6 * measured.n_active)
        moved = fit_runs.joint_loss(measured.n_active, tokens, measured.n_experts, law.coefficients) * error
        expected, found = np.stack([tokens, moved], axis=1)[near], np.concatenate(points)
        np.testing.assert_allclose(found[np.lexsort(found.T)], expected[np.lexsort(expected.T)], rtol=1e-9)
        low, high = axis.get_ylim()
        assert all(low < loss < high for _, loss in expected)
        total += len(expected)
    assert total >= 12


def test_bands_where_there_are_draws(drawn, law):
    def bands(figure):
        points = matplotlib.collections.PathCollection
        return [c for axis in figure.axes for c in axis.collections if not isinstance(c, points)]

    sure = dataclasses.replace(law, bootstrap=None)
    for which in ("1a", "2a", "2b", "3", "4"):
        figure = drawn[which][0]
        assert len(bands(figure)) == sum(any(line.get_xdata().size for line in axis.lines) for axis in figure.axes)
        assert not bands(draw(which, sure, sure.architecture, sure.experts)[0])
    one = fit_runs.joint_loss(3e4, 1e6, 4, {name: law.draws[name] for name in law.coefficients})
    low, high = style.band(law, law.architecture, np.array([3e4]), np.array([1e6]), 4)
    np.testing.assert_allclose([low[0], high[0]], np.percentile(one, [10, 90], method="weibull"), rtol=1e-12)
    assert "10–90% of 20 bootstrap fits, of the best curve" in texts(drawn["2a"][0])


def test_the_savings_are_those_of_the_law(drawn, law):
    """A dense model with the FLOPs that Fig. 2b says has the mixture's loss, at its own best size."""
    columns = {name: np.array(values) for name, values in drawn["2b"][1].items()}
    rows = np.flatnonzero(columns["n_experts"] == 8)[[0, -1]]
    for flops, ratio in zip(columns["flops"][rows], columns["dense_flops_over_flops"][rows], strict=True):
        sizes = np.geomspace(1e3, 1e7, 20001)
        best = [
            fit_runs.joint_loss(sizes, spent / (6 * sizes), e, law.coefficients).min()
            for e, spent in ((8, flops), (1, ratio * flops))
        ]
        assert best[0] == pytest.approx(best[1], rel=1e-6)


def test_a_law_whose_models_no_memory_bounds_has_no_figure_3(law):
    small = dataclasses.replace(law, coefficients=law.coefficients | dict(alpha=-3.0))  # its best model is the smallest
    with pytest.raises(UserError, match="memory bounds none of its models"):
        draw("3", small, small.architecture, small.experts)


@pytest.mark.parametrize("flops", [1e15, 1e17])  # the smallest mixture is the best; a larger one is
def test_figure_1a_without_dense_models_begins_where_a_mixture_fits(flops):
    published = load("joint-moe-2025")
    architecture = dataclasses.replace(published.architecture, vocab_size=257)
    figure, _ = draw("1a", published, architecture, (32,), (flops,))
    smallest = architecture.n_total(float(architecture.width_per_block), 32)
    assert smallest <= figure.axes[0].get_xlim()[0] < 1.1 * smallest
    assert np.isfinite(figure.axes[0].get_ylim()).all()


def test_formats_by_flag_and_by_ending_and_the_same_bytes(folder, tmp_path):
    arguments = ["plot", f"--law={folder}/law.json", f"--runs={folder}/runs.csv"]
    assert command_line.run([*arguments, f"--out_dir={tmp_path}/all", "--format=png,svg,pdf"]) == 0
    assert len([*(tmp_path / "all").iterdir()]) == 9
    for ending, begins in (("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")):
        by_flag, by_ending = tmp_path / "one", tmp_path / f"two.{ending}"
        assert command_line.run([*arguments, "--figure=5", f"--out={by_flag}", f"--format={ending}"]) == 0
        assert command_line.run([*arguments, "--figure=5", f"--out={by_ending}"]) == 0
        written = by_ending.read_bytes()
        assert written.startswith(begins) and written == by_flag.with_suffix(f".{ending}").read_bytes()
        assert written == (tmp_path / "all" / f"predicted_against_measured.{ending}").read_bytes()


@pytest.fixture(scope="module")
def page(folder):
    """The report of the small law, with nothing said but the law and its runs."""
    arguments = [f"--law={folder}/law.json", f"--runs={folder}/runs.csv", f"--out={folder}/report.html"]
    assert command_line.run(["report", *arguments]) == 0
    return (folder / "report.html").read_text()


def test_the_report_says_what_law_it_is_and_how_sure(page, law):
    assert re.search(r"<title>[^<]*joint[^<]*law\.json</title>", page, re.I) and page.count("<h1>") == 1
    assert re.search(r"Fitted to 33 runs of \S*runs\.csv, 3 more held out", page)
    warnings = re.search(r'<ul class="warnings">(.*?)</ul>', page).group(1)
    assert law.warnings and all(f"<li>{html.escape(warning)}</li>" in warnings for warning in law.warnings)
    rows = dict(re.findall(r"<tr><td>(\w+)</td>(.*?)</tr>", page.split("<h2>Coefficients</h2>")[1].split("<h2>")[0]))
    assert list(rows) == list(law.coefficients)
    ends = dict(law.bootstrap.intervals)
    ends |= {name: (profile.low, profile.high) for name, profile in law.profile.items()}
    assert any(None in pair for pair in ends.values())
    for name, (low, high) in ends.items():
        if low is None or high is None:
            said = f"{high:.4g} or less" if low is None else f"{low:.4g} or more"
        else:
            said = f"{low:.4g} to {high:.4g}"
        assert said in rows[name], (said, rows[name])
    table_2 = page.split("Table 2")[1].split("<h2>")[0]
    assert "KB" in table_2 and "GB" not in table_2
    assert page.count("data:image/png;base64,") == len(figures.FIGURES) and "cannot" not in page


def test_the_reports_tables_fit_a_screen_and_show_where_a_phone_cuts_them(browser, page, folder):
    cut = "() => [...document.querySelectorAll('.scroll')].filter((e) => e.scrollWidth > e.clientWidth).length"
    tab = browser.new_page(viewport=dict(width=1440, height=900))
    tab.goto(f"file://{folder}/report.html")
    assert tab.evaluate(cut) == 0 and tab.evaluate("document.documentElement.scrollWidth") == 1440
    tab.set_viewport_size(dict(width=390, height=844))
    assert tab.evaluate(cut) > 0 and tab.evaluate("document.documentElement.scrollWidth") == 390
    (table,) = [one for one in tab.locator(".scroll").all() if "best_at_edge" in one.text_content()[:200]]

    def right_edge():
        picture = np.array(PIL.Image.open(io.BytesIO(table.screenshot())).convert("L"), float)
        return np.median(picture[:, -3:-1])  # most rows of pixels hold no letter there

    cut_off = right_edge()
    table.evaluate("(e) => e.scrollTo(e.scrollWidth, 0)")
    assert cut_off < 200 < 250 < right_edge()
    tab.close()


def test_runs_other_than_the_fitted_ones_are_not_said_to_be_held_out(folder, law, tmp_path):
    lines = (folder / "runs.csv").read_text().splitlines()
    (tmp_path / "two.csv").write_text("\n".join(lines[:3]))
    runs, out = figures.measured(law, str(tmp_path / "two.csv"))
    assert len(runs) == 2 and not out.any()
