"""The constraint that leaves no model, and by how much."""

import numpy as np
from numpy.typing import ArrayLike

from fit.aliases import Json
from fit.errors import UserError
from fit.messages import sentences
from fit.messages.units import say
from fit.model.architecture import INFERENCE, training_flops
from fit.planning.inputs.problem import Problem
from fit.planning.search.size_limits import SizeLimit, size_limits
from fit.planning.space import size_speeds


class NoModel(UserError):
    """No model is within the limits; the sentence is the `reason`."""


def reason(problem: Problem, n_experts: ArrayLike) -> str:
    """The constraint that cannot be met, and by how much, as one sentence.

    Args:
      problem: The problem.
      n_experts: Those compared; the reason is that of the fewest that are enough.
    """
    architecture = problem.architecture
    n_experts = np.atleast_1d(n_experts)
    enough = architecture.has_enough_experts(n_experts)
    if not enough.any():
        return say(sentences.TOO_FEW_EXPERTS, e=np.max(n_experts), used=architecture.top_k)
    e = float(np.min(n_experts[enough]))
    problem = problem.at(e)
    size = float(architecture.n_active(architecture.smallest, e))
    inference = INFERENCE * size * problem.constraints.inference_tokens
    needed_flops = training_flops(size, 1) + inference
    flops = problem.constraints.flops
    lacks_flops = flops is not None and needed_flops > np.max(flops)
    for limit in size_limits(problem):
        need = float(limit.required(architecture.smallest, e))
        # chips train no model on less than a token
        if need > limit.available and not (limit.name == "chips" and lacks_flops):
            return _size(problem, e, limit, need)
    if problem.is_by_hours:
        return _hours(problem, e)
    return say(
        sentences.FLOPS_TOO_FEW,
        budget=problem.constraints.budget_flag,
        smallest=_smallest(problem, e),
        need=needed_flops,
        limit=flops,
        times=needed_flops / flops,
        share=say(sentences.INFERENCE_SHARE, inference=inference) if inference else "",
    )


def _smallest(problem: Problem, e: float) -> str:
    """The smallest model, in words."""
    d_model = problem.architecture.smallest
    n_blocks = round(d_model / problem.architecture.width_per_block)
    return say(sentences.SMALLEST if n_blocks == 1 else sentences.SMALLEST_OF, d=d_model, e=e, blocks=n_blocks)


def _size(problem: Problem, e: float, limit: SizeLimit, need: float) -> str:
    """A limit on the size that the smallest model exceeds. need: what that model needs."""
    constraints = problem.constraints
    smallest = _smallest(problem, e)
    serving = constraints.serving
    if limit.name == "serving" and serving is not None:
        values = dict(wanted=serving.tokens_per_second, nearest=serving.batch / need, batch=serving.batch)
        return say(sentences.SERVED_TOO_SLOWLY, smallest=smallest, **values, **vars(serving.chips))
    if limit.name == "chips" and not problem.has_paper_shape:
        return _mesh(problem, e)
    gigabytes = dict(need=need / 1e9, limit=limit.available / 1e9, times=need / limit.available)
    if limit.name == "chips":
        return say(sentences.CHIPS_TOO_FEW, smallest=smallest, **gigabytes, **_chips(problem))
    return say(sentences.MEMORY_TOO_SMALL, smallest=smallest, flag=limit.flag, **gigabytes)


def _chips(problem: Problem) -> Json:
    """{kind, count} of the chips."""
    return dict(kind=problem.chips.kind, count=problem.chips.count)


def _mesh(problem: Problem, e: float) -> str:
    """Chips that train no model with this number of experts."""
    fixed = problem.request.fixed_mesh
    if fixed.is_given:
        fields = [f"{name}:{value}" for name, value in vars(fixed).items() if value is not None]
        return say(sentences.NO_SUCH_MESH, flags=f"--mesh={','.join(fields)}")
    return say(sentences.NOTHING_TRAINED, e=e, **_chips(problem))


def _hours(problem: Problem, e: float) -> str:
    """Hours in which the chips train no model."""
    if not any(size_speeds.trains_any(problem, n_experts) for n_experts in (1.0, e)):
        return say(sentences.NOTHING_TIMED, **_chips(problem))
    if not size_speeds.trains_any(problem, e):
        return say(sentences.NOTHING_TRAINED, e=e, **_chips(problem))
    return say(sentences.HOURS_TOO_FEW, budget=problem.constraints.budget_flag, smallest=_smallest(problem, e))
