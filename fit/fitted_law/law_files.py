"""Laws by their name or file: published ones, fits of our own, and law.json files.

A law that needs no file is a page's preset of fit/laws, or a file of presets/.
"""

import functools
import json
import os
import pathlib

from fit.errors import UserError
from fit.fitted_law import codec, published_draws
from fit.fitted_law.law import Law
from fit.laws import FORMS, PRESETS
from fit.table import table
from fit.table.files import check_writable, write_text

OURS = {path.stem: path for path in pathlib.Path(__file__).parent.glob("presets/*.json")}  # fitted to runs of jmoe
NAMES = (*PRESETS, *OURS)  # of the laws that need no file


def load(law: Law | str | os.PathLike, field: str = "law") -> Law:
    """Load a law.json by its path, or a published law by its name.

    Args:
      field: the flag's name in errors.

    Raises:
      UserError: if there is no such law, or the file has no complete law.
    """
    if isinstance(law, Law):
        return law
    if not isinstance(law, (str, os.PathLike)) or len(str(law)) > table.LONGEST_PATH:
        raise UserError(f"{field}: found {table.shown(law)}, expected a published law's name or the path of a law.json")
    name = os.fspath(law)
    if name in PRESETS:
        return _published(name, field)
    path = OURS.get(name, name)
    if not os.path.exists(path):
        raise UserError(f"--{field}={name}: no such file, nor a published law; published laws: {', '.join(NAMES)}")
    return _read(path, name, f"--{field}={name}")


def _read(path: str | os.PathLike, name: str, where: str) -> Law:
    """The law of a law.json.

    Args:
      path: The file.
      name: The law's name.
      where: The file's name in errors.

    Raises:
      UserError: Names the field that is not what `fit law` writes, or that a newer version wrote.
    """
    try:
        with open(path, encoding="utf-8") as f:
            values = json.load(f)
    except OSError as e:
        raise UserError(f"{where}: cannot be read: {e.strerror}") from e
    except (ValueError, RecursionError) as e:
        raise UserError(f"{where}: is not JSON: {e}") from e
    if not isinstance(values, dict) or str(values.get("form")) not in FORMS:
        raise UserError(f"{where}: has no form that is one of {', '.join(FORMS)}")
    return codec.law_of(name, FORMS[values["form"]], values, where)


@functools.cache
def _published(name: str, field: str) -> Law:
    """A published law, with the draws that are simulated for it. field: the flag's name in errors."""
    form = PRESETS[name]
    values = form.presets[name] | dict(bootstrap=published_draws.bootstrap_of(name))
    return codec.law_of(name, form, values, f"--{field}={name}")


def check_law_file(path: str) -> None:
    """Raises UserError where no law can be written to a file, or --law would not read it from there."""
    if path in NAMES:
        raise UserError(
            f"--out={path}: --law={path} is a law that needs no file, so the new law would never be read: name another "
            "file, such as law.json"
        )
    check_writable(path)


def save(law: Law, path: str | os.PathLike) -> None:
    """Writes a law as a law.json. Raises UserError where the file cannot be written, or could not be read again."""
    file = os.fspath(path)
    check_law_file(file)
    values = law.to_dict()
    codec.law_of(law.name, law.form, values, f"{file}: cannot be written")
    write_text(file, json.dumps(values, indent=1, allow_nan=False) + "\n")
