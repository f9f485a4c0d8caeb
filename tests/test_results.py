"""The law of our own: what results/README.md says is what results/runs.csv and results/law.json say."""

import json
import pathlib
import re

import pytest

from fit.lawfile import load
from results import laws, make, rows, tables

NAME = "jmoe-bytes-2026"
fitted = pytest.mark.skipif(
    not make.LAW.exists(),
    reason="NO LAW YET: the runs of results/ are under way, there is no law.json to test",
)


@pytest.fixture(scope="module")
def parts():
    return rows.parts_of(rows.TABLE)


@fitted
def test_the_preset_is_the_law_of_the_results():
    assert make.PRESET.read_bytes() == make.LAW.read_bytes() and make.PRESET.stem == NAME
    law = load(NAME)
    assert law.name == NAME and law.coefficients == json.loads(make.LAW.read_text())["coefficients"]


@fitted
def test_the_law_follows_from_the_runs(parts, tmp_path):
    """A fit like that of `make results`, without its bootstrap; on another processor its last digits differ."""
    laws.fit_law(tmp_path, parts, tmp_path / "law.json")
    again, ours = (json.loads(path.read_text()) for path in (tmp_path / "law.json", make.LAW))
    assert again["coefficients"] == pytest.approx(ours["coefficients"], rel=1e-4)
    assert again["fitted"]["rmse_nats"] == pytest.approx(ours["fitted"]["rmse_nats"], rel=1e-6)
    assert again["runs"]["fingerprint"] == ours["runs"]["fingerprint"]


@fitted
def test_the_readmes_tables_are_those_of_the_runs(parts, tmp_path):
    page = (rows.HERE / "README.md").read_text()
    expected = tables.tables_of(tmp_path, make.LAW, parts)
    assert {"runs", "seeds", "law", "learning_rate"} <= expected.keys()
    for name, table in expected.items():
        (said,) = re.findall(rf"<!-- {name} -->\n(.*?)<!-- end -->", page, re.DOTALL)
        assert said.strip() == table.strip(), name


def test_every_run_can_be_traced(parts):
    every = [row for some in parts.values() for row in some]
    assert len({(row["part"], row["run"]) for row in every}) == len(every)
    for name in ("run", "code", "config", "overrides", "corpus_fingerprint", "seed", "device"):
        assert all(row[name] != "" for row in every), name
    assert len({row["corpus_fingerprint"] for row in every}) == len({row["code"] for row in every}) == 1
    assert all((pathlib.Path(__file__).parent.parent / row["config"]).exists() for row in every)
    assert all(0 <= row["drop_rate"] < 0.2 and (row["n_experts"] > 1 or row["drop_rate"] == 0) for row in every)


def test_no_run_of_the_tests_was_fitted(parts):
    """They have at least 2.5 times the largest compute of the fit."""
    largest = max(row["flops"] for row in rows.fitted_runs(parts))
    assert parts["tests"] and all(row["flops"] > 2.5 * largest for row in parts["tests"])
