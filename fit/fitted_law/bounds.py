"""Types of the fields of a law.json, with the values that they allow. codec.py checks them."""

import dataclasses
import math
from collections.abc import Callable
from typing import Annotated, Any

LARGEST = 1e100  # of a coefficient: products of a few must stay finite
MOST_COUNT = 10**18  # of words or tokens
USUAL_PERCENTILES = (10.0, 90.0)  # the ends of intervals, unless others are named


@dataclasses.dataclass(frozen=True)
class Rule:
    """A check of a value that has its type already.

    Attributes:
      accepts: whether a value is allowed.
      expected: the allowed values in words, for an error.
    """

    accepts: Callable[[Any], bool]
    expected: str


def between(low: float, high: float, expected: str) -> Rule:
    """The rule of numbers from low to high."""

    def accepts(value: float) -> bool:
        return low <= value <= high

    return Rule(accepts, expected)


def _is_positive(value: float) -> bool:
    return value > 0


def _is_rising(ends: tuple[float, float]) -> bool:
    return ends[0] <= ends[1]


def _are_percentiles(ends: tuple[float, float]) -> bool:
    return 0 <= ends[0] < ends[1] <= 100


Count = Annotated[int, between(1, MOST_COUNT, "a whole number from 1 to 1e18")]
Coefficient = Annotated[float, between(-LARGEST, LARGEST, f"a finite number from {-LARGEST:g} to {LARGEST:g}")]
NotNegative = Annotated[float, between(0, math.inf, "a number from 0 up")]
Positive = Annotated[float, Rule(_is_positive, "a positive number")]
Range = Annotated[tuple[float, float], Rule(_is_rising, "two rising numbers")]
Percentiles = Annotated[tuple[float, float], Rule(_are_percentiles, "two rising numbers from 0 to 100")]
Draws = tuple[tuple[Coefficient, ...], ...]  # [draws][coefficients]
