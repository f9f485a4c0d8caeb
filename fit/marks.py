"""What to know before an answer is trusted, in the same words everywhere."""

from fit import lawfile
from fit.architecture import PAPER

DECIDED = 0.8  # share of the draws in which the best number of experts must be the best


def marked(fitted, row):
    """The row with what of it lies outside what the law was fitted to, as FittedLaw.extrapolation tells."""
    return row | dict(extrapolation=fitted.extrapolation(row["n_active"], row["n_tokens"], row["n_experts"]))


def of_plan(fitted, architecture, plan, experts):
    """What to know before trusting the best row: what of it lies outside what was fitted (extrapolation), whether its
    experts are at the edge of those compared (best_at_edge) or undecided by the draws (best_undecided, None without
    draws); and that in sentences (warnings)."""
    best, sentences = plan["best"], []
    e = best["n_experts"]
    if best["extrapolation"]:
        sentences.append("the best is " + lawfile.warning_of(best["extrapolation"]))
    edge = fitted.knows_experts and at_edge(experts, e)
    if edge:
        which = "largest" if e == max(experts) else "smallest"
        sentences.append(f"the best number of experts, {e}, is the {which} of those compared: one beyond may be better")
    undecided, drawn = None, plan.get("bootstrap")
    if drawn:
        wins = {row["n_experts"]: row["best_in_draws"] for row in drawn["optima"]}
        undecided = wins.get(e, 0) < DECIDED * drawn["draws"]
    if undecided:
        told = ", ".join(f"{n} in {w}" for n, w in sorted(wins.items(), key=lambda item: -item[1]) if w)
        sentences.append(f"the best number of experts is undecided: of {drawn['draws']} bootstrap fits it is {told}")
    if not fitted.ranges:
        sentences.append("the law does not say what range it was fitted to")
    unknown = [name for name in ("vocab_size", "width_per_block") if fitted.models[name] is None]
    if unknown and architecture == PAPER:
        sentences.append(
            f"the law does not say the {' and '.join(unknown)} of its models; taken to be "
            + " and ".join(f"{getattr(architecture, name):,}" for name in unknown)
        )
    return dict(extrapolation=best["extrapolation"], best_at_edge=edge, best_undecided=undecided, warnings=sentences)


def at_edge(experts, e):
    """Whether e is the largest or the smallest of several numbers of experts, and there may be others beyond it."""
    return bool(len(experts) > 1 and (e == max(experts) or e == min(experts) > 1))
