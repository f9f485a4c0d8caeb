"""Packages that may not be installed: one sentence says how to install them. Imports only the standard library."""

import importlib
import importlib.metadata
import re
import types

from jmoe.errors import UserError

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


def needed(module: str, reader: str) -> types.ModuleType:
    """Imports `module`, which only some text needs. Raises UserError, saying that `reader` cannot be read, where the
    module or a package that it needs is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if sentence := missing_package(error):
            raise UserError(f"{reader} cannot be read: {sentence}") from None
        raise
