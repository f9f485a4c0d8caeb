"""Packages that only some sources of text need, imported when they are needed."""

import importlib
import sys
import types

from jmoe.cli import UserError

# where pip's name is not the module's
INSTALLED_AS = {"tensorflow_datasets": "tensorflow-datasets", "tiktoken_ext": "tiktoken"}


def needed(module: str, reader: str) -> types.ModuleType:
    """The module; `reader` is what cannot be read without it, for the sentence.

    Raises:
      UserError: it, or a package that it needs, is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise missing(error, reader, module) from None


def missing(error: ImportError, reader: str, module: str) -> UserError:
    """The sentence for an import that failed."""
    package = (error.name or module).partition(".")[0]
    package = INSTALLED_AS.get(package, package)
    return UserError(
        f"{reader} cannot be read without the package {package}, which is not installed or broken ({error}): "
        f"{sys.executable} -m pip install {package}"
    )
