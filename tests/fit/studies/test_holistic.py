"""The holistic laws: the paper's algebra to its printed digits, the rule of feasible widths, and the laws fitted
again to runs made from known ones."""

import csv
import dataclasses
import itertools
import pathlib

import fit_command
import numpy as np
import pytest
from scipy import stats

from fit.errors import UserError
from fit.studies.architecture_search import architecture, fitted, holistic, published, ranks, search_runs, triads
from fit.studies.architecture_search.near_models import models_near, why_none
from fit.studies.architecture_search.published import family_at, triad_at
from fit.studies.architecture_search.triads import family, invert, sized
from fit.table.table import Table, read, write

# d 512, one dense block, seven of experts of width 176, 4 heads of 64, 2 of keys
CHECK = sized(family(4, 64, 2), 512, 1, 7, 176)
CELLS = list(itertools.product(published.BUDGETS, published.M_OVER_ACTIVE, published.TOTAL_OVER_ACTIVE))


def test_forward_check():
    m, active, total = triads.of_shape(CHECK, 8192)
    assert (active, total, m) == (22_536_192, 552_394_752, 235_880_448)
    assert f"{m / active:.4f} {total / active:.4f}" == "10.4667 24.5115"


def test_inversion_check():
    """C = 1e18, M/N_a = 10.8, N/N_a = 19, d = 480."""
    layers, dense, moe, d_expert = invert(triad_at(1e18, 10.8, 19), 480, family_at(1e18), 8192)
    assert [f"{v:.4f}" for v in (layers, dense, moe)] == ["9.4388", "3.3507", "6.0881"]
    assert f"{d_expert:.2f}" == "181.44"


def test_inversion_undoes_the_triad():
    """For every shape drawn, and N/N_a stays below (n_experts + n_shared) / (top_k + n_shared)."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        experts = rng.integers(9, 300)
        used = rng.integers(1, 9)
        shared = rng.integers(0, 3)
        heads = rng.integers(1, 17)
        fixed = family(int(heads), 64, int(rng.integers(1, heads + 1)), int(experts), int(used), int(shared))
        width = int(rng.integers(4, 40)) * 64
        depths = rng.integers(1, 30, 2)
        d_expert = int(rng.integers(4, 100)) * 16
        shape = sized(fixed, width, *map(int, depths), d_expert)
        triad = triads.of_shape(shape, 2048)
        result = invert(triad, width, fixed, 2048)
        assert result == pytest.approx((depths.sum(), *depths, d_expert), rel=1e-9)
        m, active, total = triad
        assert m / active > 6 and 1 < total / active < (experts + shared) / (used + shared)


def test_table_2_follows_from_eq_2():
    m = [published.power(published.FLOPS_PER_TOKEN, c) / 1e9 for c in published.BUDGETS]
    tokens = [published.power(published.TOKENS, c) / 1e9 for c in published.BUDGETS]
    # the paper's D to every printed digit; its M is C / D, whose last digit Eq. 2 itself misses at three budgets
    assert tokens == pytest.approx([3.7420, 6.1775, 10.7004, 17.6649, 30.5985, 50.5138], abs=5.1e-4)
    assert m == pytest.approx([0.2672, 0.4856, 0.9345, 1.6983, 3.2681, 5.9390], abs=5e-4)
    assert [f"{v:.4f}" for v in m[3:]] == ["1.6982", "3.2680", "5.9387"]
    recovered = [6 + published.power(published.RECOVERED, c) for c in published.BUDGETS]
    assert recovered == pytest.approx([10.8, 9.95, 9.18, 8.72, 8.35, 8.21], rel=0.0206)


def test_phase_1_cells_that_can_be_built():
    built = {}
    why = {}
    for cell in CELLS:
        triad = triad_at(*cell)
        fixed = family_at(cell[0])
        models = models_near(triad, fixed)
        if not models.by_width:
            why[cell] = why_none(triad, fixed, models.nearest)
        for width, model in models.by_width.items():
            shape = model.shape
            built[cell] = shape
            assert width % 64 == 0 and shape.d_expert % 16 == 0 and shape.d_expert >= 64
            assert shape.n_dense_blocks >= 1 and shape.n_mixtures >= 1 and 1 <= 9 * shape.d_expert / width <= 8
            offs = [abs(a / b - 1) for a, b in zip(triads.of_shape(shape, 8192), triad, strict=True)]
            assert max(offs) == pytest.approx(model.off) and model.off <= 0.05
    assert (len(CELLS), len(built), len(why)) == (216, 177, 39)
    assert sum(cell[2] == 30 for cell in why) == 34 and {cell[2] for cell in why} == {26, 30}
    assert all("room for 0." in text and "% off" in text for text in why.values())


def loss_of(runs_x, runs_y, width, flops, best_width):
    """Curves of the paper's forms with optima at x = 6 + 2 (C / 1e18)^-0.14, y = 19 (C / 1e18)^0.03."""
    x = 6 + 2 * (flops / 1e18) ** -0.14
    y = 19 * (flops / 1e18) ** 0.03
    of_x = 0.02 / (runs_x - 6) + 0.02 / (x - 6) ** 2 * runs_x
    b = ((289 / 9 - y) / (y - 1)) ** 2
    of_y = 1 / (runs_y - 1) + b / (289 / 9 - runs_y)
    return 2 + of_x + 0.2 * of_y + 0.05 * (width / best_width - 1) ** 2


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """Tables as launch.collect writes them, of both phases at four budgets: losses of known optima at each model's own
    ratios and width; heads and the like in the column overrides, as a sweep leaves them."""
    folder = tmp_path_factory.mktemp("holistic")
    rows = ([], [])
    for flops in published.BUDGETS[:4]:
        best_width = 480 * (flops / 1e18) ** 0.2
        ratios = itertools.product(published.M_OVER_ACTIVE[:5], published.TOTAL_OVER_ACTIVE[:5])
        for phase, cell in ((0, cell) for cell in ratios):
            models = models_near(triad_at(flops, *cell), family_at(flops))
            if models.by_width:
                rows[phase].append(row_of(models.middle.shape, flops, best_width=None))
        models = models_near(triad_at(flops, 9, 20), family_at(flops))
        rows[1].extend(row_of(model.shape, flops, best_width) for model in models.by_width.values())
    paths = []
    for name, part in zip(("phase1", "phase2"), rows, strict=True):
        write(Table(name, {k: [r[k] for r in part] for k in part[0]}, list(range(len(part)))), f"{folder}/{name}.csv")
        paths.append(f"{folder}/{name}.csv")
    return paths


def row_of(shape, flops, best_width, seq_len=8192):
    m, active, total = triads.of_shape(shape, seq_len)
    width = shape.d_model
    loss = loss_of(m / active, total / active, width, flops, best_width or width)
    model = {name: getattr(shape, name) for name in ("n_heads", "head_dim", "n_kv_heads")}
    overrides = " ".join(f"model.{name}={value!r}" for name, value in model.items())
    columns = dict(d_model=width, n_blocks=shape.n_blocks, n_experts=288, top_k=8, n_shared_experts=1)
    columns |= dict(n_dense_blocks=shape.n_dense_blocks, d_expert=shape.d_expert, seq_len=seq_len)
    return columns | dict(n_tokens=flops / m, loss=loss, overrides=overrides + " n_tokens=(1, 2)")


def test_known_laws_are_fitted_again(searched):
    phases = [search_runs.read(path) for path in searched]
    assert phases[0].y_max == 289 / 9 and phases[0].x.min() > 6.5
    result = fitted.fit(*phases)
    assert len(result.budgets) == 4
    for row, flops in zip(result.budgets, published.BUDGETS, strict=False):
        assert row["flops"] == pytest.approx(flops)
        assert row["ratios"]["x"]["best"] == pytest.approx(6 + 2 * (flops / 1e18) ** -0.14, rel=1e-6)
        assert row["ratios"]["y"]["best"] == pytest.approx(19 * (flops / 1e18) ** 0.03, rel=1e-6)
        coefficients = row["ratios"]["coefficients"]

        def curve(x, y, coefficients=coefficients):
            a, b, a2, b2, c = coefficients
            return a / (x - 6) + b * x + a2 / (y - 1) + b2 / (289 / 9 - y) + c

        x, y = (row["ratios"][which]["best"] for which in "xy")
        for end in row["ratios"]["x"]["band"]:
            assert curve(end, y) == pytest.approx(1.001 * curve(x, y), rel=1e-12)
        for end in row["ratios"]["y"]["band"]:
            assert curve(x, end) == pytest.approx(1.001 * curve(x, y), rel=1e-12)
    laws = result.laws
    assert laws["m_over_active"]["best"][1] == pytest.approx(-0.14, abs=1e-6)
    assert laws["total_over_active"]["best"] == pytest.approx((19 / 1e18**0.03, 0.03), rel=1e-5)
    # the models of phase 2 differ a little in their ratios, which d alone cannot know
    assert laws["d_model"]["best"][1] == pytest.approx(0.2, abs=0.03)


def test_dense_models_have_no_part_in_the_ratios(searched, tmp_path):
    phase1 = search_runs.read(searched[0])
    lines = pathlib.Path(searched[0]).read_text().splitlines()
    columns = dict(zip(lines[0].split(","), next(csv.reader([lines[1]])), strict=True))
    dense = columns | dict(n_experts=1, top_k=1, n_shared_experts=0, n_dense_blocks=0)
    with open(tmp_path / "more.csv", "w") as file:
        file.write("\n".join(lines) + "\n")
        csv.writer(file).writerow(dense.values())
    more = search_runs.read(str(tmp_path / "more.csv"))
    assert more.y[-1] == 1 and len(more.loss) == len(phase1.loss) + 1
    rows = [[row["ratios"] for row in fitted.fit(runs)["budgets"]] for runs in (phase1, more)]
    assert [row for row in rows[1] if row] == rows[0]


def test_an_optimum_beyond_the_runs_is_none(searched):
    """Of ratios on one side of the best M/N_a, the other ratio's optimum is still found."""
    runs = search_runs.read(searched[0])
    some = runs.part((search_runs.budget_labels(runs.flops) == 0) & (runs.x > 8.5))
    result = fitted.fit_ratios(some)
    a, b, *_ = result["coefficients"]
    assert 6 + np.sqrt(a / b) == pytest.approx(8, rel=1e-6) and result["x"] is None
    assert result["y"]["best"] == pytest.approx(19, rel=1e-6)
    low, high = result["y"]["band"]

    def curve(x, y):
        return loss_of(x, y, 1.0, 1e18, 1.0)

    assert [curve(some.x.min(), v) for v in (low, high)] == pytest.approx([1.001 * curve(some.x.min(), 19)] * 2)


def test_ranks_and_the_control():
    """Ranks by scipy of the losses picked by hand; a loss that N_a and N make is explained by them, M being one."""
    rng = np.random.default_rng(1)
    x, y, d = (v.ravel() for v in np.meshgrid([7.0, 9, 14], [12.0, 20, 30], [512.0, 640, 768]))
    active = 1e9 / x
    cell = 2 + 0.1 * np.log(x) - 0.05 * np.log(y)
    loss = cell + 0.01 * (d / 640 - 1) ** 2 + 0.002 * rng.normal(size=len(x))
    runs = search_runs.SearchRuns(
        "x", np.full(len(x), 1e18), np.full(len(x), 1e9), active, y * active, d, loss, 289 / 9
    )
    result = ranks.rank(ranks.cells_of(runs), d, loss)
    keys = sorted(set(zip(x, y, strict=True)))
    middle = [loss[(x == a) & (y == b) & (d == 640)][0] for a, b in keys]
    best = [loss[(x == a) & (y == b)].min() for a, b in keys]
    assert (result["cells"], result["runs"]) == (9, 27)
    assert result["pearson"] == pytest.approx(np.corrcoef(middle, best)[0, 1])
    assert result["spearman"] == pytest.approx(np.corrcoef(stats.rankdata(middle), stats.rankdata(best))[0, 1])
    assert result["kendall"] == pytest.approx(stats.kendalltau(middle, best)[0]) and result["r2"] == pytest.approx(
        result["pearson"] ** 2
    )
    both = search_runs.SearchRuns(
        "x", *(np.append(v, v) for v in (runs.flops, runs.m, active, y * active, d)), np.append(loss, loss - 1), 289 / 9
    )
    both.flops[len(x) :] *= 10  # a budget of lower losses, in which the ranks are the same
    at = ranks.rank_at_budgets(both, ranks.cells_of(both, ((7, 9, 14), (12, 20, 30))))
    assert [r["flops"] for r in at] == pytest.approx([1e18, 1e19]) and at[0]["kendall"] == result["kendall"]
    (row,) = ranks.control(runs)
    assert row["explained"] > 0.95 and row["total"] == pytest.approx(-0.05, abs=0.01)
    assert row["active"] == pytest.approx(-0.1 + 0.05 - 0.05 * 0, abs=0.06)
    with pytest.raises(UserError, match="1 architectures have runs at several widths"):
        ranks.rank(np.zeros(27), d, loss)


def test_a_budget_gives_a_complete_architecture():
    result = fit_command.answer("holistic", "--flops=1e21")["architecture"]
    origins = {name: row["origin"] for name, row in result["values"].items()}
    assert origins["n_tokens"] == "published" and origins["m_over_active"] == "recovered"
    assert origins["d_model"] == "missing" and result["values"]["d_model"]["value"] is None and result["outside"]
    m = result["model"]
    n_dense = m["n_dense_blocks"]
    shape = sized(family_at(1e21), m["d_model"], n_dense, m["n_blocks"] - n_dense, m["d_expert"])
    made = triads.of_shape(shape, 8192)
    asked = triad_at(1e21, result["values"]["m_over_active"]["value"], 22)
    assert made == pytest.approx((m["flops_per_token"], m["n_active"], m["n_total"]))
    offs = [abs(a / b - 1) for a, b in zip(made, asked, strict=True)]
    assert max(offs) == pytest.approx(result["off"]) and result["off"] < 0.05
    assert m["n_tokens"] * m["flops_per_token"] == pytest.approx(1e21)
    values = published.quantities(1e19)
    assert values["learning_rate"].value == pytest.approx(8.28e-4) and values["batch_rows"].value == 128


def test_fits_ranks_and_pictures_from_the_command_line(searched, tmp_path):
    phase1, phase2 = searched
    picture = f"{tmp_path}/search.svg"
    text = fit_command.printed(
        "holistic", f"--runs={phase1}", f"--width_runs={phase2}", "--flops=1e19", f"--out={picture}"
    )
    assert "m_over_active - 6: " in text and "C^-0.1400" in text and "fitted" in text and "missing" not in text
    assert "M explains nothing" in text and (tmp_path / "search.svg").stat().st_size > 10_000
    cells = fit_command.answer("holistic", f"--rank={phase2}")["rank"]["cells"]
    assert 4 <= cells <= 8  # 9, 20 at each budget, or beside it
    result = fit_command.answer("holistic", f"--rank={phase2}", "--m_over_active=9", "--total_over_active=20")["rank"]
    assert (result["cells"], result["budgets"]) == (4, [])  # one at each budget: too few for ranks
    (tmp_path / "any.csv").write_text("d_model,loss,kind\n64,3,a\n96,2.9,a\n64,2,b\n96,2.1,b\n64,1,c\n96,1,c\n")
    assert "3 architectures (6 runs)" in fit_command.printed("holistic", f"--rank={tmp_path}/any.csv", "--group=kind")
    said = fit_command.refused("holistic", f"--rank={tmp_path}/any.csv", "--group=kind", "--total_over_active=20")
    assert "--total_over_active: expected without --group" in said
    said = fit_command.refused("holistic", f"--rank={phase2}", "--group=n_tokens", "--json")  # every row has its own
    assert "ranks need at least 3" in said


def test_architectures_of_a_column_are_ranked_within_budgets(searched):
    """As those of the grid are, also where the column has one name for them at all budgets."""
    phase2 = read(searched[1])
    kinds = [f"kind {i % 3}" for i in range(len(phase2))]
    named = dataclasses.replace(phase2, columns=phase2.columns | dict(kind=kinds))
    result = holistic.ranks_of(named, holistic.HolisticOptions(group="kind"))
    budgets = [runs.budget for runs, _ in search_runs.read(phase2).by_budget()]
    assert [row.flops for row in result.budgets] == pytest.approx(budgets)
    assert result.cells == sum(row.cells for row in result.budgets) == 3 * len(budgets)


def test_one_rule_says_which_runs_are_of_one_budget():
    """Parabolas of --refit and fits of --runs have the same budgets, however far two of them are apart."""
    m = np.tile(np.geomspace(1e8, 4e8, 8), 2)
    loss = 2 + np.log(m / 2e8) ** 2
    for apart in (1.01, 1.05, 1.1, 1.14, 1.3):
        flops = np.repeat((1e18, apart * 1e18), 8)
        runs = search_runs.SearchRuns("x", flops, m, m / 9, m / 9 * 20, m, loss, 289 / 9)
        budgets = [row["flops"] for row in holistic.fit_profile(runs)["budgets"]]
        assert budgets == pytest.approx([of_budget.budget for of_budget, _ in runs.by_budget()])
        assert budgets == pytest.approx([row.flops for row in fitted.fit(width_runs=runs).budgets])
        assert len(budgets) == (1 if apart == 1.01 else 2)


def test_a_run_of_no_budget_has_a_label_of_its_own():
    labels = search_runs.budget_labels(np.array([1e20, 1e18, 3e18, 1e18, 9e18]))
    assert labels[1] == labels[3] == 0 and len(set(labels)) == 4 and np.sum(labels < 0) == 3


def test_ratios_that_no_mixture_has_are_refused():
    """Laws of N/N_a that leave (1, 289 / 9) far beyond their runs, either way."""
    one = fitted.BandLaws(low=None, best=None, high=None, growth=None)
    for slope in (-0.5, 0.5):
        law = dataclasses.replace(one, best=(19 / 1e18**slope, slope))
        built = architecture.architecture_at(1.1e18, dict(total_over_active=law))
        assert built.model.total_over_active == pytest.approx(19 * 1.1**slope, rel=0.05)
        with pytest.raises(UserError, match="no model can be built: the fitted law gives N/N_a"):
            architecture.architecture_at(1e26, dict(total_over_active=law))


def test_eq_2_refitted_on_optima(tmp_path):
    """Runs at five sizes of each budget with the loss least at a known M."""
    rows = []
    best = []
    for flops, middle in ((1e18, 512), (1e19, 1024), (1e20, 2048)):
        shapes = [sized(family(4, 64, 2), middle * k // 8, 1, 8, 176) for k in (4, 6, 8, 11, 15)]
        flops_per_token = [triads.of_shape(shape, 1024)[0] for shape in shapes]
        best.append(flops_per_token[2])
        for shape, m in zip(shapes, flops_per_token, strict=True):
            rows.append(row_of(shape, flops, None, 1024) | dict(loss=2 + 0.1 * np.log(m / best[-1]) ** 2))
    write(Table("x", {k: [r[k] for r in rows] for k in rows[0]}, list(range(len(rows)))), f"{tmp_path}/runs.csv")
    result = fit_command.answer("holistic", f"--refit={tmp_path}/runs.csv")["refit"]
    assert [row["best"] for row in result["budgets"]] == pytest.approx(best, rel=1e-6)
    slope, at = np.polyfit(np.log([1e18, 1e19, 1e20]), np.log(best), 1)
    assert result["power"] == pytest.approx([np.exp(at), slope], rel=1e-5)
    assert result["tokens_power"] == pytest.approx([np.exp(-at), 1 - slope], rel=1e-5)
    (tmp_path / "runs.csv").write_text("d_model,n_blocks,n_experts,seq_len,n_tokens,loss\n64,2,8,128,1e6,2\n")
    said = fit_command.refused("holistic", f"--runs={tmp_path}/runs.csv")
    assert "row 2: n_heads is neither a column nor in overrides" in said
