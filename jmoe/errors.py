"""The errors that end a command in one sentence; jmoe/cli.py gives each its exit code. One is that of a package that is
not installed. This module imports only the standard library."""

import importlib
import importlib.metadata
import os
import re
import types

OWN = ("jmoe", "launch", "fit", "configs", "benchmarks")
DISTRIBUTIONS = {  # where the name to import is not the name to install
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
    """Another process, `owner`, an ownership.Owner, is the owner of `path`."""

    def __init__(self, path, owner):
        super().__init__(f"{os.fspath(path)} is held by {owner}")
        self.owner = owner


class Failure(Exception):
    """The run failed for a reason that one sentence explains, such as memory that ran out (exit code 1)."""


class Interrupted(Exception):
    """A signal asked for an orderly stop and the work is saved; `signum` gives the exit code 128 + signum."""

    def __init__(self, message: str, signum: int):
        super().__init__(message)
        self.signum = signum


class Unavailable(Exception):
    """Waiting was in vain: an object store gave no answer for as long as files.Patience lasts, or another process kept
    the workdir; the message says which and why."""


UNAVAILABLE = 75  # exit code; sysexits.h calls it a temporary failure


class Damaged(Exception):
    """What was read is not what was written; the message is the reason."""


def missing_package(error: BaseException) -> str | None:
    """One sentence for an import of a package that is not installed, None for any other error."""
    name = (getattr(error, "name", None) or "").partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or not name or name in OWN:
        return None
    distribution = DISTRIBUTIONS.get(name, name)
    said = f"the Python package {name} is missing: install it by `pip install {distribution}`"
    try:  # a package that the user's own file imports is not needed by jmoe itself
        needs = importlib.metadata.requires("jmoe") or ()
    except importlib.metadata.PackageNotFoundError:
        needs = ()
    if distribution in {re.match(r"[\w-]+", need)[0] for need in needs}:
        said += ", or all that the trainer and the launcher need by `pip install .[train]` in the repository's folder"
    return said


def needed_package(module: str, reader: str) -> types.ModuleType:
    """Imports `module`, which only some text needs. Raises UserError, saying that `reader` cannot be read, where the
    module or a package that it needs is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if sentence := missing_package(error):
            raise UserError(f"{reader} cannot be read: {sentence}") from None
        raise
