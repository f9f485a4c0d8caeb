"""All about the package is in setup.cfg; here is only where a wheel has configs/."""

import pathlib
import shutil

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithConfigs(build_py):
    """Copies configs/ into jmoe/shipped/ of a wheel: there it shadows nobody's own configs/."""

    def run(self):
        super().run()
        if not self.editable_mode:
            shipped = pathlib.Path(self.build_lib, "jmoe", "shipped", "configs")
            shutil.rmtree(shipped, ignore_errors=True)
            shutil.copytree("configs", shipped, ignore=shutil.ignore_patterns("__pycache__"))


setup(cmdclass={"build_py": BuildWithConfigs})
