"""A new law is one file: a page put into a folder is fitted, predicted with and planned with; nothing else knows of
it."""

import dataclasses
import json
import os
import subprocess
import sys
import types

import fit_runs
import numpy as np
import pytest

from fit.errors import UserError
from fit.fitted_law.law import Law
from fit.fitted_law.law_files import load
from fit.form import Form
from fit.laws import FORMS, joint
from fit.model import architecture
from fit.planning.inputs.constraints import Constraints
from fit.planning.inputs.problem import Problem
from fit.planning.search import solver
from fit.render.planner import formulas

# The law of Abnar et al. 2025 (arXiv 2501.12370) without its interaction: total parameters, tokens, sparsity.
PAGE = '''
"""L = a / N^alpha + b / D^beta + c / (1 - S)^lam + e, N = n_total, S = sparsity."""

from fit.form import Coefficient

COLUMNS = ("n_total", "n_tokens", "sparsity")
COEFFICIENTS = dict(
    a=Coefficient((10, 1000), positive=True, slopes={"n_total": ("alpha", -1)}),
    b=Coefficient((10, 1000), positive=True, slopes={"n_tokens": ("beta", -1)}),
    c=Coefficient((0.1, 1), positive=True),
    e=Coefficient((0.5, 1.5), positive=True, identified_by={"n_total": 10, "n_tokens": 10}),
    alpha=Coefficient((0.2, 0.5)),
    beta=Coefficient((0.2, 0.5)),
    lam=Coefficient((-0.5, 0)),
)


def log_loss(xp, c, x):
    size, data = c["a"] * x["n_total"] ** -c["alpha"], c["b"] * x["n_tokens"] ** -c["beta"]
    return xp.log(size + data + c["c"] * (1 - x["sparsity"]) ** -c["lam"] + c["e"])


JAVASCRIPT = """{
  log_loss(c, x) {
    const size = c.a * x.n_total ** -c.alpha;
    const data = c.b * x.n_tokens ** -c.beta;
    return Math.log(size + data + c.c * (1 - x.sparsity) ** -c.lam + c.e);
  },
}"""
PRESETS = {}
'''
TRUE = dict(a=160.0, b=300.0, c=0.46, e=0.94, alpha=0.32, beta=0.3, lam=-0.17)


def true_loss(n_total, n_tokens, sparsity):
    c = TRUE
    return (
        c["a"] / n_total ** c["alpha"] + c["b"] / n_tokens ** c["beta"] + c["c"] * (1 - sparsity) ** -c["lam"] + c["e"]
    )


def best_of_a_grid(c, n_experts):
    """(loss, n_active) of the best of many widths at 1e19 FLOPs within 4e9 bytes, by the law's coefficients."""
    width = np.geomspace(64, 6400, 200_001)
    active, total = (2 * width * 50257 + (4 + 9 * e) * width**3 / 64 for e in (1, n_experts))
    tokens = 1e19 / (6 * active)
    loss = c["a"] / total ** c["alpha"] + c["b"] / tokens ** c["beta"] + c["c"] * n_experts ** c["lam"] + c["e"]
    loss = np.where(2 * total <= 4e9, loss, np.inf)
    return loss.min(), active[np.argmin(loss)]


def test_a_page_in_a_folder_is_a_law(tmp_path, browser):
    (tmp_path / "laws").mkdir()
    (tmp_path / "laws" / "sparse.py").write_text(PAGE)
    rng = np.random.default_rng(0)
    axes = np.geomspace(1e7, 1e9, 5), np.geomspace(1e9, 3e10, 4), np.array([0, 0.5, 0.875])
    n, d, s = (axis.ravel() for axis in np.meshgrid(*axes))
    loss = true_loss(n, d, s) * np.exp(0.001 * rng.normal(size=len(n)))
    rows = [dict(n_total=a, n_tokens=b, sparsity=c, loss=v) for a, b, c, v in zip(n, d, s, loss, strict=True)]
    (tmp_path / "runs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    commands = (
        f"law --form=sparse --runs={tmp_path}/runs.jsonl --out={tmp_path}/law.json --bootstrap=4",
        f"predict --law={tmp_path}/law.json --runs={tmp_path}/runs.jsonl --out={tmp_path}/out.jsonl",
        f"plan --law={tmp_path}/law.json --flops=1e19 --memory_gb=4 --experts=1,2,8 --json",
        f"page --law={tmp_path}/law.json --out={tmp_path}/planner.html",
    )
    env = os.environ | {"FIT_LAWS": f"{tmp_path}/laws"}
    said = []
    for command in commands:
        run = [sys.executable, "-m", "fit", *command.split()]
        said.append(subprocess.run(run, env=env, capture_output=True, text=True))
        assert said[-1].returncode == 0, said[-1].stderr
    record = json.loads((tmp_path / "law.json").read_text())
    assert record["fitted"]["mean_relative_error"] < 0.002 and "e" in record["profile"]
    assert len(record["bootstrap"]["draws"]) == 4 and record["runs"]["ranges"]["sparsity"] == [0, 0.875]
    predicted = [json.loads(line)["predicted_loss"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    np.testing.assert_allclose(predicted, true_loss(n, d, s), rtol=2e-3)
    optima = json.loads(said[2].stdout)["optima"]
    for row in optima:
        loss, n_active = best_of_a_grid(record["coefficients"], row["n_experts"])
        assert row["loss"] == pytest.approx(loss, rel=1e-9) and row["n_active"] == pytest.approx(n_active, rel=1e-3)
    tab = browser.new_page()
    tab.goto(f"file://{tmp_path}/planner.html#flops=1e19&memory_gb=4&experts=1,2,8&chips=&context=0")
    planned = json.loads(tab.text_content("#json"))  # by the formula in JavaScript
    tab.close()
    for row, other in zip(planned["optima"], optima, strict=True):
        assert row["loss"] == pytest.approx(other["loss"], rel=1e-9)


FLOORED = """
FLOOR = "e"


def log_reducible_loss(xp, c, x):
    size, data = c["a"] * x["n_total"] ** -c["alpha"], c["b"] * x["n_tokens"] ** -c["beta"]
    return xp.log(size + data + c["c"] * (1 - x["sparsity"]) ** -c["lam"])
"""


def test_a_page_that_names_its_floor_is_fitted_coupled_too(tmp_path):
    """Without starts or a closed form of its own."""
    (tmp_path / "sparse.py").write_text(PAGE + FLOORED)
    n, d, s = (axis.ravel() for axis in np.meshgrid(np.geomspace(1e7, 1e9, 5), np.geomspace(1e9, 3e10, 4), [0, 0.5]))
    loss = TRUE["e"] + (true_loss(n, d, s) - TRUE["e"]) ** 0.5
    rows = [dict(n_total=a, n_tokens=b, sparsity=c, loss=v) for a, b, c, v in zip(n, d, s, loss, strict=True)]
    (tmp_path / "runs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    law = f"--form=sparse_coupled --runs={tmp_path}/runs.jsonl --out={tmp_path}/law.json --bootstrap=2"
    env = os.environ | {"FIT_LAWS": str(tmp_path)}
    for command in (f"law {law}", f"plan --law={tmp_path}/law.json --flops=1e19 --experts=1,2,8"):
        done = subprocess.run([sys.executable, "-m", "fit", *command.split()], env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "law.json").read_text())["coefficients"]["k"] == pytest.approx(0.5, abs=0.1)


def test_formulas_in_javascript_are_those_in_python(browser):
    """log_loss and chinchilla_coefficients_at of each law's page at random points around its published coefficients."""
    rng = np.random.default_rng(0)
    cases, expected = [], []
    forms = [form for form in FORMS.values() if formulas.has_formula(form)]
    for form in forms:
        for _ in range(20):
            free = np.array([rng.choice(starts) for starts in form.published])
            free += 0.05 * rng.normal(size=len(free))
            c = {name: float(value) for name, value in form._by_name(free, np).items()}
            x = dict(n_active=10 ** rng.uniform(5, 12), n_tokens=10 ** rng.uniform(6, 14))
            x |= dict(sparsity=rng.uniform(0, 0.99))
            x |= dict(n_total=x["n_active"] * rng.uniform(1, 100), n_experts=int(rng.integers(1, 600)))
            x |= dict(granularity=rng.uniform(1, 32), top_k=int(rng.integers(1, 16)), shared_share=rng.uniform(0, 0.9))
            x |= {f"ln {name}": float(np.log(value)) for name, value in x.items() if value > 0}
            cases.append((form.name, c, x))
            expected.append([float(form.page.log_loss(np, c, x))])
            if form.chinchilla_coefficients_at:
                expected[-1] += map(float, form.chinchilla_coefficients_at(c, float(x["n_experts"])))
    tab = browser.new_page()
    answers = tab.evaluate(
        f"""(cases) => {{ {formulas.script(forms)}
        return cases.map(([form, c, x]) => [
          FORMULAS[form].log_loss(c, x), ...(FORMULAS[form].chinchilla_coefficients_at?.(c, x.n_experts) ?? [])]) }}""",
        cases,
    )
    tab.close()
    assert {name for name, *_ in cases} >= {"joint", "joint_coupled", "chinchilla", "sparsity", "fine_grained"}
    for (name, *_), found, wanted in zip(cases, answers, expected, strict=True):
        if len(wanted) > len(found):  # an additive law's k, which is 1
            assert wanted.pop() == 1
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9, err_msg=name)


def test_a_law_without_a_formula_in_javascript_has_no_planner_page(tmp_path):
    page = types.SimpleNamespace(NAME="odd", COLUMNS=(), COEFFICIENTS={}, PRESETS={}, __file__="laws/odd.py")
    with pytest.raises(UserError, match=r"the law odd has no JAVASCRIPT in laws/odd\.py"):
        formulas.script([Form(page)])


def without_closed_form():
    """The joint law as a form of which only the loss is known."""
    page = {name: value for name, value in vars(joint).items() if name != "chinchilla_coefficients_at"}
    return Form(types.SimpleNamespace(**page))


@pytest.mark.parametrize(
    "constraints",
    [
        dict(flops=1e21),
        dict(flops=1e22, memory_bytes=8e10, kv_tokens=16384.0),
        dict(flops=1e22, inference_tokens=1e12),
        dict(flops=1e22, max_tokens=2e10),
        dict(memory_bytes=2e10, max_tokens=1e11),
        dict(flops=1e16),
    ],
)
def test_the_search_finds_the_closed_form(constraints):
    """The joint law, asked only for its loss."""
    law, constraints = load("joint-moe-2025"), Constraints(**constraints)
    searched = dataclasses.replace(law, name="searched", form=without_closed_form())
    experts = np.array([1.0, 4, 32])
    expected, found = (
        solver.best_models(Problem(one, architecture.PAPER, constraints), experts) for one in (law, searched)
    )
    np.testing.assert_allclose(found.loss, expected.loss, rtol=1e-12)
    np.testing.assert_allclose(found.n_active, expected.n_active, rtol=1e-6)
    assert found.size_bound.tolist() == expected.size_bound.tolist()
    draws = {name: value * np.array([1.0, 1.001]) for name, value in law.coefficients.items()}
    several = solver.best_models(Problem(searched, architecture.PAPER, constraints), 4.0, draws)
    assert several.loss.shape == (2,) and several.loss[0] == pytest.approx(expected.loss[1], rel=1e-12)


def test_a_loss_that_rises_with_tokens_has_no_optimum():
    rising = Law("rising", without_closed_form(), fit_runs.TABLE_3 | {"beta": 0.2})
    with pytest.raises(UserError, match="does not fall with n_tokens"):
        solver.best_models(Problem(rising, architecture.PAPER, Constraints(flops=1e20)), 1.0)


@pytest.mark.parametrize(
    "change, words",
    [
        (("identified_by", "pinned_by"), "pinned_by is now called identified_by"),
        (("PRESETS = {}", "PRESETS = {}\nat_experts = 1"), "at_experts is now called chinchilla_coefficients_at"),
        (("import", "imprt"), "SyntaxError"),
    ],
)
def test_a_page_that_fails_is_told_in_one_line(tmp_path, change, words):
    assert change[0] in PAGE
    (tmp_path / "sparse.py").write_text(PAGE.replace(*change))
    env = os.environ | {"FIT_LAWS": str(tmp_path)}
    done = subprocess.run([sys.executable, "-m", "fit", "laws"], env=env, capture_output=True, text=True)
    assert done.returncode == 2 and words in done.stderr and str(tmp_path / "sparse.py") in done.stderr
    assert done.stderr.count("\n") == 1
