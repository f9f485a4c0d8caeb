"""Names of types that several folders annotate with."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray
Numbers = float | np.ndarray  # one number or an array; several of them broadcast together
Floats = Sequence[float] | np.ndarray  # one axis
Ints = Sequence[int] | np.ndarray
Opt = Numbers | None  # None stands for a default or for no limit
ByName = Mapping[str, Numbers]  # coefficients or columns
Json = dict[str, Any]  # plain values, ready for JSON
