"""The best (n_active, n_tokens, n_experts) for a law under constraints.

At a given number of experts every law here is L = m N^mu + n D^nu + c with mu, nu < 0 (Eq. 5). More tokens never hurt, so
tokens are all that the budget, the inference share and the cap leave, and one unknown remains, N. Without inference
tokens its optimum is in closed form (App. C; the G of Eq. 9 has the wrong sign as printed); with them it is a root of a
monotone function. The loss falls before the optimum and rises after it, so any other constraint cuts it off at its bound.
"""

import dataclasses

import numpy as np

from fit import UserError
from fit.architecture import FLOPS_PER_PARAMETER_INFERENCE as INFERENCE
from fit.architecture import FLOPS_PER_PARAMETER_TRAINING as TRAINING
from fit.lawfile import EXPERTS
from fit.roots import root

BAND = 1e-3  # near-optimal: within this share of the best loss


@dataclasses.dataclass(frozen=True)
class Constraints:
    """What a plan must respect; any may be None. Numbers, or arrays that broadcast with the number of experts.

    flops: training, 6 N D, plus 2 N inference_tokens. memory_bytes: weights and key-value cache, over all devices.
    kv_tokens: tokens in the cache. max_tokens: the most training tokens there are.
    """

    flops: float | None = None
    memory_bytes: float | None = None
    bytes_per_parameter: float = 2.0
    kv_tokens: float = 0.0
    bytes_per_kv_element: float = 2.0
    inference_tokens: float = 0.0
    max_tokens: float | None = None


@dataclasses.dataclass
class Optima:
    """Arrays of one shape. n_active and d_model are real numbers; loss in nats per token; NaN where not feasible.

    size_bound says what fixed n_active: "" (free optimum), "memory", "tokens" (all tokens used) or "smallest".
    """

    n_experts: np.ndarray
    n_active: np.ndarray
    n_total: np.ndarray
    n_tokens: np.ndarray
    loss: np.ndarray
    d_model: np.ndarray
    size_bound: np.ndarray
    feasible: np.ndarray


def compute_optimal(m, mu, n, nu, flops):
    """(N, D) that minimise m N^mu + n D^nu with 6 N D = flops (App. C), any shape."""
    size = (m * mu / (n * nu)) ** (-1 / (mu + nu)) * (flops / TRAINING) ** (nu / (mu + nu))
    return size, flops / (TRAINING * size)


def memory_bytes(architecture, constraints, d_model, n_experts):
    """Bytes of weights and cache."""
    return constraints.bytes_per_parameter * architecture.n_total(
        d_model, n_experts
    ) + constraints.bytes_per_kv_element * architecture.kv_elements(d_model, constraints.kv_tokens)


def tokens(constraints, n_active):
    """Training tokens that the constraints leave a model of n_active parameters; may be 0 or negative."""
    left = np.inf
    if constraints.flops is not None:
        left = constraints.flops / (TRAINING * n_active) - INFERENCE / TRAINING * constraints.inference_tokens
    return np.minimum(left, np.inf if constraints.max_tokens is None else constraints.max_tokens)


def _excess_memory(log_d, linear, square, cube, limit):
    d = np.exp(log_d)
    return np.log(linear * d + square * d**2 + cube * d**3) - np.log(limit)


def _gain_over_cost(log_n, m, mu, n, nu, budget, inference):
    """Logarithm of what a larger model gains over what its lost tokens cost; falls with log_n, zero at the optimum."""
    d = budget * np.exp(-log_n) - inference
    return (np.log(m * -mu) + mu * log_n) - (np.log(n * -nu) + (nu - 1) * np.log(d) + np.log(budget) - log_n)


def solve(reduced, n_experts, architecture, constraints):
    """Optima at each n_experts, given reduced = (m, mu, n, nu, c) there; everything broadcasts together.

    Raises UserError if the constraints leave size or tokens without a bound, or the law has no optimum.
    """
    m, mu, n, nu, c, n_experts = np.broadcast_arrays(*reduced, np.asarray(n_experts, float))
    if not (np.all(mu < 0) and np.all(nu < 0)):
        at = n_experts[(mu >= 0) | (nu >= 0)].ravel()[0]
        raise UserError(
            f"at n_experts = {at:g} this law's loss does not fall with n_active or n_tokens (exponents "
            f"{np.max(mu):.4g}, {np.max(nu):.4g}): it has no optimum; fit it to more runs"
        )
    flops, limit = constraints.flops, constraints.memory_bytes
    if flops is None and (limit is None or constraints.max_tokens is None):
        raise UserError("nothing bounds the plan: give --flops, or both --memory_gb and --max_tokens")
    if flops is None and np.any(np.asarray(constraints.inference_tokens) > 0):
        raise UserError("--inference_tokens share the budget of --flops, which is not given")
    if flops is not None:
        m, mu, n, nu, c, n_experts, _ = np.broadcast_arrays(m, mu, n, nu, c, n_experts, np.asarray(flops, float))
    if limit is not None:
        m, mu, n, nu, c, n_experts, _ = np.broadcast_arrays(m, mu, n, nu, c, n_experts, np.asarray(limit, float))

    smallest_d = float(architecture.width_per_block)
    smallest = architecture.n_active(smallest_d)
    largest = np.inf
    feasible = np.ones(m.shape, bool)
    if limit is not None:
        weight, cache = constraints.bytes_per_parameter, constraints.bytes_per_kv_element
        cube = weight * (4 + 9 * n_experts) / architecture.width_per_block
        top = np.maximum(np.log(np.asarray(limit) / cube) / 3, np.log(smallest_d) + 1e-9)
        log_d = root(
            _excess_memory,
            np.log(smallest_d),
            top,
            weight * 2 * architecture.vocab_size,
            cache * architecture.kv_elements(1.0, constraints.kv_tokens),
            cube,
            limit,
        )
        feasible &= memory_bytes(architecture, constraints, smallest_d, n_experts) <= limit
        largest = architecture.n_active(np.exp(log_d))
    feasible = feasible & (tokens(constraints, smallest) >= 1)

    bound = np.full(m.shape, "", dtype=object)
    if flops is None:
        size, bound[...] = largest, "memory"
    else:
        size, _ = compute_optimal(m, mu, n, nu, flops)
        if np.any(np.asarray(constraints.inference_tokens) > 0):
            budget, inference = flops / TRAINING, INFERENCE / TRAINING * constraints.inference_tokens
            top = np.log(budget / np.maximum(inference, 1e-300))  # here no token is left to train on
            with_inference = np.exp(
                root(_gain_over_cost, top - 200, top - 1e-13 * abs(top), m, mu, n, nu, budget, inference)
            )
            size = np.where(np.asarray(constraints.inference_tokens) > 0, with_inference, size)
        if constraints.max_tokens is not None:
            all_tokens = flops / (TRAINING * constraints.max_tokens + INFERENCE * constraints.inference_tokens)
            bound[all_tokens > size] = "tokens"
            size = np.maximum(size, all_tokens)
        bound[size > largest] = "memory"
        size = np.minimum(size, largest)
    bound[size < smallest] = "smallest"
    size = np.where(feasible, np.maximum(size, smallest), np.nan)
    trained = np.where(feasible, tokens(constraints, size), np.nan)
    d_model = architecture.d_model(size)
    with np.errstate(invalid="ignore"):
        loss = m * size**mu + n * trained**nu + c
    return Optima(n_experts, size, architecture.n_total(d_model, n_experts), trained, loss, d_model, bound, feasible)


def allowed_experts(fitted, experts):
    """The numbers of experts a plan compares: the asked ones, or 1 alone for a law that knows dense models only."""
    return np.array(sorted(experts), float) if fitted.knows_experts else np.array([1.0])


def why_infeasible(architecture, constraints, n_experts):
    """One sentence: which constraint cannot be met at the least demanding n_experts, and by how much."""
    d, least = float(architecture.width_per_block), float(np.min(n_experts))
    smallest = f"the smallest model (1 block of width {d:g}, n_experts = {least:g})"
    if constraints.memory_bytes is not None:
        need = memory_bytes(architecture, constraints, d, least)
        if need > constraints.memory_bytes:
            return (
                f"--memory_gb cannot be met: {smallest} needs {need / 1e9:.4g} GB with its cache, "
                f"{need / constraints.memory_bytes:.3g} times the {constraints.memory_bytes / 1e9:.4g} GB there are"
            )
    size = architecture.n_active(d)
    inference, one = INFERENCE * size * constraints.inference_tokens, TRAINING * size
    need = inference + one
    share = f" ({inference:.4g} of it for --inference_tokens)" if inference else ""
    return (
        f"--flops cannot be met: {smallest} needs {need:.4g} FLOPs to train on a single token{share}, "
        f"{need / constraints.flops:.3g} times the {constraints.flops:.4g} there are"
    )


def optima(fitted, architecture, constraints, experts=EXPERTS):
    """Optima at each allowed number of experts; UserError if none is feasible, naming the constraint that binds."""
    experts = allowed_experts(fitted, experts)
    found = solve(fitted.at_experts(experts), experts, architecture, constraints)
    if not found.feasible.any():
        raise UserError(why_infeasible(architecture, constraints, experts))
    return found


def flops_of_dense(fitted, architecture, constraints, loss):
    """FLOPs at which the best dense model under the same other constraints reaches `loss`; None if none ever does."""

    def excess(log_flops):
        at = dataclasses.replace(constraints, flops=np.exp(log_flops))
        dense = solve(fitted.at_experts(1.0), 1.0, architecture, at)
        return np.where(dense.feasible, dense.loss - loss, np.inf)

    low = np.log(constraints.flops)
    high = low + np.log(1e12)
    if excess(low) <= 0:
        return constraints.flops
    if excess(high) > 0:
        return None
    for _ in range(8):  # 64 parts each time: to 1e-13
        grid = np.linspace(low, high, 65)
        first = int(np.argmax(excess(grid) <= 0))
        low, high = grid[first - 1], grid[first]
    return float(np.exp(high))


def _excess_loss(log_n, m, mu, n, nu, c, budget, inference, most, target):
    d = np.minimum(budget * np.exp(-log_n) - inference, most)
    return m * np.exp(mu * log_n) + n * d**nu + c - target


def near_optimal(fitted, architecture, constraints, found):
    """For each of `found` the (smallest, largest) n_active whose loss is within BAND of the best; NaN where none is."""
    m, mu, n, nu, c = fitted.at_experts(found.n_experts)
    target = np.nanmin(found.loss) * (1 + BAND)
    budget = np.inf if constraints.flops is None else constraints.flops / TRAINING
    inference = INFERENCE / TRAINING * constraints.inference_tokens
    most = np.inf if constraints.max_tokens is None else constraints.max_tokens
    smallest = architecture.n_active(float(architecture.width_per_block))
    inside = found.feasible & (found.loss <= target)
    largest = np.full(found.n_active.shape, np.inf)
    if constraints.memory_bytes is not None:  # the bound that solve found where it cut, else found by asking for it
        only_memory = dataclasses.replace(constraints, flops=None, inference_tokens=0.0, max_tokens=1.0)
        largest = solve((m, mu, n, nu, c), found.n_experts, architecture, only_memory).n_active
    if constraints.flops is not None:
        last = budget / (inference + 1.0)  # one token left
        largest = np.minimum(largest, last)
    at = np.log(np.where(inside, found.n_active, 1.0))
    data = (m, mu, n, nu, c, budget, inference, most, target)
    ends = []
    for end in (np.log(smallest), np.log(largest)):
        end = np.where(inside, end, 0.0)
        edge = root(_excess_loss, at, end, *data)
        ends.append(np.where(inside, np.exp(np.where(np.isnan(edge), end, edge)), np.nan))  # no root: the bound itself
    return ends


def rule_of_thumb(fitted, architecture, flops, experts):
    """Checks Sec. 4.5: an MoE of E <= 8 with the compute-optimal dense model's total parameters, on E times its tokens, is
    better. One dictionary for each E in experts of 2 to 8."""
    dense = solve(fitted.at_experts(1.0), 1.0, architecture, Constraints(flops=flops))
    rows = []
    for e in experts:
        if not 1 < e <= 8:
            continue
        same = Constraints(
            memory_bytes=float(dense.n_total), bytes_per_parameter=1.0, max_tokens=float(e * dense.n_tokens)
        )
        moe = solve(fitted.at_experts(e), e, architecture, same)
        if moe.feasible:
            rows.append(
                dict(
                    n_experts=int(e),
                    n_active=float(moe.n_active),
                    n_tokens=float(moe.n_tokens),
                    loss=float(moe.loss),
                    dense_loss=float(dense.loss),
                    holds=bool(moe.loss < dense.loss),
                    flops_ratio=float(TRAINING * moe.n_active * moe.n_tokens / flops),
                )
            )
    return rows
