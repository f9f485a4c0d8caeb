"""Packages that only some sources of text need, imported when they are needed."""

import importlib
import types

from jmoe import startup
from jmoe.errors import UserError


def needed(module: str, reader: str) -> types.ModuleType:
    """The module; `reader` is what cannot be read without it, for the sentence.

    Raises:
      UserError: it, or a package that it needs, is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if told := startup.missing_package(error):
            raise UserError(f"{reader} cannot be read: {told}") from None
        raise
