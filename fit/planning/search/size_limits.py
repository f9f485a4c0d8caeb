"""The bounds on a real size beside the budget: memory, speed of serving, and the chips that train it.

Those of the grid's shapes, which plans by hours choose from, are in space/model_grid.py.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from fit.aliases import Array, Numbers
from fit.model.architecture import root
from fit.planning.inputs.problem import Problem
from fit.planning.space import fewest_chips, size_speeds

BELOW_SMALLEST = 1e-9  # a limit may hold the smallest model exactly, and rounding must not put it outside


@dataclasses.dataclass(frozen=True)
class SizeLimit:
    """A bound on the size of a model.

    Attributes:
      name: "memory" of the served model, "chips" that hold its training, or "serving", how fast it decodes.
      required: what a model needs, a function of d_model and n_experts: bytes, for "serving" seconds of a step.
      available: what there is of it.
      flag: the flag that gives a limit of memory, for errors.
    """

    name: str
    required: Callable[[Numbers, Numbers], Numbers]
    available: Numbers
    flag: str = "--memory_gb"


def size_limits(problem: Problem) -> list[SizeLimit]:
    """The bounds on the size of models.

    Chips hold the training of models of the paper's shape by its memory. Models of other shapes depend on their meshes:
    they are at most as large as the largest shape of the grid that the chips train.
    """
    constraints = problem.constraints
    limits = []

    def memory(d_model: Numbers, n_experts: Numbers) -> Numbers:
        """Bytes of weights and cache."""
        return constraints.memory(problem.architecture, d_model, n_experts)

    if constraints.memory_bytes is not None:
        limits.append(SizeLimit("memory", memory, constraints.memory_bytes))
    chips = constraints.chips
    if chips and problem.has_paper_shape:

        def training_bytes(d_model: Numbers, n_experts: Numbers) -> Numbers:
            """Bytes of the smallest step."""
            return fewest_chips.least_bytes(chips, problem.architecture.shape(d_model, n_experts))

        limits.append(SizeLimit("chips", training_bytes, chips.memory_share * chips.memory))
    serving = constraints.serving
    if serving:

        def step_seconds(d_model: Numbers, n_experts: Numbers) -> Numbers:
            """Seconds of a step of decoding."""
            return serving.step_seconds(constraints.served(problem.architecture.shape(d_model, n_experts)))

        flag = f"--serve=tokens_per_second on {serving.chips.count} x {serving.chips.kind}"
        limits.append(SizeLimit("memory", memory, serving.chips.memory, flag))
        limits.append(SizeLimit("serving", step_seconds, serving.most_seconds))
    if chips and not problem.has_paper_shape and not problem.is_by_hours:

        def share_of_largest(d_model: Numbers, n_experts: Numbers) -> Numbers:
            """Active parameters over those of the largest model that the chips train; infinite without one."""
            each, index = np.unique(np.asarray(n_experts, float), return_inverse=True)
            largest = np.array([size_speeds.largest_trained(problem, e) for e in each])
            with np.errstate(divide="ignore"):
                return problem.architecture.n_active(d_model, n_experts) / largest[index.reshape(np.shape(n_experts))]

        limits.append(SizeLimit("chips", share_of_largest, 1.0))
    return limits


def largest_size(problem: Problem, n_experts: Array) -> tuple[Numbers, str | Array]:
    """(n_active of the largest model within memory, chips and speed of serving, infinite without these; which of them
    it is)."""
    architecture = problem.architecture
    largest: Numbers = np.inf
    bound: str | Array = "memory"
    for limit in size_limits(problem):

        def excess(log_d: Numbers, limit: SizeLimit = limit) -> Numbers:
            """Logarithm of what is needed over the limit, at this logarithm of the width."""
            return np.log(limit.required(np.exp(log_d), n_experts)) - np.log(limit.available)

        low = np.log(architecture.smallest) - BELOW_SMALLEST
        high = low + 1
        while np.any(excess(high) < 0):
            high += 1
        size = architecture.n_active(np.exp(root(excess, low, high)), n_experts)
        bound = np.where(size < largest, limit.name, bound)
        largest = np.fmin(size, largest)
    return largest, bound
