"""Names of types that several rooms annotate with."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray
Numbers = float | np.ndarray  # one or an array; several of them broadcast together
Floats = Sequence[float] | np.ndarray  # in a row
Ints = Sequence[int] | np.ndarray
Opt = Numbers | None
ByName = Mapping[str, Numbers]  # coefficients or columns
Json = dict[str, Any]  # plain values, ready for JSON
