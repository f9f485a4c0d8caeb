"""Run a notebook without Jupyter: `python tests/support/notebook.py examples/plan.ipynb` writes its outputs into it."""

import ast
import base64
import contextlib
import io
import json
import pathlib
import sys

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt  # noqa: E402  after the choice of a backend

Output = dict[str, object]


def run(path: pathlib.Path) -> dict[str, object]:
    """The notebook with the outputs of all its cells, run from top to bottom in the current folder."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    namespace: dict[str, object] = {"__name__": "__main__"}
    code_cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for count, cell in enumerate(code_cells, 1):
        cell["execution_count"] = count
        cell["outputs"] = run_cell("".join(cell["source"]), namespace, count)
    return notebook


def run_cell(source: str, namespace: dict[str, object], count: int) -> list[Output]:
    """What a cell prints, draws and has as its value, in the notebook's format."""
    tree = ast.parse(source)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body.pop().value)
    printed = io.StringIO()
    value = None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), namespace)
        if last is not None:
            value = eval(compile(last, "cell", "eval"), namespace)
    outputs: list[Output] = []
    if printed.getvalue():
        outputs.append(dict(output_type="stream", name="stdout", text=printed.getvalue().splitlines(keepends=True)))
    outputs += [figure_output(number) for number in plt.get_fignums()]
    plt.close("all")
    if value is not None:
        data: dict[str, object] = {"text/plain": repr(value).splitlines(keepends=True)}
        png = value._repr_png_() if hasattr(value, "_repr_png_") else None
        if png is not None:
            data["image/png"] = base64.b64encode(png).decode()
        page = value._repr_html_() if hasattr(value, "_repr_html_") else None
        if page is not None:
            data["text/html"] = page.splitlines(keepends=True)
        outputs.append(dict(output_type="execute_result", execution_count=count, data=data, metadata={}))
    return outputs


def figure_output(number: int) -> Output:
    """An open figure as PNG."""
    png = io.BytesIO()
    plt.figure(number).savefig(png, format="png", dpi=80, metadata={"Software": None})
    data = {"image/png": base64.b64encode(png.getvalue()).decode()}
    return dict(output_type="display_data", data=data, metadata={})


if __name__ == "__main__":
    path = pathlib.Path(sys.argv[1])
    executed = run(path)
    path.write_text(json.dumps(executed, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
