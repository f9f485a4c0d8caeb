"""A model that a plan has chosen: the best with one number of experts, or the one to build.

Both have counts, loss, memory, shape, speed and cost under the same names.
"""

from fit.planning.chosen.buildable import Buildable
from fit.planning.chosen.optimum import Optimum

ChosenModel = Optimum | Buildable
