"""Which runs to train next: the design against explicit covariances and exhaustive search, by simulation, and the
command with its sweep file."""

import dataclasses
import itertools
import json
import re
import runpy

import fit_command
import fit_runs
import helpers
import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fit
from benchmarks import fit_next
from fit.fitted_law.parts import Growth
from fit.laws import FORMS
from fit.studies.next_runs import candidates, design, next_answer
from fit.table.runs import read_runs

BUDGET, TARGET = 5e12, 1e14  # of the laptop's sweep: ten times its FLOPs; a hundred times its largest run's


def random_design(seed, c=12, n=3, trunks=4):
    """A Design of c candidates on a few trunks with random gradients, five runs known."""
    rng = np.random.default_rng(seed)
    model = np.sort(np.append(np.arange(trunks), rng.integers(trunks, size=c - trunks)))
    n_tokens = rng.permutation(np.arange(1, c + 1)) * 100
    sizes = rng.uniform(1, 3, trunks)[model]
    possible = candidates.PossibleRuns(model + 1, np.ones(c, int), n_tokens, model, sizes, {}, 0.2, np.ones(c))
    known = rng.normal(size=(5, n))
    normal = known.T @ known + 0.1 * np.eye(n)
    weights = np.array([1.0, 0.3])
    goals = rng.normal(size=(2, n))
    scatter = np.random.default_rng(seed + 100).uniform(1, 2, c)
    possible = dataclasses.replace(possible, scatter=scatter)
    return design.Design(possible, rng.normal(size=(c, n)), goals, weights, normal, normal, normal, 0.4), known


def flops_by_hand(possible, chosen):
    """Each trunk once, up to 80% of its longest budget, and 20% of every budget."""
    total = 0
    for m in {possible.model[i] for i in chosen}:
        tokens = [possible.n_tokens[i] for i in chosen if possible.model[i] == m]
        size = next(possible.n_active[i] for i in chosen if possible.model[i] == m)
        total += 6 * size * (0.8 * max(tokens) + 0.2 * sum(tokens))
    return total


def test_variances_are_those_of_the_explicit_covariance():
    """Of runs whose errors have the covariance S, written out: what they hold, (J' S^-1 J + P)^-1, and what least
    squares makes of them, (J'J + P)^-1 (J' S J + P) (J'J + P)^-1."""
    of, known = random_design(0)
    chosen = [0, 1, 4, 5, 11]
    model = of.possible.model[chosen]
    rows = np.concatenate([known, of.jacobian[chosen]])
    correlation = np.eye(len(rows))
    for i, j in itertools.permutations(range(len(chosen)), 2):
        correlation[5 + i, 5 + j] = 0.4 * (model[i] == model[j])
    scatter = of.possible.scatter[chosen]
    correlation[5:, 5:] *= np.outer(scatter, scatter)
    prior = 0.1 * np.eye(3)
    inverse = np.linalg.inv(rows.T @ rows + prior)
    covariance = inverse @ (rows.T @ correlation @ rows + prior) @ inverse
    expected = [goal @ covariance @ goal for goal in of.goals]
    assert of.variances(of.jacobian[chosen], model, scatter) == pytest.approx(expected, rel=1e-10)
    best = np.linalg.inv(rows.T @ np.linalg.inv(correlation) @ rows + prior)
    assert of.score(chosen) == pytest.approx(
        sum(w * g @ best @ g for w, g in zip((1, 0.3), of.goals, strict=True)), rel=1e-10
    )


@pytest.mark.parametrize("chosen", [[], [3], [0, 1, 2, 7]])
def test_one_more_run_is_scored_and_priced_as_when_it_is_chosen(chosen):
    of, _ = random_design(1)
    others = [i for i in range(12) if i not in chosen]
    gains = of.gains_of_one_more(chosen)
    costs = of.possible.flops_of_one_more(chosen)
    lower = [of.score(chosen) - of.score([*chosen, i]) for i in others]
    assert gains[others] == pytest.approx(lower, rel=1e-9, abs=1e-12) and min(lower) >= 0
    more = [flops_by_hand(of.possible, [*chosen, i]) - flops_by_hand(of.possible, chosen) for i in others]
    assert costs[others] == pytest.approx(more, rel=1e-9)
    assert of.possible.flops(chosen) == pytest.approx(flops_by_hand(of.possible, chosen), rel=1e-12)


@pytest.mark.parametrize("seed", range(2))
def test_the_chosen_set_is_nearly_the_best_of_all(seed):
    """Against every set within the budget."""
    of, _ = random_design(seed + 10)
    budget = 0.35 * of.possible.flops(range(12))
    sets = [s for k in range(13) for s in itertools.combinations(range(12), k) if of.possible.flops(s) <= budget]
    best = min(of.score(list(s)) for s in sets)
    chosen = design.choose(of, budget)
    assert of.possible.flops(chosen) <= budget * (1 + 1e-9)
    assert best <= of.score(chosen) * (1 + 1e-9) and of.score(chosen) <= 1.1 * best
    assert of.score(chosen) < 0.8 * of.score([])


@pytest.fixture(scope="module")
def law(tmp_path_factory):
    """(folder, law.json, runs.csv) of a laptop's sweep whose trunks share an error."""
    folder = tmp_path_factory.mktemp("next")
    runs = fit_runs.sweep_runs(noise=0.004, trunk=0.006, seed=3)
    _, columns = fit_runs.demo_runs()
    columns = {name: list(values) for name, values in columns.items()}
    path = fit_runs.write_csv(folder / "runs.csv", runs, run=runs.table.columns["run"], seed=[0] * len(runs), **columns)
    fit_runs.fit_law(folder, path, "--holdout=largest-compute:3")
    return folder, folder / "law.json", path


def found(law, *flags):
    _, path, runs = law
    return fit_command.answer("next", f"--law={path}", f"--runs={runs}", *flags)


def test_the_runs_and_what_they_do(law):
    answer = found(law, f"--flops={BUDGET}", f"--target_flops={TARGET}")
    total = 0
    for trunk in answer["trunks"]:
        size = 2 * trunk["d_model"] * 257 + 13 * trunk["n_blocks"] * trunk["d_model"] ** 2
        assert trunk["d_model"] == 8 * trunk["n_blocks"] and trunk["n_active"] == size
        assert trunk["n_experts"] in (1, 2, 4, 8) and trunk["n_tokens"] == sorted(set(trunk["n_tokens"]))
        flops = 6 * size * (0.8 * max(trunk["n_tokens"]) + 0.2 * sum(trunk["n_tokens"]))
        assert trunk["flops"] == pytest.approx(flops, rel=1e-9)
        total += flops
    assert answer["flops"] == pytest.approx(total, rel=1e-9) and total <= BUDGET * (1 + 1e-9)
    assert answer["grid"]["flops"] == pytest.approx(BUDGET, rel=1e-2) and answer["seed"] == 1
    error = answer["expected"]["log_error"]
    assert error["after"] < error["grid"] < error["before"]
    low, high = answer["expected"]["loss"]["after"]
    loss = answer["expected"]["best"]["loss"]
    assert np.log([loss / low, high / loss]) == pytest.approx(1.2815516 * error["after"], rel=1e-6)
    best = fit_command.answer("plan", f"--law={law[1]}", f"--flops={TARGET}")["best"]
    assert (best["n_experts"], best["loss"]) == (
        answer["expected"]["best"]["n_experts"],
        pytest.approx(loss, rel=1e-12),
    )


def test_standard_errors_before_are_those_of_the_fit(law):
    """Two ways to the errors of the coefficients: the design's and fit law's, where the runs pin them down."""
    record = json.loads(law[1].read_text())
    answer = found(law, f"--flops={BUDGET}", "--goal=coefficients", "--coefficients=c,E_max")
    named = {row["name"]: row for row in answer["expected"]["coefficients"]}
    assert named["c"]["value"] == record["coefficients"]["c"]
    for row in named.values():
        assert row["standard_error"]["after"] < row["standard_error"]["before"]
    assert answer["target_flops"] is None
    every = found(law, f"--flops={BUDGET}", "--goal=coefficients")["expected"]["coefficients"]
    assert [row["name"] for row in every] == list(FORMS["joint"].names)


def test_a_sweep_takes_the_runs(law):
    """launch.sweep accepts the file, finds the same runs on as many trunks, and counts the same FLOPs up to whole
    steps."""
    folder = law[0]
    flags = [f"--flops={BUDGET}", f"--target_flops={TARGET}", f"--emit_sweep={folder}/next.py"]
    answer = found(law, *flags)
    done = helpers.run(
        "launch.sweep", f"--sweep={folder}/next.py", f"--workdir={folder}/sweep", "--dry_run", "--text_elsewhere"
    )
    assert done.returncode == 0 and "refused" not in done.stderr, done.stderr
    runs, jobs, flops = re.search(r"(\d+) runs in (\d+) jobs, (\S+) FLOPs", done.stdout).groups()
    assert int(jobs) == len(answer["trunks"]) and int(runs) == sum(len(t["n_tokens"]) for t in answer["trunks"])
    assert float(flops) == pytest.approx(answer["flops"], rel=0.01)
    for trunk in answer["trunks"]:
        assert f"{trunk['n_active']:,.0f} " in done.stdout
    sweep = runpy.run_path(f"{folder}/next.py")["get_sweep"]()[1]
    assert {job["data.fingerprint"] for job in sweep} == {fit_runs.CORPUS}  # no other text comes into runs.csv


def test_any_law_of_size_and_tokens(tmp_path, law):
    """A law of dense models with a coefficient that the fit held: it has no error, and is none of the goals."""
    fit_runs.fit_law(tmp_path, law[2], "--form=chinchilla", "--fix=E=0.8")
    dense = tmp_path, tmp_path / "law.json", law[2]
    answer = found(dense, "--flops=1e12", "--target_flops=1e14")
    error = answer["expected"]["log_error"]
    assert error["after"] < error["before"] and answer["expected"]["others"] == []
    answer = found(dense, "--flops=1e12", "--goal=coefficients")
    assert [row["name"] for row in answer["expected"]["coefficients"]] == ["A", "B", "alpha", "beta"]


def test_the_chosen_runs_beat_a_plain_grid():
    """On laws drawn around the published one: at least 2 times less mean squared error of the target's loss than a
    log-uniform grid of the same FLOPs, also where the noise is believed to be 4 times its size."""
    with jax.enable_x64(True):
        squares = [fit_next.squared_errors(seed, fits=10, scales=(1, 4), drawn=False) for seed in range(2)]
    mean = {name: np.mean([each[name] for each in squares]) for name in squares[0]}
    assert 2 * mean["chosen 1"] < mean["grid"] and 2 * mean["chosen 4"] < mean["grid"], squares


def test_a_budget_without_a_run_like_the_fitted_ones_is_told(tmp_path):
    """The table does not name its vocabulary, so the smallest model that can be built is far larger than its runs'."""
    runs = fit_runs.write_csv(tmp_path / "runs.csv", fit_runs.sweep_runs())
    fit.save(fit.law(runs, "joint", starts=16), tmp_path / "law.json")
    with pytest.raises(fit.UserError, match="tokens per active parameter, as the law's runs have"):
        fit.next(str(tmp_path / "law.json"), runs, flops=2e13, target_flops=1e14)


def test_small_runs_count_with_their_own_scatter(law):
    """The goal is less certain where half of the fitted runs scatter more, not where only smaller runs do."""
    _, path, runs = law
    plain = fit.load(path)
    table = fit.read(runs)
    flops = 6 * table.numbers("n_active") * table.numbers("n_tokens")
    errors = []
    for below in (0.5 * flops.min(), np.median(flops)):
        growth = Growth(training_flops=float(below), power=0.5)
        noisier = dataclasses.replace(plain, noise=dataclasses.replace(plain.noise, growth=growth))
        result = fit.next(noisier, runs, flops=BUDGET, target_flops=TARGET)
        errors.append(result.expected["log_error"]["before"])
    expected = fit.next(plain, runs, flops=BUDGET, target_flops=TARGET).expected["log_error"]["before"]
    assert errors[0] == pytest.approx(expected, rel=1e-9) and errors[1] > 1.02 * expected


def test_grid_and_candidates_have_the_experts_that_a_token_can_choose(law):
    """Of models whose tokens choose 4 experts, none has 2."""
    fitted = fit.load(law[1])
    runs = read_runs(fit.read(law[2]), fitted.form.columns)
    architecture = dataclasses.replace(fitted.architecture, granularity=1.0, active_width=4.0)
    for make in (candidates.candidates, candidates.plain_grid):
        possible = make(fitted, architecture, (1, 2, 4, 8), runs, BUDGET)
        assert set(possible.n_experts) == {1, 4, 8}


@given(st.floats(-3, 1))
def test_an_increase_is_never_announced_as_a_gain(share):
    """Errors that become smaller by a negative share grow."""
    words = next_answer.change(share)
    assert "-" not in words
    assert ("shrink" in words) == (share >= 0.005)
    assert ("grow" in words) == (share <= -0.005)
