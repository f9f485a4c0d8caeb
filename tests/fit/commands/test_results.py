"""What functions return and take: results with names, frames and JSON, and signatures that say every option."""

import dataclasses
import inspect
import math
import subprocess
import sys

import fit_runs
import helpers
import pytest

import fit
from fit import stub
from fit.fitting.options import FitOptions
from fit.planning.inputs.options import CompareOptions, PlanOptions
from fit.prediction.options import PredictOptions
from fit.render.plot_options import PlotOptions
from fit.render.report_options import ReportOptions
from fit.results import Record, Result
from fit.studies.architecture_search.holistic import HolisticOptions
from fit.studies.next_runs.options import NextOptions
from fit.studies.speedup.speedup_of_runs import SpeedupOptions
from fit.studies.surfaces.fit_surfaces import SurfaceOptions
from fit.task_maps.options import TaskOptions

LAW = "joint-moe-2025"
OPTIONS = {
    "law": FitOptions,
    "predict": PredictOptions,
    "plan": PlanOptions,
    "compare": CompareOptions,
    "next": NextOptions,
    "surface": SurfaceOptions,
    "tasks": TaskOptions,
    "holistic": HolisticOptions,
    "plot": PlotOptions,
    "report": ReportOptions,
    "speedup": SpeedupOptions,
}
NO_OPTIONS = {"runs", "laws", "quiet", "width_runs", "rank", "refit", "out"}  # arguments that no field stands for


@pytest.fixture(scope="module")
def plan():
    return fit.plan(LAW, flops=1e22, memory_gb=80, chips="H100:64", experts=[1, 8, 16])


@pytest.mark.parametrize("name", OPTIONS)
def test_a_signature_has_the_options_of_the_command(name):
    """Each field of the options is an argument of the function, with the same default, and there are no others."""
    parameters = dict(inspect.signature(getattr(fit, name)).parameters)
    if "law" in parameters:
        del parameters["law"]
    fields = {field.name: field for field in dataclasses.fields(OPTIONS[name]) if field.name not in NO_OPTIONS}
    assert parameters.keys() - NO_OPTIONS == fields.keys()
    for option, field in fields.items():
        default = parameters[option].default
        if "required" in field.metadata:
            assert default is inspect.Parameter.empty, option
        else:
            assert default == field.default, option


@pytest.mark.parametrize("name", [name for name in fit.__all__ if name != "UserError"])
def test_a_function_explains_its_arguments(name):
    function = getattr(fit, name)
    described = inspect.getdoc(function).partition("Args:")[2]
    for argument in inspect.signature(function).parameters:
        assert f"\n  {argument}: " in described, argument
    assert "Raises:\n  UserError: " in described


def test_a_row_answers_by_attribute_and_by_name(plan):
    best = plan.best
    assert best.n_active == best["n_active"] == dict(best)["n_active"] and "n_active" in best
    assert best in plan.optima and best.loss == min(row.loss for row in plan.optima)
    assert plan.buildable.d_model == plan["buildable"]["d_model"] > 0
    assert [row.n_experts for row in plan.optima] == [1, 8, 16] and math.isfinite(plan.optima[0].loss)
    assert plan.buildable.cost.mesh.data * plan.buildable.cost.mesh.expert * plan.buildable.cost.mesh.model == 64
    assert plan.target is None and "target" not in plan
    with pytest.raises(KeyError, match="target"):
        plan["target"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        best.loss = 0.0


def test_a_plan_is_a_frame_with_a_row_for_each_number_of_experts(plan):
    import pandas

    frame = plan.to_frame()
    assert frame["n_experts"].tolist() == [1, 8, 16]
    assert frame["loss"].tolist() == [row.loss for row in plan.optima]
    assert frame["training_hours"].tolist() == [row.cost.training_hours for row in plan.optima]
    again = pandas.DataFrame(frame)
    assert again.equals(frame)
    assert pandas.DataFrame(plan.optima)["n_active"].tolist() == frame["n_active"].tolist()


def test_every_result_is_a_frame(tmp_path):
    path = fit_runs.write_demo_csv(tmp_path / "runs.csv")
    runs = fit.read(path)
    law = fit.law(path, form="joint", starts=4, fix=dict(c=1.2))
    predicted = fit.predict(law, path)
    assert predicted.to_frame()["predicted_loss"].tolist() == predicted.columns["predicted_loss"]
    compared = fit.compare([LAW, law], flops=1e13, shape=dict(vocab_size=257, width_per_block=8))
    assert compared.to_frame()["law"].tolist() == [row.law for row in compared.laws]
    judged = fit.speedup(law, path)
    assert judged.to_frame()["factor"].notna().sum() == sum(row.factor is not None for row in judged.runs)
    assert len(judged.to_frame()) == len(runs)
    architecture = fit.holistic(flops=1e21)
    assert architecture.fit is None and len(architecture.to_frame()) == 1
    for result in (predicted, compared, judged, architecture):
        assert isinstance(result, Result) and isinstance(result, Record) and str(result)


def test_a_result_without_lines_is_its_title():
    """As of predictions for models without measured losses: str, answer and HTML are empty."""
    model = dict(n_active=1e9, n_total=4e9, n_tokens=1e11, n_experts=8, top_k=2)
    predicted = fit.predict("sparsity-2025", fit.read([model]))
    assert repr(predicted) == "<prediction>"
    assert str(predicted) == predicted.answer == predicted._repr_html_() == ""
    assert predicted.columns["predicted_loss"] == fit.predict("sparsity-2025", **model).columns["predicted_loss"]


def test_the_stub_for_editors_is_current():
    assert stub.STUB.read_text(encoding="utf-8") == stub.stub(), "run python -m fit.stub"


def test_a_type_checker_finds_a_misspelt_option(tmp_path):
    program = tmp_path / "program.py"
    program.write_text('import fit\n\nfit.plan("joint-moe-2025", flopz=3)\n')
    command = [sys.executable, "-m", "ty", "check", f"--project={helpers.ROOT}", f"--python={sys.prefix}", program]
    done = subprocess.run(command, capture_output=True, text=True, cwd=helpers.ROOT)
    assert done.returncode == 1 and "unknown-argument" in done.stdout and "flopz" in done.stdout, done.stdout
    program.write_text('import fit\n\nprint(fit.plan("joint-moe-2025", flops=1e22).best.n_experts)\n')
    done = subprocess.run(command, capture_output=True, text=True, cwd=helpers.ROOT)
    assert done.returncode == 0, done.stdout
