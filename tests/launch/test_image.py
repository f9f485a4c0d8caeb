"""The image's recipe without a builder: what is copied, and what its steps make of it, each run by sh as there."""

import fnmatch
import os
import pathlib
import shutil
import subprocess
import sys

import helpers
import pytest

from jmoe.version import code_version

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def copied(tmp_path_factory) -> pathlib.Path:
    """What COPY makes of this folder, by .dockerignore."""
    patterns = [line.removeprefix("**/") for line in (ROOT / ".dockerignore").read_text().split()]
    target = tmp_path_factory.mktemp("image") / "jmoe"

    def ignore(_, names):
        return [name for name in names if any(fnmatch.fnmatch(name, p) for p in patterns + ["tests"])]

    shutil.copytree(ROOT, target, ignore=ignore)
    return target


def steps() -> list[str]:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    return [line.removeprefix("RUN ") for line in lines if line.startswith("RUN ")]


def in_image(step: str, folder, **arguments) -> subprocess.CompletedProcess:
    """Runs a RUN step as a builder does: by sh, in WORKDIR, its ARGs as variables."""
    python = {"PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"}
    return subprocess.run(["sh", "-c", step], cwd=folder, env=arguments | python, capture_output=True, text=True)


def test_the_image_has_the_code_that_the_sweep_asks_for(copied):
    told = helpers.run("launch.image", "--image=r/jmoe:1", "--extra=cuda", "--push", "--dry_run").stdout.splitlines()
    assert [line.split()[1] for line in told[:2]] == ["build", "push"] and code_version() in told[2]
    given = dict(word.removeprefix("--build-arg=").split("=", 1) for word in told[0].split() if "--build-arg" in word)
    assert given["EXTRA"] == "cuda" and "--tag=r/jmoe:1" in told[0].split() and told[0].split()[-1] == str(ROOT)
    *_, check = steps()
    assert in_image(check, copied, **given).returncode == 0
    assert in_image(check, copied, CODE="").returncode == 0  # built by hand
    source = copied / "jmoe" / "train.py"
    source.write_text(source.read_text() + "\nedited = True\n")
    refused = in_image(check, copied, **given)
    assert refused.returncode == 2 and f"not {given['CODE']}" in refused.stderr, refused.stderr


def test_the_image_takes_the_jax_that_is_installed_here(copied):
    pin, *_ = steps()
    before = (copied / "constraints.txt").read_text().splitlines()
    assert in_image(pin, copied, JAX="").returncode == 0
    assert (copied / "constraints.txt").read_text().splitlines() == before
    assert in_image(pin, copied, JAX="0.11.2").returncode == 0
    after = (copied / "constraints.txt").read_text().splitlines()
    assert set(after) - set(before) == {"jax==0.11.2"}
    assert {line.split("==")[0] for line in set(before) - set(after)} == {"jax", "jaxlib", "libtpu"}


def test_without_a_name_or_a_builder_nothing_is_built(monkeypatch, tmp_path):
    assert "--image is missing" in helpers.fails("launch.image")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "docker or podman" in helpers.fails("launch.image", "--image=r/jmoe:1")
