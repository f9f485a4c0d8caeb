"""The errors that end a command in one sentence, and words for them; jmoe/cli.py gives each its exit code.

This module imports only the standard library.
"""

import importlib
import importlib.metadata
import os
import re
import types
from collections.abc import Iterable
from typing import Any

OWN_PACKAGES = ("jmoe", "launch", "fit", "configs", "benchmarks")
# the name to install, where it is not the name to import
DISTRIBUTIONS = {
    "absl": "absl-py",
    "google": "protobuf",
    "ml_collections": "ml-collections",
    "orbax": "orbax-checkpoint",
    "tensorflow_datasets": "tensorflow-datasets",
    "tiktoken_ext": "tiktoken",
    "yaml": "pyyaml",
}


class UserError(Exception):
    """A mistake that the user can mend. The message names the thing, its value and the values that are allowed."""


class Taken(UserError):
    """Another process is the owner of a path.

    Attributes:
      owner: That process, an ownership.Owner; None where it did not say who it is.
    """

    def __init__(self, path: str | os.PathLike, owner: Any) -> None:
        super().__init__(f"{os.fspath(path)} is held by {owner}")
        self.owner = owner


class Failure(Exception):
    """The run failed for a reason that one sentence explains, such as memory that ran out (exit code 1)."""


class Interrupted(Exception):
    """A signal asked for an orderly stop, and the work is saved.

    Attributes:
      signum: The signal; the exit code is 128 + signum.
    """

    def __init__(self, message: str, signum: int) -> None:
        super().__init__(message)
        self.signum = signum


def is_orderly(error: type[BaseException] | None) -> bool:
    """Whether a run ended, with this error or none, while the store and the disk work, so that files may be closed."""
    return error is None or issubclass(error, (UserError, Interrupted))


class Unavailable(Exception):
    """Waiting was in vain, and a later try may succeed.

    An object store gave no answer for as long as retries.Patience lasts, or another process kept the workdir. The
    message says which and why.
    """


UNAVAILABLE = 75  # exit code; sysexits.h calls it a temporary failure


class Damaged(Exception):
    """The bytes read are not those written; the message is the reason."""


def first_few(items: Iterable[Any], n: int = 8, separator: str = ", ") -> str:
    """The first `n` items in a sentence, and how many more there are: "1, 2, 3, and 997 more"."""
    words = [str(item) for item in items]
    shown = separator.join(words[:n])
    return f"{shown}, and {len(words) - n} more" if len(words) > n else shown


def missing_package(error: BaseException) -> str | None:
    """One sentence for an import of a package that is not installed, None for any other error."""
    name = (getattr(error, "name", None) or "").partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or not name or name in OWN_PACKAGES:
        return None
    distribution = DISTRIBUTIONS.get(name, name)
    sentence = f"the Python package {name} is missing: install it by `pip install {distribution}`"
    if distribution not in _requirements():  # only the user's own file imports it
        return sentence
    all_packages = "all that the trainer and the launcher need by `pip install .[train]` in the repository's folder"
    return f"{sentence}, or {all_packages}"


def _requirements() -> set[str]:
    """Distributions that jmoe and its extras need; none where jmoe is not installed."""
    try:
        requirements = importlib.metadata.requires("jmoe") or ()
    except importlib.metadata.PackageNotFoundError:
        return set()
    names = (re.match(r"[\w-]+", requirement) for requirement in requirements)
    return {name[0] for name in names if name}


def needed_package(module: str, reader: str) -> types.ModuleType:
    """Imports a module that only some text needs.

    Args:
      module: Its name.
      reader: What cannot be read without it, for the error.

    Raises:
      UserError: The module, or a package that it needs, is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        sentence = missing_package(error)
        if sentence is None:
            raise
        raise UserError(f"{reader} cannot be read: {sentence}") from None
