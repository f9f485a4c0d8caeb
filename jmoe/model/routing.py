"""Routing: which experts a token chooses, with what gates, and the auxiliary losses and metrics of the choices.

Axes (jmoe/model/__init__.py): A choices of a token, D, E, G, J choices of a group (first those of all its tokens, then
their second ones), N, S.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

# Of one layer: the two losses before their weights, share of choices dropped, entropy of the router in nats, choices of
# a group's busiest and idlest expert, each divided by the fair share.
METRICS = ("load_balance", "router_z", "drop_rate", "router_entropy", "max_load", "min_load")

MASKS = 32  # the most experts of which counting by one mask each is faster than a scatter


def router_logits(x_D: Float[Array, "... D"], router_DE: Float[Array, "D E"]) -> Float[Array, "... E"]:
    """Router logits in true float32, whatever the backend's default for matrices is."""
    return jnp.matmul(x_D.astype(jnp.float32), router_DE, precision=jax.lax.Precision.HIGHEST)


def top_k_experts(score_SE: Float[Array, "... S E"], top_k: int) -> Int[Array, "... S A"]:
    """The experts of the `top_k` largest scores; of equal scores the first."""
    if top_k == 1:  # argmax is faster than top_k, which sorts
        return jnp.argmax(score_SE, axis=-1, keepdims=True)
    return jax.lax.top_k(score_SE, top_k)[1]


def by_choice(x_SA: Num[Array, "... S A"]) -> Num[Array, "... J"]:
    """The choices in the order of J: the first choices of all tokens, then their second ones."""
    return jnp.moveaxis(x_SA, -1, -2).reshape(*x_SA.shape[:-2], -1)


def count_choices(expert_J: Int[Array, "... J"], n_experts: int) -> Int[Array, "... E"]:
    """How many of the choices fell on each expert, int32. A choice of expert number `n_experts` counts for none."""
    if n_experts <= MASKS:
        return jnp.sum(jax.nn.one_hot(expert_J, n_experts, dtype=jnp.int32), axis=-2)

    def count_group(expert_J: Int[Array, " J"]) -> Int[Array, " E"]:
        return jnp.zeros(n_experts, jnp.int32).at[expert_J].add(1)

    return jnp.vectorize(count_group, signature="(j)->(e)")(expert_J)


@dataclasses.dataclass(frozen=True)
class SortedChoices:
    """The choices of each group, sorted by expert and within an expert by J.

    Attributes:
      order_GJ: the choices of expert 0, then those of expert 1, ...
      place_GJ: how many choices of the same expert come before each choice.
      count_GE: the choices of each expert.
      first_GE: where the choices of each expert begin in order_GJ.
    """

    order_GJ: Int[Array, "G J"]
    place_GJ: Int[Array, "G J"]
    count_GE: Int[Array, "G E"]
    first_GE: Int[Array, "G E"]


def sort_by_expert(expert_GJ: Int[Array, "G J"], n_experts: int) -> SortedChoices:
    """Sorts the choices of each group by expert.

    A choice of expert number `n_experts` is of no expert: it comes last in order_GJ, and its place has no meaning.
    """
    n_choices = expert_GJ.shape[1]
    # one integer for expert and choice (below 2^31) sorts faster than a stable sort of pairs
    order_GJ = jnp.sort(expert_GJ * n_choices + jnp.arange(n_choices), axis=-1, stable=False) % n_choices

    def inverse(order_J: Int[Array, " J"]) -> Int[Array, " J"]:
        """The inverse of a permutation: a scatter is quicker than a second sort."""
        return jnp.zeros_like(order_J).at[order_J].set(jnp.arange(n_choices), unique_indices=True)

    rank_GJ = jnp.vectorize(inverse, signature="(j)->(j)")(order_GJ)
    count_GE = count_choices(expert_GJ, n_experts)
    first_GE = jnp.cumsum(count_GE, axis=-1) - count_GE
    place_GJ = rank_GJ - jnp.take_along_axis(first_GE, expert_GJ, axis=-1)
    return SortedChoices(order_GJ, place_GJ, count_GE, first_GE)


@dataclasses.dataclass(frozen=True)
class Scores:
    """A router's answer for each token.

    Attributes:
      score_GSE: what tokens choose by: probabilities, or sigmoids.
      probability_GSE: the scores divided by their sum.
      log_norm_GS: logsumexp of the logits.
      entropy_GS: of the probabilities, in nats.
    """

    score_GSE: Float[Array, "G S E"]
    probability_GSE: Float[Array, "G S E"]
    log_norm_GS: Float[Array, "G S"]
    entropy_GS: Float[Array, "G S"]


def router_scores(logits_GSE: Float[Array, "G S E"], score_fn: str) -> Scores:
    """The scores of a router's logits; score_fn: "softmax" or "sigmoid"."""
    # one exponential serves softmax, logsumexp and log_softmax; less the largest logit it cannot overflow
    max_GS = jax.lax.stop_gradient(jnp.max(logits_GSE, axis=-1))
    shifted_GSE = logits_GSE - max_GS[:, :, None]
    exp_GSE = jnp.exp(shifted_GSE)
    norm_GS = jnp.sum(exp_GSE, axis=-1)
    log_norm_GS = jnp.log(norm_GS)
    if score_fn == "softmax":
        probability_GSE = exp_GSE / norm_GS[:, :, None]
        entropy_GS = log_norm_GS - jnp.sum(probability_GSE * shifted_GSE, axis=-1)
        return Scores(probability_GSE, probability_GSE, log_norm_GS + max_GS, entropy_GS)
    score_GSE = jax.nn.sigmoid(logits_GSE)
    probability_GSE = score_GSE / (jnp.sum(score_GSE, axis=-1, keepdims=True) + 1e-20)
    entropy_GS = -jnp.sum(jax.scipy.special.xlogy(probability_GSE, probability_GSE), axis=-1)
    return Scores(score_GSE, probability_GSE, log_norm_GS + max_GS, entropy_GS)


class Routing(NamedTuple):
    """Where the tokens of each group go.

    Attributes:
      expert_GJ: the chosen experts.
      gate_GJ: their scores, or shares of their sum, in float32.
      metrics: METRICS but drop_rate, of each group [G]. With a bias or `counts_choices` also `chosen`, int32 [G, E]:
        choices of each expert.
    """

    expert_GJ: Int[Array, "G J"]
    gate_GJ: Float[Array, "G J"]
    metrics: dict[str, Array]


def route(
    logits_GSE: Float[Array, "G S E"],
    bias_E: Float[Array, " E"] | None = None,
    *,
    top_k: int = 1,
    normalize: bool = True,
    score_fn: str = "softmax",
    counts_choices: bool = False,
) -> Routing:
    """Chooses experts by logits.

    Args:
      logits_GSE: of the router.
      bias_E: added to the scores for the choice, not for the gates (Wang et al. 2024, DeepSeek-V3).
      top_k: choices of a token.
      normalize: gates of several choices are divided by their sum. A single choice keeps its score as its gate: with a
        gate of 1 the router would learn nothing from the language-model loss.
      score_fn: "softmax" or "sigmoid" of the logits.
      counts_choices: whether the metrics have `chosen` without a bias, too.
    """
    scores = router_scores(logits_GSE, score_fn)
    score_GSE = scores.score_GSE
    if bias_E is None:
        ranking_GSE = logits_GSE  # the scores have the same order, but rounding makes some equal
    else:
        ranking_GSE = score_GSE + bias_E
    expert_GSA = top_k_experts(ranking_GSE, top_k)
    gate_GSA = jnp.take_along_axis(score_GSE, expert_GSA, axis=2)
    if normalize and top_k > 1:
        gate_GSA /= jnp.sum(gate_GSA, axis=2, keepdims=True) + 1e-20  # all sigmoids may be nearly 0
    expert_GJ = by_choice(expert_GSA)
    gate_GJ = by_choice(gate_GSA)

    count_GE = count_choices(expert_GJ, logits_GSE.shape[-1])
    metrics = router_metrics(scores, count_GE, expert_GJ.shape[1])
    if bias_E is not None or counts_choices:
        metrics["chosen"] = count_GE
    return Routing(expert_GJ, gate_GJ, metrics)


def router_metrics(scores: Scores, count_GE: Int[Array, "G E"], n_choices: int) -> dict[str, Float[Array, " G"]]:
    """METRICS but drop_rate, of each group with `n_choices` choices.

    load_balance = E sum_e mean_s(share of the token's scores)_e (share of choices)_e (Fedus et al. 2021, Eq. 4-6),
    router_z = mean_s logsumexp^2 (Zoph et al. 2022, Eq. 5), router_entropy = mean_s entropy.
    """
    n_experts = count_GE.shape[-1]
    share_GE = count_GE / n_choices
    load_GE = n_experts * share_GE  # over the fair share, 1 / E
    return {
        "load_balance": n_experts * jnp.sum(jnp.mean(scores.probability_GSE, axis=1) * share_GE, axis=-1),
        "router_z": jnp.mean(scores.log_norm_GS**2, axis=-1),
        "router_entropy": jnp.mean(scores.entropy_GS, axis=-1),
        "max_load": jnp.max(load_GE, axis=-1),
        "min_load": jnp.min(load_GE, axis=-1),
    }


def updated_bias(bias_E: Float[Array, "... E"], chosen_E: Int[Array, "... E"], rate: float) -> Float[Array, "... E"]:
    """The bias after a step in which each expert got `chosen` choices: `rate` more for experts below the mean, `rate`
    less for those above it (Wang et al. 2024).

    The choices are whole numbers, so that the bias is the same on any mesh and with any number of microbatches.
    """
    mean = jnp.sum(chosen_E, axis=-1, keepdims=True) / chosen_E.shape[-1]
    return bias_E + rate * jnp.sign(mean - chosen_E)


def is_count(metric: Array) -> bool:
    """Whether a metric is summed over groups, devices and microbatches; all others are averaged."""
    return jnp.issubdtype(metric.dtype, jnp.integer)
