"""The law of our own: what results/first.md says is what results/runs.csv and the preset say."""

import itertools
import json
import pathlib
import re

import pytest

from fit.fitted_law.law_files import load
from results import laws, make, rows, tables

NAME = "jmoe-bytes-2026"


@pytest.fixture(scope="module")
def parts():
    return rows.parts_of(rows.TABLE)


def test_the_law_of_the_results_is_a_preset():
    law = load(NAME)
    assert law.name == NAME == make.LAW.stem and law.coefficients == json.loads(make.LAW.read_text())["coefficients"]


def test_the_law_follows_from_the_runs(parts, tmp_path):
    """A fit like that of `make results`, without its bootstrap; on another processor its last digits differ."""
    laws.fit_law(tmp_path, parts, tmp_path / "law.json")
    again, ours = (json.loads(path.read_text()) for path in (tmp_path / "law.json", make.LAW))
    assert again["coefficients"] == pytest.approx(ours["coefficients"], rel=1e-4)
    assert again["fitted"]["rmse_nats"] == pytest.approx(ours["fitted"]["rmse_nats"], rel=1e-6)
    assert again["runs"]["fingerprint"] == ours["runs"]["fingerprint"]


def test_the_readmes_tables_are_those_of_the_runs(parts, tmp_path):
    page = (rows.HERE / "first.md").read_text()
    expected = tables.tables_of(tmp_path, make.LAW, parts)
    assert {"runs", "seeds", "law", "learning_rate"} <= expected.keys()
    for name, table in expected.items():
        (output,) = re.findall(rf"<!-- {name} -->\n(.*?)<!-- end -->", page, re.DOTALL)
        assert output.strip() == table.strip(), name


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


def test_losses_by_position_are_those_of_runs(parts):
    """Their mean over a row is about the run's loss, which is over five times as many rows."""
    losses = {(row["part"], row["run"]): row["loss"] for row in itertools.chain(*parts.values())}
    for row in rows.read(rows.POSITIONS):
        ends = {name: [int(end) for end in name.split("_")[1:]] for name in row if name.startswith("loss_")}
        mean = sum(row[name] * (last - first + 1) for name, (first, last) in ends.items()) / 128
        assert mean == pytest.approx(losses[row["part"], row["run"]], rel=0.02), row["run"]


def test_the_errors_by_position_are_those_of_laws_fitted_to_them(parts, tmp_path):
    """At the first positions of a row; the last digits of a fit may differ on another processor."""
    first = [
        {k: v for k, v in row.items() if k[:5] != "loss_" or k == "loss_1_16"} for row in rows.read(rows.POSITIONS)
    ]
    page = (rows.HERE / "first.md").read_text()
    (output,) = re.findall(r"<!-- position_laws -->\n(.*?)<!-- end -->", page, re.DOTALL)
    output = {line.split("|")[1]: numbers(line) for line in output.splitlines()}
    expected = tables.table_of_position_laws(tmp_path, parts, first).splitlines()
    assert len(expected) == 4 and len(numbers(expected[-1])) == 5
    for line in expected[2:]:
        assert output[line.split("|")[1]] == pytest.approx(numbers(line), abs=2e-4)


def numbers(line: str) -> list[float]:
    return [float(text) for text in re.findall(r"[+-]?\d\.\d{4}", line)]
