"""Laws vote with their draws on the number of experts; how far laws lie apart is an error of its own.

Each law has one vote, divided among its draws. A law without draws gives it to its best model by the median or,
under hours, to the best model in each draw of the speeds.
"""

import math

import numpy as np

from fit.messages import sentences
from fit.messages.finding import Finding, finding
from fit.messages.units import say
from fit.planning.several_laws.comparison import LawPlan, Spread, Vote, Votes, VotesOfLaw
from fit.planning.uncertainty.odds import Ranking

SAID = 3  # numbers of experts that the sentence names
VOTED = ("n_experts", "n_active", "n_tokens")


def of_law(ranking: Ranking) -> VotesOfLaw:
    """The votes of a law, by the best models of its problem in the draws."""
    draws = ranking.draws
    solved = ranking.solved
    experts = [row.n_experts for row in ranking.optima]
    best = np.argmin(solved.loss, axis=0)
    chosen = np.array(experts, float)[best]
    columns = dict(n_experts=chosen)
    for name in VOTED[1:]:
        columns[name] = getattr(solved, name)[best, np.arange(draws.n)]
    logs = {name: np.log(values) for name, values in columns.items()}
    return VotesOfLaw(
        draws=draws.n if draws.is_drawn else 0,
        has_law_draws=bool(draws.coefficients),
        experts=[Vote(n_experts=e, share=float(np.mean(chosen == e))) for e in experts if np.any(chosen == e)],
        log_mean={name: float(values.mean()) for name, values in logs.items()},
        log_spread={name: float(values.std()) for name, values in logs.items()},
    )


def together(plans: list[LawPlan]) -> Votes | None:
    """The votes of laws together; None where fewer than two chose a number of experts."""
    votes = [plan.votes for plan in plans if plan.votes is not None]
    if len(votes) < 2:
        return None
    shares: dict[int, float] = {}
    for vote in votes:
        for row in vote.experts:
            shares[row.n_experts] = shares.get(row.n_experts, 0.0) + row.share / len(votes)
    rows = [Vote(n_experts=n_experts, share=share) for n_experts, share in shares.items()]
    return Votes(
        laws=len(votes),
        with_draws=sum(vote.has_law_draws for vote in votes),
        mixture=sum(share for n_experts, share in shares.items() if n_experts > 1),
        experts=sorted(rows, key=lambda row: -row.share),
        spread=[_spread(name, votes) for name in VOTED],
    )


def _spread(name: str, votes: list[VotesOfLaw]) -> Spread:
    """How far a column is spread within laws, and between them."""
    within = [vote.log_spread[name] for vote in votes if vote.has_law_draws]
    between = float(np.std([vote.log_mean[name] for vote in votes], ddof=1))
    return Spread(
        column=name,
        within=math.exp(math.sqrt(float(np.mean(np.square(within))))) if within else None,
        between=math.exp(between),
    )


def finding_of(votes: Votes) -> Finding:
    """The line on the laws' votes."""
    counts = [say(sentences.VOTE, **row) for row in votes.experts[:SAID]]
    if len(votes.experts) > SAID:
        others = sum(row.share for row in votes.experts[SAID:])
        counts.append(say(sentences.VOTES_OTHERS, share=others))
    of_experts = votes.spread[0]
    within = "" if of_experts.within is None else say(sentences.VOTES_WITHIN, within=of_experts.within)
    shares = dict(laws=votes.laws, mixture=votes.mixture, counts=", ".join(counts))
    return finding("laws_vote", **shares, between=of_experts.between, within_laws=within)
