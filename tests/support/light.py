"""What an environment that `pip install .` alone made can do: every fit command of README and docs, the example in
Python and the notebook, typed there in an empty folder with the tables of results/. Where a command reads a table that
the reader trained first, it gets that of examples/, which it may refuse. A command of the trainer must end in the
sentence that names its extra. The environment must hold our packages whole, and nothing else of ours. Prints how large
it is. .ci/package makes one:

    python tests/support/light.py VENV
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import fit_runs
import helpers

from fit.__main__ import COMMANDS as FIT
from jmoe import __version__

ROOT = pathlib.Path(__file__).parents[2]
DEMOS = (
    "python -m fit law --runs=runs/demo/runs.csv --holdout=largest-compute:3 --bootstrap=50 --out=runs/demo/law.json"
)
RATES = "python -m fit lr --runs=rates.csv --experts=1,8"
TRAINERS = (
    "python -m jmoe.train --config=configs/quickstart.py --workdir=runs/one",
    "jmoe-train --config=configs/quickstart.py --workdir=runs/one",
    "python -m launch.sweep --sweep=configs/sweeps/quickstart.py --workdir=runs/demo",
    "jmoe-sweep --sweep=configs/sweeps/quickstart.py --workdir=runs/demo",
)
PRINTED = {
    "jmoe --version": f"jmoe {__version__} ",
    "python -m jmoe --version": f"jmoe {__version__} ",
    "jmoe": "jmoe COMMAND --flags",
    "jmoe-fit help": "python -m fit COMMAND",
    "jmoe-fit --version": f"fit {__version__}",
    "jmoe fit help": "python -m fit COMMAND",
}
PACKAGES = ("fit", "jmoe", "launch")
SCRIPTS = ("jmoe", "jmoe-fit", "jmoe-sweep", "jmoe-train")
FILES = "import importlib.metadata as m; print(*m.files('jmoe'), sep='\\n')"


def typed():
    """(a fit command, the exit codes that it may end with)."""
    yield from ((DEMOS, (0,)), (RATES, (0,)))
    for command in helpers.typed_commands():
        if command.startswith("python -m fit "):
            ours = re.sub(r"runs=(?!runs/demo/|results/|examples/)\S+", "runs=runs.csv", command)
            yield ours, (0,) if ours == command else (0, 2)


def should_hold():
    """The files of our packages, as `importlib.metadata` names them."""
    kinds = (
        "*.py",
        "*.pyi",
        "py.typed",
        "presets/*.json",
        "draws/*.json",
        "fitting/*.json",
        "figures/*.mplstyle",
        "model/*.csv",
        "model/*.json",
        "planner/*.css",
        "planner/*.html",
        "planner/*.js",
        "card.md",
        "jobset.yaml",
        "report.html",
    )
    result = (path for name in PACKAGES for kind in kinds for path in (ROOT / name).rglob(kind))
    configs = {f"jmoe/shipped/{path.relative_to(ROOT)}" for path in (ROOT / "configs").rglob("*.py")}
    return {str(path.relative_to(ROOT)) for path in result} | configs | {f"../../../bin/{name}" for name in SCRIPTS}


def programs():
    """The examples of docs/guides/use-from-python.md, one after the other, and the notebook, as Python source."""
    guide = (ROOT / "docs/guides/use-from-python.md").read_text()
    yield "\n".join(re.findall(r"```python\n(.*?)```", guide, re.DOTALL))
    cells = json.loads((ROOT / "examples/plan.ipynb").read_text())["cells"]
    yield "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


def main(venv: pathlib.Path) -> None:
    """Exits with what failed, in words."""
    environment = os.environ | {"PATH": f"{venv}/bin{os.pathsep}{os.environ['PATH']}", "MPLBACKEND": "agg"}
    environment.pop("PYTHONPATH", None)
    commands = dict(typed())
    if untried := FIT.keys() - {command.split()[3] for command in commands}:
        sys.exit(f"README and docs type no fit {' or '.join(untried)}")

    def run(command, **more):
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, **more)
        return done.returncode, done.stdout, done.stderr

    with tempfile.TemporaryDirectory() as folder:
        demo = pathlib.Path(folder, "runs/demo")
        demo.mkdir(parents=True)
        for name in ("configs/sweeps", "runs/text"):
            pathlib.Path(folder, name).mkdir(parents=True)
        for name in ("examples", "results"):
            shutil.copytree(ROOT / name, pathlib.Path(folder, name))
        for path in (pathlib.Path(folder), demo):
            shutil.copy(ROOT / "examples/runs.csv", path)
        pathlib.Path(folder, "rates.csv").write_text(fit_runs.learning_rate_runs())
        for command, codes in commands.items():
            code, _, errors = run(["bash", "-c", command])
            if code not in codes or "Traceback" in errors or "is missing: install" in errors:
                sys.exit(f"$ {command}\n[exit {code}]\n{errors}")
        for program in programs():
            code, _, errors = run([venv / "bin/python", "-"], input=program)
            if code:
                sys.exit(f"{program}\n[exit {code}]\n{errors}")
        held = {line for line in run(["python", "-c", FILES])[1].splitlines() if "__pycache__" not in line}
        ours = {line for line in held if ".dist-info/" not in line}
        if ours != should_hold():
            sys.exit(f"the wheel's files and those of {', '.join(PACKAGES)} differ: {sorted(ours ^ should_hold())}")
        for command, words in PRINTED.items():
            code, printed, errors = run(["bash", "-c", command])
            if code or errors or words not in printed:
                sys.exit(f"$ {command}\n[exit {code}, expected 0 and {words}]\n{printed}{errors}")
        for command in TRAINERS:
            code, _, errors = run(["bash", "-c", command])
            if code != 2 or errors.count("\n") != 1 or "`pip install .[train]`" not in errors:
                sys.exit(f"$ {command}\n[exit {code}, expected 2 and one sentence]\n{errors}")
        packages = json.loads(run(["python", "-m", "pip", "list", "--format=json"])[1])
    megabytes = sum(path.lstat().st_size for path in venv.rglob("*")) / 1e6
    names = [package["name"] for package in packages if package["name"] not in ("jmoe", "pip", "setuptools")]
    print(f"{len(commands)} fit commands ran in {megabytes:.0f} MB, of {len(names)} packages beside jmoe and pip:")
    print(*names)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]).absolute())
