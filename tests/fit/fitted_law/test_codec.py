"""law.json: what a law holds survives it, older files are read, and what no law can hold is refused."""

import copy
import dataclasses
import json

import fit_runs
import helpers
import numpy as np
import pytest

import fit
from fit.errors import UserError
from fit.fitted_law.law_data import VERSION
from fit.fitted_law.law_files import NAMES, load

ROOT = helpers.ROOT
OURS = [*ROOT.glob("results/**/law.json"), *ROOT.glob("results/forecasts/laws/*.json")]
OURS += ROOT.glob("fit/fitted_law/presets/*.json")


def models_of(law):
    """Models far and near, with every column that a law may read."""
    rng = np.random.default_rng(0)
    n_active = np.exp(rng.uniform(np.log(1e5), np.log(1e11), 40))
    models = dict(n_active=n_active, n_tokens=np.exp(rng.uniform(np.log(1e6), np.log(1e13), 40)))
    models |= dict(n_total=3 * n_active, sparsity=rng.uniform(0, 0.95, 40), granularity=rng.uniform(1, 8, 40))
    models |= dict(top_k=np.full(40, 2.0), shared_share=rng.uniform(0, 0.5, 40))
    models["n_experts"] = np.full(40, law.only_n_experts or 8)
    return models


@pytest.mark.parametrize("name", [*map(str, OURS), *NAMES])
def test_a_law_survives_its_file(tmp_path, name):
    law = load(name)
    fit.save(law, tmp_path / "law.json")
    again = load(tmp_path / "law.json")
    models = models_of(law)
    np.testing.assert_allclose(again.loss(again.coefficients, models), law.loss(law.coefficients, models), rtol=1e-12)
    if law.draws:
        read = {column: models[column] for column in law.form.columns}
        new_run = law.noise is not None
        expected = law.predict_interval(**read, new_run=new_run)
        np.testing.assert_allclose(again.predict_interval(**read, new_run=new_run), expected, rtol=1e-12)
    assert again.to_dict() == law.to_dict() == json.loads((tmp_path / "law.json").read_text())
    assert again.ranges == law.ranges and again.models == law.models and again.warnings == law.warnings


def test_no_file_is_written_that_would_not_be_read_as_this_law(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    law = load(str(OURS[0]))
    with pytest.raises(UserError, match="law=joint-moe-2025 is a law that needs no file"):
        fit.save(law, "joint-moe-2025")
    never = dataclasses.replace(law, coefficients=law.coefficients | dict.fromkeys(law.form.names, float("nan")))
    with pytest.raises(
        UserError, match="^law.json: cannot be written: coefficients.* is null, expected a finite number"
    ):
        fit.save(never, "law.json")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", OURS, ids=str)
def test_a_law_holds_all_numbers_of_its_file(path):
    """Those of a file of version 1 too, under the names of today."""
    written = json.loads(path.read_text())
    assert written.get("version", 1) == 1
    held = load(path).to_dict()
    assert set(numbers_of(written | dict(version=VERSION))) <= set(numbers_of(held))


def numbers_of(value):
    """All numbers of a JSON value."""
    if isinstance(value, dict):
        return [number for item in value.values() for number in numbers_of(item)]
    if isinstance(value, list):
        return [number for item in value for number in numbers_of(item)]
    return [value] if isinstance(value, (int, float)) and not isinstance(value, bool) else []


def test_a_file_of_version_1_has_names_of_its_own(tmp_path):
    """As version 0.3 wrote it."""
    architecture = dict(kv_share=0.5, attention=1, ff=3, tied=True, split=4.0, top_k=2, shared=1, n_dense=1, head_dim=0)
    errors = dict(runs=5, rmse_nats=0.01, rmse_log=0.01, mean_relative_error=0.01, max_relative_error=0.02)
    step = errors | dict(fitted=9, fitted_flops=1e18, training_flops=[1e18, 1e19], mean_error=0.0, scatter=0.02)
    step |= dict(holds=0.8, reach=1.2, drift=-0.003, wander=0.004, factor=2)
    before_factors = errors | dict(fitted=9, fitted_flops=1e18, training_flops=[1e18, 1e19])
    record = dict(
        version=1,
        form="chinchilla",
        coefficients=fit_runs.CHINCHILLA,
        models=dict(vocab_size=512, architecture=architecture, differing=dict(split=[2.0, 4.0])),
        rolling=[before_factors, step],
        choice=dict(tried=[dict(form="chinchilla", rmse_log=0.01, rolling=[before_factors, step])], why="it is better"),
        bootstrap=dict(form="errors", percentiles=[5, 95], draws=[list(fit_runs.CHINCHILLA.values())] * 2),
        rates=dict(
            coefficients=dict(rate=1e-3, rate_n_active=-0.5, rate_cost=0.02, skew=0.1),
            reference=dict(n_active=1e8),
            scatter=dict(rate=0.1),
            runs=20,
            near=9,
            draws=[[1e-3, -0.5, 0.02, 0.1]] * 2,
        ),
    )
    (tmp_path / "law.json").write_text(json.dumps(record))
    law = load(tmp_path / "law.json")
    assert (law.architecture.granularity, law.architecture.top_k, law.architecture.kv_share) == (4, 2, 0.5)
    assert law.models.differing == dict(granularity=(2.0, 4.0))
    (hold_out,) = law.rolling
    assert law.choice.tried[0].rolling == law.rolling
    assert (hold_out.coverage, hold_out.log_compute_range) == (0.8, 1.2)
    assert (hold_out.drift_mean, hold_out.drift_rms) == (-0.003, 0.004)
    assert law.tuning.percentiles == (5, 95)
    written = law.to_dict()
    assert written["version"] == VERSION and written["models"]["architecture"]["granularity"] == 4
    assert written["rolling"][0].keys() == step.keys() - {"holds", "reach", "drift", "wander"} | {
        "coverage",
        "log_compute_range",
        "drift_mean",
        "drift_rms",
    }


def test_sentences_of_version_2_are_findings(tmp_path):
    """In their words, and a plan beyond the runs says what was known of that."""
    said = ["runs.csv: 2 rows repeat others", "the runs do not pin down E: anything fits as well"]
    record = dict(version=2, form="joint", coefficients=fit_runs.TABLE_3, warnings=said, warning="it fails beyond")
    record["models"] = dict(assumed=["no column says top_k"])
    (tmp_path / "law.json").write_text(json.dumps(record))
    law = load(tmp_path / "law.json")
    assert law.warnings == said and law.warning == "it fails beyond"
    assert list(map(str, law.models.assumed)) == ["no column says top_k"]
    fit.save(law, tmp_path / "again.json")
    again = load(tmp_path / "again.json")
    assert (again.findings, again.beyond_runs, again.models) == (law.findings, law.beyond_runs, law.models)
    assert "warnings" not in again.to_dict() and "warning" not in again.to_dict()


def test_the_sentence_of_a_choice_of_version_3_is_a_finding(tmp_path):
    record = dict(version=3, form="joint", coefficients=fit_runs.TABLE_3, choice=dict(tried=[], why="k is held"))
    (tmp_path / "law.json").write_text(json.dumps(record))
    law = load(tmp_path / "law.json")
    assert law.choice.why == "k is held"
    fit.save(law, tmp_path / "again.json")
    assert load(tmp_path / "again.json").choice == law.choice
    record["choice"]["why"] = 3
    (tmp_path / "law.json").write_text(json.dumps(record))
    with pytest.raises(UserError, match="choice.why.* is 3, expected text"):
        load(tmp_path / "law.json")


FOUND = dict(code="of_next_year", severity="urgent", values=dict(count=3), text="3 runs are odd")


def written_with(folder, finding):
    """The path of a law.json with a finding."""
    record = dict(version=VERSION, form="joint", coefficients=fit_runs.TABLE_3, findings=[finding])
    (folder / "law.json").write_text(json.dumps(record))
    return folder / "law.json"


def test_a_finding_of_a_newer_code_keeps_its_words(tmp_path):
    (read,) = load(written_with(tmp_path, FOUND)).findings
    assert str(read) == "3 runs are odd" and read.severity == "urgent"


@pytest.mark.parametrize(
    "changes, said",
    [
        (dict(severity="loud"), 'findings.severity is "loud", expected one of urgent, warning, note'),
        (dict(text="\x1b[2J"), "findings.text is .*, expected text without control characters"),
        (dict(values=dict(count=[1])), "findings.values.count is .*, expected a number or text"),
        (dict(code="at_edge"), "findings.values is .*, expected those of at_edge"),
    ],
)
def test_a_finding_that_says_nothing_is_refused(tmp_path, changes, said):
    with pytest.raises(UserError, match=said):
        load(written_with(tmp_path, FOUND | changes))


def paths_of(value, path=()):
    """The paths of all objects, lists, numbers and texts within a JSON value; of a list its first element alone."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield (*path, name)
            yield from paths_of(item, (*path, name))
    if isinstance(value, list) and value:
        yield (*path, 0)
        yield from paths_of(value[0], (*path, 0))


def test_a_value_of_another_kind_is_refused_wherever_it_stands(tmp_path):
    """And its field is named."""
    record = load(str(ROOT / "results/third/law.json")).to_dict()
    record["bootstrap"]["draws"] = record["bootstrap"]["draws"][:2]
    record["bootstrap"]["beyond"]["drift"] = record["bootstrap"]["beyond"]["drift"][:2]
    record["noise"]["growth"] = dict(training_flops=1e18, power=0.5)
    refused = 0
    for path in paths_of(record):
        *parents, last = path
        if path == ("form",) or "differing" in parents:  # any values
            continue
        changed = copy.deepcopy(record)
        place = changed
        for step in parents:
            place = place[step]
        place[last] = [[["no value of a law"]]]
        (tmp_path / "law.json").write_text(json.dumps(changed))
        with pytest.raises(UserError) as error:
            load(tmp_path / "law.json")
        field = next((step for step in reversed(path) if isinstance(step, str)), "")
        assert field in error.value.sentence and "expected" in error.value.sentence
        refused += 1
    assert refused > 150


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e101, -(10**400), True, "1", None])
def test_a_coefficient_is_a_finite_number(tmp_path, value):
    record = dict(form="joint", coefficients=fit_runs.TABLE_3 | dict(alpha=value))
    (tmp_path / "law.json").write_text(json.dumps(record))
    with pytest.raises(UserError, match="coefficients.alpha is .*, expected a finite number from -1e.100 to 1e.100"):
        load(tmp_path / "law.json")


@pytest.mark.parametrize("change, words", [
    (dict(form=["joint"]), "has no form"),
    (dict(bootstrap=dict(draws=[[1, 2]], percentiles=[10, 90], form="errors")), "rows of 11 numbers"),
    (dict(bootstrap=dict(draws=[[1] * 11], percentiles=[90], form="errors")), r"bootstrap.percentiles is \[90\]"),
    (
        dict(bootstrap=dict(draws=[[-1, *list(fit_runs.TABLE_3.values())[1:]]], percentiles=[10, 90], form="errors")),
        r"bootstrap.draws is \[-1.0, -0.1889, .*, expected scales above 0 and E_max above E_start",
    ),
    (dict(models=dict(learning_rate=dict(constant=1))), "models.learning_rate"),
    (dict(models=dict(n_experts=[1.5])), "models.n_experts"),
])  # fmt: skip
def test_values_of_the_right_kind_that_are_no_law(tmp_path, change, words):
    (tmp_path / "law.json").write_text(json.dumps(dict(form="joint", coefficients=fit_runs.TABLE_3) | change))
    with pytest.raises(UserError, match=f"^law={tmp_path}/law.json: .*{words}"):
        load(tmp_path / "law.json")


@pytest.mark.parametrize(
    "version, expected",
    [(VERSION + 1, f"at most {VERSION}: a newer fit wrote it")]
    + [(version, f"a whole number from 1 to {VERSION}") for version in (0, -1, 1.5, "2", True, None)],
)
def test_a_version_that_this_one_does_not_know_is_refused(tmp_path, version, expected):
    record = dict(version=version, form="joint", coefficients=fit_runs.TABLE_3)
    (tmp_path / "law.json").write_text(json.dumps(record))
    with pytest.raises(UserError, match=f"version is {json.dumps(version)}, expected {expected}"):
        load(tmp_path / "law.json")
