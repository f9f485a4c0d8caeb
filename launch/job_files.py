"""Reads the files in a job's folder. Damage in one of them does not end a command: it is reported, and the rest used.

Trainers write these files, but a disk may damage them, and others may write into the folder. A reader appends to `odd`
a sentence for each file in which it finds something odd. The sentence names the file, the line, the field, the value
found and what was expected.
"""

import errno
import json
import math
import os
import stat
from collections.abc import Iterable
from typing import Any, TypeGuard

from etils import epath

from jmoe import cli
from jmoe.config import schema
from jmoe.errors import Damaged
from jmoe.printable import printable
from jmoe.storage import durable
from jmoe.storage.files import is_remote, read_bytes, read_sealed

LARGEST = 1e30  # magnitude of any number in these files; more is damage, and less keeps sums and figures finite
LARGEST_COUNT = 2**63 - 1
TAIL = 2**13  # bytes at the end of a file that are read for its last line
ROW_COUNTS = ("n_active", "n_total", "n_tokens", "n_experts")  # of a result, all at least 1
MODEL_COUNTS = ("d_model", "n_blocks", "n_heads", "d_ff")  # of the model in a result's config, all at least 1


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a value of JSON is a number, finite and of at most LARGEST in magnitude."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST


def is_count(value: object) -> TypeGuard[int]:
    """Whether a value of JSON is an integer, not negative and of at most LARGEST_COUNT."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_COUNT


def shown(value: object) -> str:
    """A value of JSON as text for a sentence, on one line of at most 60 characters."""
    text = printable(json.dumps(value, ensure_ascii=False))
    return text if len(text) <= 60 else text[:57] + "..."


def lines(
    folder: epath.Path, file: str, required: Iterable[str], optional: Iterable[str], odd: list[str]
) -> list[dict[str, Any]]:
    """The objects of a file in JSON lines; [] if it is missing.

    An unfinished last line is left out, and each line that is no object or lacks a required number.

    Args:
      folder: The job's folder.
      file: The file's path in it.
      required: Fields that must be numbers, and not negative.
      optional: Fields that may be missing or NaN. They are left out of an object where they are no numbers.
      odd: Gets a sentence on the first odd line, with the number of further ones.
    """
    try:
        text = _read(folder / file)
    except FileNotFoundError:
        return []
    except OSError as error:
        odd.append(_unreadable(file, error))
        return []
    objects = []
    problems = []
    for number, line in enumerate(text.split(b"\n")[:-1], 1):
        values, problem = _values(line, required, optional)
        if values is not None:
            objects.append(values)
        if problem:
            problems.append(f"line {number}: {problem}")
    if problems:
        more = f" (and {len(problems) - 1} more lines)" if problems[1:] else ""
        odd.append(f"{file}, {problems[0]}{more}")
    return objects


def last_line(folder: epath.Path, file: str, required: Iterable[str], odd: list[str]) -> dict[str, Any] | None:
    """The object of the last line that is not odd; None if there is none. Arguments as of `lines`."""
    try:
        text = _tail(folder / file)
    except OSError:
        text = b""  # `lines` reports the error
    if text.count(b"\n") > 1:
        values, problem = _values(text.split(b"\n")[-2], required, ())
        if not problem:
            return values
    # a short file, a long line, or an odd one
    whole = lines(folder, file, required, (), odd)
    return whole[-1] if whole else None


def _values(line: bytes, required: Iterable[str], optional: Iterable[str]) -> tuple[dict[str, Any] | None, str]:
    """(the object of a line, None if it must be left out; a clause on what is odd in it, "" if nothing is)."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):  # also for bytes that are not UTF-8
        return None, f"found {shown(line.decode(errors='replace'))}, expected a JSON object"
    if not isinstance(values, dict):
        return None, f"found {shown(values)}, expected a JSON object"
    for name in required:
        if name not in values:
            return None, f"{name} is missing"
        if not is_number(values[name]) or values[name] < 0:
            return None, f"{name} is {shown(values[name])}, expected a number"
    problem = ""
    for name in optional:
        value = values.get(name, math.nan)
        if is_number(value):
            continue
        values.pop(name, None)
        if not (isinstance(value, float) and math.isnan(value)):
            problem = problem or f"{name} is {shown(value)}, expected a number"
    return values, problem


def json_object(folder: epath.Path, file: str, odd: list[str]) -> dict[str, Any] | None:
    """The JSON object that a file holds; None if the file is missing or holds none. `odd` as of `lines`."""
    try:
        values = json.loads(_read(folder / file))
    except FileNotFoundError:
        return None
    except OSError as error:
        odd.append(_unreadable(file, error))
        return None
    except (ValueError, RecursionError):
        odd.append(f"{file} is damaged: it holds no JSON object")
        return None
    if not isinstance(values, dict):
        odd.append(f"{file} is damaged: found {shown(values)}, expected a JSON object")
        return None
    return values


def result(folder: epath.Path, file: str, odd: list[str]) -> dict[str, Any] | None:
    """A result that can be a row of runs.csv; None if the file is missing, damaged or odd.

    Args:
      folder: The job's folder.
      file: The path of a result.json in it.
      odd: Gets a sentence if there is a file and it is no such result.

    Raises:
      OSError: The disk failed.
    """
    path = folder / file
    values = None
    try:
        _check_regular(path)
        values = read_sealed(path)
    except (Damaged, RecursionError):
        odd.append(f"{file} is damaged")
        return None
    except FileNotFoundError:
        pass
    except OSError as error:
        if cli.disk_failed(error):
            raise
        odd.append(_unreadable(file, error))
        return None
    if values is None:
        if not is_remote(path) and os.path.islink(path):  # to nothing
            odd.append(f"{file} is damaged")
        return None
    config = _config_of(values)
    if config is None:
        odd.append(f"{file} is damaged")
        return None
    problem = _problem_of(values, config)
    if problem:
        odd.append(f"{file}: {problem}")
        return None
    return values


def _config_of(values: dict[str, Any]) -> dict[str, Any] | None:
    """The config in a result's record; None if the record has none."""
    record = values.get("record")
    config = record.get("config") if isinstance(record, dict) else None
    if not isinstance(config, dict) or not all(isinstance(config.get(part), dict) for part in ("model", "data")):
        return None
    try:
        schema.flat(config)
    except RecursionError:  # nested deeper than any config
        return None
    return config


def _problem_of(values: dict[str, Any], config: dict[str, Any]) -> str:
    """Why a result cannot be a row of runs.csv; "" if it can. Its checksum may be right all the same."""
    fingerprint = config["data"].get("fingerprint")
    if not isinstance(fingerprint, str):
        return f"record.config.data.fingerprint is {shown(fingerprint)}, expected text"
    counts = {name: values.get(name) for name in ROW_COUNTS}
    counts |= {f"record.config.model.{name}": config["model"].get(name) for name in MODEL_COUNTS}
    for name, value in counts.items():
        if not is_count(value) or value == 0:
            return f"{name} is {shown(value)}, expected a count"
    loss = values.get("loss")
    if not is_number(loss):
        return f"loss is {shown(loss)}, expected a number"
    return ""


def _unreadable(file: str, error: OSError) -> str:
    """The sentence for a file that cannot be read."""
    why = error.strerror.lower() if error.strerror else " ".join(str(error).split())
    return f"{file} cannot be read: {why}"


def _read(path: epath.Path) -> bytes:
    """The contents of a file; OSError if it cannot be read."""
    _check_regular(path)
    return read_bytes(path)


def _tail(path: epath.Path) -> bytes:
    """The end of a file, TAIL bytes at most; b"" on gs://, where reading a part takes as long as the whole."""
    if is_remote(path):
        return b""
    _check_regular(path)
    with durable.named(path), open(path, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
        return file.read()


def _check_regular(path: epath.Path) -> None:
    """Raises OSError unless the path leads to a regular file; reading a pipe would never end."""
    if is_remote(path):
        return
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is no regular file", os.fspath(path))
