"""A sweep, which trains, and a fit meet no DeprecationWarning but those that CONTRIBUTING.md lists."""

import pathlib
import re

import helpers

ROOT = pathlib.Path(__file__).parent.parent


def listed() -> list[str]:
    """How the listed warnings begin."""
    return re.findall(r"^\| `([^`]+)` \|", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.MULTILINE)


def test_no_deprecation_warning_but_those_listed(tmp_path, text_glob, monkeypatch):
    ignored = [f"ignore:{message}:DeprecationWarning" for message in listed()]
    assert len(ignored) == 3
    monkeypatch.setenv("PYTHONWARNINGS", ",".join(["error::DeprecationWarning", *ignored]))
    config = helpers.write_config(tmp_path, text_glob)
    (tmp_path / "sweep.py").write_text(f"def get_sweep():\n    return {str(config)!r}, {{'model.n_experts': (2,)}}\n")
    helpers.succeeds("launch.sweep", f"--sweep={tmp_path}/sweep.py", f"--workdir={tmp_path}/swept")
    assert (tmp_path / "swept/runs.csv").read_text().count("\n") == 3
    runs = ROOT / "examples/runs.csv"
    out = tmp_path / "law.json"
    helpers.succeeds("fit", "law", f"--runs={runs}", "--form=chinchilla", f"--out={out}")


def test_the_suite_ignores_no_other_warning():
    setup = (ROOT / "setup.cfg").read_text(encoding="utf-8")
    ignored = re.findall(r"^    ignore:([^:\n]+):DeprecationWarning$", setup, re.MULTILINE)
    assert ignored and set(ignored) <= set(listed())
