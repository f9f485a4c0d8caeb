"""The recipes beside a user's own folder of the same name."""

import os
import subprocess
import sys

import pytest

OWN = "from configs import joint_moe\ndef get_config():\n    return joint_moe.get_config()\n"


@pytest.mark.parametrize("package", [True, False])
def test_a_users_own_configs_stand_beside_those_that_are_shipped(package, tmp_path):
    """One that is a package, and one that is a plain folder: their files import ours, and ours are found by flag."""
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "mine.py").write_text(OWN)
    if package:
        (tmp_path / "configs" / "__init__.py").touch()
    program = (
        "from jmoe import cli; import configs\n"
        "print(cli.config_in('configs/mine.py').model.d_model)\n"
        "print(cli.config_in('configs/quickstart.py').model.n_experts)\n"
        "from configs import mine, mixtral"
    )
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert not done.returncode, done.stderr
    assert done.stdout == "512\n1\n"
