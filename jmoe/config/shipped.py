"""Where configs/ lies: beside this package in a checkout, inside of it in a wheel, where it shadows nobody's own."""

import importlib.util
import pathlib
import sys

PACKAGE = pathlib.Path(__file__).parents[1]
ROOT = next(root for root in (PACKAGE.parent, PACKAGE / "shipped") if (root / "configs" / "joint_moe.py").exists())


def module_of(path, name: str):
    """The Python file `path` as a module of that name, which no import finds."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def importable() -> None:
    """Lets a config file import configs.NAME: the user's own if there is one, else that of ROOT."""
    if str(ROOT) not in sys.path:
        sys.path.append(str(ROOT))
    import configs

    if str(ROOT / "configs") not in configs.__path__:
        configs.__path__.append(str(ROOT / "configs"))
