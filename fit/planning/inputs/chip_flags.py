"""Values of --chips and --mfu."""

import json
import math
import os
import pathlib
import re
from typing import Any

from fit.errors import UserError
from fit.messages import sentences
from fit.messages.units import say
from fit.model.chips import CHIPS

MFU_MISSING = (
    "--mfu={value}: expected a number for E = {missing}, found only {known}. --experts names the numbers of experts "
    "to compare"
)


def kind_and_count(text: str) -> tuple[str, int]:
    """The kind of chip and the number of chips that --chips names.

    H100 is one chip; H100:64, H100:8x8 and v5p:4x4x4 are 64. The kind may be in lower case. Raises UserError for
    anything else.
    """
    typed, colon, sizes = text.partition(":")
    kind_by_lower_name = {kind.lower(): kind for kind in CHIPS}
    kind = kind_by_lower_name.get(typed.lower())
    count = 1
    if colon and re.fullmatch(r"[0-9]{1,10}(x[0-9]{1,10}){0,2}", sizes):
        count = math.prod(map(int, sizes.split("x")))
    elif colon:
        count = 0
    if kind is None or not 0 < count <= 10**9:
        raise UserError(say(sentences.NO_CHIPS, value=text, kinds=", ".join(CHIPS)))
    return kind, count


def mfu_of(option: Any, experts: tuple[int, ...]) -> float | dict[int, float]:
    """The MFU that --mfu gives.

    Args:
      option: A number, a dictionary by n_experts, or text of either: 0.4, {"1": 0.45, "8": 0.38}, or the path of a file
        of these.
      experts: Numbers of experts that a dictionary must name.

    Raises:
      UserError: It is no such MFU.
    """

    def refused(reason: str) -> UserError:
        """The error for what is no MFU."""
        return UserError(say(sentences.NO_MFU, value=str(option), found=reason))

    table: Any = option
    try:
        mfu = float(option)
        if 1e-6 <= mfu <= 1:
            return mfu
        raise refused(f"{mfu:g}")
    except (TypeError, ValueError):  # no number
        pass
    try:
        if isinstance(option, (str, os.PathLike)):
            text = str(option)
            table = json.loads(text if text.startswith("{") else pathlib.Path(option).read_text(encoding="utf-8"))
        table = {int(e): value for e, value in table.items()}
    except FileNotFoundError:
        raise refused("neither a number nor a file") from None
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise refused("no such table") from error
    for e, value in table.items():
        if e < 1:
            raise refused(f"E = {e}")
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 1e-6 <= value <= 1:
            raise refused(f"{json.dumps(value)} at E = {e}")
    missing = [e for e in experts if e not in table]
    if missing:
        raise UserError(say(MFU_MISSING, value=option, missing=missing[0], known=", ".join(map(str, table))))
    return {e: float(value) for e, value in sorted(table.items())}
