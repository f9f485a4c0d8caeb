"""The notebooks show what they compute, and compute it again; the marimo app plans."""

import ast
import json
import os
import pathlib
import shutil
import subprocess
import sys
import types

import pytest

import fit

ROOT = pathlib.Path(__file__).parent.parent
NOTEBOOKS = ("plan.ipynb", "train.ipynb")


def code_cells(path):
    """The notebook's code cells."""
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


def kinds(cell):
    """The kinds of a cell's outputs, each with its formats."""
    return [(output["output_type"], sorted(output.get("data", {}))) for output in cell["outputs"]]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_committed_with_its_outputs(name):
    cells = code_cells(ROOT / "examples" / name)
    assert [cell["execution_count"] for cell in cells] == [*range(1, len(cells) + 1)]
    assert all(cell["outputs"] for cell in cells)
    assert str(ROOT.parent) not in json.dumps([cell["outputs"] for cell in cells])


def test_the_plan_notebook_computes_its_outputs(tmp_path):
    """In a copy of the folder, as Jupyter runs a notebook in its own. jmoe/test_startup.py runs the trainer's."""
    folder = tmp_path / "examples"
    shutil.copytree(ROOT / "examples", folder)
    command = [sys.executable, str(ROOT / "tests/support/notebook.py"), "plan.ipynb"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    expected = code_cells(ROOT / "examples/plan.ipynb")
    executed = code_cells(folder / "plan.ipynb")
    assert [*map(kinds, executed)] == [*map(kinds, expected)]
    assert "Train a mixture of" in json.dumps(executed)


def test_the_marimo_app_shows_the_plan_of_its_sliders():
    """Its last cell, called with values as sliders have them; marimo shows a cell's last expression."""
    tree = ast.parse((ROOT / "examples/plan_app.py").read_text(encoding="utf-8"))
    cells = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    names = [[argument.arg for argument in cell.args.args] for cell in cells]
    returned = [
        name.id for cell in cells for node in cell.body if isinstance(node, ast.Return) for name in node.value.elts
    ]
    assert {name for arguments in names for name in arguments} <= set(returned)
    shown = cells[-1].body[-1]
    sliders = dict(law="joint-moe-2025", log_flops=22, memory_gb=80)
    values = {name: types.SimpleNamespace(value=value) for name, value in sliders.items()}
    plan = eval(compile(ast.Expression(shown.value), "plan_app.py", "eval"), {"fit": fit, **values})
    assert str(plan) == str(fit.plan("joint-moe-2025", flops=1e22, memory_gb=80))
