"""What surrounds the code agrees with it: version, workflow, image, packages, imports between folders."""

import ast
import configparser
import fnmatch
import functools
import graphlib
import importlib.metadata
import os
import pathlib
import re
import subprocess
import sys

import helpers
import pytest
import yaml
from etils import epath
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import fit
import jmoe
import launch.jobs

ROOT = pathlib.Path(__file__).parent.parent


def text(name):
    return (ROOT / name).read_text(encoding="utf-8")


def setup_cfg():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    return setup


def test_citation_and_changelog_are_of_this_version():
    citation = yaml.safe_load(text("CITATION.cff"))
    setup = setup_cfg()
    assert citation["version"] == jmoe.__version__
    assert citation["license"] == setup["metadata"]["license"]
    newest = re.search(r"^## (\S+)", text("CHANGELOG.md"), re.MULTILINE)[1]
    assert newest == jmoe.__version__


def test_the_workflow_runs_what_ci_runs():
    (job,) = yaml.safe_load(text(".github/workflows/ci.yml"))["jobs"].values()
    (command,) = [step["run"] for step in job["steps"] if "run" in step]
    assert os.access(ROOT / command, os.X_OK)


def workflows() -> dict[str, dict]:
    """{workflow and job: the job} of .github/."""
    folder = ROOT / ".github" / "workflows"
    by_name = {}
    for path in folder.iterdir():
        for name, job in yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].items():
            by_name[f"{path.stem}/{name}"] = job
    return by_name


def test_actions_and_images_are_named_by_what_they_hold():
    """A tag may be moved to other code."""
    used = [step["uses"] for job in workflows().values() for step in job["steps"] if "uses" in step]
    assert used and all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action) for action in used), used
    images = workflows()["ci/ci"]["strategy"]["matrix"]["image"]
    images = [*images, *re.findall(r"^FROM (\S+)", text("Dockerfile"), re.MULTILINE)]
    assert len(images) == 4 and all(re.search(r"@sha256:[0-9a-f]{64}$", image) for image in images), images


def test_what_may_publish_runs_no_command():
    """Otherwise a package that a command installs could publish."""
    for name, job in workflows().items():
        if "id-token" in job.get("permissions", {}):
            assert not [step for step in job["steps"] if "run" in step], name
    pages = yaml.safe_load(text(".github/workflows/pages.yml"))
    assert pages["permissions"] == {} and "id-token" in pages["jobs"]["deploy"]["permissions"]


def test_the_image_takes_the_constraints_holds_no_keys_and_its_processes_are_not_roots():
    """launch/test_image.py shows what else it holds, and that this is the code that the sweep asks for."""
    (install,) = [line for line in text("Dockerfile").splitlines() if "pip install" in line]
    assert '-c constraints.txt -e ".[${EXTRA}]"' in install
    assert {"tpu", "cuda"} <= setup_cfg()["options.extras_require"].keys()
    *_, last = [line for line in text("Dockerfile").splitlines() if line.startswith("USER ")]
    assert last.split()[1] not in ("root", "0")
    patterns = [line.removeprefix("**/") for line in text(".dockerignore").split()]
    for key in (".env", ".env.local", "tls.key", "key.pem", "id_ed25519", "kubeconfig", "my-credentials.json"):
        assert any(fnmatch.fnmatch(key, pattern) for pattern in patterns), key


def pinned(name: str) -> dict[tuple[str, str], str]:
    """{(distribution, version): its block} of a file of requirements; markers and hashes stay in the block."""
    blocks = {}
    for block in re.split(r"\n(?=[A-Za-z])", text(name)):
        pin = re.match(r"([\w.-]+)==([^\s;]+)", block)
        if pin:
            blocks[canonicalize_name(pin[1]), pin[2]] = block
    return blocks


def test_what_ci_installs_has_the_hashes_of_the_constraints_versions():
    constraints = pinned("constraints.txt").keys()
    names = {name for name, _ in constraints}
    for extra in ("docs", "train", "test"):
        locked = pinned(f"requirements/{extra}.lock")
        assert all("--hash=sha256:" in block for block in locked.values())
        assert {pin for pin in locked if pin[0] in names} <= constraints, extra
        needed = (required() | required(extra) | {"setuptools"}) - {"jmoe"}
        assert needed <= {name for name, _ in locked}, extra
        assert "://" not in text(f"requirements/{extra}.lock")


@functools.cache
def named(path) -> set[str]:
    """What a file imports, at its head or in a function: modules, and names of modules as module.name."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def imported(folder) -> set[str]:
    """The distributions whose modules the package imports."""
    names = {name.partition(".")[0] for path in (ROOT / folder).rglob("*.py") for name in named(path)}
    brought_by = importlib.metadata.packages_distributions()
    names -= sys.stdlib_module_names | {"jmoe", "launch", "configs", "fit"}
    return {canonicalize_name(brought_by.get(name, [name])[0]) for name in names}


def test_the_folders_of_jmoe_do_not_import_each_other_in_circles():
    folders = {path.name: set() for path in (ROOT / "jmoe").iterdir() if (path / "__init__.py").exists()}
    for module, others in imports("jmoe").items():
        folder = module.removeprefix("jmoe").lstrip(".").partition(".")[0]
        if folder in folders:
            folders[folder] |= {name.split(".")[1] for name in others - {"jmoe"}} & folders.keys() - {folder}
    order = [*graphlib.TopologicalSorter(folders).static_order()]
    assert order.index("config") < order.index("model") < order.index("run") < order.index("cost"), order


def required(*extras) -> set[str]:
    """The distributions that setup.cfg lists for every install, and for these extras."""
    setup = setup_cfg()
    listed = [setup["options"]["install_requires"], *(setup["options.extras_require"][extra] for extra in extras)]
    return {canonicalize_name(Requirement(line).name) for lines in listed for line in lines.split("\n") if line}


def brought(names) -> set[str]:
    """These distributions, and those that they require."""
    seen = set()
    todo = set(names)
    while todo:
        seen.add(name := todo.pop())
        try:
            requirements = map(Requirement, importlib.metadata.requires(name) or ())
        except importlib.metadata.PackageNotFoundError:
            continue
        wanted = [r for r in requirements if r.marker is None or r.marker.evaluate({"extra": ""})]
        todo |= {canonicalize_name(r.name) for r in wanted} - seen
    return seen


def test_an_install_brings_what_its_code_imports():
    """fit has exactly its own, for Parquet and event files two of extras, and pandas where a user has it, for frames;
    the trainer's may come by another. wandb
    is asked for by config.wandb alone, tokamax on GPUs alone."""
    assert imported("fit") == required() | {"pyarrow", "tensorboard", "pandas"}
    assert required("parquet") - required() == {"pyarrow"} and "tensorboard" in required("train")
    assert imported("jmoe") | imported("configs") <= brought(required("train")) | {"wandb", "tokamax"}
    assert "tokamax" in required("cuda")
    assert imported("launch") <= brought(required("train", "gke"))
    for name, lines in setup_cfg()["options.extras_require"].items():
        assert name in ("docs", "parquet", "train") or lines.split()[0].startswith("jmoe["), name


def imports(package) -> dict[str, set[str]]:
    """{module: the modules of the package that it imports}."""
    paths = {".".join(p.relative_to(ROOT).with_suffix("").parts): p for p in (ROOT / package).rglob("*.py")}
    paths = {name.removesuffix(".__init__"): path for name, path in paths.items()}
    graph = {}
    for module, path in paths.items():
        names = {name if name in paths else name.rpartition(".")[0] for name in named(path)}
        graph[module] = names & paths.keys() - {module}
    return graph


def test_no_module_imports_itself_by_way_of_others():
    for package in "jmoe", "fit", "launch":
        graphlib.TopologicalSorter(imports(package)).prepare()  # CycleError names the modules


def test_docstrings_of_folders_name_their_files():
    studies = [f"fit/studies/{path.parent.name}" for path in ROOT.glob("fit/studies/*/__init__.py")]
    folders = ["fit/commands", "fit/model", "fit/planning", "fit/prediction", "fit/render/planner", *studies]
    for folder in folders:
        files = {file.name for file in (ROOT / folder).iterdir() if file.is_file()} - {"__init__.py"}
        listed = text(f"{folder}/__init__.py")
        assert not [name for name in files if name not in listed and name.endswith((".py", ".js"))], folder
        named = set(re.findall(r"(?<![\w.])[\w.]+\.(?:py|js|d\.ts|json|csv|html|css)\b", listed))
        assert named <= files, (folder, named - files)


def test_folders_of_fit_import_only_folders_above_them_in_the_list():
    """The list is the docstring of fit/__init__.py."""
    lines = re.findall(r"^  ((?:\w+(?:\.py|/)(?:, )?)+)  ", text("fit/__init__.py"), re.MULTILINE)
    folders = [name.strip("/").removesuffix(".py") for line in lines for name in line.split(", ")] + ["__main__"]
    graph = {module.removeprefix("fit."): others for module, others in imports("fit").items() if module != "fit"}
    assert {module.partition(".")[0] for module in graph} == set(folders)
    for module, others in graph.items():
        for other in set(others) - {"fit"}:  # the package itself has the version
            assert folders.index(other.split(".")[1]) <= folders.index(module.partition(".")[0]), (module, other)


def test_folders_of_planning_import_only_folders_above_them_in_the_list():
    """The list is the docstring of fit/planning/__init__.py; make_plan.py and the like import any of them."""
    order = re.findall(r"^(\w+)(?:/|\.py)  ", text("fit/planning/__init__.py"), re.MULTILINE)
    assert len(order) > 8
    graph = {module: others for module, others in imports("fit").items() if module.startswith("fit.planning.")}
    for module, others in graph.items():
        folder = module.split(".")[2]
        for other in graph.keys() & others:
            if folder in order:
                assert other.split(".")[2] in order[: order.index(folder) + 1], (module, other)


def test_files_of_tests_that_are_named_somewhere_exist():
    pages = [*ROOT.glob("*.md"), ROOT / "Makefile", *(ROOT / ".ci").iterdir(), *(ROOT / "tests").rglob("*.py")]
    pages += [page for folder in ("docs", "benchmarks") for page in (ROOT / folder).rglob("*.md")]
    words = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    names = set(re.findall(r"\btests/[\w/]+\.(?:py|go)", words))
    assert len(names) > 10 and all((ROOT / name).exists() for name in names), names


def test_the_folders_of_tests_do_not_hide_the_packages():
    for package in fit, jmoe, launch:
        assert pathlib.Path(package.__file__) == ROOT / package.__name__ / "__init__.py"


def test_the_installed_configs_are_found_where_the_folder_has_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    jobs, configs = launch.jobs.load("configs/sweeps/quickstart.py", epath.Path(tmp_path))
    assert {job.config_file for job in jobs} == {"configs/quickstart.py"}

    def answer(config, *more):
        return helpers.fails("jmoe.train", f"--config={config}", "--workdir=one", *more)

    assert "--config.absent is no field of a config" in answer("configs/quickstart.py", "--config.absent=1")
    assert "configs/none.py" in answer("configs/none.py")
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/quickstart.py").write_text("raise ValueError('the folder has its own')")
    assert "the folder has its own" in answer("configs/quickstart.py")


def test_make_says_that_the_registry_cannot_be_reached(tmp_path):
    """And not that the packages conflict, which is what pip makes of it."""
    (tmp_path / "requirements").mkdir()
    for name in ("Makefile", "setup.cfg", "pyproject.toml", "constraints.txt", "requirements/train.lock"):
        (tmp_path / name).write_text(text(name))
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "1"}
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "MAKE"))} | nowhere
    command = ["make", ".venv/.train", f"PYTHON={sys.executable}"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 2 and "error: the package registry cannot be reached" in done.stderr, done.stderr
    assert "conflicting" not in done.stderr and "connection broken" in (tmp_path / ".venv/pip.log").read_text()
    assert not (tmp_path / ".venv/.train").exists()


@pytest.mark.parametrize(
    ("folder", "lines"),
    [
        ("launch", r"^launch/ .*\n((?:  .*\n)+)"),
        ("jmoe", r"^jmoe/ .*\n((?:  .*\n)+)"),
        ("jmoe/storage", r"^  storage/ .*\n((?:    .*\n)+)"),
    ],
)
def test_the_map_names_each_file_of_a_folder(folder, lines):
    """And no file of it that is gone."""
    (part,) = re.findall(lines, text("WORKSPACE.md"), re.MULTILINE)
    if folder == "jmoe":
        part = re.sub(r"^    .*\n", "", part, flags=re.MULTILINE)  # files of its folders
    names = set(re.findall(r"\w+\.py", part))
    assert names == {path.name for path in (ROOT / folder).glob("*.py")} - {"__init__.py", "__main__.py"}
