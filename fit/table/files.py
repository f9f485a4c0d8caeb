"""Files written completely or not at all."""

import contextlib
import os
from collections.abc import Generator

from fit.errors import UserError


def _temporary(path: str) -> str:
    """An empty file beside `path`; UserError if none can be made."""
    folder, name = os.path.split(os.path.abspath(path))
    if os.path.isdir(path):
        raise UserError(f"{path}: cannot be written: it is a folder")
    temporary = os.path.join(folder, f".{name}.{os.urandom(8).hex()}{os.path.splitext(name)[1]}")
    try:
        open(temporary, "x").close()
    except OSError as e:
        raise UserError(f"{path}: cannot be written: {e.strerror}") from e
    return temporary


@contextlib.contextmanager
def replacing(path: str) -> Generator[str]:
    """`with replacing(path) as temporary:` write to `temporary`; it becomes `path` only when all went well."""
    temporary = _temporary(path)
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException as e:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(e, OSError):
            raise UserError(f"{path}: cannot be written: {e.strerror or e}") from e
        raise


def check_writable(path: str | None) -> None:
    """UserError if no file can be written at `path`: better before the work than after. None: no file is asked for."""
    if path is not None:
        os.unlink(_temporary(path))


def write_text(path: str, text: str) -> None:
    """Writes `text` to `path`, completely or not at all; UserError if that cannot be done."""
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as f:
        f.write(text)
